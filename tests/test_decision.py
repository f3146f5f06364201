"""Decision and Forecast: integers to compare, seconds to read, and fields that only grow at the end."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from shapekit import Decision, Forecast

INSTANTS = st.integers(0, 2**53)


def test_a_decision_is_true_if_it_admits():
    assert Decision(True, 10, 1, 9, 0, 0)
    assert not Decision(False, 10, 10, 0, 0, 1)


def test_the_fields_keep_their_order():
    # Callers unpack them and other languages compare them: new ones go to the end, with a default.
    assert Decision._fields[:9] == (
        "allowed",
        "limit",
        "current",
        "remaining",
        "reset_at_us",
        "retry_after_us",
        "binding",
        "receipt",
        "delay_us",
    )
    assert Forecast._fields[:3] == ("admits_at_us", "fits_now", "full_at_us")
    assert set(Decision._fields[6:]) == set(Decision._field_defaults)


@given(INSTANTS, INSTANTS, INSTANTS)
def test_seconds_are_microseconds_over_a_million(reset, retry, delay):
    decision = Decision(False, 1, 1, 0, reset, retry, delay_us=delay)
    for seconds, us in (
        (decision.reset_at, reset),
        (decision.retry_after, retry),
        (decision.delay, delay),
        (Forecast(reset, 0, retry).admits_at, reset),
        (Forecast(reset, 0, retry).full_at, retry),
    ):
        assert seconds == us / 1_000_000


@given(INSTANTS, st.none() | st.text(), st.recursive(st.none() | INSTANTS, lambda r: st.tuples(r, r)))
def test_both_pickle(instant, binding, receipt):
    decision = Decision(True, 3, 1, 2, instant, 0, binding, receipt, 5)
    forecast = Forecast(instant, 1, instant)
    for value in (decision, forecast):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert type(again) is type(value)
