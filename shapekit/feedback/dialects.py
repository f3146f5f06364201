"""The dialects in which servers speak of their limits: small parsers, by name.

An Answer is a response as far as limits are concerned, whatever client it came through; a ServerHint is what
it says. A parser is given the one and returns the other, or None if its dialect is not spoken here. What
follows from it is Feedback's to say; a parser fills `hold_s` only where its server means something else
than the usual: retry when told, or at the reset once nothing remains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from shapekit.feedback import fields
from shapekit.feedback.fields import LONGEST, Parameters, parse_list

__all__ = [
    "DIALECTS",
    "FAMILIES",
    "Answer",
    "Dialect",
    "Headers",
    "Parser",
    "ServerHint",
    "shopify",
    "shopify_graphql",
]


class ServerHint(NamedTuple):
    """What an answer says; None where it says nothing. All times are seconds from its arrival."""

    hold_s: float = 0.0
    """How long nobody may leave; 0 if there is nothing to wait for."""
    remaining: int | None = None
    """What is left: of the family or policy that is closest to its end, if there are several."""
    limit: int | None = None
    """How much there is in all."""
    window_s: float | None = None
    """The window that the limit is for."""
    reset_s: float | None = None
    """When there is more again; in the dialects of token buckets, when there is all again."""
    scope: str | None = None
    """What the hint is about, if less than the whole server: a GitHub resource, a Discord bucket."""


SAYS_NOTHING = ServerHint()


REFUSED = 429
UNAVAILABLE = (503, 529)
"""A server that is ill, or (529, of Anthropic and Notion) overloaded: it is obeyed when it says how long."""


class _HasItems(Protocol):
    def items(self) -> Iterable[tuple[Any, Any]]: ...


Headers: TypeAlias = _HasItems | Iterable[tuple[Any, Any]]
"""A mapping, or pairs, of text or bytes, names in any case, repeated or joined by commas."""

_CUT = LONGEST + 1
"""Longer values are cut: a list is then malformed, and the first number or label is what it was, or none."""
_MOST_LINES = 1_000
_RETRY = ("retry-after", "retry-after-ms")


class Answer(NamedTuple):
    """What a dialect is given: the status, the fields by lower-case name, and when it was said."""

    status: int
    """The status code."""
    fields: Mapping[str, str]
    """The header fields by lower-case name."""
    now: float
    """Epoch seconds on the server's clock if it sent a Date, else on ours."""
    retry_s: float | None = None
    """What `retry-after-ms` or `Retry-After` ask for, if that is more than nothing."""

    def whole(self, name: str) -> int | None:
        """The field as a whole number."""
        return fields.whole(self.fields.get(name))

    def number(self, name: str) -> float | None:
        """The field as a number, perhaps with a fraction."""
        return fields.number(self.fields.get(name))

    def label(self, name: str) -> str | None:
        """The field as a short word, fit to be part of a key."""
        return fields.label(self.fields.get(name))


class Wanted(NamedTuple):
    """The lower-case names to pick, in the two forms in which clients hold them."""

    texts: frozenset[str]
    encoded: frozenset[bytes]
    lengths: frozenset[int]


def wanted(fields_read: Iterable[str]) -> Wanted:
    """These, and those that every dialect reads."""
    texts = {*fields_read, *_RETRY, "date"}
    return Wanted(
        frozenset(texts), frozenset(text.encode() for text in texts), frozenset(len(text) for text in texts)
    )


def picked(headers: Headers, wanted: Wanted | None) -> list[tuple[Any, Any]]:
    """The lines that bear a wanted name; all, if no names are given."""
    lines: Any = headers
    if headers.__class__ is not list or len(lines) > _MOST_LINES:
        lines = list(islice(lines.items() if hasattr(lines, "items") else lines, _MOST_LINES))
    if wanted is None or not lines:
        return list(lines)
    texts, encoded, lengths = wanted
    # Two sets: equal text and bytes have one hash, and comparing the two is an error under -bb.
    names: Any = encoded if lines[0][0].__class__ is bytes else texts
    # Most names are of another length, which is cheaper to see; and who knows how long they are.
    return [line for line in lines if len(line[0]) in lengths and line[0].lower() in names]


def says_nothing(lines: list[tuple[Any, Any]]) -> bool:
    """Whether nothing was picked but the date that comes with every answer."""
    return not lines or (len(lines) == 1 and len(lines[0][0]) == len("date"))


def heard(status: int, lines: list[tuple[Any, Any]], received_at: float) -> Answer:
    """The picked lines as an Answer."""
    told: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = _text(raw_name).lower(), _text(raw_value)
        told[name] = f"{told[name]}, {value}"[:_CUT] if name in told else value
    now = fields.http_date(told.get("date"), received_at)
    if now is None:
        now = received_at
    retry = fields.number(told.get("retry-after-ms"))
    retry = retry / 1_000 if retry else fields.retry_after(told.get("retry-after"), now)
    return Answer(status, told, now, retry if retry and retry > 0 else None)


def _text(raw: Any) -> str:
    if isinstance(raw, bytes):
        return raw[:_CUT].decode("latin-1")
    if isinstance(raw, str):
        return raw[:_CUT]
    if isinstance(raw, list | tuple):
        return ", ".join(map(_text, raw[:_MOST_LINES]))[:_CUT]
    return str(raw)[:_CUT]


_MOST = 1e15
_SLOWEST = 1e-6
"""Points, and points a second, beyond which it is no shop that speaks."""

_USED_OF = re.compile(r"[ \t]*([0-9]{1,9})/([0-9]{1,9})[ \t]*(?:,|\Z)")


def shopify(answer: Answer) -> ServerHint | None:
    """`X-Shopify-Shop-Api-Call-Limit: 32/40`: says how full the bucket is, not when it will have leaked."""
    match = _USED_OF.match(answer.fields.get("x-shopify-shop-api-call-limit", ""))
    if not match:
        return None
    used, limit = int(match[1]), int(match[2])
    return ServerHint(remaining=max(0, limit - used), limit=limit)


def shopify_graphql(cost_extension: Mapping[str, Any] | None) -> ServerHint | None:
    """What `extensions.cost` of a GraphQL body says: hold until a query like this one is affordable.

    Such a body comes with status 200 and no header tells of it, so only whoever has read it can hand
    it on. Malformed costs are None. The hold is as the server has it: see `Feedback.bounded`.

        >>> shopify_graphql({
        ...     "requestedQueryCost": 101,
        ...     "throttleStatus": {"maximumAvailable": 1000.0, "currentlyAvailable": 1, "restoreRate": 50.0},
        ... })
        ServerHint(hold_s=2.0, remaining=1, limit=1000, window_s=None, reset_s=19.98, scope=None)
    """
    asked = _number(cost_extension, "requestedQueryCost")
    status = cost_extension.get("throttleStatus") if isinstance(cost_extension, Mapping) else None
    most = _number(status, "maximumAvailable")
    left = _number(status, "currentlyAvailable")
    rate = _number(status, "restoreRate")
    if most is None or left is None or rate is None or rate < _SLOWEST:
        return None
    # What costs more than there can ever be is not worth waiting for.
    missing = (asked or 0.0) - left if (asked or 0.0) <= most else 0.0
    return ServerHint(
        hold_s=max(0.0, missing / rate),
        remaining=int(left),
        limit=int(most),
        reset_s=max(0.0, (most - left) / rate),
    )


def _number(fields: object, name: str) -> float | None:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None


Parser: TypeAlias = Callable[[Answer], ServerHint | None]

FIRST_HOLD_S = 1.0


class Dialect(NamedTuple):
    """A parser, the fields it reads, and those of them that give the dialect away."""

    parse: Parser
    reads: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    first_hold_s: float = FIRST_HOLD_S
    """The first hold after a refusal that does not say how long."""


def retry_only(answer: Answer) -> ServerHint:
    """Slack, Notion and many others: Retry-After, which is read in every dialect, and nothing else."""
    return SAYS_NOTHING


def ietf(answer: Answer) -> ServerHint | None:
    """`RateLimit: "name";r=50;t=30` and `RateLimit-Policy: "name";q=100;w=60`.

    Of several policies the one that binds counts.
    """
    policies = _by_name(answer, "ratelimit-policy")
    states = _by_name(answer, "ratelimit")
    if not states and generic(answer):
        return None  # the other fields say more than the policy alone
    hints = []
    for name in states or policies:
        state, policy = states.get(name, {}), policies.get(name, {})
        remaining, reset = _whole(state.get("r")), _whole(state.get("t"))
        window = _whole(policy.get("w"))
        hints.append(
            ServerHint(
                remaining=remaining,
                limit=_whole(policy.get("q")),
                window_s=None if window is None else float(window),
                reset_s=None if reset is None else float(reset),
            )
        )
    return _binding(hints)


def generic(answer: Answer) -> ServerHint | None:
    """`RateLimit-*`, `X-RateLimit-*` or `X-Rate-Limit-*`: Limit, Remaining, Reset, however they mean it."""
    resets = {name: fields.until(answer.fields.get(f"{name}reset"), answer.now) for name in _PREFIXES}
    return _binding([_left(answer, name, reset_s) for name, reset_s in resets.items()])


def github(answer: Answer) -> ServerHint:
    """Epoch seconds for each resource; a refusal may be a 403.

    Secondary limits are not in any field: a refusal while something remains is one, is about everything,
    and lasts a minute at least. A 403 without Retry-After then cannot be told from a lack of rights.
    """
    reset = answer.number("x-ratelimit-reset")
    remaining = answer.whole("x-ratelimit-remaining")
    refused = answer.status in (403, REFUSED, *UNAVAILABLE)
    return ServerHint(
        hold_s=(answer.retry_s or 0.0) if refused else 0.0,
        remaining=remaining,
        limit=answer.whole("x-ratelimit-limit"),
        reset_s=None if reset is None else max(0.0, reset - answer.now),
        scope=answer.label("x-ratelimit-resource") if remaining == 0 or not refused else None,
    )


def discord(answer: Answer) -> ServerHint:
    """Seconds with a fraction, for a bucket that several routes share; a global limit is about everything."""
    told = answer.fields
    is_global = told.get("x-ratelimit-global") == "true" or told.get("x-ratelimit-scope") == "global"
    hint = _left(answer, "x-ratelimit-", answer.number("x-ratelimit-reset-after"))
    return hint if is_global else hint._replace(scope=answer.label("x-ratelimit-bucket"))


def openai(answer: Answer) -> ServerHint | None:
    """Requests and tokens, each with its reset as a duration such as `6m0s`."""
    return _tightest(answer, openai_families(answer))


def openai_families(answer: Answer) -> dict[str, ServerHint]:
    """What is left of requests and of tokens."""
    hints = {}
    for family in _OPENAI_FAMILIES:
        reset_s = fields.duration(answer.fields.get(f"x-ratelimit-reset-{family}"))
        hints[family] = _left(answer, "x-ratelimit-", reset_s, f"-{family}")
    return hints


def anthropic(answer: Answer) -> ServerHint | None:
    """Requests and several kinds of tokens, each with its reset as an instant of RFC 3339."""
    return _tightest(answer, anthropic_families(answer))


def anthropic_families(answer: Answer) -> dict[str, ServerHint]:
    """What is left of requests, and of each kind of tokens."""
    hints = {}
    for family in _ANTHROPIC_FAMILIES:
        prefix = f"anthropic-ratelimit-{family}-"
        instant = fields.rfc3339(answer.fields.get(f"{prefix}reset"))
        reset_s = None if instant is None else max(0.0, instant - answer.now)
        hints[family] = _left(answer, prefix, reset_s)
    return hints


def _left(answer: Answer, before: str, reset_s: float | None, after: str = "") -> ServerHint:
    """What remains of which limit, in fields that are named alike."""
    remaining, limit = (answer.whole(f"{before}{field}{after}") for field in ("remaining", "limit"))
    return ServerHint(remaining=remaining, limit=limit, reset_s=reset_s)


def _tightest(answer: Answer, families: Mapping[str, ServerHint]) -> ServerHint | None:
    """The family that binds. Its reset is when all is there again: one unit is there long before."""
    hint = _binding([*families.values()])
    if hint and answer.status != REFUSED and hint.remaining == 0 and hint.reset_s and hint.limit:
        return hint._replace(hold_s=hint.reset_s / hint.limit)
    return hint


def _binding(hints: list[ServerHint]) -> ServerHint | None:
    """Of those that say something the one that binds: spent and latest to reset, else with least left."""
    return max((hint for hint in hints if hint != SAYS_NOTHING), key=_binds, default=None)


def _binds(hint: ServerHint) -> tuple[float, float]:
    if hint.remaining is None:
        return float("-inf"), 0.0
    share = hint.remaining / hint.limit if hint.limit else float(hint.remaining)
    return -share, hint.reset_s or 0.0


def _by_name(answer: Answer, field: str) -> dict[str, Parameters]:
    members = parse_list(answer.fields.get(field, ""))
    return {name: parameters for name, parameters in members or () if isinstance(name, str)}


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


_PREFIXES = ("ratelimit-", "x-ratelimit-", "x-rate-limit-")
_OPENAI_FAMILIES = ("requests", "tokens")
_ANTHROPIC_FAMILIES = ("requests", "tokens", "input-tokens", "output-tokens")
_USUAL = tuple(f"x-ratelimit-{field}" for field in ("limit", "remaining", "reset"))
_OPENAI = tuple(f"{field}-{family}" for field in _USUAL for family in _OPENAI_FAMILIES)
_ANTHROPIC = tuple(
    f"anthropic-ratelimit-{family}-{field}"
    for family in _ANTHROPIC_FAMILIES
    for field in ("limit", "remaining", "reset")
)
_GENERIC = tuple(f"{prefix}{field}" for prefix in _PREFIXES for field in ("limit", "remaining", "reset"))
_IETF = ("ratelimit", "ratelimit-policy")
_GITHUB = ("x-ratelimit-resource", "x-github-request-id")
_DISCORD = ("x-ratelimit-bucket", "x-ratelimit-reset-after", "x-ratelimit-global")
_SHOPIFY = ("x-shopify-shop-api-call-limit",)

DIALECTS: Mapping[str, Dialect] = {
    "anthropic": Dialect(anthropic, _ANTHROPIC, _ANTHROPIC),
    "openai": Dialect(openai, _OPENAI, _OPENAI),
    "discord": Dialect(discord, (*_DISCORD, *_USUAL, "x-ratelimit-scope"), _DISCORD),
    "github": Dialect(github, (*_GITHUB, *_USUAL), _GITHUB, 60.0),
    "shopify": Dialect(shopify, _SHOPIFY, _SHOPIFY),
    "ietf": Dialect(ietf, _IETF, _IETF),
    "generic": Dialect(generic, _GENERIC, _GENERIC),
    "slack": Dialect(retry_only),
    "notion": Dialect(retry_only),
}
"""By name, in the order in which they are tried where none is named: the unmistakable ones first."""

FAMILIES: Mapping[str, Callable[[Answer], dict[str, ServerHint]]] = {
    "anthropic": anthropic_families,
    "openai": openai_families,
}
"""The dialects that tell requests from tokens: what an answer says of each."""
