"""Usage: how many tokens a call to a language model has used, and an estimate of how many it may use.

Estimates are rather too high than too low: unused tokens are given back with the answer, and tokens used
beyond the reservation become a debt. Earlier calls of the same key and model improve them.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from shapekit._runtime import process
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, whole

__all__ = ["TokenUsage"]


class TokenUsage(NamedTuple):
    """The tokens of one call: of its prompt, and of its answer."""

    input: int
    """Tokens of the prompt."""
    output: int
    """Tokens of the answer."""
    cached: int = 0
    """Tokens of the input that were read from a cache."""
    written: int = 0
    """Tokens of the input that were written to a cache."""
    reasoning: int = 0
    """Tokens of the output that the model used for reasoning."""
    uncounted: int = 0
    """Tokens that were read from a cache and are not in `input`: they count only for prices."""

    @property
    def total(self) -> int:
        """Input and output."""
        return self.input + self.output


_INPUT = ("input_tokens", "prompt_tokens")
_OUTPUT = ("output_tokens", "completion_tokens")
_WRITTEN, _READ = "cache_creation_input_tokens", "cache_read_input_tokens"
"""Anthropic reports tokens written to its cache in addition to its input: they count. It reports tokens read
from the cache separately: they do not count. With other servers both are part of `prompt_tokens`."""
_TOTAL = "total_tokens"
"""May be more than input and output: some servers count reasoning only here."""
_FIELDS = (*_INPUT, *_OUTPUT, _WRITTEN, _READ, _TOTAL)
_CACHED, _PART_WRITTEN, _THOUGHT = "cached_tokens", "cache_creation_tokens", "reasoning_tokens"
_BY_OPENAI = "cache_write_tokens"
_BY_LIFETIME = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
"""If LangChain reports these for tokens written to Anthropic's cache, it reports no other name for them."""
_TIERS = ("", "priority_", "flex_")
"""The prefixes that LangChain puts before some names, by OpenAI's service tier."""
_DETAILS = {
    ("prompt_tokens_details", "input_tokens_details"): {
        name: name for name in (_CACHED, _PART_WRITTEN, _BY_OPENAI)
    },
    ("completion_tokens_details", "output_tokens_details"): {_THOUGHT: _THOUGHT},
    ("input_token_details",): {
        **{f"{tier}cache_read": _CACHED for tier in _TIERS},
        **{f"{tier}cache_creation": _PART_WRITTEN for tier in _TIERS},
        **dict(zip(_BY_LIFETIME, _BY_LIFETIME, strict=True)),
    },
    ("output_token_details",): {f"{tier}reasoning": _THOUGHT for tier in _TIERS},
}
"""Where a usage has the details of its input and output, in the forms of OpenAI and LangChain."""

_BY_GEMINI = {
    "prompt_token_count": "input_tokens",
    "candidates_token_count": "output_tokens",
    "total_token_count": _TOTAL,
    "cached_content_token_count": _CACHED,
    "thoughts_token_count": _THOUGHT,
}
"""The names in Gemini's `usage_metadata`, in an answer and in each item of a stream. Only its total includes
reasoning."""

_ADDED = (
    *("content", "reasoning_content", "reasoning", "refusal"),
    *("text", "thinking", "partial_json", "arguments"),
)
"""The fields with the text of the parts of an answer."""
_EVENTS = ("message_", "content_block_", "ping", "response.")
"""The beginnings of known event types, which may have neither text nor usage."""
_LAST = ("message_delta", "response.completed", "response.incomplete", "response.failed")
"""Events of streams after which the usage that they carry does not change."""


def usage_of(answer: Any) -> TokenUsage | None:
    """The usage in an answer, or in a usage itself, as an object or a dict; None if there is none.

    >>> usage_of({"usage": {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}}).total
    60
    """
    usage = _field(answer, "usage")
    return _from(_counts(answer if usage is None else usage, answer))


class StreamUsage:
    """The usage of a stream, collected item by item."""

    __slots__ = ("_fields", "_is_understood", "_is_whole", "_texts", "is_final")

    def __init__(self) -> None:
        self._fields: dict[str, int] = {}
        self._texts: list[str] = []
        self._is_whole = False
        self._is_understood: bool | None = None
        """Whether any item so far has a known form; None before the first item."""
        self.is_final = False
        """Whether the usage is final, although the stream may go on."""

    def hear(self, item: Any) -> bool:
        """Read the next item, a chunk or an event; later counts replace earlier ones, but a 0 does not.

        Returns whether the item has text of the answer.
        """
        self._is_understood = self._is_understood or False
        data = _field(item, "data")
        # Mistral's events have the chunk as their data.
        parts = [item] if data is None or isinstance(data, str | bytes) else [item, data]
        have_texts = [self._hear(part) for part in parts]
        return any(have_texts)

    def _hear(self, item: Any) -> bool:
        usage = _field(item, "usage") or _field(_field(item, "x_groq"), "usage")
        fields = _counts(usage, item)
        told = [_counts(_field(_field(item, name), "usage")) for name in ("message", "response")]
        for counts in (*told, fields):
            # A zero takes nothing back: some servers repeat the input as 0 with the last output.
            self._fields |= {
                name: count for name, count in counts.items() if count or name not in self._fields
            }
        self._is_whole = self._is_whole or bool(fields)
        texts = [*_new_texts(item)]
        self._texts += texts
        # A chunk without choices has nothing but the usage.
        closes = _field(item, "type") in _LAST or (bool(fields) and _field(item, "choices") == [])
        self.is_final = self.is_final or (closes and _from(self._fields) is not None)
        if texts or self._fields or str(_field(item, "type")).startswith(_EVENTS):
            self._is_understood = True
        return bool(texts)

    @property
    def usage(self) -> TokenUsage | None:
        """The usage at the end of the stream; None if the stream did not report it."""
        return _from(self._fields) if self.is_final or self._is_whole else None

    def seen(self, given: int, count: Callable[[str], int]) -> TokenUsage | None:
        """The usage as far as the stream was read; `given` are the tokens of the input if it did not say.

        None if the items of the stream have no known form.
        """
        if self._is_understood is False:
            return None
        usage = _from(self._fields) or TokenUsage(given, 0)
        texts = "".join(self._texts)
        return usage._replace(output=max(usage.output, count(texts) if texts else 0))


def _new_texts(item: Any) -> Iterator[str]:
    """The texts that an item of a stream adds to the answer: text, reasoning, arguments of tools."""
    if isinstance(item, str):
        yield item
    parts = [_field(item, "delta")]
    for choice in _field(item, "choices") or ():
        delta = _field(choice, "delta")
        calls = _field(delta, "tool_calls") or ()
        parts += [_field(choice, "text"), delta, *(_field(call, "function") for call in calls)]
    for part in parts:
        if isinstance(part, str):
            yield part
        else:
            texts = (text for name in _ADDED if isinstance(text := _field(part, name), str))
            yield from dict.fromkeys(texts)  # some servers send the reasoning under two names


def _field(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _counts(usage: Any, answer: Any = None) -> dict[str, int]:
    """The counts in a usage, and in the answer of Gemini that it may be beside."""
    places: list[tuple[Any, Mapping[str, str]]] = [(usage, dict(zip(_FIELDS, _FIELDS, strict=True)))]
    places += [(_field(usage, place), names) for where, names in _DETAILS.items() for place in where]
    places.append((_field(answer, "usage_metadata"), _BY_GEMINI))
    told: dict[str, int] = {}
    for place, names in places:
        for name, known_as in names.items():
            count = _field(place, name)
            if type(count) is int and 0 <= count <= MAX_COUNT // 4:
                told[known_as] = count
    return told


def _from(fields: Mapping[str, int]) -> TokenUsage | None:
    # Some libraries, such as LiteLLM, write zeros if the server has reported no usage.
    if not any(fields.get(name) for name in (*_INPUT, *_OUTPUT, _TOTAL)):
        return None
    given = next((fields[name] for name in _INPUT if name in fields), 0)
    cached, uncounted = fields.get(_CACHED, 0), 0
    by_lifetime = sum(fields.get(name, 0) for name in _BY_LIFETIME)
    written = max(fields.get(_PART_WRITTEN, 0), fields.get(_BY_OPENAI, 0), by_lifetime)
    if "prompt_tokens" in fields:
        cached, written = max(cached, fields.get(_READ, 0)), max(written, fields.get(_WRITTEN, 0))
    else:
        beside, uncounted = fields.get(_WRITTEN, 0), fields.get(_READ, 0)
        given, written = given + beside, written + beside
    answered = next((fields[name] for name in _OUTPUT if name in fields), None)
    output = max(answered or 0, fields.get(_TOTAL, 0) - given)
    # Tokens that are only in the total are reasoning, if the answer was reported separately.
    thought = max(fields.get(_THOUGHT, 0), 0 if answered is None else output - answered)
    cached = min(cached, given)
    return TokenUsage(given, output, cached, min(written, given - cached), min(thought, output), uncounted)


Tokens: TypeAlias = int | tuple[int, int]
"""The total number of tokens, or (input, output)."""
ModelRequest: TypeAlias = Tokens | Mapping[str, Any]
"""How many tokens to reserve, or the arguments of the call."""
EstimateSpec: TypeAlias = Tokens | Callable[..., Tokens]


class Encoder(Protocol):
    """Something that splits text into tokens, such as tiktoken's encodings and many tokenizers."""

    def encode(self, text: str, /) -> Any: ...


CountSpec: TypeAlias = Callable[[str], int] | Encoder

_TEXTS = (
    *("messages", "prompt", "input", "contents", "system", "instructions", "tools", "functions"),
    *("response_format", "text_format", "output_format"),
)
"""The arguments that a model reads."""
_MOST_OUTPUT = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample")
_MEDIA = ("data", "b64_json", "file_data")
_ENCODED = re.compile(r"[A-Za-z0-9+/=_\r\n-]*")
_BEGINNING = 256
"""This many characters are enough to tell encoded data from text."""
_DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*;base64,")
_MEDIUM = 1_600
"""About the most tokens of a picture, which its encoded size does not tell."""
BYTES_A_TOKEN = 3
"""English has about four letters per token; other languages have fewer, with more bytes per letter."""
OUTPUT = 1_024
"""The estimate for an answer whose length the call does not bound."""
_FIX = (
    'pass a number of tokens, (input, output), or the call\'s arguments: {"messages": …, "max_tokens": 500}'
)


def estimated(arguments: Mapping[str, Any], count: Callable[[str], int]) -> TokenUsage:
    """How many tokens a call with these arguments may use: its prompt, and the longest answer it allows.

    >>> ask = {"messages": [{"role": "user", "content": "why? " * 60}], "max_tokens": 500}
    >>> usage = estimated(ask, counter(None))
    >>> usage.input, usage.output
    (106, 500)
    """
    texts: list[str] = []
    others = 0
    config = arguments.get("config")  # of Gemini
    for value in (*map(arguments.get, _TEXTS), _field(config, "system_instruction"), _field(config, "tools")):
        for part in _parts(value):
            if isinstance(part, str):
                texts.append(part)
            else:
                others += part
    stated = [*map(arguments.get, _MOST_OUTPUT), *(_field(config, name) for name in _MOST_OUTPUT)]
    bounds = [bound for bound in stated if type(bound) is int and bound >= 0]
    # Several prompts, or several choices, get as many answers.
    answers = [number for name in ("n", "best_of") if type(number := arguments.get(name)) is int]
    prompt: Any = arguments.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not all(type(part) is int for part in prompt) else 1
    output = max(bounds, default=OUTPUT) * prompts * max([1, *answers])
    # Joined by spaces: no tokenizer makes one token of two texts.
    return TokenUsage(others + (count(" ".join(texts)) if texts else 0), output)


def counter(count: CountSpec | None) -> Callable[[str], int]:
    """The function that counts tokens: the given one, a tokenizer's `encode`, or by the length in bytes."""
    if count is None:
        return _by_length
    if not isinstance(count, str):  # which has an `encode` of its own
        # Special tokens in a text count as text; tiktoken's `encode` would refuse them.
        encode: Callable[[str], Any] | None
        encode = getattr(count, "encode_ordinary", getattr(count, "encode", None))
        if encode is not None:
            return lambda text: len(encode(text))
        if callable(count):
            return partial(_counted, count)
    fix = 'pass a function of a text, or an encoding such as tiktoken.encoding_for_model("gpt-4")'
    raise ConfigError("count", count, "is neither a function nor an encoding", fix)


def _counted(count: Callable[[str], int], text: str) -> int:
    tokens = count(text)
    if type(tokens) is not int or tokens < 0:
        raise ConfigError("count", tokens, "is no number of tokens, and a function gave it", "return an int")
    return tokens


def usage_from(field: str, value: Any) -> TokenUsage:
    """A usage from numbers of tokens. A single number is the total, in whatever part."""
    if isinstance(value, TokenUsage):
        return TokenUsage(*(whole(field, part, least=0, most=MAX_COUNT // 2) for part in value))
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ConfigError(field, value, "is not input and output", _FIX)
        return TokenUsage(*(whole(field, part, least=0, most=MAX_COUNT // 4) for part in value))
    if type(value) is not int:
        raise ConfigError(field, value, "is not a number of tokens", _FIX)
    return TokenUsage(0, whole(field, value, least=0, most=MAX_COUNT // 2))


def _by_length(text: str) -> int:
    return -(-len(text.encode(errors="replace")) // BYTES_A_TOKEN)


def _parts(value: Any) -> Iterator[str | int]:
    """The texts in a value, including names, and the tokens that token ids, pictures and files count."""
    if isinstance(value, str):
        yield _MEDIUM if _DATA_URL.match(value) else value
    elif type(value) is int:
        yield 1
    elif isinstance(value, Mapping):
        # OpenAI returns generated pictures under this name.
        media = (*_MEDIA, "result") if value.get("type") == "image_generation_call" else _MEDIA
        for name, part in value.items():
            if name in media and isinstance(part, str) and _ENCODED.fullmatch(part, 0, _BEGINNING):
                yield _MEDIUM
            else:
                yield str(name)
                yield from _parts(part)
    elif isinstance(value, Iterator):
        raise ConfigError("arguments", value, "can be read only once, and not also counted", "pass a list")
    elif isinstance(value, (bytes, bytearray)):
        return  # a picture or a file: its bytes are not text
    elif isinstance(value, Collection):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, type):
        # A class whose schema describes the answer.
        if (schema := getattr(value, "model_json_schema", None)) is not None:
            yield from _parts(schema())
    elif hasattr(value, "model_dump"):
        # An earlier answer in a conversation. Fields that are None are not sent.
        yield from _parts(value.model_dump(exclude_none=True))


LAST = 32
"""How many calls of a key are remembered."""
ENOUGH = 8
"""After how many calls an estimate may be lowered."""
MOST_KEYS = 1_024
"""How many keys and models are remembered: the last ones to be settled."""
WHOLE = 1_024
"""Shares are counted in 1/1024, rounded up."""
LEAST_INPUT, MOST_INPUT = WHOLE // 2, 2 * WHOLE
LEAST_OUTPUT = WHOLE // 4


class _Shares(NamedTuple):
    """How much of its estimate one call used."""

    input: int
    output: int


class Learning:
    """How much of their estimates the last calls of each key and model used, in this process.

    An estimate is multiplied by the largest share that any of the last 32 such calls used of its own
    estimate, within bounds: for the input between 1/2 and 2, since the length in bytes is no more exact than
    that, and for the output between 1/4 and 1, since no answer is longer than its bound.

    With lowered estimates, calls may use more than they reserve: all calls in flight may reach their worst
    case at once. So estimates are lowered only for a limit that lets more through anyway, a token bucket.
    Reserving at least a quarter of the output and half of the input bounds the usage to four times the
    reservation. Windows, quotas and money never reserve less than the plain estimate: only an input that was
    counted too low is raised, so no window exceeds its limit, whatever was learned.
    """

    def __init__(self, *, scales_input: bool, lowers: bool) -> None:
        self._scales_input = scales_input
        self._lowers = lowers
        self._known: OrderedDict[str, deque[_Shares]] = OrderedDict()
        self._lock = process.lock()

    def scaled(self, group: str, estimate: TokenUsage) -> TokenUsage:
        """The estimate of a call, corrected by what was learned."""
        with self._lock:
            last = [*self._known.get(group, ())]
        if not last:
            return estimate
        may_lower = self._lowers and len(last) >= ENOUGH
        least_input, least_output = (LEAST_INPUT, LEAST_OUTPUT) if may_lower else (WHOLE, WHOLE)
        given = min(MOST_INPUT, max(least_input, *(shares.input for shares in last)))
        given = given if self._scales_input else WHOLE
        answered = min(WHOLE, max(least_output, *(shares.output for shares in last)))
        return TokenUsage(-(-estimate.input * given // WHOLE), -(-estimate.output * answered // WHOLE))

    def learn(self, group: str, estimate: TokenUsage, usage: TokenUsage) -> None:
        """Learn from a call with this estimate that has used this many tokens."""
        shares = _Shares(
            _share(usage.input + usage.uncounted, estimate.input), _share(usage.output, estimate.output)
        )
        with self._lock:
            last = self._known.get(group)
            if last is None:
                last = self._known[group] = deque(maxlen=LAST)
            last.append(shares)
            self._known.move_to_end(group)
            if len(self._known) > MOST_KEYS:
                self._known.popitem(last=False)


def _share(used: int, estimated: int) -> int:
    """The used share of an estimate, in parts of WHOLE; 0 if nothing was estimated."""
    return -(-used * WHOLE // estimated) if estimated else 0
