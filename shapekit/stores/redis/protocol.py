"""Protocol: the commands that one program under one name sends to Redis, and how it reads the replies.

Nothing here does I/O: `converse` yields commands and is sent the replies, so that the synchronous and the
asynchronous client share all of it.

Keyspace: the Redis keys of states, chosen for Redis Cluster. A key of `name` is `prefix:{name:key}`, each in
a hash slot of its own. If the parts of a composite have keys of their own, these are
`prefix:{name}:part:key`, together in one hash slot, so that one script may change them all. In a name `%`,
`:`, `{` and `}` are written as `%25` and so on; a key may be any text. A key longer than 256 bytes is cut to
its beginning and a hash of the whole, which together are longer than 256 bytes, so that no short key can be
the same.

The linker: puts the Lua twins together into the scripts that the operations of a program need.

A server runs a script from its first line at every call, and defining a function takes time even if nothing
calls it. So a script contains only the functions that its operations can reach, by name; and each class is
made with room for its methods, since growing one by one takes longer than everything else.

The files are read once, before the first script is put together. A store does that when an operation is
bound: while a caller waits, it only picks a script.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import groupby
from struct import unpack
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakMethod

from redis.exceptions import NoScriptError

from shapekit._runtime import process
from shapekit.algorithms.base import CHECK, Operation, Run
from shapekit.algorithms.compose import Composite, of_one_kind
from shapekit.clock import Clock
from shapekit.errors import ConfigError, ShapekitError, whose
from shapekit.rate import SECOND_US
from shapekit.stores.base import DamagedStateError, Key, Settings, Stored, beyond, continued, part_keys, warn
from shapekit.stores.encoding import describe, is_misfit, plain_bytes, plain_text, revived, shown, sound, tag
from shapekit.stores.redis.connections import unavailable

LONGEST = 256
_ESCAPED = {ord(mark): f"%{ord(mark):02X}" for mark in "%:{}"}


class Keyspace:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._states = plain_bytes(f"{prefix}:{{")
        self._programs = plain_bytes(f"{prefix}:program:")
        self._settings = plain_bytes(f"{prefix}:setting:")
        self.pattern, self.setting_pattern = _beginning(self._states), _beginning(self._settings)
        """The SCAN patterns of all keys with states, and of all keys with overrides."""

    def of_name(self, name: str) -> bytes:
        """The beginning of all keys of a name that hold one state each."""
        return self._states + _escaped(name) + b":"

    def of_part(self, name: str, part: str, key: str) -> bytes:
        """The Redis key of one part of a composite whose parts have keys of their own."""
        return self._states + _escaped(name) + plain_bytes(f"}}:{part}:") + bounded(key)

    def of_programs(self, name: str) -> bytes:
        """The Redis key with the descriptions of the programs that run under `name`."""
        return self._programs + _escaped(name)

    def of_settings(self, name: str) -> bytes:
        """The Redis key with the overrides of a name."""
        return self._settings + _escaped(name)

    def set_name(self, place: bytes) -> str:
        """The name whose overrides are at this Redis key."""
        return _plain(plain_text(place.removeprefix(self._settings)))

    def is_state(self, key: bytes) -> bool:
        """Whether a Redis key holds a state: others, such as Celery's parked tasks, may begin alike."""
        tag, _, rest = key.removeprefix(self._states).partition(b"}")
        return key.endswith(b"}") if b":" in tag else rest.startswith(b":")

    def shown(self, key: bytes) -> str:
        """A state's key as `name:key`, or `name:part:key`."""
        return shown(*self.place(key))

    def place(self, key: bytes) -> tuple[str, str, str]:
        """The name, the part (empty unless parts have keys of their own) and the key in a Redis key."""
        text = plain_text(key.removeprefix(self._states))
        colon, brace = text.find(":"), text.find("}")
        if 0 <= colon < brace:
            return _plain(text[:colon]), "", text[colon + 1 : -1]
        part, _, own = text[brace + 2 :].partition(":")
        return _plain(text[:brace]), part, own


def bounded(key: str) -> bytes:
    """The text of a key; if it is too long, its beginning and a hash."""
    text = key.encode("utf-8", "surrogatepass")  # `plain_bytes`, written out, since every call runs this
    if len(text) <= LONGEST:
        return text
    end = LONGEST - 64
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end] + b"#" * 8 + sha256(text).hexdigest().encode()


def _beginning(text: bytes) -> bytes:
    """The SCAN pattern of all keys that begin with this text."""
    plain = (b"\\" + bytes([byte]) if byte in b"\\*?[]" else bytes([byte]) for byte in text)
    return b"".join(plain) + b"*"


def _escaped(name: str) -> bytes:
    return plain_bytes(name.translate(_ESCAPED))


def _plain(escaped: str) -> str:
    for code, text in reversed(_ESCAPED.items()):
        escaped = escaped.replace(text, chr(code))
    return escaped


Command: TypeAlias = tuple[Any, ...]
"""The words of a command; its key decides which server of a cluster runs it (`key_of`)."""
Conversation: TypeAlias = Generator[Command, Any, Any]
Call: TypeAlias = tuple[Operation, tuple[Any, ...], str]
"""One call, and when it was made."""

ANSWERS_AT_MOST = 100
"""How often a conversation may start over before that counts as an error."""
OVERTAKEN_AT_MOST = 1
"""How often a program that continues another program's state may find it changed once more. If the other
program has calls on every trip, that would go on for ever."""
FLOOR_MS = 3_600_000
"""The least TTL if a clock was injected: the server's own time passes at another speed."""
KNOWN_FOR_S = 800 * 86_400
"""How long the description of a program is kept after it was last written: longer than the state of a yearly
quota, which lives for two years."""
KEYS_AT_ONCE = 1_000
"""The most keys of one script call: a longer script would make all other clients wait."""
INTRODUCED_FOR_S = 10.0
"""How often a program in use writes its description again: the server may have been emptied."""
_INTRODUCTION = """
redis.call("HSET", KEYS[1], unpack(ARGV, 3))
redis.call("EXPIRE", KEYS[1], ARGV[1])
return redis.call("HGET", KEYS[1], ARGV[2])
"""
"""The script that writes descriptions in a cluster, where they may be on another server than a state."""
_ASKED_EVERY_S = 1.0
"""How often overrides are read in a cluster, where they may be on another server than a state."""
_STATING = """
local found = redis.call("HGET", KEYS[1], "version")
if not found or string.find(found, "%D") then found = "" end
if found ~= ARGV[1] then return 0 end
redis.call("HSET", KEYS[1], "version", ARGV[2], "overrides", ARGV[3])
return 1
"""
_TIME = 'return redis.call("TIME")'
_INSTANTS = 8
_DAMAGED = "DAMAGED "
"""The first word of the twins' error for a value that is not a state of its program."""
_OF_ANOTHER_TYPE = "WRONGTYPE "
"""The first word of Redis' own error for a value that is not a string."""


class RedisProgram:
    """A program under a name: its scripts, its keys, and its commands."""

    def __init__(
        self,
        keyspace: Keyspace,
        name: str,
        program: Any,
        clock: Clock,
        writers: dict[int, Any],
        settings: Settings,
        elsewhere: WeakMethod[Callable[[str, Any], RedisProgram]],
        hears: WeakMethod[Callable[[str], object]],
        *,
        injected: bool,
        is_cluster: bool = False,
    ) -> None:
        """`writers` are the programs that the store knows by their tags; each is read once. `elsewhere` finds
        the RedisProgram of another program, for keys with an override; `hears` reads the overrides of a name.
        """
        self._settings = settings
        self._elsewhere, self._hears = elsewhere, hears
        self._place = keyspace.of_settings(settings.name)
        self._words = (self._place,)
        self.name = name
        self.program = program
        self._clock = clock
        self._injected = injected
        self._is_cluster = is_cluster
        self._keyspace = keyspace
        self._prefix = keyspace.of_name(name)
        self._programs = keyspace.of_programs(name)
        own = (program, *getattr(program, "parts", ()))
        self._descriptions = [describe(part) for part in own]
        self._introduction = [part for text in self._descriptions for part in (str(tag(text)), text)]
        self._writers = writers
        self._writers.update(zip(map(tag, self._descriptions), own, strict=True))
        self._lost: set[int] = set()
        self._introduced_at = -INTRODUCED_FOR_S
        self._heard_at = -_ASKED_EVERY_S
        self._instants: list[int] = []
        self._modes = ("one", "parts") if isinstance(program, Composite) else ("one",)
        self._scripts: dict[tuple[str, frozenset[Operation]], Script] = {}
        self._sent_texts: set[Script] = set()
        """The scripts that this process has sent to the server: from then on, their names are enough."""
        self._spell()

    def _spell(self) -> None:
        """Prepare the words that every call has in common: with a time zone, until its table ends."""
        spec = self.program.twin((self._clock.wall_us(), *self._instants))
        floor_ms = FLOOR_MS if self._injected else 0
        own, *parts = map(tag, self._descriptions)
        self._spec = spec
        self._twins = twins_of(spec)
        known = self._known = self._settings.known
        settings = not self._is_cluster and [known.stored.version, known.ends_us or False]
        self._head = _json([own, floor_ms, spec, settings])
        self._parts_head = _json([parts, floor_ms, spec, settings])

    # scripts

    def link(self, operation: Operation, *, each: bool = False) -> None:
        """Put the script of an operation together, before a call waits for it; `each`: for several keys."""
        for mode in (*self._modes, "each") if each else self._modes:
            self._script((operation,), mode)

    def _script(self, operations: Iterable[Operation], mode: str) -> Script:
        """The script that runs these operations; put together when they first share a trip."""
        cache_key = (mode, frozenset(operations))
        script = self._scripts.get(cache_key)
        if script is None:
            script = self._scripts[cache_key] = script_of(self._spec, cache_key[1], mode)
        return script

    # keys

    def keys_of(self, key: Key) -> list[bytes]:
        """The Redis key of a state, or the keys of a composite's parts."""
        if isinstance(key, str):
            return [self._prefix + bounded(key) + b"}"]
        return [self._keyspace.of_part(self.name, part, text) for part, text in part_keys(self.program, key)]

    # the words of a call

    def moment(self) -> str:
        """The time of a call, as the script reads it: the server's, unless a clock was injected."""
        if not self._injected:
            return "false,0"
        now = self._clock.now_us()
        skew = self._clock.wall_us() - now if self.program.civil else 0
        return f"{now},{skew}"

    def call(self, operation: Operation, args: tuple[Any, ...], moment: str | None = None) -> str:
        """One call, as the script reads it."""
        if operation is CHECK:
            # Written out: this is the path of nearly every call.
            return f'["check",{moment or self.moment()},{args[0]}]'
        # CONFIRM, which each waiting call sends before it leaves, has no arguments.
        sent = "".join([f",{_text(value)}" for value in operation.sent(self.program, args)]) if args else ""
        return f'["{operation.name}",{moment or self.moment()}{sent}]'

    def answer(self, operation: Operation, sent: Any) -> Any:
        """The script's answer to one call, in the form of the program's."""
        answer = self._read(operation.received, sent)
        if operation.is_look:
            sound(self.program, *answer)
        return answer

    def _read(self, received: Callable[..., Any], *sent: Any) -> Any:
        *args, answer = sent
        try:
            return received(self.program, *args, _whole(answer))
        except Exception as error:
            if is_misfit(error):
                raise _damaged(error) from error
            raise

    # conversations

    def converse(
        self,
        keys: list[bytes],
        operations: Iterable[Operation],
        calls: str,
        *,
        each: bool = False,
        yields: bool = True,
    ) -> Conversation:
        """Run `calls`: all on one key, or on the keys of the parts, or one call on each key.

        Returns the replies, or None if the caller has to start over (operators have set limits that this
        process did not know, or each key needs a trip of its own), or another program, which has to decide
        because it has overtaken this one too often.
        """
        asked_at = time.monotonic()
        is_due = asked_at - self._introduced_at >= INTRODUCED_FOR_S
        if is_due and self._is_cluster:
            yield from self._introduce()
            is_due = False
        parts: Sequence[Any] = self.program.parts if len(keys) > 1 and not each else ()
        mode = "each" if each else "parts" if parts else "one"
        adoptions: dict[int, str] = {}
        specs: dict[int, list[Any]] = {}
        problem = None
        try:
            for answers in range(ANSWERS_AT_MOST):
                script = self._script(operations, mode)
                if specs and not twins_of([*specs.values()]) <= self._twins:
                    script = script_of([self._spec, *specs.values()], operations, mode)
                if self._known is not self._settings.known:
                    self._spell()
                head = self._parts_head if parts else self._head
                arguments = (self._place, *adoptions.values()) if adoptions else self._words
                is_known = script in self._sent_texts
                if is_due:
                    # The descriptions go along, and are written before a state is.
                    text = _json([KNOWN_FOR_S, *self._introduction])
                    there, head = [*keys, self._programs], f"{head[:-1]},{text}]"
                    reply = yield from _run(script, there, head, calls, *arguments, is_known=is_known)
                    self._introduced_at, is_due = asked_at, False
                else:
                    reply = yield from _run(script, keys, head, calls, *arguments, is_known=is_known)
                if not is_known:
                    self._sent_texts.add(script)
                # The reason why the script stopped before it decided anything, or else the first answer.
                problem = reply[0] if reply and reply[0].__class__ is bytes else None
                if problem == b"beyond":
                    self._instants = [*self._instants[1 - _INSTANTS :], reply[1]]
                    self._spell()
                elif problem == b"changed":
                    version, text, now = reply[1:]
                    self._settings.hear(stored(version, text), now)
                    return None
                elif problem == b"foreign":
                    # The first such answer names the other program, the second one shows its state.
                    if answers - 2 >= OVERTAKEN_AT_MOST and yields and not parts:
                        if each:
                            return None
                        writer = yield from self._writer(reply[1][1])
                        if writer is not None and (find := self._elsewhere()):
                            return find(self.name, writer)
                    for index, writer_tag, looked in reply[1:]:
                        writer = yield from self._writer(writer_tag)
                        if writer is None:
                            adoptions[index] = f'[{index},"lost {writer_tag}",false]'
                            continue
                        specs[writer_tag] = writer.twin((self._clock.wall_us(), *self._instants))
                        reader = parts[index - 1] if parts else self.program
                        met, state = self._adopted(keys[index - 1], reader, writer, looked)
                        adoptions[index] = (
                            f'[{index},"{met}",{state},{writer_tag},{_json(specs[writer_tag])}]'
                        )
                else:
                    return reply
        except DamagedStateError as error:
            if len(keys) == 1 or not each:
                name, _, key = self._keyspace.place(keys[0])
                raise DamagedStateError(f"{whose(key, name)}: {error}") from error.__cause__
            raise
        if problem == b"beyond":
            raise _damaged("it spans too many periods")
        bound = "is written to by programs of different numbers all the time"
        raise ConfigError("name", self.name, bound, "use two names")

    def ask(self, key: Key, operation: Operation, args: tuple[Any, ...]) -> Conversation:
        """The answer to one call."""
        here = self
        if self._is_cluster or self._settings.known.overrides:
            here = self._deciding(key)
        if here is not self and here.refuses(key, operation, args):
            here = yield from self._reread(key)
            if here is not self and (error := here.refuses(key, operation, args)):
                raise error
        try:
            replies = yield from here.converse(
                here.keys_of(key), (operation,), f"[{here.call(operation, args)}]"
            )
        except ConfigError:
            if (error := here.refuses(key, operation, args)) is None:
                raise
            raise error from None  # the override that allowed its cost has ended
        if replies.__class__ is not list:
            if replies is not None:
                here, replies = yield from here.give_way(replies, key, [(operation, args, here.moment())])
            if replies is None:
                return (yield from self.ask(key, operation, args))
        return here.answer(operation, replies[0])

    def share(self, key: Key, calls: Sequence[Call]) -> Conversation:
        """The answers to the calls of several callers of one key, in order, on one trip. A call that can
        never be admitted gets its error.
        """
        here = self
        if self._is_cluster or self._settings.known.overrides:
            here = self._deciding(key)
        if here is not self and any(here.refuses(key, *call[:2]) for call in calls):
            here = yield from self._reread(key)
        errors = [] if here is self else [here.refuses(key, *call[:2]) for call in calls]
        if not any(errors):
            runs = _in_runs(calls) if len(calls) > 1 else calls
            operations = [operation for operation, _, _ in runs]
            text = f"[{','.join([here.call(*call) for call in runs])}]"
            try:
                replies = yield from here.converse(here.keys_of(key), operations, text)
            except ConfigError:
                # The override that allowed the cost of one call has ended.
                errors = [here.refuses(key, *call[:2]) for call in calls]
                if not any(errors):
                    raise
            else:
                if replies.__class__ is RedisProgram:
                    here, replies = yield from here.give_way(replies, key, calls)
                if replies is None:
                    return (yield from self.share(key, calls))
                return here.answers(runs, replies)
        others = [call for call, error in zip(calls, errors, strict=True) if error is None]
        answers = iter((yield from self.share(key, others)) if others else ())
        return [next(answers) if error is None else error for error in errors]

    def give_way(self, other: RedisProgram, key: Key, calls: Sequence[Call]) -> Conversation:
        """Let the `other` program decide, since its calls come so often that no state of this program would
        stay; unless it can never admit one of the calls. Returns the program that decided, and the replies.
        """
        here = self
        runs = _in_runs(calls) if len(calls) > 1 else calls
        operations = [operation for operation, _, _ in runs]
        left, replies = ANSWERS_AT_MOST, other
        while replies.__class__ is RedisProgram:
            is_able = not any(replies.refuses(key, *call[:2]) for call in calls)
            here = replies if is_able else here
            text = f"[{','.join([here.call(*call) for call in runs])}]"
            left -= 1
            yields = is_able and left > 0
            replies = yield from here.converse(here.keys_of(key), operations, text, yields=yields)
        return here, replies

    def answers(self, calls: Sequence[Call], replies: Sequence[Any]) -> list[Any]:
        """The answers of a trip, to each caller."""
        answers: list[Any] = []
        for (operation, args, _), sent in zip(calls, replies, strict=True):
            if isinstance(operation, Run):
                answers += self._read(operation.received_each, args, sent)
            else:
                answers.append(self.answer(operation, sent))
        return answers

    def _deciding(self, key: Key) -> RedisProgram:
        """The program that decides about a key: this one, or one with the limits of an override."""
        if self._is_cluster and time.monotonic() - self._heard_at >= _ASKED_EVERY_S:
            # In the background: the server with the overrides may be gone while others are not.
            self._heard_at = time.monotonic()
            process.background_ready()
            process.in_background(_hear, self._hears, self._settings.name)
        program = self._settings.program(self.program, key)
        if program is self.program or (find := self._elsewhere()) is None:
            return self
        return find(self.name, program)

    @staticmethod
    def read_overrides(keyspace: Keyspace, settings: Settings, clock: Clock | None) -> Conversation:
        """Read the overrides of a name. This clock tells which have ended; without one, the server's."""
        place = keyspace.of_settings(settings.name)
        version, text = yield from _reply_to(("HMGET", place, "version", "overrides"))
        wall_us = 0 if clock is None else clock.wall_us()
        if clock is None and text:
            wall_us = yield from server_us(place)
        settings.hear(stored(version, text), wall_us)
        return settings.known.stored

    @staticmethod
    def write_overrides(
        keyspace: Keyspace, settings: Settings, clock: Clock | None, text: str, known: Stored
    ) -> Conversation:
        """Replace the overrides of a name if they are the `known` ones; returns whether they were. Then read
        those in force.
        """
        values = known.version, str(process.fresh_id()), text
        reply = yield from _reply_to(("EVAL", _STATING, 1, keyspace.of_settings(settings.name), *values))
        yield from RedisProgram.read_overrides(keyspace, settings, clock)
        return bool(reply)

    def trips_for(
        self, keys: Sequence[Key], operation: Operation, args: tuple[Any, ...]
    ) -> Iterator[Conversation]:
        """Conversations that together run one call on each key, and return the answers: one for all keys, or
        one for each key in a cluster, where no script can take them all, and for keys with overrides.
        """
        is_apart = self._is_cluster or self._settings.known.overrides
        if is_apart or not all(isinstance(key, str) for key in keys):
            yield self._each(keys, operation, args)
            return
        for first in range(0, len(keys), KEYS_AT_ONCE):
            yield self._together(keys[first : first + KEYS_AT_ONCE], operation, args)

    def _together(self, keys: Sequence[Key], operation: Operation, args: tuple[Any, ...]) -> Conversation:
        places = [place for key in keys for place in self.keys_of(key)]
        calls = f"[{self.call(operation, args)}]"
        replies = yield from self.converse(places, (operation,), calls, each=True)
        if replies is None:
            return (yield from self._each(keys, operation, args))
        return [self.answer(operation, sent) for sent in replies]

    def _each(self, keys: Sequence[Key], operation: Operation, args: tuple[Any, ...]) -> Conversation:
        for key in keys:
            # Before any of them is charged: one may never admit the call.
            if self._deciding(key).refuses(key, operation, args):
                here = yield from self._reread(key)
                if error := here.refuses(key, operation, args):
                    raise error
        answers = []
        for key in keys:
            answers += [(yield from self.ask(key, operation, args))]
        return answers

    def refuses(self, key: Key, operation: Operation, args: tuple[Any, ...]) -> ShapekitError | None:
        """The error for a call that this program can never admit; None if it can."""
        return beyond(operation, args, self.program, key, self.name)

    def _reread(self, key: Key) -> Conversation:
        """The program that decides about a key, after the overrides were read again."""
        clock = self._clock if self._injected else None
        yield from self.read_overrides(self._keyspace, self._settings, clock)
        return self._deciding(key)

    def forget(self, key: Key) -> Conversation:
        """Make the key cold."""
        yield from _reply_to(("DEL", *self.keys_of(key)))

    def _introduce(self, writer_tag: int = 0) -> Conversation:
        """Write the descriptions, for other programs and `shapekit top`; read the one of `writer_tag`."""
        command = ("EVAL", _INTRODUCTION, 1, self._programs, KNOWN_FOR_S, writer_tag, *self._introduction)
        text = yield from _reply_to(command)
        self._introduced_at = time.monotonic()
        return None if text is None else plain_text(text)

    def _adopted(self, place: bytes, reader: Any, writer: Any, looked: Any) -> tuple[str, str]:
        """The value at a key that another program wrote, and the state to continue from instead.

        Before the script has shown the value, both are unknown; a state of another kind is refused.
        """
        raw, sent, at = looked or ("", None, 0)
        name, _, key = self._keyspace.place(place)
        skew = self._clock.wall_us() - at if self._injected else 0
        try:
            if sent is None and of_one_kind(reader.kind, writer.kind):
                return plain_text(raw), "false"
            state = () if sent is None else writer.state_received(sent)
            state = continued(name, key, reader, state, writer, at, skew)
            return plain_text(raw), _text(reader.state_sent(state))
        except Exception as error:
            if is_misfit(error):
                raise _damaged(error) from error
            raise

    def _writer(self, writer_tag: int) -> Conversation:
        """The program with this tag; None if its description is gone, so that its states are lost."""
        if writer_tag not in self._writers:
            # Descriptions seem to be gone: write our own, or the next program will miss that one.
            text = yield from self._introduce(writer_tag)
            if text is None or tag(text) != writer_tag:
                if writer_tag not in self._lost:
                    self._lost.add(writer_tag)
                    warn(
                        "the description of a program is gone from Redis: keys of name %r that it has left"
                        " start afresh; does the server evict keys?",
                        self.name,
                    )
                return None
            self._writers[writer_tag] = revived(text)
        return self._writers[writer_tag]


def talk(conversation: Conversation, say: Callable[[Command], Any]) -> Any:
    """Run a conversation: send its commands one by one with `say`, and return its result."""
    try:
        command = next(conversation)
        while True:
            command = conversation.send(say(command))
    except StopIteration as end:
        return end.value


def _hear(method: WeakMethod[Callable[[str], object]], name: str) -> None:
    """Read the overrides of a name; nothing happens without permission or without a synchronous client."""
    if (ask := method()) is not None:
        with suppress(ShapekitError):
            ask(name)


def _in_runs(calls: Iterable[Call]) -> list[Call]:
    """The calls, with equal ones in a row combined to one run, if their operation supports that."""
    runs: list[Call] = []
    for (operation, _, moment), row in groupby(calls, _alike):
        each = tuple([args for _, args, _ in row])
        if operation.run is not None:
            runs.append((operation.run, each, moment))
        else:
            runs += [(operation, args, moment) for args in each]
    return runs


def _alike(call: Call) -> tuple[Operation, Any, str]:
    operation, args, moment = call
    return operation, operation.asks(args), moment


def stored(version: Any, text: Any) -> Stored:
    """The overrides in a reply; none if the version is not from shapekit, which is how the scripts see it."""
    number = plain_text(version or "")
    is_ours = number.isascii() and number.isdigit()
    return Stored(number, plain_text(text or "")) if is_ours else Stored("", "")


def _whole(answer: Any) -> Any:
    """An answer whose first numbers came as one text of doubles, which represent them exactly."""
    first = answer[0] if answer.__class__ is list and answer else answer
    if first.__class__ is not bytes:
        return answer
    numbers = [*map(int, unpack(f">{len(first) // 8}d", first))]
    return numbers if first is answer else numbers + answer[1:]


def _damaged(problem: object) -> DamagedStateError:
    return DamagedStateError(f"a state in Redis is damaged ({problem}); reset the key")


def _run(script: Script, keys: list[bytes], *arguments: Any, is_known: bool = True) -> Conversation:
    """Run a script by its name, or by its text if the server may not know it: then it is one trip as well."""
    rest = (len(keys), *keys, *arguments)
    if is_known:
        reply = yield ("EVALSHA", script.sha, *rest)
        if not isinstance(reply, NoScriptError):
            return _checked(reply)
    return _checked((yield ("EVAL", script.text, *rest)))


_json = json.JSONEncoder(separators=(",", ":")).encode


def _text(value: Any) -> str:
    """Numbers as JSON, and None as false: Lua has no null that a table could hold."""
    if value.__class__ is int:
        return str(value)
    if value is None:
        return "false"
    return _json(value).replace("null", "false")


def server_us(place: bytes) -> Conversation:
    """The time of the server that a key is on. The key is not passed as a key of the script, so the user need
    not have permission to change it.
    """
    seconds, microseconds = yield from _reply_to(("EVAL", _TIME, 0, place))
    return int(seconds) * SECOND_US + int(microseconds)


def _reply_to(command: Command) -> Conversation:
    reply = yield command
    return _checked(reply)


def _checked(reply: Any) -> Any:
    if not isinstance(reply, Exception):
        return reply
    text = str(reply)
    if text.startswith((_DAMAGED, _OF_ANOTHER_TYPE)):
        raise _damaged(text.removeprefix(_DAMAGED)) from reply
    at = text.find("shapekit: ")
    if at >= 0:
        fix = "pass plain numbers in bounds"
        raise ConfigError("call", text[at + 10 :], "was refused by the script", fix)
    raise unavailable(reply) from reply


_NEEDS = "-- needs "
_PIECE = re.compile(
    r"(?:local )?function (?:(\w+)[.:])?(\w+)\((?:.* end|(?:.*\n)+?end)$"
    r"|local (\w+) = (?:setmetatable\()?\{\}(?:, (\w+)\))?$"
    r"|.+$",
    re.MULTILINE,
)
"""An unindented function, up to its unindented `end`; a line that makes a class; any other line."""
_WORD = re.compile(r"(?<!\.)\.\w+|\w+")
"""The words of Lua code; a method has a dot before it."""
_POINTS = str.maketrans(':"', "..")
"""Makes dots of the colons of method calls, and of the quotes around the names of methods."""


class Script(NamedTuple):
    """The text of a script, and the name that Redis gives it."""

    text: str
    sha: str


class _Piece(NamedTuple):
    """An unindented function of a file, or a line between two of them."""

    text: str
    words: frozenset[str]
    function: str
    """The name that other functions use; empty for a line, which is always kept."""
    table: str
    """The class that a method belongs to, or that a line makes."""
    base: str
    """The class that this class is made from."""

    @property
    def word(self) -> str:
        """The word by which code refers to the function."""
        return f".{self.function}" if self.function and self.table else self.function


class _File(NamedTuple):
    needs: Sequence[str]
    """The twins that the file builds on."""
    pieces: Sequence[_Piece]


def script_of(spec: Sequence[Any], operations: Iterable[Operation], mode: str = "one") -> Script:
    """The script that runs these operations on the twin of this spec."""
    return _script(twins_of(spec), frozenset(operations), mode)


def survey_script(specs: Sequence[Any]) -> str:
    """The text of the script that decodes the states of these specs' twins."""
    return _linked(twins_of(specs), _files()["inspect"].pieces)


def twins_of(spec: Sequence[Any]) -> frozenset[str]:
    """The twins that a spec names, including those of nested specs."""
    own = frozenset(part for part in spec[:1] if isinstance(part, str))
    return own.union(*(twins_of(part) for part in spec if isinstance(part, list)))


@cache
def _script(names: frozenset[str], operations: frozenset[Operation], mode: str) -> Script:
    ordered = sorted(operations, key=repr)
    tables = {
        "METHODS": {one: "true" if one.is_look else f'"{one.name}"' for one in ordered},
        "READS": {one: "true" for one in ordered if one.is_read},
        "MOST_COST": {one: one.most_cost for one in ordered if one.most_cost is not None},
    }
    lines = [
        f"local {name} = {{{', '.join(f'{one} = {value}' for one, value in entries.items())}}}"
        for name, entries in tables.items()
    ]
    door = [*_cut("\n".join(lines)), *_files()["server"].pieces, *_cut(f"return answered({mode})")]
    text = _linked(names, door)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _linked(names: Iterable[str], door: Sequence[_Piece]) -> str:
    """The reachable pieces of the twins, each after those it builds on, then the entry point `door`."""
    twins: dict[str, Sequence[_Piece]] = {}

    def add(name: str) -> None:
        if name not in twins:
            for needed in _files()[name].needs:
                add(needed)
            twins[name] = _files()[name].pieces

    for name in sorted(names):
        add(name)
    pieces = _without_hidden([*(piece for twin in twins.values() for piece in twin), *door])
    uses: dict[str, set[str]] = {}
    for piece in pieces:
        uses.setdefault(piece.word, set()).update(piece.words)
    reached, more = set[str](), {""}
    while more:
        reached |= more
        more = uses.keys() & set[str]().union(*(uses[function] for function in more)) - reached
    kept = [piece for piece in pieces if piece.word in reached]
    room: dict[str, str] = {}
    for piece in kept:
        if piece.function and piece.table:
            room[piece.table] = f"{room.get(piece.table, '')}{piece.function} = 0, "
    return "\n".join(
        piece.text
        if piece.function or piece.table not in room
        else piece.text.replace("{}", f"{{{room[piece.table]}__index = 0}}", 1)
        for piece in kept
    )


def _without_hidden(pieces: Sequence[_Piece]) -> list[_Piece]:
    """The pieces without methods that every class with objects overrides."""
    own = {(piece.table, piece.function) for piece in pieces}
    made_from: dict[str, list[str]] = {}
    for piece in pieces:
        if piece.base:
            made_from.setdefault(piece.base, []).append(piece.table)

    def is_seen(table: str, method: str) -> bool:
        if table not in made_from or (table, "new") in own:
            return True  # the class has objects itself, or is no class
        return any((other, method) not in own and is_seen(other, method) for other in made_from[table])

    text = "\n".join([piece.text for piece in pieces])
    return [
        piece
        for piece in pieces
        if not piece.function
        or is_seen(piece.table, piece.function)
        or f"{piece.table}.{piece.function}(self" in text
    ]


@cache
def _files() -> dict[str, _File]:
    """All twins and entry points, by their names."""
    found: dict[str, _File] = {}

    def read(folder: Traversable, path: str = "") -> None:
        for entry in folder.iterdir():
            name, _, ending = entry.name.rpartition(".")
            if entry.is_dir():
                read(entry, f"{path}{entry.name}/")
            elif ending == "lua":
                text = entry.read_text("utf-8")
                needs = text.partition("\n")[0].partition(_NEEDS)[2].split()
                found[path + name] = _File(needs, _cut(text))

    for package in ("shapekit.algorithms", "shapekit.stores.redis"):
        read(files(package))
    return found


def _cut(text: str) -> list[_Piece]:
    """The functions and the lines of a file, without its comments."""
    code = "\n".join(
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")
    )
    return [
        _Piece(
            match[0],
            frozenset(_WORD.findall(match[0].translate(_POINTS))),
            match[2] or "",
            match[1] or match[3] or "",
            match[4] or "",
        )
        for match in _PIECE.finditer(code)
    ]
