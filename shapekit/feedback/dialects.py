"""Dialects: small parsers for the headers in which servers state their limits, by name.

An Answer holds what matters of a response, from any client; a ServerHint is what it says about limits. A
parser takes an Answer and returns a ServerHint, or None if the answer is not in its dialect. Feedback decides
how long to hold; a parser sets `hold_s` only if its server differs from the usual, which is to wait as long
as Retry-After says, or until the reset once nothing remains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from shapekit.errors import ConfigError
from shapekit.feedback import fields
from shapekit.feedback.fields import LONGEST, Parameters, parse_dictionary, parse_list
from shapekit.keys import PART


class ServerHint(NamedTuple):
    """What an answer says about limits; None for what it does not say. Times are seconds from its arrival."""

    hold_s: float = 0.0
    """How long no call may leave; 0 for no hold."""
    remaining: int | None = None
    """Units left; of several families or policies, for the one closest to being used up."""
    limit: int | None = None
    """The limit itself: all units of its window."""
    window_s: float | None = None
    """The window of the limit, in seconds."""
    reset_s: float | None = None
    """When more units are available; in token-bucket dialects, when all are."""
    scope: str | None = None
    """The part of the server that the hint applies to, such as a GitHub resource or a Discord bucket."""
    exhausted: bool = False
    """Whether the account has nothing left to spend, so that slowing down does not help."""


SAYS_NOTHING = ServerHint()


REFUSED = 429
UNAVAILABLE = (503, 529)
"""A server that is unavailable or (529, Anthropic and Notion) overloaded: obeyed if it says how long to wait.
"""


class _HasItems(Protocol):
    def items(self) -> Iterable[tuple[Any, Any]]: ...


Headers: TypeAlias = _HasItems | Iterable[tuple[Any, Any]]
"""A mapping or pairs, of text or bytes; names in any case, repeated or joined by commas."""

_CUT = LONGEST + 1
"""Longer values are cut. A list is then malformed; the first number or label stays the same or is rejected,
or is so large that what was cut off does not matter.
"""
_MOST_LINES = 1_000
_RETRY = ("retry-after", "retry-after-ms")
OURS = "Shapekit-Refused"
"""The header that marks a 429 made by shapekit; its value is the `code` of the error."""


class Answer(NamedTuple):
    """A response as dialects see it: the status, the fields by lower-case name, and the time."""

    status: int
    """The status code."""
    fields: Mapping[str, str]
    """The header fields by lower-case name."""
    now: float
    """Epoch seconds: the server's if it sent a Date, else the local clock's."""
    retry_s: float | None = None
    """The wait that `retry-after-ms`, `Retry-After` or, without these, the error's `RetryInfo` asks for, less
    the time in a cache, if positive.
    """
    error: Mapping[str, Any] | None = None
    """The `error` in the JSON body of a 400, 402, 403 or 429, or the body itself if that has none; None until
    the client has read it.
    """
    path: str = ""
    """The path of the request, percent-encoded; empty if it is not known."""

    @property
    def age_s(self) -> float:
        """How long the answer was in a cache, in seconds; 0 if it comes from the server itself."""
        return self.number("age") or 0.0

    def whole(self, name: str) -> int | None:
        """The field as a whole number."""
        return fields.whole(self.fields.get(name))

    def number(self, name: str) -> float | None:
        """The field as a number, with or without a fraction."""
        return fields.number(self.fields.get(name))

    def label(self, name: str) -> str | None:
        """The field as a short word, suitable as part of a key."""
        return fields.label(self.fields.get(name))


class FieldNames(NamedTuple):
    """The names to pick in lower case, in the two types that clients use, and their lengths."""

    texts: frozenset[str]
    encoded: frozenset[bytes]
    lengths: frozenset[int]
    telling: frozenset[int]
    """The lengths without those of Date and Age, which are in many answers and alone say nothing."""


def wanted(fields_read: Iterable[str]) -> FieldNames:
    """These fields, and those that every dialect reads."""
    names = {*fields_read, *_RETRY}
    texts = {*names, "date", "age", OURS.lower()}
    return FieldNames(
        frozenset(texts),
        frozenset(text.encode() for text in texts),
        frozenset(len(text) for text in texts),
        frozenset(len(text) for text in names),
    )


def picked(headers: Headers, wanted: FieldNames | None) -> list[tuple[Any, Any]]:
    """The header lines with a wanted name; all lines if `wanted` is None."""
    lines: Any = headers
    if headers.__class__ is not list or len(lines) > _MOST_LINES:
        lines = list(islice(_pairs(lines), _MOST_LINES))
    if wanted is None or not lines:
        return list(lines)
    texts, encoded, lengths, _ = wanted
    # Two sets: equal text and bytes have the same hash, and comparing them is an error under -bb.
    names: Any = encoded if lines[0][0].__class__ is bytes else texts
    # Most names have another length, which is cheaper to compare.
    return [line for line in lines if len(line[0]) in lengths and line[0].lower() in names]


def _pairs(headers: Any) -> Any:
    if hasattr(headers, "items"):
        return headers.items()
    if not isinstance(headers, Iterable):
        fix = 'pass those of a response, a dict, or pairs such as [("Retry-After", "5")]'
        raise ConfigError("headers", headers, "are no headers", fix)
    return headers


def says_nothing(lines: list[tuple[Any, Any]]) -> bool:
    """Whether no more than the Date was picked, which is in every answer."""
    return not lines or (len(lines) == 1 and len(lines[0][0]) == len("date"))


def heard(
    status: int,
    lines: list[tuple[Any, Any]],
    received_at: float,
    error: Mapping[str, Any] | None = None,
    path: str = "",
) -> Answer:
    """Make an Answer of the picked lines."""
    values: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = _text(raw_name).lower(), _text(raw_value)
        values[name] = f"{values[name]}, {value}"[:_CUT] if name in values else value
    now = fields.http_date(values.get("date"), received_at)
    if now is None:
        now = received_at
    retry = fields.number(values.get("retry-after-ms"))
    retry = retry / 1_000 if retry else fields.retry_after(values.get("retry-after"), now)
    if retry is None:
        retry = fields.duration(_retry_info(error))
    answer = Answer(status, values, now, None, error, path)
    return answer._replace(retry_s=retry - answer.age_s) if retry and retry > answer.age_s else answer


def _retry_info(error: Mapping[str, Any] | None) -> str | None:
    """The `retryDelay` in an error of Google's APIs, such as "36.5s"; they send no Retry-After with it."""
    details = None if error is None else error.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, str):
            return delay
    return None


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
"""Points, and points per second, outside of which the values are rejected."""

_USED_OF = re.compile(r"[ \t]*([0-9]{1,9})/([0-9]{1,9})[ \t]*(?:,|\Z)")


def shopify(answer: Answer) -> ServerHint | None:
    """`X-Shopify-Shop-Api-Call-Limit: 32/40`: how full the bucket is, not when it will have leaked."""
    match = _USED_OF.match(answer.fields.get("x-shopify-shop-api-call-limit", ""))
    if not match:
        return None
    used, limit = int(match[1]), int(match[2])
    return ServerHint(remaining=max(0, limit - used), limit=limit)


def shopify_graphql(cost_extension: Mapping[str, Any] | None) -> ServerHint | None:
    """Read `extensions.cost` of a GraphQL body: hold until a query like this one is affordable.

    Such a body comes with status 200 and no header shows it, so only code that reads the body can pass it on.
    Malformed costs give None. The hold is not bounded here: see `Feedback.bounded`.

        >>> hint = shopify_graphql({
        ...     "requestedQueryCost": 101,
        ...     "throttleStatus": {"maximumAvailable": 1000.0, "currentlyAvailable": 1, "restoreRate": 50.0},
        ... })
        >>> hint.hold_s, hint.remaining, hint.limit, hint.reset_s
        (2.0, 1, 1000, 19.98)
    """
    cost = _number(cost_extension, "requestedQueryCost")
    status = cost_extension.get("throttleStatus") if isinstance(cost_extension, Mapping) else None
    most = _number(status, "maximumAvailable")
    left = _number(status, "currentlyAvailable")
    rate = _number(status, "restoreRate")
    if most is None or left is None or rate is None or rate < _SLOWEST:
        return None
    # A query that costs more than the bucket holds is not worth waiting for.
    missing = (cost or 0.0) - left if (cost or 0.0) <= most else 0.0
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
    """A parser, the fields it reads, and those that identify the dialect."""

    parse: Parser
    reads: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    first_hold_s: float = FIRST_HOLD_S
    """The first hold after a refusal that does not say how long."""


def retry_only(answer: Answer) -> ServerHint:
    """Slack, Notion and many others: only Retry-After, which every dialect reads."""
    return SAYS_NOTHING


def ietf(answer: Answer) -> ServerHint | None:
    """`RateLimit: "name";r=50;t=30` and `RateLimit-Policy: "name";q=100;w=60`, from draft 08 on.

    Of several policies, the one that binds counts. Draft 07 has another form; `generic` reads the fields of
    earlier drafts.
    """
    policies = dict(_named(answer, "ratelimit-policy"))
    states = _named(answer, "ratelimit")  # a name with partitions occurs several times
    if not states and (hint := _of_draft_07(answer)):
        return hint
    if not states and generic(answer):
        return None  # the other fields say more than the policy alone
    hints = []
    for name, state in states or [(name, {}) for name in policies]:
        policy = policies.get(name, {})
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


def _of_draft_07(answer: Answer) -> ServerHint | None:
    """`RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60`."""
    entries = parse_dictionary(answer.fields.get("ratelimit", "")) or {}
    limit, remaining, reset = (
        _whole(entries.get(key, (None, {}))[0]) for key in ("limit", "remaining", "reset")
    )
    if limit is None or remaining is None or reset is None:
        return None
    policies = parse_list(answer.fields.get("ratelimit-policy", "")) or ()
    window = next((_whole(parameters.get("w")) for quota, parameters in policies if quota == limit), None)
    return ServerHint(
        remaining=remaining,
        limit=limit,
        window_s=None if window is None else float(window),
        reset_s=float(reset),
    )


def generic(answer: Answer) -> ServerHint | None:
    """`RateLimit-*`, `X-RateLimit-*` or `X-Rate-Limit-*`: Limit, Remaining, and Reset in any format."""
    resets = {name: fields.until(answer.fields.get(f"{name}reset"), answer.now) for name in _PREFIXES}
    return _binding([_left(answer, name, reset_s) for name, reset_s in resets.items()])


_GITHUB_HOLD_S = 60.0


def _says_secondary(error: Mapping[str, Any] | None) -> bool:
    message = None if error is None else error.get("message")
    return isinstance(message, str) and "secondary rate limit" in message.lower()


def github(answer: Answer) -> ServerHint:
    """Reset in epoch seconds, per resource; a refusal may be a 403.

    No field shows the secondary limits: a refusal while something remains is one; it covers the whole API and
    lasts at least a minute. Without Retry-After, only the message in its body distinguishes such a 403 from
    one for missing permissions.
    """
    reset = answer.number("x-ratelimit-reset")
    refused = answer.status in (403, REFUSED, *UNAVAILABLE)
    hint = _left(answer, "x-ratelimit-", None if reset is None else max(0.0, reset - answer.now))
    hold_s = (answer.retry_s or 0.0) if refused else 0.0
    if not hold_s and hint.remaining != 0 and _says_secondary(answer.error):
        hold_s = _GITHUB_HOLD_S
    return hint._replace(
        hold_s=hold_s,
        scope=answer.label("x-ratelimit-resource") if hint.remaining == 0 or not refused else None,
    )


_MAJOR = re.compile(r"/(?:channels|guilds|webhooks)/[0-9]{1,20}(?=/|\Z)")


def discord(answer: Answer) -> ServerHint:
    """Reset in seconds with a fraction, per bucket, which several routes share; a global limit covers the
    whole API.

    Each channel, guild and webhook has its own count in a bucket, whose name is the same for all of them.
    """
    headers = answer.fields
    is_global = headers.get("x-ratelimit-global") == "true" or headers.get("x-ratelimit-scope") == "global"
    hint = _left(answer, "x-ratelimit-", answer.number("x-ratelimit-reset-after"))
    bucket, major = answer.label("x-ratelimit-bucket"), _MAJOR.search(answer.path)
    if is_global or bucket is None:
        return hint
    return hint._replace(scope=f"{bucket}{PART}{major[0]}" if major else bucket)


def openai(answer: Answer) -> dict[str, ServerHint]:
    """The limits on requests and on tokens, each with its reset as a duration such as `6m0s`."""
    hints = {}
    for family in _OPENAI_FAMILIES:
        reset_s = fields.duration(answer.fields.get(f"x-ratelimit-reset-{family}"))
        hints[family] = _left(answer, "x-ratelimit-", reset_s, f"-{family}")
    return hints


def anthropic(answer: Answer) -> dict[str, ServerHint]:
    """The limits on requests and on several kinds of tokens, each with its reset as an RFC 3339 instant."""
    hints = {}
    for family in _ANTHROPIC_FAMILIES:
        prefix = f"anthropic-ratelimit-{family}-"
        instant = fields.rfc3339(answer.fields.get(f"{prefix}reset"))
        reset_s = None if instant is None else max(0.0, instant - answer.now)
        hints[family] = _left(answer, prefix, reset_s)
    return hints


def _left(answer: Answer, before: str, reset_s: float | None, after: str = "") -> ServerHint:
    """The limit and what remains of it, from fields with a common prefix and suffix."""
    remaining, limit = (answer.whole(f"{before}{field}{after}") for field in ("remaining", "limit"))
    return ServerHint(remaining=remaining, limit=limit, reset_s=reset_s)


def _tightest(dialect: str, answer: Answer) -> ServerHint | None:
    """The limit that binds. Its reset is when all units are back: the first one is back long before."""
    hint = _binding([*FAMILIES[dialect](answer).values()])
    if hint and answer.status != REFUSED and hint.remaining == 0 and hint.reset_s and hint.limit:
        return hint._replace(hold_s=hint.reset_s / hint.limit)
    return hint


def _binding(hints: list[ServerHint]) -> ServerHint | None:
    """The hint that binds: one that is spent and resets last, else the one with the least left."""
    return max((hint for hint in hints if hint != SAYS_NOTHING), key=_binds, default=None)


def _binds(hint: ServerHint) -> tuple[float, float]:
    if hint.remaining is None:
        return float("-inf"), 0.0
    share = hint.remaining / hint.limit if hint.limit else float(hint.remaining)
    return -share, hint.reset_s or 0.0


def _named(answer: Answer, field: str) -> list[tuple[str, Parameters]]:
    members = parse_list(answer.fields.get(field, ""))
    return [(name, parameters) for name, parameters in members or () if isinstance(name, str)]


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
    "anthropic": Dialect(partial(_tightest, "anthropic"), _ANTHROPIC, _ANTHROPIC),
    "openai": Dialect(partial(_tightest, "openai"), _OPENAI, _OPENAI),
    "discord": Dialect(discord, (*_DISCORD, *_USUAL, "x-ratelimit-scope"), _DISCORD),
    "github": Dialect(github, (*_GITHUB, *_USUAL), _GITHUB, _GITHUB_HOLD_S),
    "shopify": Dialect(shopify, _SHOPIFY, _SHOPIFY),
    "ietf": Dialect(ietf, _IETF, _IETF),
    "generic": Dialect(generic, _GENERIC, _GENERIC),
    "slack": Dialect(retry_only),
    "notion": Dialect(retry_only),
}
"""The dialects by name, in the order in which "auto" tries them: the unmistakable ones first."""

FAMILIES: Mapping[str, Callable[[Answer], dict[str, ServerHint]]] = {
    "anthropic": anthropic,
    "openai": openai,
}
"""The dialects with separate limits for requests and tokens: the functions that read each of them."""
