"""The dialects in which servers speak of their limits: small parsers, by name.

A parser is given an Answer and returns what it reads in it, or None if it is not spoken here. What
follows from it is Feedback's to say; a parser fills `hold_s` only where its server means something else
than the usual: retry when told, or at the reset once nothing remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from shapekit.feedback import fields
from shapekit.feedback.answer import REFUSED, UNAVAILABLE, Answer
from shapekit.feedback.hint import SAYS_NOTHING, ServerHint
from shapekit.feedback.shopify import shopify
from shapekit.feedback.structured import Parameters, parse_list

__all__ = ["DIALECTS", "FAMILIES", "Dialect", "Parser"]

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
