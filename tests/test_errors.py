"""The tree of errors: who is whose child, frozen codes, texts, and the way through pickle."""

import copy
import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import Decision, errors
from shapekit.errors import (
    ConfigError,
    CostExceedsLimitError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    ShapekitError,
    StoreUnavailableError,
)

DENIAL = Decision(False, 10, 10, 0, 5_000_000, 1_250_000)
NAMED = DENIAL._replace(binding="month")

EXAMPLES = {
    ShapekitError("anything"): "anything",
    ConfigError("burst", 0, "is not a whole number from 1 to 9", "pass an int, such as 1"): (
        "burst=0 is not a whole number from 1 to 9; pass an int, such as 1"
    ),
    CostExceedsLimitError(12, 10, "stripe"): (
        "cost=12 exceeds burst=10 for key 'stripe': it can never be admitted; raise burst or split the call"
    ),
    CostExceedsLimitError(12, 10, "stripe", "capacity"): (
        "cost=12 exceeds capacity=10 for key 'stripe': "
        "it can never be admitted; raise capacity or split the call"
    ),
    RateLimitedError(DENIAL, "stripe"): "key 'stripe' is limited: 10 of 10 used; retry after 1.25 s",
    RateLimitedError(NAMED, "stripe"): (
        "key 'stripe' is limited by 'month': 10 of 10 used; retry after 1.25 s"
    ),
    QueueFullError(DENIAL, "stripe", 1.25, 1.0): (
        "delay=1.25 s exceeds max_wait=1 s for key 'stripe'; "
        "raise max_wait, lower the traffic, or retry after the delay"
    ),
    QuotaExhaustedError(DENIAL, "stripe"): (
        "quota of key 'stripe' is spent: 10 of 10 used; next period in 1.25 s"
    ),
    StoreUnavailableError("gone"): "gone",
}
EACH = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def test_the_tree():
    assert {
        name: [base.__name__ for base in kind.__bases__]
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception)
    } == {
        "ShapekitError": ["Exception"],
        "ConfigError": ["ShapekitError", "ValueError"],
        "CostExceedsLimitError": ["ShapekitError", "ValueError"],
        "RateLimitedError": ["ShapekitError"],
        "QueueFullError": ["RateLimitedError"],
        "QuotaExhaustedError": ["RateLimitedError"],
        "StoreUnavailableError": ["ShapekitError"],
    }


def test_the_codes_are_frozen():
    # They are written into logs and other processes: a changed one breaks whoever reads them.
    assert {kind.__name__: kind.code for kind in map(type, EXAMPLES)} == {
        "ShapekitError": "shapekit_error",
        "ConfigError": "config_invalid",
        "CostExceedsLimitError": "cost_exceeds_limit",
        "RateLimitedError": "rate_limit_exceeded",
        "QueueFullError": "queue_full",
        "QuotaExhaustedError": "quota_exhausted",
        "StoreUnavailableError": "store_unavailable",
    }


def test_every_error_is_in_the_examples_and_exported():
    assert set(errors.__all__) == {type(error).__name__ for error in EXAMPLES}


@EACH
def test_the_text(error):
    assert str(error) == EXAMPLES[error]


def same(again, error):
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(again) == repr(error)
    assert again.args == error.args
    assert again.__dict__ == error.__dict__
    assert again.code == error.code


@EACH
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles(error, protocol):
    once = pickle.loads(pickle.dumps(error, protocol))
    same(once, error)
    same(pickle.loads(pickle.dumps(once, protocol)), error)


@EACH
def test_every_error_copies(error):
    same(copy.copy(error), error)
    same(copy.deepcopy(error), error)


@given(st.text() | st.integers() | st.floats() | st.binary(max_size=200) | st.lists(st.integers()))
def test_config_errors_pickle_with_any_value_and_stay_short(value):
    error = ConfigError("field", value, "is wrong", "do right")
    assert len(error.value) <= 80
    same(pickle.loads(pickle.dumps(error)), error)


@given(st.text())
def test_long_keys_do_not_flood_the_log(key):
    for error in (
        CostExceedsLimitError(2, 1, key),
        RateLimitedError(DENIAL, key * 50),
        QueueFullError(DENIAL, key * 50, 1.0, 0.5),
    ):
        assert len(str(error)) < 400
        same(pickle.loads(pickle.dumps(error)), error)


def test_a_config_error_takes_values_that_do_not_pickle():
    error = ConfigError("clock", lambda: 0, "is not a clock", "pass one")
    assert "lambda" in str(pickle.loads(pickle.dumps(error)))


def test_numbers_of_any_size_can_be_told():
    # Python refuses to print an int of more than 4,300 digits; a message must not fail for that.
    huge = 10**5_000
    assert str(ConfigError("limit", huge, "is too large", "use less"))
    assert str(CostExceedsLimitError(huge, 10, "key"))


def test_retry_after_comes_from_the_decision():
    for kind in (RateLimitedError, QuotaExhaustedError):
        error = kind(DENIAL, "key")
        assert error.decision is DENIAL
        assert error.retry_after == 1.25
