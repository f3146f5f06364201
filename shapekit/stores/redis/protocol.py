"""What one program under one name says to Redis, and what it makes of the answers.

Nothing here does I/O: `converse` yields commands and is sent the replies, so that the synchronous and
the asynchronous client share every word.

Keyspace: the text of any key as one that Redis Cluster places where it belongs. A key of `name` is
`prefix:{name:key}`: each lives in a slot of its own. Where the parts of a composite have keys of their own,
they are `prefix:{name}:part:key`: together in one slot, so that one script may change them all. In a name
`%`, `:`, `{` and `}` are written as `%25` and so on; a key may be any text. What is longer than 256 bytes is
cut to its beginning and a hash of it all, and is longer still, so that no short key can be the same.

The linker: the Lua twins, put together into the scripts that the operations of a program need.

A server runs a script from its first line at every call, and to define a function takes it time even where
nothing calls it. So a script holds the functions that its operations can reach, by name, and no others; and
each class is made with room for its methods, since growing one by one takes longer than the rest.

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
from shapekit.stores.redis.connections import refused

LONGEST = 256
_ESCAPED = {ord(mark): f"%{ord(mark):02X}" for mark in "%:{}"}


class Keyspace:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._states = plain_bytes(f"{prefix}:{{")
        self._programs = plain_bytes(f"{prefix}:program:")
        self._settings = plain_bytes(f"{prefix}:setting:")
        self.pattern, self.setting_pattern = _beginning(self._states), _beginning(self._settings)
        """What every state's key matches, and every key with overrides, for SCAN."""

    def of_name(self, name: str) -> bytes:
        """What all keys of a name begin with that have one state each."""
        return self._states + _escaped(name) + b":"

    def of_part(self, name: str, part: str, key: str) -> bytes:
        """Where the state of one part of a composite is, if each has a key of its own."""
        return self._states + _escaped(name) + plain_bytes(f"}}:{part}:") + bounded(key)

    def of_programs(self, name: str) -> bytes:
        """Where the descriptions of what runs under `name` are."""
        return self._programs + _escaped(name)

    def of_settings(self, name: str) -> bytes:
        """Where the overrides of a name are."""
        return self._settings + _escaped(name)

    def set_name(self, place: bytes) -> str:
        """The name whose overrides are there."""
        return _plain(plain_text(place.removeprefix(self._settings)))

    def is_state(self, key: bytes) -> bool:
        """Whether a key is one of a state: others, such as Celery's parked tasks, may begin alike."""
        tag, _, rest = key.removeprefix(self._states).partition(b"}")
        return key.endswith(b"}") if b":" in tag else rest.startswith(b":")

    def shown(self, key: bytes) -> str:
        """A state's key as `name:key`, or `name:part:key`."""
        return shown(*self.place(key))

    def place(self, key: bytes) -> tuple[str, str, str]:
        """The name, the part, if each has a key of its own, and the key behind a state's key."""
        text = plain_text(key.removeprefix(self._states))
        colon, brace = text.find(":"), text.find("}")
        if 0 <= colon < brace:
            return _plain(text[:colon]), "", text[colon + 1 : -1]
        part, _, own = text[brace + 2 :].partition(":")
        return _plain(text[:brace]), part, own


def bounded(key: str) -> bytes:
    """The text of a key, or where it is too long, what stands for it."""
    text = key.encode("utf-8", "surrogatepass")  # `plain_bytes`, written out, because every call comes by
    if len(text) <= LONGEST:
        return text
    end = LONGEST - 64
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return text[:end] + b"#" * 8 + sha256(text).hexdigest().encode()


def _beginning(text: bytes) -> bytes:
    """What matches all that begins with a text."""
    plain = (b"\\" + bytes([byte]) if byte in b"\\*?[]" else bytes([byte]) for byte in text)
    return b"".join(plain) + b"*"


def _escaped(name: str) -> bytes:
    return plain_bytes(name.translate(_ESCAPED))


def _plain(escaped: str) -> str:
    for code, text in reversed(_ESCAPED.items()):
        escaped = escaped.replace(text, chr(code))
    return escaped


Command: TypeAlias = tuple[Any, ...]
"""Its second word is a key that it concerns, by which a cluster finds the server."""
Conversation: TypeAlias = Generator[Command, Any, Any]
Asked: TypeAlias = tuple[Operation, tuple[Any, ...], str]
"""One call, and the moment at which it was made."""

ANSWERS_AT_MOST = 100
"""How often a conversation may begin again before something is wrong."""
OVERTAKEN_AT_MOST = 1
"""How often a program that goes on from another one's state may find that changed once more. Where the other
one has calls on every trip, it would find so for ever."""
FLOOR_MS = 3_600_000
"""The least TTL where a clock was injected: the server's own time passes at another speed."""
KNOWN_FOR_S = 800 * 86_400
"""How long the description of a program outlives its last introduction: longer than the state of a quota that
is given out by the year, which lives for two."""
KEYS_AT_ONCE = 1_000
"""Keys of one script call: a script that runs longer would keep all other clients waiting."""
INTRODUCED_FOR_S = 10.0
"""How often a program that is in use leaves its description: the server may have been emptied."""
_INTRODUCTION = """
redis.call("HSET", KEYS[1], unpack(ARGV, 3))
redis.call("EXPIRE", KEYS[1], ARGV[1])
return redis.call("HGET", KEYS[1], ARGV[2])
"""
"""For a cluster, where the descriptions lie on another server than a state."""
_ASKED_EVERY_S = 1.0
"""How often a cluster is asked for overrides: they may lie on another server than a state."""
_STATING = """
local found = redis.call("HGET", KEYS[1], "version")
if not found or string.find(found, "%D") then found = "" end
if found ~= ARGV[1] then return 0 end
redis.call("HSET", KEYS[1], "version", ARGV[2], "told", ARGV[3])
return 1
"""
_TIME = 'return redis.call("TIME")'
_INSTANTS = 8
_DAMAGED = "DAMAGED "
"""What an error of the twins begins with, as Redis' own do with a word, where a state is none of its kind."""
_OF_ANOTHER_TYPE = "WRONGTYPE "
"""What Redis' own error begins with where a value is no text."""


class RedisProgram:
    """A program under a name: its script, its keys, its words."""

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
        """`writers` are the programs that a store has met, by their tags: it learns each once. `elsewhere`
        finds that of another program, for keys with an override; `hears` asks what is set for a name.
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
        self._introduction = [word for text in self._descriptions for word in (str(tag(text)), text)]
        self._writers = writers
        self._writers.update(zip(map(tag, self._descriptions), own, strict=True))
        self._lost: set[int] = set()
        self._introduced_at = -INTRODUCED_FOR_S
        self._heard_at = -_ASKED_EVERY_S
        self._instants: list[int] = []
        self._modes = ("one", "parts") if isinstance(program, Composite) else ("one",)
        self._scripts: dict[tuple[str, frozenset[Operation]], Script] = {}
        self._sent_texts: set[Script] = set()
        """The scripts that the server has had from here: their names will do."""
        self._spell()

    def _spell(self) -> None:
        """Prepare what is the same in every call: for a time zone, until its table ends."""
        spec = self.program.twin((self._clock.wall_us(), *self._instants))
        floor_ms = FLOOR_MS if self._injected else 0
        own, *parts = map(tag, self._descriptions)
        self._spec = spec
        self._twins = twins_of(spec)
        known = self._known = self._settings.known
        told = not self._is_cluster and [known.stored.version, known.ends_us or False]
        self._head = _json([own, floor_ms, spec, told])
        self._parts_head = _json([parts, floor_ms, spec, told])

    # scripts

    def link(self, operation: Operation, *, each: bool = False) -> None:
        """Put the script of an operation together, before a call waits for it; `each`: for several keys."""
        for mode in (*self._modes, "each") if each else self._modes:
            self._script((operation,), mode)

    def _script(self, operations: Iterable[Operation], mode: str) -> Script:
        """What runs these operations. Those that share a trip for the first time are put together then."""
        wanted = (mode, frozenset(operations))
        script = self._scripts.get(wanted)
        if script is None:
            script = self._scripts[wanted] = script_of(self._spec, wanted[1], mode)
        return script

    # keys

    def keys_of(self, key: Key) -> list[bytes]:
        """Where the state of a key is, or the states of a composite's parts."""
        if isinstance(key, str):
            return [self._prefix + bounded(key) + b"}"]
        return [self._keyspace.of_part(self.name, part, text) for part, text in part_keys(self.program, key)]

    # what is said

    def moment(self) -> str:
        """When a call is made, as the script reads it: by the server's clock, unless one was injected."""
        if not self._injected:
            return "false,0"
        now = self._clock.now_us()
        skew = self._clock.wall_us() - now if self.program.civil else 0
        return f"{now},{skew}"

    def call(self, operation: Operation, args: tuple[Any, ...], moment: str | None = None) -> str:
        """One call, as the script reads it."""
        if operation is CHECK:
            # The path of nearly every call.
            return f'["check",{moment or self.moment()},{args[0]}]'
        # Each call that is about to leave asks a question without arguments.
        words = "".join([f",{_text(word)}" for word in operation.sent(self.program, args)]) if args else ""
        return f'["{operation.name}",{moment or self.moment()}{words}]'

    def answer(self, operation: Operation, sent: Any) -> Any:
        """What the script answered to one call, as the program would have."""
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
        """The commands that run `calls`, all on one key, or on the parts' keys, or one on each key.

        Instead of replies: None where the caller is to ask again (operators have set what this process did
        not know, or each key is to be asked by itself); another program where that is to decide, because it
        has overtaken this one too often.
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
                words = (self._place, *adoptions.values()) if adoptions else self._words
                is_known = script in self._sent_texts
                if is_due:
                    # The descriptions go along, and are there before a state is.
                    told = _json([KNOWN_FOR_S, *self._introduction])
                    there, head = [*keys, self._programs], f"{head[:-1]},{told}]"
                    reply = yield from _run(script, there, head, calls, *words, is_known=is_known)
                    self._introduced_at, is_due = asked_at, False
                else:
                    reply = yield from _run(script, keys, head, calls, *words, is_known=is_known)
                if not is_known:
                    self._sent_texts.add(script)
                # Why the script has stopped before it decided anything, or the first of the answers.
                problem = reply[0] if reply and reply[0].__class__ is bytes else None
                if problem == b"beyond":
                    self._instants = [*self._instants[1 - _INSTANTS :], reply[1]]
                    self._spell()
                elif problem == b"changed":
                    version, told, now = reply[1:]
                    self._settings.hear(stored(version, told), now)
                    return None
                elif problem == b"foreign":
                    # A first answer names the other program, a second one shows its state.
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
            raise _damaged("it is about too many periods")
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
            raise error from None  # what allowed its cost has ended
        if replies.__class__ is not list:
            if replies is not None:
                here, replies = yield from here.give_way(replies, key, [(operation, args, here.moment())])
            if replies is None:
                return (yield from self.ask(key, operation, args))
        return here.answer(operation, replies[0])

    def bound(self, operation: Operation, say: Callable[[Command], Any], keeps: object) -> Callable[..., Any]:
        """`ask` as a call, whose commands go to `say`. As long as it lives, so does what it `keeps`."""

        def apply(key: Key, *args: Any, kept: object = keeps) -> Any:
            return talk(self.ask(key, operation, args), say)

        return apply

    def share(self, key: Key, asked: Sequence[Asked]) -> Conversation:
        """The answers to the calls of several callers of one key, in order, on one trip; for a call that can
        never be admitted, its error.
        """
        here = self
        if self._is_cluster or self._settings.known.overrides:
            here = self._deciding(key)
        if here is not self and any(here.refuses(key, *call[:2]) for call in asked):
            here = yield from self._reread(key)
        errors = [] if here is self else [here.refuses(key, *call[:2]) for call in asked]
        if not any(errors):
            calls = _in_runs(asked) if len(asked) > 1 else asked
            operations = [operation for operation, _, _ in calls]
            said = f"[{','.join([here.call(*call) for call in calls])}]"
            try:
                replies = yield from here.converse(here.keys_of(key), operations, said)
            except ConfigError:
                # What allowed the cost of one of them has ended.
                errors = [here.refuses(key, *call[:2]) for call in asked]
                if not any(errors):
                    raise
            else:
                if replies.__class__ is RedisProgram:
                    here, replies = yield from here.give_way(replies, key, asked)
                if replies is None:
                    return (yield from self.share(key, asked))
                return here.answers(calls, replies)
        others = [call for call, error in zip(asked, errors, strict=True) if error is None]
        answers = iter((yield from self.share(key, others)) if others else ())
        return [next(answers) if error is None else error for error in errors]

    def give_way(self, other: RedisProgram, key: Key, asked: Sequence[Asked]) -> Conversation:
        """Which program has decided in the end, and the replies, where calls of the `other` one come so often
        that no state of this one would stay: if it can admit them all, they are decided by its numbers.
        """
        here = self
        calls = _in_runs(asked) if len(asked) > 1 else asked
        operations = [operation for operation, _, _ in calls]
        left, replies = ANSWERS_AT_MOST, other
        while replies.__class__ is RedisProgram:
            is_able = not any(replies.refuses(key, *call[:2]) for call in asked)
            here = replies if is_able else here
            said = f"[{','.join([here.call(*call) for call in calls])}]"
            left -= 1
            yields = is_able and left > 0
            replies = yield from here.converse(here.keys_of(key), operations, said, yields=yields)
        return here, replies

    def answers(self, calls: Sequence[Asked], replies: Sequence[Any]) -> list[Any]:
        """The answers of a trip, to each caller."""
        answers: list[Any] = []
        for (operation, args, _), sent in zip(calls, replies, strict=True):
            if isinstance(operation, Run):
                answers += self._read(operation.received_each, args, sent)
            else:
                answers.append(self.answer(operation, sent))
        return answers

    def _deciding(self, key: Key) -> RedisProgram:
        """What decides about a key: this program, or that with the limits of an override."""
        if self._is_cluster and time.monotonic() - self._heard_at >= _ASKED_EVERY_S:
            # Beside the call: the server that has them may be gone, and others are not.
            self._heard_at = time.monotonic()
            process.background_ready()
            process.in_background(_hear, self._hears, self._settings.name)
        program = self._settings.program(self.program, key)
        if program is self.program or (find := self._elsewhere()) is None:
            return self
        return find(self.name, program)

    @staticmethod
    def read_overrides(keyspace: Keyspace, settings: Settings, clock: Clock | None) -> Conversation:
        """Read what operators have set. What has ended is told by this clock, or else by the server's."""
        place = keyspace.of_settings(settings.name)
        version, told = yield from _said(("HMGET", place, "version", "told"))
        wall_us = 0 if clock is None else clock.wall_us()
        if clock is None and told:
            wall_us = yield from server_us(place)
        settings.hear(stored(version, told), wall_us)
        return settings.known.stored

    @staticmethod
    def write_overrides(keyspace: Keyspace, settings: Settings, text: str, known: Stored) -> Conversation:
        """Set the overrides of a name, if they are `known`; whether they were."""
        words = known.version, str(process.fresh_id()), text
        return bool((yield from _said(("EVAL", _STATING, 1, keyspace.of_settings(settings.name), *words))))

    def trips_for(
        self, keys: Sequence[Key], operation: Operation, args: tuple[Any, ...]
    ) -> Iterator[Conversation]:
        """Conversations that run one call on each key in turn, and give their answers: in a cluster, no
        script may take them all, and keys with overrides have programs of their own.
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
        """The error of a call that this program can never admit."""
        return beyond(operation, args, self.program, key, self.name)

    def _reread(self, key: Key) -> Conversation:
        """What decides about a key, once it was asked whether what is known is still set."""
        clock = self._clock if self._injected else None
        yield from self.read_overrides(self._keyspace, self._settings, clock)
        return self._deciding(key)

    def forget(self, key: Key) -> Conversation:
        """Make the key cold."""
        yield from _said(("DEL", *self.keys_of(key)))

    def _introduce(self, asked: int = 0) -> Conversation:
        """Leave the descriptions, for programs with other numbers and for `shapekit top`; read another's."""
        command = ("EVAL", _INTRODUCTION, 1, self._programs, KNOWN_FOR_S, asked, *self._introduction)
        text = yield from _said(command)
        self._introduced_at = time.monotonic()
        return None if text is None else plain_text(text)

    def _adopted(self, place: bytes, reader: Any, writer: Any, looked: Any) -> tuple[str, str]:
        """What stands at a key that another configuration wrote, and what to go on from instead.

        Nothing is known of that before the script has looked: but a state of another kind is refused.
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
        """The program with this tag; None where its description is gone, so that its states are lost."""
        if writer_tag not in self._writers:
            # Whoever finds that one is gone leaves its own: else the next one finds that gone as well.
            text = yield from self._introduce(writer_tag)
            if text is None or tag(text) != writer_tag:
                self._say_lost(writer_tag)
                return None
            self._writers[writer_tag] = revived(text)
        return self._writers[writer_tag]

    def _say_lost(self, writer_tag: int) -> None:
        if writer_tag not in self._lost:
            self._lost.add(writer_tag)
            warn(
                "the description of a program is gone from Redis: keys of name %r that it has left start"
                " afresh; does the server evict keys?",
                self.name,
            )


def talk(conversation: Conversation, say: Callable[[Command], Any]) -> Any:
    """What a conversation comes to, whose commands are said one by one."""
    try:
        command = next(conversation)
        while True:
            command = conversation.send(say(command))
    except StopIteration as end:
        return end.value


def _hear(hears: WeakMethod[Callable[[str], object]], name: str) -> None:
    """Ask what is set for a name. Where this user may not, or there is no synchronous client, nothing is."""
    if (ask := hears()) is not None:
        with suppress(ShapekitError):
            ask(name)


def _in_runs(asked: Iterable[Asked]) -> list[Asked]:
    """The same calls, where those in a row that ask the same are one run, if their operation has such."""
    calls: list[Asked] = []
    for (operation, _, moment), row in groupby(asked, _alike):
        each = tuple([args for _, args, _ in row])
        if operation.run is not None:
            calls.append((operation.run, each, moment))
        else:
            calls += [(operation, args, moment) for args in each]
    return calls


def _alike(call: Asked) -> tuple[Operation, Any, str]:
    operation, args, moment = call
    return operation, operation.asks(args), moment


def stored(version: Any, told: Any) -> Stored:
    """Overrides as they lie there; none where the version is none of ours, as the scripts see it."""
    number = plain_text(version or "")
    is_ours = number.isascii() and number.isdigit()
    return Stored(number, plain_text(told or "")) if is_ours else Stored("", "")


def _whole(answer: Any) -> Any:
    """An answer whose first numbers came as one text of doubles, which hold each of them exactly."""
    first = answer[0] if answer.__class__ is list and answer else answer
    if first.__class__ is not bytes:
        return answer
    numbers = [*map(int, unpack(f">{len(first) // 8}d", first))]
    return numbers if first is answer else numbers + answer[1:]


def _damaged(problem: object) -> DamagedStateError:
    return DamagedStateError(f"a state in Redis is damaged ({problem}); reset the key")


def _run(script: Script, keys: list[bytes], *words: Any, is_known: bool = True) -> Conversation:
    """Run a script by its name, or by its text where the server may not know it: that is one trip, too."""
    rest = (len(keys), *keys, *words)
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
    """The time of the server that a key is on. Whoever asks need not be allowed to change that: it is no key
    of the script.
    """
    seconds, microseconds = yield from _said(("EVAL", _TIME, 0, place))
    return int(seconds) * SECOND_US + int(microseconds)


def _said(command: Command) -> Conversation:
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
    raise refused(reply) from reply


_NEEDS = "-- needs "
_PIECE = re.compile(
    r"(?:local )?function (?:(\w+)[.:])?(\w+)\((?:.* end|(?:.*\n)+?end)$"
    r"|local (\w+) = (?:setmetatable\()?\{\}(?:, (\w+)\))?$"
    r"|.+$",
    re.MULTILINE,
)
"""A function at the margin, up to its `end` there; a line that makes a class; any other line."""
_WORD = re.compile(r"(?<!\.)\.\w+|\w+")
"""A method is told from other words by the point before it."""
_POINTS = str.maketrans(':"', "..")
"""A method is also called with a colon, and named in quotation marks."""


class Script(NamedTuple):
    """The text of a script, and the name that Redis gives it."""

    text: str
    sha: str


class _Piece(NamedTuple):
    """A function at the margin of a file, or a line between two of them."""

    text: str
    words: frozenset[str]
    function: str
    """The name by which others reach it; empty for a line, which always stays."""
    table: str
    """The class that a method belongs to, or that a line makes."""
    base: str
    """The class that this one is made from."""

    @property
    def word(self) -> str:
        """What is said where the function is used."""
        return f".{self.function}" if self.function and self.table else self.function


class _File(NamedTuple):
    needs: Sequence[str]
    """The twins that it builds on."""
    pieces: Sequence[_Piece]


def script_of(spec: Sequence[Any], operations: Iterable[Operation], mode: str = "one") -> Script:
    """The script that runs these operations of the twin of this spec, and of whatever it is made of."""
    return _script(twins_of(spec), frozenset(operations), mode)


def survey_script(specs: Sequence[Any]) -> str:
    """The text of the script that reads the states of the twins of these specs."""
    return _linked(twins_of(specs), _files()["inspect"].pieces)


def twins_of(spec: Sequence[Any]) -> frozenset[str]:
    """The twins that a spec names: its own, and those of the specs inside."""
    own = frozenset(part for part in spec[:1] if isinstance(part, str))
    return own.union(*(twins_of(part) for part in spec if isinstance(part, list)))


@cache
def _script(names: frozenset[str], operations: frozenset[Operation], mode: str) -> Script:
    named = sorted(operations, key=repr)
    tables = {
        "METHODS": {one: "true" if one.is_look else f'"{one.name}"' for one in named},
        "READS": {one: "true" for one in named if one.is_read},
        "MOST_COST": {one: one.most_cost for one in named if one.most_cost is not None},
    }
    told = [
        f"local {name} = {{{', '.join(f'{one} = {word}' for one, word in entries.items())}}}"
        for name, entries in tables.items()
    ]
    door = [*_cut("\n".join(told)), *_files()["server"].pieces, *_cut(f"return answered({mode})")]
    text = _linked(names, door)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _linked(names: Iterable[str], door: Sequence[_Piece]) -> str:
    """The twins, each after those it builds on, and the door, as far as anything is reached."""
    twins: dict[str, Sequence[_Piece]] = {}

    def add(name: str) -> None:
        if name not in twins:
            for needed in _files()[name].needs:
                add(needed)
            twins[name] = _files()[name].pieces

    for name in sorted(names):
        add(name)
    pieces = _without_hidden([*(piece for twin in twins.values() for piece in twin), *door])
    words: dict[str, set[str]] = {}
    for piece in pieces:
        words.setdefault(piece.word, set()).update(piece.words)
    reached, more = set[str](), {""}
    while more:
        reached |= more
        more = words.keys() & set[str]().union(*(words[function] for function in more)) - reached
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
    """The pieces without the methods that every object has from a class made from theirs."""
    own = {(piece.table, piece.function) for piece in pieces}
    made_from: dict[str, list[str]] = {}
    for piece in pieces:
        if piece.base:
            made_from.setdefault(piece.base, []).append(piece.table)

    def is_seen(table: str, method: str) -> bool:
        if table not in made_from or (table, "new") in own:
            return True  # it has objects itself, or is no class
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
    """All twins by their names, and the doors to them."""
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
    """The functions and the lines of a text, without its comments."""
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
