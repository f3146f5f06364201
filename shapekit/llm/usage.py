"""Usage: how many tokens an answer of a language model used up, as far as limits count them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shapekit.rate import MAX_COUNT

__all__ = ["Heard", "TokenUsage", "usage_of"]


class TokenUsage(NamedTuple):
    """Tokens of one call, those it was given and those it was answered with."""

    input: int
    """Tokens of the question."""
    output: int
    """Tokens of the answer."""

    @property
    def total(self) -> int:
        """Both."""
        return self.input + self.output


_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")
_WRITTEN = "cache_creation_input_tokens"
"""What Anthropic puts into its cache comes on top of its input, and counts. What it reads from there is in
neither, and does not count."""
_TOTAL = "total_tokens"
"""May hold more than input and output: some servers count there alone what a model only thought."""
_FIELDS = (*_INPUT, *_OUTPUT, _WRITTEN, _TOTAL)

_LAST = ("message_delta", "response.completed", "response.incomplete", "response.failed")
"""Events of streams after which the usage that they carry does not change."""


def usage_of(answer: Any) -> TokenUsage | None:
    """The usage of an answer, or of a usage itself, be it an object or a dict; None if there is none.

    >>> usage_of({"usage": {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}})
    TokenUsage(input=10, output=50)
    """
    usage = _field(answer, "usage")
    return _from(_told(answer if usage is None else usage))


class Heard:
    """What has been heard of the usage of a stream, item by item."""

    __slots__ = ("_fields", "_is_whole", "is_final")

    def __init__(self) -> None:
        self._fields: dict[str, int] = {}
        self._is_whole = False
        self.is_final = False
        """Whether the usage is known, although the stream may go on."""

    def hear(self, item: Any) -> None:
        """The next item: a chunk, or an event. Of what is said twice, the later counts."""
        usage = _field(item, "usage")
        for bearer in (_field(item, "message"), _field(item, "response")):
            self._fields |= _told(_field(bearer, "usage"))
        told = _told(usage)
        self._fields |= told
        self._is_whole = self._is_whole or bool(told)
        # Chunks without choices say nothing else but the usage.
        closes = _field(item, "type") in _LAST or (bool(told) and _field(item, "choices") == [])
        self.is_final = self.is_final or (closes and bool(self._fields))

    @property
    def usage(self) -> TokenUsage | None:
        """The usage as it is known at the end of the stream; None if nobody has said."""
        return _from(self._fields) if self.is_final or self._is_whole else None


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _told(usage: Any) -> dict[str, int]:
    return dict(_counts(usage))


def _counts(usage: Any) -> Iterator[tuple[str, int]]:
    for name in _FIELDS:
        count = _field(usage, name)
        if type(count) is int and 0 <= count <= MAX_COUNT // 4:
            yield name, count


def _from(told: Mapping[str, int]) -> TokenUsage | None:
    if told.keys().isdisjoint((*_INPUT, *_OUTPUT, _TOTAL)):
        return None
    given = next((told[name] for name in _INPUT if name in told), 0) + told.get(_WRITTEN, 0)
    answered = next((told[name] for name in _OUTPUT if name in told), 0)
    return TokenUsage(given, max(answered, told.get(_TOTAL, 0) - given))
