"""RedisSurvey: all states on a server, read in batches by somebody who changes nothing.

A batch is one SCAN, one trip for the values, and one for a script without keys, in which the twins read
them. What a program is, is asked once. Nothing is written, no life is prolonged, and no command takes the
server longer than a batch does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from redis import RedisError
from redis.client import NEVER_DECODE

from shapekit.algorithms.description import Described, revived
from shapekit.clock import Clock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.encoding import MISFITS, Sighting, sound
from shapekit.stores.redis.connections import unavailable
from shapekit.stores.redis.keys import Keyspace
from shapekit.stores.redis.script import survey_script

__all__ = ["RedisSurvey"]

AT_ONCE = 500
"""States that are read in one trip: the server does nothing else meanwhile."""
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4}
"""How MessagePack writes a number that is not tiny: a mark, and so many bytes."""

Writer: TypeAlias = tuple[str, int]
"""The name and the tag of a program."""


class RedisSurvey:
    """Looks again and again; it remembers what programs are, for that never changes."""

    def __init__(self, client: Any, keyspace: Keyspace, clock: Clock, *, injected: bool) -> None:
        self._client = client
        self._keyspace = keyspace
        self._clock = clock
        self._injected = injected
        self._programs: dict[Writer, Described] = {}

    def sightings(self, keys: Iterator[bytes]) -> Iterator[Sighting]:
        """What stands at these keys, as far as something still does."""
        try:
            while batch := list(islice(keys, AT_ONCE)):
                yield from self._seen(batch)
        except RedisError as error:
            raise unavailable(error) from error

    def _seen(self, keys: Sequence[bytes]) -> Iterator[Sighting]:
        places = [self._keyspace.place(key) for key in keys]
        raws = self._asked([("GET", key) for key in keys])
        tags = [tag_of(raw) for raw in raws]
        self._learn((place[0], tag) for place, tag in zip(places, tags, strict=True) if tag is not None)
        found = [
            (place, None if tag is None else self._programs.get((place[0], tag)), raw)
            for place, tag, raw in zip(places, tags, raws, strict=True)
            if isinstance(raw, bytes)
        ]
        server_now, states = self._thawed([(program, raw) for _, program, raw in found if program])
        now = self._clock.now_us() if self._injected else server_now
        skew = self._clock.wall_us() - now if self._injected else 0
        for place, program, _ in found:
            sent = next(states) if program else None
            state = None
            if sent is not None and program is not None:
                with suppress(*MISFITS, StoreUnavailableError):
                    state = sound(program, program.state_received(sent), now, skew)
            yield Sighting(*place, None if state is None else program, state, now, skew)

    def _learn(self, writers: Iterable[Writer]) -> None:
        """Ask what those programs are that were not met before."""
        unknown = list({*writers} - self._programs.keys())
        asked = [("HGET", self._keyspace.of_programs(name), str(tag)) for name, tag in unknown]
        for writer, text in zip(unknown, self._asked(asked), strict=True):
            if isinstance(text, bytes):
                try:
                    self._programs[writer] = revived(text.decode())
                except (ConfigError, UnicodeDecodeError):
                    """Left by a version that knows more: shown as unknown."""

    def _asked(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies to commands of one trip, as bytes, or what was wrong with one."""
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command, **{NEVER_DECODE: True})
        return list(pipeline.execute(raise_on_error=False))

    def _thawed(self, values: Sequence[tuple[Described, bytes]]) -> tuple[int, Iterator[Any]]:
        """The server's time, and the state in each value."""
        wall = self._clock.wall_us()
        numbers: dict[Described, int] = {}
        words: list[Any] = []
        for program, raw in values:
            words += numbers.setdefault(program, len(numbers) + 1), raw
        specs = [program.twin((wall,)) for program in numbers]
        script = survey_script(specs)
        (seconds, microseconds), *states = self._client.eval(script, 0, json.dumps(specs), *words)
        return int(seconds) * SECOND_US + int(microseconds), iter(states)


def tag_of(raw: Any) -> int | None:
    """The number that a value begins with: the tag of what wrote it; None if it does not begin with one.

    >>> tag_of(bytes([0xCE, 0, 1, 0, 0, 7])), tag_of(b"plain text"), tag_of(b"")
    (65536, 112, None)
    """
    if not isinstance(raw, bytes) or not raw:
        return None
    first = raw[0]
    if first < 0x80:
        return first
    width = _WIDTHS.get(first)
    return None if width is None else int.from_bytes(raw[1 : 1 + width])
