"""Config: the options of a policy, and their form in configuration files.

`PolicyOptions` is the one list of options, for `Policy`, `@shaped`, client wrappers, Celery tasks and files.
The functions check options, and bring those that have several forms into one.
"""

# No `from __future__ import annotations`: evaluating a TypedDict's textual annotations slows the import.
import builtins
import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, TokenBucket
from shapekit.algorithms.inflight import MOST_PERMITS, Concurrency
from shapekit.algorithms.queue.adaptive import Adaptive
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.clock import Clock
from shapekit.errors import ConfigError
from shapekit.keys import KeySpec, KeyTemplate
from shapekit.rate import Duration, boolean, whole
from shapekit.stores import StoreLike

if TYPE_CHECKING:
    from shapekit.feedback import Answer, Feedback, ServerHint

T = TypeVar("T")

CostSpec: TypeAlias = int | Callable[..., int]
FeedbackSpec: TypeAlias = "str | Feedback | Callable[[Answer], ServerHint | None]"
RefundSpec: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
)


class PolicyOptions(TypedDict, total=False):
    """The options of a policy beside its rate."""

    name: str | None
    """The name of the limit in errors, events and keys of the store; needed if a store is shared."""
    burst: int | None
    """How many calls may leave at once after an idle time; by default 1, or the burst in the rate."""
    pace: str
    """"smooth", evenly spaced; or "burst", as fast as the windows of all rates allow."""
    quota: Quota | str | None
    """How many calls in a calendar period: a `Quota`, or text such as `"1_000_000/month"`."""
    spread: bool
    """Whether the rest of a quota is spent evenly over the rest of its period."""
    gates: Sequence[Algorithm[Any]]
    """Further strategies that every call has to pass."""
    concurrency: Concurrency | int | None
    """How many calls may be in flight at once, over all workers; a `Concurrency` sets the lease."""
    key: KeySpec
    """What the limit is counted for: text, a template such as `"{user_id}"`, or a callable."""
    cost: CostSpec
    """What a call costs: a number, by default 1, or a callable that gets the arguments of the call."""
    max_wait: Duration | None
    """A call that would wait longer is refused; `0` means now or never, None without a bound."""
    headroom: float
    """The fraction by which to stay below the stated rates: `0.02` is 2 %."""
    prefetch: Duration | None
    """For a distant store: a busy worker takes slots ahead, up to this much time's worth on one trip."""
    adaptive: Adaptive | None
    """Instead of a rate: the bounds of a rate that shapekit finds from the server's answers."""
    enforce: bool
    """False: every call leaves at once, and its admission says what would have happened."""
    refund_on: RefundSpec | None
    """Exceptions (or a predicate) after which a call does not count."""
    feedback: "FeedbackSpec | None"
    """How the server's answers are read: "hold", a `Feedback`, or a callable; None ignores them."""
    store: "StoreLike | None"
    """A store, the URL of a Redis, or the path of a SQLite file; by default this process's memory."""
    clock: Clock | None
    """The clock of the policy's own store in memory."""


def checked_options(call: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the options; an unknown one raises TypeError, as a wrong keyword does in any call."""
    for name in options:
        if name not in PolicyOptions.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    return dict(options)


def is_limited(options: Mapping[str, Any]) -> bool:
    """Whether the options have a limit other than a rate."""
    given = [options.get(limit) for limit in OTHER_LIMITS]
    # Not by equality, for which numpy values return an array.
    return not all(value is None or (isinstance(value, list | tuple) and not value) for value in given)


def quotas_from(quota: Quota | str | None, spread: bool) -> tuple[Quota, ...]:
    """The given quota, parsed if it is text, as a tuple of one; empty without a quota."""
    if boolean("spread", spread) and not isinstance(quota, str):
        bound, fix = "has no quota to spread", 'write quota="1_000_000/month"'
        if quota is not None:
            bound, fix = "conflicts with a Quota, which has its own spread=", "write Quota(…, spread=True)"
        raise ConfigError("spread", spread, bound, fix)
    if quota is None:
        return ()
    if isinstance(quota, str):
        try:
            return (Quota(quota, spread=spread),)
        except ConfigError as error:
            raise error.within("quota") from None
    if not isinstance(quota, Quota):
        raise ConfigError("quota", quota, "is not a quota", 'write "1_000_000/month", or a Quota')
    return (quota,)


def concurrency_from(concurrency: Concurrency | int | None) -> Concurrency | None:
    """The bound on calls in flight, as a `Concurrency` if it is a number; None without a bound."""
    if concurrency is None or isinstance(concurrency, Concurrency):
        return concurrency
    return Concurrency(whole("concurrency", concurrency, most=MOST_PERMITS))


def checked_key(key: KeySpec) -> str | KeyTemplate | Callable[..., str]:
    """The key if it is the same for all calls, a parsed template, or the callable."""
    if isinstance(key, str):
        template = KeyTemplate(key)
        return template if template.fields else template({})
    if callable(key):
        return key
    raise ConfigError("key", key, "is neither text nor callable", 'write "{user_id}", or a callable')


def checked_cost(cost: CostSpec) -> int | Callable[..., int]:
    """The cost as a checked whole number, or the callable."""
    if callable(cost):
        return cost
    return whole("cost", cost)


def never_counted(refund_on: RefundSpec | None) -> Callable[[BaseException], bool] | None:
    """A predicate for the errors after which a call does not count; None without `refund_on`."""
    if refund_on is None:
        return None
    kinds: tuple[Any, ...] = refund_on if isinstance(refund_on, tuple) else (refund_on,)
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if callable(refund_on) and not isinstance(refund_on, type):
        return refund_on
    fix = "write refund_on=ConnectionError"
    raise ConfigError("refund_on", refund_on, "is neither exceptions nor a predicate", fix)


def checked_feedback(feedback: Any) -> Any:
    """The feedback option as given, if it is of a known kind."""
    if feedback is None or feedback == "hold" or callable(feedback):
        return feedback
    from shapekit.feedback import Feedback  # noqa: PLC0415 - a caller that has one has loaded it

    if isinstance(feedback, Feedback):
        return feedback
    fix = 'write "hold", None, or Feedback("github")'
    raise ConfigError("feedback", feedback, "is not a kind of feedback", fix)


STRATEGIES: dict[str, Callable[..., Algorithm[Any]]] = {
    strategy.kind: strategy
    for strategy in (GCRA, TokenBucket, FixedWindow, SlidingWindow, SlidingWindowLog, LeakyBucket, Quota)
}
FIELDS = ("rate", *(name for name in PolicyOptions.__annotations__ if name not in ("store", "clock")))
"""The fields that a table may have: all options but store and clock, which the program chooses."""
OTHER_LIMITS = ("quota", "gates", "adaptive", "concurrency")
"""The options that make a rate unnecessary."""
DOTTED = 'put a name with dots in quotes, such as ["a.b"]'
"""The fix for a table in a table that is not known there: TOML reads [llm.spend] as `spend` in `llm`."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A name that TOML reads without quotes."""


def tables_of(path: str | PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file."""
    import tomllib  # noqa: PLC0415 - only needed to read a file

    try:
        # Editors on Windows begin a file with a byte order mark, which tomllib refuses.
        with open(path, encoding="utf-8-sig") as file:
            return tomllib.loads(file.read())
    except OSError as error:
        bound, fix = f"cannot be read: {error.strerror}", "name a TOML file"
    except (ValueError, RecursionError) as error:
        bound, fix = f"is not TOML: {error!s:.200}", "mend that place"
    raise ConfigError("path", str(path), bound, fix)


def table_of(path: str | PathLike[str], name: str) -> dict[str, Any]:
    """The table `[name]` of a TOML file."""
    if not isinstance(path, str | PathLike):
        raise ConfigError("path", path, "is not a path", 'pass one such as "limits.toml"')
    tables = tables_of(path)
    table = tables.get(name) if isinstance(name, str) else None
    if not isinstance(table, dict):
        known = ", ".join(key for key, value in tables.items() if isinstance(value, dict))
        fix = "pass its name as text"
        if isinstance(name, str):
            fix = f"write [{name:.80}]" if _BARE.fullmatch(name) else f'write ["{name:.80}"]'
        if known:
            fix += f", or use one of: {known:.200}"
        raise ConfigError("name", name, f"is not a table of {path}", fix)
    return table


def fields_of(table: object) -> dict[str, Any]:
    """The arguments of a policy from a table; gates and quota may be tables themselves."""
    if not isinstance(table, Mapping):
        raise ConfigError("fields", table, "is not a table", 'pass a dict such as {"rate": "10/s"}')
    for field in table:
        if field not in FIELDS:
            fix = DOTTED if isinstance(table[field], Mapping) else f"use some of {', '.join(FIELDS)}"
            raise ConfigError("field", field, "is unknown", fix)
    fields = dict(table)
    if isinstance(fields.get("quota"), Mapping):
        fields["quota"] = strategy_of("quota", {"strategy": "quota", **fields["quota"]})
    if fields.get("adaptive") is not None:
        fields["adaptive"] = _adaptive(fields["adaptive"])
    if isinstance(concurrency := fields.get("concurrency"), Mapping):
        fields["concurrency"] = _concurrency(concurrency)
    if "feedback" in fields:
        fields["feedback"] = _feedback(fields["feedback"])
    if "refund_on" in fields:
        fields["refund_on"] = _refund_on(fields["refund_on"])
    if "gates" in fields:
        gates = fields["gates"]
        if not isinstance(gates, list | tuple):
            fix = 'write gates = [{strategy = "gcra", rate = "10/s"}]'
            raise ConfigError("gates", gates, "is not a list", fix)
        fields["gates"] = tuple(strategy_of(f"gates[{index}]", gate) for index, gate in enumerate(gates))
    if fields.get("rate") is None and not is_limited(fields):
        raise ConfigError("rate", None, "is missing", 'write rate = "10/s"')
    return fields


def _adaptive(table: object) -> Adaptive:
    if isinstance(table, Adaptive):
        return table
    if not isinstance(table, Mapping) or set(table) != set(Adaptive.fields):
        fix = 'write {min = "1/s", max = "50/s"}'
        raise ConfigError("adaptive", table, "is not a table of min and max", fix)
    return _made("adaptive", Adaptive, table)


def _concurrency(table: Mapping[str, Any]) -> Concurrency:
    if not {"limit"} <= set(table) <= {"limit", "lease"}:
        fix = 'write {limit = 20, lease = "30s"}'
        raise ConfigError("concurrency", table, "is not a table of limit and lease", fix)
    return _made("concurrency", Concurrency, table)


def _feedback(value: Any) -> Any:
    """A table holds the arguments of a `Feedback`; false stands for None, which TOML does not have."""
    if value is False:
        return None
    if value is True or (isinstance(value, str) and value != "hold"):
        fix = 'write "hold", false, or {dialect = "github"}'
        raise ConfigError("feedback", value, "is not a kind of feedback", fix)
    if not isinstance(value, Mapping):
        return value
    if not set(value) <= {"dialect", "max_hold"}:
        fix = 'write {dialect = "github", max_hold = "5m"}'
        raise ConfigError("feedback", value, "is not a table of dialect and max_hold", fix)
    from shapekit.feedback import Feedback  # noqa: PLC0415 - dialects are loaded only if used

    return _made("feedback", Feedback, value)


def _refund_on(value: Any) -> Any:
    """Names in a file are those of built-in exceptions only: a file must not cause an import."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return value
    kinds = tuple(getattr(builtins, name, None) for name in names)
    for name, kind in zip(names, kinds, strict=True):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            fix = 'write "ConnectionError", or give the class to Policy'
            raise ConfigError("refund_on", name, "is not a built-in exception", fix)
    return kinds


def strategy_of(place: str, table: object) -> Algorithm[Any]:
    """Make the strategy that a table such as `{strategy = "gcra", rate = "10/s", burst = 20}` describes."""
    if isinstance(table, Algorithm):
        return table
    known = ", ".join(STRATEGIES)
    if not isinstance(table, Mapping):
        raise ConfigError(place, table, "is not a table", 'write {strategy = "gcra", rate = "10/s"}')
    arguments = dict(table)
    kind = arguments.pop("strategy", None)
    if not isinstance(kind, str) or kind not in STRATEGIES:
        raise ConfigError(f"{place}.strategy", kind, "is unknown", f"use one of {known}")
    make = STRATEGIES[kind]
    import inspect  # noqa: PLC0415 - only for strategies in tables

    parameters = inspect.signature(make).parameters
    if "rate" in arguments and "rate" not in parameters and "limit" not in arguments:
        # Window strategies take a rate as their `limit`; a table names it `rate`, as everywhere else.
        arguments["limit"] = arguments.pop("rate")
    for name, value in arguments.items():
        if name not in parameters:
            fix = f"use {', '.join(parameters)}"
            raise ConfigError(f"{place}.{name!s:.80}", value, f"is not an option of {kind}", fix)
    missing = [
        name for name, given in parameters.items() if given.default is given.empty and name not in arguments
    ]
    if missing:
        raise ConfigError(f"{place}.{missing[0]}", None, "is missing", f"{kind} needs it")
    return _made(place, make, arguments)


def _made(place: str, make: Callable[..., T], arguments: Mapping[str, Any]) -> T:
    try:
        return make(**arguments)
    except ConfigError as error:
        raise error.within(place) from None
