"""Estimates: how many tokens a call may use up at most, by what it is asked with.

Rather too much than too little: what was reserved in vain comes back with the answer, and what was used
beyond it is a debt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from shapekit.errors import ConfigError
from shapekit.llm.usage import TokenUsage
from shapekit.rate import MAX_COUNT, whole

__all__ = ["Asked", "CountSpec", "EstimateSpec", "counter", "estimated", "told_usage"]

Tokens: TypeAlias = int | tuple[int, int]
"""Tokens in all, or those of the input and those of the output."""
Asked: TypeAlias = Tokens | Mapping[str, Any]
"""How many tokens to reserve, or the arguments of the call."""
EstimateSpec: TypeAlias = Tokens | Callable[..., Tokens]


class Encoder(Protocol):
    """What cuts text into tokens, as tiktoken's encodings and many tokenizers do."""

    def encode(self, text: str, /) -> Any: ...


CountSpec: TypeAlias = Callable[[str], int] | Encoder

_TEXTS = ("messages", "prompt", "input", "system", "instructions", "tools", "functions", "response_format")
"""The arguments that a model reads."""
_MOST_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
_MEDIA = ("data", "b64_json", "file_data")
_MEDIUM = 1_600
"""The most tokens that a picture is worth, about; its encoding says nothing of it."""
BYTES_A_TOKEN = 3
"""English has four letters to a token; others have fewer, and more bytes to a letter."""
OUTPUT = 1_024
"""What is taken for the answer where the call does not bound it."""
_FIX = (
    'pass a number of tokens, (input, output), or the call\'s arguments: {"messages": …, "max_tokens": 500}'
)


def estimated(arguments: Mapping[str, Any], count: Callable[[str], int]) -> TokenUsage:
    """What a call with these arguments may use up: what it says, and the most that it may be answered with.

    >>> ask = {"messages": [{"role": "user", "content": "why? " * 60}], "max_tokens": 500}
    >>> estimated(ask, counter(None))
    TokenUsage(input=106, output=500)
    """
    texts: list[str] = []
    media = 0
    for name in _TEXTS:
        for text in _texts(arguments.get(name)):
            if text is None:
                media += 1
            else:
                texts.append(text)
    bounds = [bound for name in _MOST_OUTPUT if type(bound := arguments.get(name)) is int and bound >= 0]
    answers = arguments.get("n")
    output = max(bounds, default=OUTPUT) * (answers if type(answers) is int and answers > 0 else 1)
    # Joined by spaces: no tokenizer makes one token of two texts.
    return TokenUsage(count(" ".join(texts)) + _MEDIUM * media if texts or media else 0, output)


def counter(count: CountSpec | None) -> Callable[[str], int]:
    """How tokens are counted: as told, by a tokenizer's `encode`, or by the length in bytes."""
    if count is None:
        return _by_length
    # What text means beyond its letters is nothing to count: tiktoken's `encode` refuses such text.
    encode: Callable[[str], Any] | None = getattr(count, "encode_ordinary", getattr(count, "encode", None))
    if encode is not None:
        return lambda text: len(encode(text))
    if callable(count):
        return count
    raise ConfigError(
        "count",
        count,
        "can neither be called nor encode",
        "pass a function of a text, or a tiktoken encoding",
    )


def told_usage(field: str, told: Any) -> TokenUsage:
    """Tokens that somebody says in numbers. A bare number is all of them, in whatever part."""
    if isinstance(told, tuple):
        if len(told) != 2:
            raise ConfigError(field, told, "is not input and output", _FIX)
        return TokenUsage(*(whole(field, part, least=0, most=MAX_COUNT // 4) for part in told))
    if type(told) is not int:
        raise ConfigError(field, told, "is no number of tokens", _FIX)
    return TokenUsage(0, whole(field, told, least=0, most=MAX_COUNT // 2))


def _by_length(text: str) -> int:
    return -(-len(text.encode(errors="replace")) // BYTES_A_TOKEN)


def _texts(value: Any) -> Iterator[str | None]:
    """All text in a value, names included; None for each picture or file that is in it as such."""
    if isinstance(value, str):
        yield None if value.startswith("data:") else value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name in _MEDIA and isinstance(part, str):
                yield None
            else:
                yield str(name)
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    elif hasattr(value, "model_dump"):
        # An answer of before, in a conversation.
        yield from _texts(value.model_dump())
