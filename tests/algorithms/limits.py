"""Hypothesis strategies for every limit there is, small enough that a few calls exhaust it."""

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Algorithm,
    FixedWindow,
    LeakyBucket,
    Quota,
    Rate,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.compose import AllOf, AnyOf, Composite, FirstOf

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
SPANS_US = {"day": DAY_US, "week": 7 * DAY_US, "month": 30 * DAY_US}
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "Asia/Kathmandu")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

few = st.integers(1, 12)
bursts = st.integers(1, 8)
spans_us = st.one_of(
    st.sampled_from([SECOND_US, 60 * SECOND_US, 1_000, 999_983, 12, 7]), st.integers(1, 10 * SECOND_US)
)


def exactly(span_us: int) -> timedelta:
    return timedelta(microseconds=span_us)


def weighed(*kinds):
    """One of the strategies, each as likely as the others; `one_of` would weigh the ones inside them."""
    return st.sampled_from(kinds).flatmap(lambda kind: kind)


def meters(spans=spans_us):
    return st.builds(
        lambda kind, limit, span, burst: kind(Rate.of(limit, span), burst),
        st.sampled_from([GCRA, TokenBucket, LeakyBucket]),
        few,
        spans,
        bursts,
    )


def whole_meters():
    """Meters whose interval is a whole number of microseconds."""
    return st.builds(lambda span, burst: GCRA(Rate.of(1, span), burst), spans_us, bursts)


def fixed_windows(spans=spans_us):
    return st.builds(lambda limit, span: FixedWindow(limit, exactly(span)), few, spans)


def sliding_windows(spans=spans_us):
    return st.builds(
        lambda limit, span, buckets, conservative: SlidingWindow(
            limit, exactly(span), buckets=min(buckets, span), conservative=conservative
        ),
        few,
        spans,
        st.sampled_from([1, 2, 3, 10]),
        st.booleans(),
    )


def logs(spans=spans_us):
    return st.builds(lambda limit, span: SlidingWindowLog(limit, exactly(span)), few, spans)


def span_quotas(spans=spans_us):
    return st.builds(
        lambda limit, cadence, span: Quota(limit, f"{cadence}:{span}us"),
        few,
        st.sampled_from(["fixed", "rolling"]),
        spans,
    )


def spread(quota: Quota) -> Quota:
    """The same quota, spread."""
    where = {field: getattr(quota, field) for field in quota.fields[2:-1]}
    return Quota(quota.limit, quota.per, spread=True, **where)


def beginning(per: str, week_start: str, anchor_day: int) -> dict[str, Any]:
    """The day on which the periods begin, if they have one."""
    return {"week": {"week_start": week_start}, "month": {"anchor_day": anchor_day}}.get(per, {})


calendar_quotas = st.builds(
    lambda limit, per, where, week_start, anchor: Quota(
        limit, per, **beginning(per, week_start, anchor), **where
    ),
    few,
    st.sampled_from(["day", "week", "month"]),
    st.one_of(
        st.builds(lambda zone: {"tz": zone}, st.sampled_from(ZONES)),
        st.builds(lambda minutes: {"offset_minutes": minutes}, st.integers(-840, 840)),
    ),
    st.sampled_from(WEEKDAYS),
    st.integers(1, 31),
)


def spread_quotas(spans=spans_us):
    return st.builds(
        lambda limit, span: Quota(limit, f"fixed:{span}us", spread=True),
        few,
        spans,
    )


spread_calendar_quotas = calendar_quotas.map(spread)
leaves = weighed(
    *(meters(), meters(), fixed_windows(), sliding_windows(), logs(), span_quotas(), calendar_quotas),
    *(spread_quotas(), spread_calendar_quotas),
)


def composites(parts):
    return st.builds(
        lambda combine, chosen: combine(**dict(zip("abc", chosen, strict=False))),
        st.sampled_from([all_of, any_of, first_of]),
        st.lists(parts, min_size=2, max_size=3),
    )


def nested(parts):
    """Composites of `parts`, and of composites of them."""
    return composites(weighed(parts, parts, composites(parts)))


limits = weighed(leaves, leaves, nested(leaves))


def scales_us(limit: Algorithm) -> tuple[int, ...]:
    """The spans in which a limit changes: stories step by parts of them."""
    if isinstance(limit, Composite):
        return tuple(scale for part in limit.parts for scale in scales_us(part))
    if isinstance(limit, Quota):
        cadence, _, span = limit.per.partition(":")
        return (int(span[:-2]),) if span else (SPANS_US[cadence],)
    if isinstance(limit, (GCRA, TokenBucket, LeakyBucket)):
        return (-(-limit.burst * limit.rate.period_us // limit.rate.limit),)
    return (limit.window_us,)


def cold_units(limit: Algorithm) -> int:
    """How many calls of cost 1 a cold key admits at one instant, from the meaning of the limit."""
    if isinstance(limit, Composite):
        return combined(limit, [cold_units(part) for part in limit.parts])
    if isinstance(limit, Quota) and limit.spread:
        return 1
    return limit.burst if hasattr(limit, "burst") else limit.limit


def combined(limit: Composite, units: list[int]) -> int:
    """What all parts admit, what the most generous admits, or what the parts admit in turn."""
    return {AllOf: min, AnyOf: max, FirstOf: sum}[type(limit)](units)
