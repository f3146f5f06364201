"""What one program under one name says to Redis, and what it makes of the answers.

Nothing here does I/O: `converse` yields commands and is sent the replies, so that the synchronous and
the asynchronous client share every word.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from redis.exceptions import NoScriptError

from shapekit.algorithms.composite import Composite, adopted
from shapekit.algorithms.description import describe, revived
from shapekit.clock import Clock
from shapekit.decision import Forecast
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.stores.base import Key, Operation
from shapekit.stores.redis_keys import Keyspace, bounded
from shapekit.stores.script import Script, script_of
from shapekit.stores.sighting import plain_text
from shapekit.stores.states import is_misfit, sound
from shapekit.stores.tags import tag

Command: TypeAlias = tuple[Any, ...]
"""Its second word is a key that it concerns, by which a cluster finds the server."""
Conversation: TypeAlias = Generator[Command, Any, Any]

ANSWERS_AT_MOST = 20
"""How often a conversation may begin again before something is wrong."""
FLOOR_MS = 3_600_000
"""The least TTL where a clock was injected: the server's own time passes at another speed."""
KNOWN_FOR_S = 400 * 86_400
"""How long the description of a program outlives its last introduction: longer than any state."""
KEYS_AT_ONCE = 1_000
"""Keys of one script call: a script that runs longer would keep everybody else waiting."""
INTRODUCED_FOR_S = 10.0
"""How often a program that is in use leaves its description: somebody may have emptied the server."""
_INTRODUCTION = """
redis.call("HSET", KEYS[1], unpack(ARGV, 2))
redis.call("EXPIRE", KEYS[1], ARGV[1])
"""
_INSTANTS = 8


class RedisProgram:
    """A program under a name: its script, its keys, its words."""

    def __init__(self, keyspace: Keyspace, name: str, program: Any, clock: Clock, *, injected: bool) -> None:
        self.name = name
        self.program = program
        self._clock = clock
        self._injected = injected
        self._keyspace = keyspace
        self._prefix = keyspace.of_name(name)
        self._programs = keyspace.of_programs(name)
        self._descriptions = [describe(part) for part in (program, *getattr(program, "parts", ()))]
        self._introduced_at = -INTRODUCED_FOR_S
        self._instants: list[int] = []
        self._scripts: dict[tuple[str, ...], Script] = {}
        self._spell()

    def _spell(self) -> None:
        """Prepare what is the same in every call: for a time zone, until its table ends."""
        spec = self.program.twin((self._clock.wall_us(), *self._instants))
        floor_ms = FLOOR_MS if self._injected else 0
        own, *parts = map(tag, self._descriptions)
        self._spec = spec
        self._head = _head([own, floor_ms, spec])
        self._parts_head = _head([parts, floor_ms, spec])

    # keys

    def keys_of(self, key: Key) -> list[bytes]:
        """Where the state of a key is, or the states of a composite's parts."""
        if isinstance(key, str):
            return [self._prefix + bounded(key) + b"}"]
        names = self.program.names if isinstance(self.program, Composite) else ()
        return [self._keyspace.of_part(self.name, part, text) for part, text in zip(names, key, strict=True)]

    # what is said

    def call(self, operation: Operation, args: tuple[Any, ...]) -> str:
        """One call, as the script reads it."""
        if not self._injected:
            if operation == "check":
                # The path of nearly every call.
                return f'["check",false,0,{args[0]}]'
            return f'["{operation}",false,0{self._said(operation, args)}]'
        now = self._clock.now_us()
        skew = self._clock.wall_us() - now if self.program.civil else 0
        return f'["{operation}",{now},{skew}{self._said(operation, args)}]'

    def _said(self, operation: Operation, args: tuple[Any, ...]) -> str:
        return "".join([f",{_text(word)}" for word in self._sent(operation, args)])

    def _sent(self, operation: Operation, args: tuple[Any, ...]) -> Sequence[Any]:
        if operation in ("refund", "debit"):
            cost, *receipt = args
            return (cost, *map(self.program.receipt_sent, receipt))
        if operation == "reserve":
            return args[0]  # type: ignore[no-any-return]
        if operation == "cancel":
            return (self.program.grant_sent(args[0]),)
        if operation == "cancel_many":
            return ([self.program.grant_sent(grant) for grant in args[0]],)
        if operation == "settle":
            grant, actual, nonce = args[0]
            return (self.program.grant_sent(grant), actual, nonce)
        return args

    def answer(self, operation: Operation, sent: Any) -> Any:
        """What the script answered to one call, as the program would have."""
        try:
            return self._received(operation, sent)
        except Exception as error:
            if is_misfit(error):
                raise _damaged(error) from error
            raise

    def _received(self, operation: Operation, sent: Any) -> Any:
        program = self.program
        if operation in ("check", "commit", "refund", "debit", "peek"):
            return program.decision_received(sent)
        if operation == "reserve":
            return program.granted_received(sent)
        if operation == "reserve_many":
            return program.many_received(sent)
        if operation in ("cancel", "settle"):
            return bool(sent)
        if operation == "look":
            sent_state, now, skew, *_ = sent
            state = None if sent_state is None else program.state_received(sent_state)
            return sound(program, state, now, skew), now, skew
        if operation == "forecast":
            return Forecast(*sent)
        return tuple(sent) if isinstance(sent, list) else sent

    # conversations

    def converse(
        self, keys: list[bytes], operations: Iterable[Operation], calls: str, *, each: bool = False
    ) -> Conversation:
        """The commands that run `calls`, all on one key, or on the parts' keys, or one on each key."""
        if time.monotonic() - self._introduced_at >= INTRODUCED_FOR_S:
            yield from self._introduce()
        parts: Sequence[Any] = self.program.parts if len(keys) > 1 and not each else ()
        mode = "each" if each else "parts" if parts else "one"
        adoptions: dict[int, tuple[Any, ...]] = {}
        problem = None
        for _ in range(ANSWERS_AT_MOST):
            script = self._script(operations, mode)
            head = self._parts_head if parts else self._head
            words = [word for adoption in adoptions.values() for word in adoption]
            reply = yield from _run(script, keys, head, calls, *words)
            problem = _problem(reply)
            if problem == "beyond":
                self._instants = [*self._instants[1 - _INSTANTS :], reply[1]]
                self._spell()
            elif problem == "foreign":
                index, writer_tag = reply[1], reply[2]
                program = parts[index - 1] if parts else self.program
                adopted = yield from self._adopt(program, keys[index - 1], writer_tag)
                adoptions[index] = (index, *adopted) if adopted else ()
            else:
                return reply
        if problem == "beyond":
            raise _damaged(OverflowError("it is about too many periods"))
        raise ConfigError(
            "name", self.name, "is written to by programs of different numbers all the time", "use two names"
        )

    def trips_for(
        self, keys: Sequence[Key], operation: Operation, args: tuple[Any, ...], *, apart: bool
    ) -> Iterator[Conversation]:
        """Conversations that run one call on each key in turn; `apart` where no script may take them all."""
        calls = f"[{self.call(operation, args)}]"
        if apart or not all(isinstance(key, str) for key in keys):
            for key in keys:
                yield self.converse(self.keys_of(key), (operation,), calls)
            return
        places = [place for key in keys for place in self.keys_of(key)]
        for first in range(0, len(places), KEYS_AT_ONCE):
            yield self.converse(places[first : first + KEYS_AT_ONCE], (operation,), calls, each=True)

    def forget(self, key: Key) -> Conversation:
        """Make the key cold."""
        yield from _said(("DEL", *self.keys_of(key)))

    def _introduce(self) -> Conversation:
        """Leave the descriptions, for programs with other numbers and for whoever looks."""
        fields = [word for text in self._descriptions for word in (str(tag(text)), text)]
        yield from _said(("EVAL", _INTRODUCTION, 1, self._programs, KNOWN_FOR_S, *fields))
        self._introduced_at = time.monotonic()

    def _script(self, operations: Iterable[Operation], mode: str) -> Script:
        wanted = (mode, *sorted({*operations}))
        script = self._scripts.get(wanted)
        if script is None:
            script = self._scripts[wanted] = script_of(self._spec, operations, mode)
        return script

    def _adopt(self, program: Any, key: bytes, writer_tag: int) -> Conversation:
        """What stands at a key that another configuration wrote, and what to go on from instead."""
        text = yield from _said(("HGET", self._programs, str(writer_tag)))
        if text is None:
            raise ConfigError(
                "name",
                self.name,
                "holds a state of an unknown program",
                f"ask again after {INTRODUCED_FOR_S:g} s, reset the key, or use another name",
            )
        writer = revived(plain_text(text))
        now, skew = (self._clock.now_us(), 0) if self._injected else (None, 0)
        if now is not None:
            skew = self._clock.wall_us() - now
        spec = writer.twin((self._clock.wall_us(), *self._instants))
        calls = _text([["look", now, skew]])
        reply = yield from _run(script_of(spec, ("look",)), [key], _head([writer_tag, 0, spec]), calls)
        if _problem(reply):
            return ()
        sent, at, skew, raw = reply[0]
        if sent is None:
            return ()
        try:
            state = adopted(program, writer.state_received(sent), writer, at, skew)
            return (raw, _text(program.state_sent(state)))
        except Exception as error:
            if is_misfit(error):
                raise _damaged(error) from error
            raise


def _damaged(error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(f"a state in Redis is damaged ({error}); reset the key")


def _run(script: Script, keys: list[bytes], *words: Any) -> Conversation:
    rest = (len(keys), *keys, *words)
    reply = yield ("EVALSHA", script.sha, *rest)
    if isinstance(reply, NoScriptError):
        reply = yield ("EVAL", script.text, *rest)
    return _checked(reply)


def _head(words: list[Any]) -> str:
    return json.dumps(words, separators=(",", ":"))


def _text(value: Any) -> str:
    """Numbers as JSON, and None as false: Lua has no null that a table could hold."""
    if value.__class__ is int:
        return str(value)
    return json.dumps(value, separators=(",", ":")).replace("null", "false")


def _said(command: Command) -> Conversation:
    reply = yield command
    return _checked(reply)


def _checked(reply: Any) -> Any:
    if not isinstance(reply, Exception):
        return reply
    text = str(reply)
    at = text.find("shapekit: ")
    if at >= 0:
        raise ConfigError(
            "call", text[at + 10 :], "was refused by the script", "pass plain numbers in bounds"
        )
    raise StoreUnavailableError(f"Redis refused: {text}") from reply


def _problem(reply: Any) -> str | None:
    """Why the script stopped before it decided anything; None if it did not."""
    first = reply[0] if isinstance(reply, list) and reply else None
    return plain_text(first) if isinstance(first, bytes | str) else None
