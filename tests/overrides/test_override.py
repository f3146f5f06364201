"""Overrides: what they may contain, which of several counts, and what they make of a program."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Adaptive,
    Concurrency,
    ConfigError,
    FixedWindow,
    Override,
    Policy,
    Quota,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.ledger import Ledger, ledgered
from shapekit.algorithms.overrides import chooser, difference, effective, override_of, read, written
from shapekit.stores.encoding import describe, revived

SET = Override(rate="20/s", by="ann@host", reason="sale", set_at=5.0)


def queue_of(*rate, **options):
    return Policy(*rate, **options).shaper.core.queue


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (Override(rate="twenty"), "rate='twenty' is not a rate"),
        (Override(rate="10/s, 5/min"), "joins rates by something else than a semicolon"),
        (Override(rate="10/s", burst=0), "burst=0 is not a whole number of at least 1"),
        (Override(concurrency=10**6), "concurrency=1000000 is too large; pass at most 10,000"),
        (Override(headroom=1.5), "headroom=1.5 is not from 0 to below 1"),
        (Override(quota="5/fortnight"), "fortnight"),
        (Override(), "state='on' changes nothing"),
        (Override(rate="1/s", state="off"), "state='off' conflicts with rate"),
        (Override(state="paused"), "state='paused' is unknown; use one of on, off, held"),
        (Override("a*b", rate="1/s"), "key='a*b' is neither a key nor a beginning of keys"),
        (Override("", rate="1/s"), "is neither a key nor"),
        (Override(rate="1/s", reason=5), "reason=5 is not text"),
        (Override(rate="1/s", reason="x" * 501), "is not text of up to 500 letters"),
        (Override(rate="1/s", until=float("nan")), "until=nan is not an instant"),
        (Override(rate="1/s", until=253_402_300_800), "until=253402300800 is not an instant"),
    ],
)
def test_wrong_options_are_refused_with_the_error_of_the_constructor(override, words):
    with pytest.raises(ConfigError) as raised:
        override.checked()
    assert words in str(raised.value)


def test_a_reason_may_have_500_letters():
    override = Override(rate="1/s", reason="x" * 500)
    assert override.checked() is override


def test_written_overrides_are_read_as_they_were():
    overrides = (SET, Override("gold-*", state="held", until=7.5), Override("acme", quota="5/day"))
    assert set(read(written(overrides))) == set(overrides)
    assert read("") == ()


@given(
    st.text()
    | st.sampled_from(['[{"rate":"1/s"},{"rate":"2/s"}]', '[{"rate":5}]', "[[]]", "{}", '[{"x":1}]'])
)
def test_an_illegible_text_raises_one_kind_of_error(text):
    try:
        found = read(text)
    except ConfigError:
        return
    assert written(found) == text or not text.strip() or found == ()


def test_the_longest_beginning_counts():
    overrides = [
        Override(None, "1/s"),
        Override("a*", "2/s"),
        Override("acme-*", "3/s"),
        Override("acme-1", "4/s"),
    ]
    rates = {key: chooser(overrides)(key).rate for key in ("zoe", "abc", "acme-2", "acme-1", "acme-")}
    assert rates == {"zoe": "1/s", "abc": "2/s", "acme-2": "3/s", "acme-1": "4/s", "acme-": "3/s"}
    assert chooser(overrides[1:])("zoe") is None


class Counting(str):
    """A key that counts how many beginnings it is compared with."""

    __slots__ = ("comparisons",)

    def startswith(self, beginning):
        self.comparisons += 1
        return super().startswith(beginning)


def test_a_decision_does_not_go_through_the_overrides_of_other_keys():
    overrides = (*[Override(f"tenant-{number}", "1/s") for number in range(1_000)], Override("gold-*", "2/s"))
    key = Counting("bronze-1")
    key.comparisons = 0
    assert chooser(overrides)(key) is None
    assert key.comparisons == 1


def test_setting_one_does_not_check_all_others_again(monkeypatch):
    policy = Policy("1/s", name="mail")
    for number in range(10):
        policy.configure("2/s", key=f"tenant-{number}")
    checked, check = [], Override.checked
    monkeypatch.setattr(Override, "checked", lambda override: checked.append(override.key) or check(override))
    policy.configure("3/s", key="tenant-3")
    assert set(checked) == {"tenant-3"}
    assert [one.rate for one in policy.configured()] == ["2/s"] * 3 + ["3/s"] + ["2/s"] * 6


def test_known_overrides_hide_no_wrong_ones():
    text = '[{"rate":"1/s","burst":true}]'
    with pytest.raises(ConfigError, match="burst=True"):
        read(text)
    assert repr(read(text, (Override(rate="1/s", burst=1),))[0].burst) == "1"


def test_only_the_given_options_are_changed():
    queue = queue_of("5/s; 100/min", burst=3, quota="1000/month", headroom=0.1)
    other = effective(queue, Override(rate="20/s; 300/min"))
    assert [str(rate) for rate in other.rates] == ["20/s", "300/min"]
    assert (other.burst, other.pace, other.gates, other.headroom) == (
        3,
        "smooth",
        queue.gates,
        queue.headroom,
    )
    assert effective(queue, Override(burst=7)).burst == 7
    assert effective(queue, Override(rate="9/s burst 2")).burst == 2
    assert effective(queue, Override(quota="5_000/month")).gates == (Quota("5_000/month"),)
    assert float(effective(queue, Override(headroom=0.5)).headroom) == 0.5
    assert effective(queue, Override(concurrency=5)) is queue
    assert effective(
        queue_of("1/s", quota=Quota("9/month", tz="Europe/Berlin")), Override(quota="5/month")
    ).gates == (Quota("5/month", tz="Europe/Berlin"),)


@pytest.mark.parametrize("gates", [[TokenBucket("100/s")], [Quota("9/month"), FixedWindow("5/min")]])
@pytest.mark.parametrize("change", [Override(rate="200/s"), Override(burst=5)])
def test_a_rate_does_not_come_beside_gates_as_if_it_replaced_them(gates, change):
    """A higher rate than that of a bucket would be a pace that delays the burst of the bucket."""
    with pytest.raises(
        ConfigError, match=r"changes no rate, as the code has gates alone; change them in the"
    ):
        effective(queue_of(gates=gates), change)
    assert effective(queue_of("1/s", gates=gates), change).gates == tuple(gates)
    assert effective(queue_of(quota="9/month"), Override(rate="2/s")).paced


DAY, HOUR = Quota(100, "day"), Quota("5/rolling:1h")


@pytest.mark.parametrize(
    ("limit", "quota", "expected"),
    [
        (all_of(a=DAY, b=GCRA("5/s")), "200/day", all_of(a=Quota(200, "day"), b=GCRA("5/s"))),
        (
            first_of(main=all_of(a=GCRA("5/s"), b=HOUR), spare=DAY),
            "200/day; 9/rolling:60min",
            first_of(main=all_of(a=GCRA("5/s"), b=Quota("9/rolling:1h")), spare=Quota(200, "day")),
        ),
        (any_of(a=DAY, b=DAY), "200/day", any_of(a=Quota(200, "day"), b=DAY)),
        (any_of(a=DAY, b=DAY), "1/day; 2/day", any_of(a=Quota(1, "day"), b=Quota(2, "day"))),
        (Quota("100/fixed:7d"), "9/fixed:168h", Quota("9/fixed:7d")),
    ],
)
def test_a_quota_is_found_wherever_it_is_and_however_its_period_is_written(limit, quota, expected):
    """Of several with one period, the first one is changed."""
    assert effective(queue_of(gates=[limit]), Override(quota=quota)).gates == (expected,)
    assert effective(limit, Override(quota=quota)) == expected
    assert effective(ledgered(limit), Override(quota=quota)) == ledgered(expected)
    for other in ("9/month", f"{quota}; 9/month", "; ".join([quota] * 3)):
        with pytest.raises(ConfigError, match="changes no quota, as the code has none with this period"):
            effective(queue_of(gates=[limit]), Override(quota=other))


def test_off_refuses_nothing_and_goes_on_counting():
    queue = queue_of(
        "1/s; 5/min",
        quota="3/month",
        gates=[GCRA("1/s"), SlidingWindowLog("2/min"), all_of(a=GCRA("1/min"), b=SlidingWindowLog("2/min"))],
    )
    other = effective(queue, Override(state="off"))
    state, now = None, 10**15
    for number in range(20):
        state, granted, _, _ = other.reserve(state, now, (1, 1_000, number))
        assert granted[0]
    back = queue.adopt(state, other, now)
    _, granted, _, _ = queue.reserve(back, now, (1, None, 1))
    assert not granted[0], "the month's three are used up by the twenty"


@pytest.mark.parametrize("calls", [1, 2, 10**9])
def test_without_limits_the_forecast_of_all_calls_is_at_once(calls):
    other, now = effective(queue_of("10/s"), Override(state="off")), 10**15
    assert other.outlook(None, now, calls, 1, 0) == (0, 0)
    held, _, _, _ = other.hold(None, now, 5_000, 1)
    assert other.outlook(held, now, calls, 1, 0) == (5_000, 5_000)


def test_an_adaptive_rate_has_another_highest():
    queue = queue_of(adaptive=Adaptive("2/s", "50/s"))
    other = effective(queue, Override(rate="20/s"))
    assert (str(other.lowest), str(other.highest)) == ("2/s", "20/s")
    assert str(effective(queue, Override(rate="1/s")).lowest) == "1/s"
    with pytest.raises(ConfigError, match="has no effect on an adaptive rate"):
        effective(queue, Override(quota="5/month"))
    with pytest.raises(ConfigError, match="min='2/s' is less than a millionth of max='3000000/s'"):
        effective(queue, Override(rate="3_000_000/s"))


def test_off_leaves_an_adaptive_rate_nothing_to_find():
    other = effective(queue_of(adaptive=Adaptive("1/min", "50/s")), Override(state="off"))
    assert other.lowest == other.highest
    assert other.per_second(other.least) == 10**9


@pytest.mark.parametrize(
    ("limit", "override", "expected"),
    [
        (GCRA("5/s", burst=3), Override(rate="20/s"), GCRA("20/s", burst=3)),
        (TokenBucket("5/s"), Override(burst=9), TokenBucket("5/s", 9)),
        (FixedWindow("100/min"), Override(rate="5/s"), FixedWindow("5/s")),
        (SlidingWindowLog("10/min"), Override(rate="20/min"), SlidingWindowLog("20/min")),
        (Quota("9/month"), Override(quota="5/month"), Quota("5/month")),
        (Ledger(GCRA("5/s")), Override(rate="9/s burst 5"), Ledger(GCRA("9/s"))),
        (Concurrency(5, "30s"), Override(concurrency=9), Concurrency(9, "30s")),
        (Concurrency(5), Override(rate="9/s"), Concurrency(5)),
    ],
)
def test_gates_and_permits_have_overrides_of_their_own(limit, override, expected):
    found = effective(limit, override)
    assert type(found) is type(expected)
    if not isinstance(limit, Ledger):
        assert found == expected


@pytest.mark.parametrize(
    "override", [Override(state="held"), Override(quota="5/month"), Override(rate="1/s; 2/min")]
)
def test_options_that_a_gate_cannot_have_are_refused(override):
    with pytest.raises(ConfigError):
        effective(GCRA("5/s"), override)


METERS = [GCRA("5/s"), TokenBucket("5/s")]
WINDOWS = [FixedWindow("5/h"), SlidingWindow("5/h"), SlidingWindowLog("5/h")]
QUOTAS = [DAY, all_of(a=DAY, b=GCRA("5/s"))]


@pytest.mark.parametrize(
    ("limit", "override", "words"),
    [
        *((limit, Override(rate="5/min", headroom=0.5), "headroom=0.5 has no") for limit in METERS + WINDOWS),
        *((limit, Override(rate="5/min", concurrency=3), "concurrency=3 has") for limit in METERS + WINDOWS),
        *((limit, Override(rate="5/min", quota="5/day"), "quota='5/day' has") for limit in METERS + WINDOWS),
        *((limit, Override(rate="5/min", burst=3), "burst=3 has no effect on") for limit in WINDOWS),
        *((limit, Override(rate="5/min burst 3"), "burst") for limit in WINDOWS),
        *((limit, Override(rate="5/s", quota="5/day"), "rate='5/s' has no effect on") for limit in QUOTAS),
        (GCRA("5/s"), Override(rate="5/min burst 3", burst=4), "conflicts with the burst in the rate"),
    ],
)
def test_options_that_a_gate_would_ignore_are_refused(limit, override, words):
    with pytest.raises(ConfigError, match=words):
        effective(ledgered(limit), override)


@pytest.mark.parametrize("state", ["on", "held", "off"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_program_can_be_described(state, adaptive):
    queue = (
        queue_of(adaptive=Adaptive("2/s", "50/s")) if adaptive else queue_of("5/s", burst=2, quota="5/day")
    )
    other = effective(queue, Override(rate="20/s" if state == "on" else None, state=state))
    assert revived(describe(other)) == other != queue
    assert type(revived(describe(other))) is type(other)


def test_an_instant_may_be_a_datetime():
    override = override_of(
        "5/s", {"until": datetime(2030, 1, 1, tzinfo=UTC), "reason": "sale"}, "ann", 7_000_000
    )
    assert (override.until, override.reason, override.by, override.set_at) == (
        1893456000.0,
        "sale",
        "ann",
        7.0,
    )
    assert not override.is_over(1893455999_999_999)
    assert override.is_over(1893456000_000_000)


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("year", [1, 9999])
def test_a_datetime_outside_the_calendar_is_refused(zone, year, monkeypatch):
    until = datetime(year, 12 if year > 1 else 1, 31 if year > 1 else 1, 23, 59)  # noqa: DTZ001 - by TZ
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    with pytest.raises(ConfigError, match="is not an instant"):
        override_of("5/s", {"until": until}, "ann", 0)
    monkeypatch.undo()
    time.tzset()


def test_a_difference_names_what_was_and_is():
    old, new = (SET, Override("a", "1/s")), (SET, Override("b", "1/s"))
    assert difference(old, new) == {"a": (old[1], None), "b": (None, new[1])}
