"""The dialects in which servers speak of their limits: small parsers, by name.

A parser is given an Answer and returns what it reads in it, or None if it is not spoken here. What
follows from it is Feedback's to say; a parser fills `hold_s` only where its server means something else
than the usual: retry when told, or at the reset once nothing remains.

Shopify: `used/max` in a header of the REST API, and what a GraphQL body says of its cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from shapekit.feedback import fields
from shapekit.feedback.answer import REFUSED, SAYS_NOTHING, UNAVAILABLE, Answer, ServerHint
from shapekit.feedback.fields import Parameters, parse_list

__all__ = ["DIALECTS", "FAMILIES", "Dialect", "Parser", "shopify", "shopify_graphql"]

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
    return _binding(
        [
            ServerHint(
                remaining=answer.whole(f"{prefix}remaining"),
                limit=answer.whole(f"{prefix}limit"),
                reset_s=fields.until(answer.fields.get(f"{prefix}reset"), answer.now),
            )
            for prefix in _PREFIXES
        ]
    )


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
    return ServerHint(
        remaining=answer.whole("x-ratelimit-remaining"),
        limit=answer.whole("x-ratelimit-limit"),
        reset_s=answer.number("x-ratelimit-reset-after"),
        scope=None if is_global else answer.label("x-ratelimit-bucket"),
    )


def openai(answer: Answer) -> ServerHint | None:
    """Requests and tokens, each with its reset as a duration such as `6m0s`."""
    return _tightest(answer, openai_families(answer))


def openai_families(answer: Answer) -> dict[str, ServerHint]:
    """What is left of requests and of tokens."""
    return {
        family: ServerHint(
            remaining=answer.whole(f"x-ratelimit-remaining-{family}"),
            limit=answer.whole(f"x-ratelimit-limit-{family}"),
            reset_s=fields.duration(answer.fields.get(f"x-ratelimit-reset-{family}")),
        )
        for family in _OPENAI_FAMILIES
    }


def anthropic(answer: Answer) -> ServerHint | None:
    """Requests and several kinds of tokens, each with its reset as an instant of RFC 3339."""
    return _tightest(answer, anthropic_families(answer))


def anthropic_families(answer: Answer) -> dict[str, ServerHint]:
    """What is left of requests, and of each kind of tokens."""
    hints = {}
    for family in _ANTHROPIC_FAMILIES:
        instant = fields.rfc3339(answer.fields.get(f"anthropic-ratelimit-{family}-reset"))
        hints[family] = ServerHint(
            remaining=answer.whole(f"anthropic-ratelimit-{family}-remaining"),
            limit=answer.whole(f"anthropic-ratelimit-{family}-limit"),
            reset_s=None if instant is None else max(0.0, instant - answer.now),
        )
    return hints


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
