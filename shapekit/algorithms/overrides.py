"""Overrides: limits that an operator has set for a policy or some of its keys, instead of those in the code.

The store keeps them as one text for each policy, and every decision obeys them. `effective` applies an
override to a program. An override contains only what it changes: the rest stays as in the code.

A queue whose limits an operator has set decides as any queue with these limits does. But its answers name it,
because its grid has other units than the caller's own queue; and waiting calls move when such limits come or
go (queue/slots.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypedDict, cast

from shapekit.algorithms.base import NEVER_US, Algorithm, Stepped, windowed
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.gcra import Meter
from shapekit.algorithms.inflight import MOST_PERMITS, Concurrency
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.periods import cadence_of
from shapekit.algorithms.queue.adaptive import Adaptive, AdaptiveQueue, share_of
from shapekit.algorithms.queue.queue import HELD_US, LeakyQueue, paced_of
from shapekit.algorithms.queue.slots import Grant, Granted, Request
from shapekit.algorithms.queue.wire import UNKNOWN
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, MAX_PER_SECOND, MAX_SPAN_US, SECOND_US, Rate, exactly, parse_rates, whole

__all__ = ["Override"]


ON, OFF, HELD = "on", "off", "held"
STATES = (ON, OFF, HELD)
LIMITS = ("rate", "burst", "quota", "concurrency", "headroom")
"""What an override may change."""
_ANY = "*"
_LONGEST = 500
_LATEST_S = 253_402_300_800
"""The end of the year 9999, after which no calendar can show an instant."""


class Override(NamedTuple):
    """What an operator has set for a policy, or for some of its keys. None means as in the code."""

    key: str | None = None
    """The key; `gold-*` for all keys that begin with that; None for the whole policy."""
    rate: str | None = None
    """The rates, such as `"20/s; 100/min"`."""
    burst: int | None = None
    """How many calls may leave at once after an idle time."""
    quota: str | None = None
    """Limits of quotas, such as `"2_000_000/month; 10_000/day"`, each for the quota of that period."""
    concurrency: int | None = None
    """How many calls may be in flight at once."""
    headroom: float | None = None
    """The part of the rates that is left unused."""
    state: str = ON
    """`"on"`; `"off"`: no limit applies; `"held"`: no call leaves."""
    by: str = ""
    """Who set it."""
    reason: str = ""
    """Why it was set, in words."""
    set_at: float = 0.0
    """When it was set, in epoch seconds."""
    until: float | None = None
    """When it ends by itself, in epoch seconds; None for never."""

    @property
    def words(self) -> str:
        """The limits in words, such as `rate 20/s, burst 5`."""
        if self.state != ON:
            return self.state
        limits = [(field, getattr(self, field)) for field in LIMITS]
        return ", ".join(f"{field} {value}" for field, value in limits if value is not None)

    @property
    def ends_us(self) -> int | None:
        """When it ends by itself, in microseconds; None for never."""
        return None if self.until is None else round(self.until * SECOND_US)

    def is_over(self, wall_us: int) -> bool:
        """Whether it has ended."""
        return self.ends_us is not None and wall_us >= self.ends_us

    def checked(self) -> Self:
        """Return this override if its limits are valid; else raise the ConfigError of a constructor."""
        for field in ("key", "by", "reason", "rate", "quota"):
            text = getattr(self, field)
            if text is not None and (not isinstance(text, str) or len(text) > _LONGEST):
                raise ConfigError(field, text, f"is not text of up to {_LONGEST} letters", "pass a str")
        if self.key == "" or (self.key is not None and _ANY in self.key[:-1]):
            fix = 'write "acme", or "acme-*" for all that begin with "acme-"'
            raise ConfigError("key", self.key, "is neither a key nor a beginning of keys", fix)
        if self.state not in STATES:
            raise ConfigError("state", self.state, "is unknown", f"use one of {', '.join(STATES)}")
        limits = [field for field in LIMITS if getattr(self, field) is not None]
        if (self.state == ON) is not bool(limits):
            bound = f"conflicts with {limits[0]}" if limits else "changes nothing"
            raise ConfigError("state", self.state, bound, 'set off or held, or limits such as rate="20/s"')
        for field in ("set_at", "until"):
            instant = getattr(self, field)
            if instant is not None and (exactly(instant) is None or not 0 <= instant < _LATEST_S):
                raise _no_instant(field, instant)
        if self.rate is not None:
            parse_rates(self.rate)
        if self.burst is not None:
            whole("burst", self.burst)
        if self.concurrency is not None:
            whole("concurrency", self.concurrency, most=MOST_PERMITS)
        quotas(self.quota)
        effective(_SAMPLE, self._replace(quota=None))
        return self


class Change(TypedDict, total=False):
    """The keyword arguments of `configure`, beside the rate."""

    key: str | None
    burst: int | None
    quota: str | None
    concurrency: int | None
    headroom: float | None
    state: str
    reason: str
    until: datetime | float | None


def override_of(rate: str | None, change: Change, by: str, now_us: int) -> Override:
    """The override to set now; ConfigError if its limits are not valid."""
    fields: dict[str, Any] = dict(change)
    for field in fields:
        if field not in Change.__annotations__:
            # As Python raises for any call with an unknown keyword.
            raise TypeError(f"configure() got an unexpected keyword argument {field!r}")
    if isinstance(until := fields.get("until"), datetime):
        try:
            fields["until"] = until.timestamp()
        except (OverflowError, ValueError, OSError):  # in its zone, it is beyond every calendar
            raise _no_instant("until", until) from None
    return Override(rate=rate, by=by, set_at=now_us / SECOND_US, **fields).checked()


def _no_instant(field: str, value: object) -> ConfigError:
    return ConfigError(field, value, "is not an instant", "pass a datetime or epoch seconds")


_SAMPLE = LeakyQueue(parse_rates("1/s"), None, "smooth", ())
"""Any queue, to validate limits that every queue can have."""

Overrides: TypeAlias = tuple[Override, ...]


def quotas(text: str | None) -> list[Quota]:
    """The quotas in the text of an override."""
    return [] if text is None else [_quota(part.strip()) for part in text.split(";")]


def _quota(text: str) -> Quota:
    try:
        return Quota(text)
    except ConfigError as error:
        # The operator has written quota= as text: name that field and text.
        fix = 'write "1_000_000/month"' if error.field == "limit" else error.fix
        raise ConfigError("quota", text, error.bound, fix) from None


def chooser(overrides: Overrides) -> Callable[[str], Override | None]:
    """A function that finds the override of a key: its own, else the longest matching `prefix*`, else the
    policy's. It has to be fast: every decision calls it, and there may be an override for each customer.
    """
    own = {one.key: one for one in overrides}
    general = [one for one in overrides if one.key is None or one.key.endswith(_ANY)]
    general.sort(key=lambda one: len(one.key or ""), reverse=True)
    beginnings = [((one.key or _ANY)[:-1], one) for one in general]

    def choose(key: str) -> Override | None:
        found = own.get(key)
        if found is None:
            for beginning, one in beginnings:
                if key.startswith(beginning):
                    return one
        return found

    return choose


def written(overrides: Iterable[Override]) -> str:
    """The overrides of a policy as text; empty if there are none."""
    plain = [
        {field: value for field, value in one._asdict().items() if value != Override._field_defaults[field]}
        for one in sorted(overrides, key=lambda one: one.key or "")
    ]
    return json.dumps(plain, separators=(",", ":")) if plain else ""


def read(text: str, known: Overrides = ()) -> Overrides:
    """The overrides in a text; ConfigError if it is malformed. Overrides in `known` are not checked again."""
    if not text:
        return ()
    sound = {one: one for one in known}
    try:
        overrides = [Override(**fields) for fields in json.loads(text)]
        found = tuple([sound.get(one) or one.checked() for one in overrides])
    except ConfigError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError("overrides", text, f"are illegible ({error})", "set them again") from None
    if len({one.key for one in found}) < len(found):
        raise ConfigError("overrides", text, "name a key twice", "set them again")
    return found


# applied to a program


def effective(program: Any, override: Override) -> Any:
    """The program with the limits of an override; ConfigError if it cannot have them."""
    if isinstance(program, Concurrency):
        limit = MOST_PERMITS if override.state == OFF else override.concurrency
        lease = timedelta(microseconds=program.lease_us)
        return program if limit is None else Concurrency(limit, lease)
    if isinstance(program, LeakyQueue):
        return _queue(program, override)
    if isinstance(program, Ledger):
        return Ledger(_alone(program.limit, override))
    return _alone(program, override)


def _queue(queue: LeakyQueue, override: Override) -> LeakyQueue:
    if override.state == HELD:
        ends_us = NEVER_US if override.ends_us is None else min(override.ends_us, NEVER_US)
        return overridden(queue, held_until_us=ends_us)
    is_off = override.state == OFF
    limits = (override.rate, override.burst, override.quota, override.headroom)
    if not is_off and limits.count(None) == len(limits):
        return queue
    if isinstance(queue, AdaptiveQueue):
        return overridden(queue, **_bounds(queue, override))
    if not queue.rates and any(not isinstance(gate, Quota) for gate in queue.gates):
        for field in ("rate", "burst"):
            if (value := getattr(override, field)) is not None:
                bound = "changes no rate, as the code has gates alone"
                raise ConfigError(field, value, bound, "change them in the code; here set off or held")
    numbers: dict[str, Any] = {}
    if is_off:
        # Without a pace: at any pace, the second of two calls at one instant would have to wait.
        paced = paced_of(queue.rates, queue.pace)
        others = [_lifted_rate(rate) for rate in queue.rates if rate is not paced]
        numbers = {"rates": tuple(others), "pace": "burst", "gates": tuple(map(_lifted, queue.gates))}
    if override.rate is not None:
        numbers["rates"] = rates = parse_rates(override.rate)
        shortest = min(rates, key=lambda rate: rate.period_us)
        if override.burst is None and queue.paced and shortest.burst is None:
            numbers["burst"] = queue.burst
    if override.burst is not None:
        rates = tuple([Rate.of(rate.limit, rate.period_us) for rate in numbers.get("rates", queue.rates)])
        numbers |= {"rates": rates, "burst": override.burst}
    if override.quota is not None:
        numbers["gates"] = _with_quotas(queue.gates, quotas(override.quota))
    if override.headroom and not numbers.get("rates", queue.rates):
        raise ConfigError("headroom", override.headroom, "has no rate to apply to", "set a rate beside it")
    numbers["headroom"] = queue.headroom if override.headroom is None else override.headroom
    return overridden(queue, **numbers)


def _bounds(queue: AdaptiveQueue, override: Override) -> dict[str, Any]:
    """The bounds of an adaptive rate: an operator's rate is the highest one."""
    limit = override.quota or override.headroom
    if limit is not None:
        raise ConfigError("quota or headroom", limit, "has no effect on an adaptive rate", "set its rate")
    numbers: dict[str, Any] = {} if override.burst is None else {"burst": override.burst}
    if override.state == OFF:
        numbers["lowest"] = numbers["highest"] = _lifted_rate(queue.highest)
    if override.rate is not None:
        highest, *more = parse_rates(override.rate)
        if more:
            raise ConfigError("rate", override.rate, "is several, and an adaptive rate is one", "set one")
        numbers["lowest"] = numbers["highest"] = highest = Rate.of(highest.limit, highest.period_us)
        if share_of(queue.lowest, highest) < 1:
            numbers["lowest"] = Adaptive(queue.lowest, highest).min
    return numbers


def _with_quotas(gates: Iterable[Algorithm[Any]], new_quotas: list[Quota]) -> tuple[Algorithm[Any], ...]:
    changed = tuple([_with_quota(gate, new_quotas) for gate in gates])
    for quota in new_quotas:
        bound = "changes no quota, as the code has none with this period"
        fix = "name the period of one, or add such a quota to the code"
        raise ConfigError("quota", f"{quota.limit}/{quota.per}", bound, fix)
    return changed


def _with_quota(limit: Algorithm[Any], new_quotas: list[Quota]) -> Algorithm[Any]:
    """The limit with the numbers of those `new_quotas` that have its periods; removes these from the list."""
    if isinstance(limit, Composite):
        parts = [_with_quota(part, new_quotas) for part in limit.parts]
        return type(limit)(dict(zip(limit.names, parts, strict=True)))
    if isinstance(limit, Ledger):
        return Ledger(_with_quota(limit.limit, new_quotas))
    if isinstance(limit, Quota):
        period = cadence_of(limit.per)
        for place, quota in enumerate(new_quotas):
            if cadence_of(quota.per) == period:
                return _with_limit(limit, new_quotas.pop(place).limit)
    return limit


def _alone(limit: Algorithm[Any], override: Override) -> Algorithm[Any]:
    """A gate's limit under an override."""
    if override.state == HELD:
        raise ConfigError("state", HELD, "is for queues, and a gate never waits", 'set rate="1/h", or off')
    if override.state == OFF:
        return _lifted(limit)
    used = _limits_of(limit)
    for field in LIMITS:
        if (value := getattr(override, field)) is not None and field not in used:
            raise ConfigError(
                field, value, f"has no effect on a {limit.kind}", f"set its {' or '.join(used)}"
            )
    if override.quota is not None:
        return _with_quotas((limit,), quotas(override.quota))[0]
    if isinstance(limit, Meter):
        rate = limit.rate if override.rate is None else Rate.parse(override.rate)
        own = limit.burst if rate.burst is None else None
        return type(limit)(rate, own if override.burst is None else override.burst)
    return _with_limit(limit, *windowed(cast("str", override.rate), None))


def _limits_of(limit: Algorithm[Any]) -> tuple[str, ...]:
    """What an override may change of a gate's limit."""
    if isinstance(limit, Meter):
        return "rate", "burst"
    return ("quota",) if isinstance(limit, Quota | Composite) else ("rate",)


def _lifted_rate(rate: Rate) -> Rate:
    return Rate.of(min(MAX_COUNT, max(1, MAX_PER_SECOND * rate.period_us // SECOND_US)), rate.period_us)


def _lifted(limit: Algorithm[Any]) -> Algorithm[Any]:
    """The limit at its highest possible number, so that it goes on counting and refuses nothing."""
    if isinstance(limit, Composite):
        return type(limit)(dict(zip(limit.names, map(_lifted, limit.parts), strict=True)))
    if isinstance(limit, Ledger):
        return Ledger(_lifted(limit.limit))
    if isinstance(limit, Meter):
        # So deep that the units in use, and many calls at one instant, are only a small part of it.
        own_us = -(-limit.burst * limit.rate.period_us // limit.rate.limit)
        refill_us = min(MAX_SPAN_US, MAX_COUNT * SECOND_US // MAX_PER_SECOND + own_us)
        return type(limit)(Rate.of(MAX_COUNT, refill_us), MAX_COUNT)
    if isinstance(limit, SlidingWindowLog):
        # A log would keep an entry for each call.
        return SlidingWindow(MAX_COUNT, timedelta(microseconds=limit.window_us), conservative=True)
    return _with_limit(limit, MAX_COUNT, **({"spread": False} if isinstance(limit, Quota) else {}))


def _with_limit(
    limit: Algorithm[Any], units: int, window_us: int | None = None, **others: Any
) -> Algorithm[Any]:
    fields: dict[str, Any] = {field: getattr(limit, field) for field in limit.fields} | others
    fields["limit"] = units
    make: Callable[..., Algorithm[Any]] = type(limit)
    if "window_us" in fields:
        own_us = fields.pop("window_us")
        fields["window"] = timedelta(microseconds=own_us if window_us is None else window_us)
    return make(**fields)


def difference(before: Iterable[Override], after: Iterable[Override]) -> Mapping[str | None, tuple[Any, Any]]:
    """The overrides that differ: `{key: (before, after)}`, with None for no override."""
    old, new = ({one.key: one for one in overrides} for overrides in (before, after))
    keys = sorted(old.keys() | new.keys(), key=lambda key: key or "")
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def without(overrides: Overrides, key: str | None) -> Overrides:
    """The overrides of other keys."""
    return tuple([one for one in overrides if one.key != key])


def placed(override: Override) -> Callable[[Overrides], Overrides]:
    """The change that sets an override and replaces any for the same key."""
    return lambda overrides: (*without(overrides, override.key), override)


# queues whose limits an operator has set


class _Overridden(LeakyQueue):
    """The base of queues whose limits an operator has set: names itself in grants, and may be held."""

    __slots__ = ()
    is_set: ClassVar[bool] = True

    def hold_until(self, ends_us: int) -> None:
        """Complete a queue that is held: the civil time at which its override ends, NEVER_US for none."""
        held_until_us = whole("held_until_us", ends_us, most=NEVER_US)
        self._fill(held_until_us=held_until_us, civil=self.civil or held_until_us < NEVER_US)

    def reserve(self, state: Any, now: int, request: Request, skew: int = 0) -> Stepped[Any, Granted]:
        """`reserve` of any queue; its answer names this one."""
        before = self._held(state, now, request[2], skew) if self.is_held else state
        after, granted, life, is_taken = super().reserve(before, now, request, skew)
        return after if is_taken else state, Grant(*granted)._replace(queue=self), life, is_taken

    def follow(self, state: Any, now: int, skew: int = 0) -> Stepped[Any, tuple[Any, ...]]:
        is_held = self.is_held and self.confirm(state, now)[0] != UNKNOWN
        return super().follow(self._held(state, now, 0, skew) if is_held else state, now, skew)

    def outlook(self, state: Any, now: int, calls: int, cost: int, skew: int) -> tuple[int, int]:
        before = self._held(state, now, 0, skew) if self.is_held else state
        return super().outlook(before, now, calls, cost, skew)

    def granted_received(self, sent: Any) -> Grant:
        return super().granted_received(sent)._replace(queue=self)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        spec = super().twin(instants)
        return ["queue/held", spec, self.held_until_us] if self.is_held else spec

    def _held(self, state: Any, now: int, nonce: int, skew: int) -> Any:
        """The state, held until the override ends; if that is far away, for long enough."""
        ends = self.held_until_us - skew
        enough = min(now + HELD_US // 2, ends)
        if enough <= now or self.confirm(state, now)[2] >= enough:
            return state
        return self.hold(state, now, self.held_us(now + skew), nonce, skew)[0]

    def _values(self) -> tuple[Any, ...]:
        return (*super()._values(), self.held_until_us)


class SetQueue(_Overridden):
    """A LeakyQueue whose limits an operator has set."""

    __slots__ = ()

    @property
    def is_off(self) -> bool:
        if self.paced or self.is_held or any(rate != _lifted_rate(rate) for rate in self.rates):
            return False
        return all(gate.max_cost == MAX_COUNT for gate in self.gates)


class SetAdaptiveQueue(_Overridden, AdaptiveQueue):
    """An AdaptiveQueue whose bounds an operator has set."""

    __slots__ = ()


def overridden(queue: LeakyQueue, *, held_until_us: int = 0, **numbers: Any) -> LeakyQueue:
    """An operator's copy of the queue, with `numbers` in place of its own; by default with the same."""
    own = {field: getattr(queue, field) for field in queue.fields} | numbers
    if not queue.adapts:
        paced = paced_of(own["rates"], own["pace"])
        if paced is None or paced.burst is not None:
            # Without a pace there is no burst; else it is part of the rate already.
            own["burst"] = numbers.get("burst")
    made: _Overridden = (SetAdaptiveQueue if queue.adapts else SetQueue)(**own)
    if held_until_us:
        made.hold_until(held_until_us)
    return made
