"""The tree of errors: its branches, frozen codes, texts, and the way through pickle."""

import copy
import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    Decision,
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Policy,
    Quota,
    Shaper,
    SQLiteStore,
    all_of,
    errors,
)
from shapekit.errors import (
    AccountExhaustedError,
    ConfigError,
    CostExceedsLimitError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    ShapekitError,
    StoreUnavailableError,
    span_words,
)

DENIAL = Decision(False, 10, 10, 0, 5_000_000, 1_250_000)
NAMED = DENIAL._replace(binding="month")

EXAMPLES = {
    ShapekitError("anything"): "anything",
    ConfigError("burst", 0, "is not a whole number from 1 to 9", "pass an int, such as 1"): (
        "burst=0 is not a whole number from 1 to 9; pass an int, such as 1"
    ),
    CostExceedsLimitError(12, 10, "eu"): (
        "key 'eu': cost=12 exceeds burst=10, so the call can never be admitted; "
        "raise burst, or split the call"
    ),
    CostExceedsLimitError(12, 10, "eu", "capacity", "stripe"): (
        "policy 'stripe', key 'eu': cost=12 exceeds capacity=10, so the call can never be admitted; "
        "raise capacity, or split the call"
    ),
    CostExceedsLimitError(2_000, 1_000, "eu", "tokens=", "gpt.tokens", "tokens"): (
        "policy 'gpt.tokens', key 'eu': cost 2,000 tokens exceeds the budget of 1,000 tokens, "
        "so the call can never be admitted; raise tokens=, or split the call"
    ),
    CostExceedsLimitError(40_125_000, 1_000_000, "eu", "spend=", "gpt.spend", "USD", 8): (
        "policy 'gpt.spend', key 'eu': cost 0.40125 USD exceeds the budget of 0.01 USD, "
        "so the call can never be admitted; raise spend=, or split the call"
    ),
    QuotaExhaustedError(
        DENIAL._replace(current=4_998_000_000, limit=5_000_000_000), "eu", "gpt.spend", "USD", 8
    ): (
        "policy 'gpt.spend', key 'eu': the spend is used up: 49.98 of 50 USD are spent or reserved, "
        "and the call may cost more than is left; retry after 1.25 s"
    ),
    RateLimitedError(DENIAL, "eu"): "key 'eu': limited, 10 of 10 used; retry after 1.25 s",
    RateLimitedError(NAMED, "eu", "stripe"): (
        "policy 'stripe', key 'eu': limited by 'month', 10 of 10 used; retry after 1.25 s"
    ),
    QueueFullError(DENIAL._replace(retry_after_us=48_100_000), "eu", 50.1, 2.0, "stripe"): (
        "policy 'stripe', key 'eu': a wait of 50.1 s exceeds max_wait=2 s; "
        "raise max_wait, lower the traffic, or retry after 48.1 s"
    ),
    QueueFullError(DENIAL, "eu", 3.25, 2.0, "stripe", held=True): (
        "policy 'stripe', key 'eu' is held: a wait of 3.25 s exceeds max_wait=2 s; "
        "raise max_wait, or retry after 1.25 s"
    ),
    QueueFullError(Decision(False, 2, 2, 0, 0, 1_000_000, "concurrency"), "eu", 3.0, 3.0, "stripe"): (
        "policy 'stripe', key 'eu': 2 calls are in flight, and none has ended within max_wait=3 s; "
        "raise concurrency or max_wait, or retry after 1 s"
    ),
    QuotaExhaustedError(Decision(False, 10**6, 10**6, 0, 0, 31 * 86_400_000_000), "eu", "stripe"): (
        "policy 'stripe', key 'eu': the quota is spent, 1,000,000 of 1,000,000 used; "
        "the next period begins in 31 d"
    ),
    AccountExhaustedError(DENIAL._replace(retry_after_us=50_100_000), "eu", "stripe"): (
        "policy 'stripe', key 'eu': the server says that the account has nothing left to spend; "
        "add credit or raise its spending limit, and retry after 50.1 s"
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
        "AccountExhaustedError": ["QuotaExhaustedError"],
        "StoreUnavailableError": ["ShapekitError"],
    }


def test_the_codes_are_frozen():
    # They are written into logs and other processes: a changed one breaks their readers.
    assert {kind.__name__: kind.code for kind in map(type, EXAMPLES)} == {
        "ShapekitError": "shapekit_error",
        "ConfigError": "config_invalid",
        "CostExceedsLimitError": "cost_exceeds_limit",
        "RateLimitedError": "rate_limit_exceeded",
        "QueueFullError": "queue_full",
        "QuotaExhaustedError": "quota_exhausted",
        "AccountExhaustedError": "account_exhausted",
        "StoreUnavailableError": "store_unavailable",
    }


def test_every_error_is_in_the_examples_and_exported():
    assert set(errors.__all__) == {type(error).__name__ for error in EXAMPLES}


@EACH
def test_the_text(error):
    assert str(error) == EXAMPLES[error]


@EACH
def test_the_repr_shows_the_text(error):
    # Celery logs the repr of the error of a task, and `gather` returns errors that are printed in a list.
    assert repr(error) == f"{type(error).__name__}({EXAMPLES[error]!r})"


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
        CostExceedsLimitError(2, 1, key, "burst", key),
        RateLimitedError(DENIAL, key * 50, key * 50),
        QueueFullError(DENIAL, key * 50, 1.0, 0.5, key * 50),
    ):
        assert len(str(error)) < 400
        same(pickle.loads(pickle.dumps(error)), error)


def test_a_config_error_takes_values_that_do_not_pickle():
    error = ConfigError("clock", lambda: 0, "is not a clock", "pass one")
    assert "lambda" in str(pickle.loads(pickle.dumps(error)))


def test_numbers_of_any_size_fit_in_messages():
    # Python refuses to print an int of more than 4,300 digits; a message must not fail for that.
    huge = 10**5_000
    assert str(ConfigError("limit", huge, "is too large", "use less"))
    assert str(CostExceedsLimitError(huge, 10, "key"))


def test_retry_after_comes_from_the_decision():
    for kind in (RateLimitedError, QuotaExhaustedError):
        error = kind(DENIAL, "key")
        assert error.decision is DENIAL
        assert error.retry_after == 1.25


# the call that is refused, and the limit


def refused_by(refuse, kind):
    with pytest.raises(kind) as caught:
        refuse()
    return caught.value


def test_every_refusal_names_its_policy_and_key():
    clock = ManualClock(autojump=True)
    gate = Gate(all_of(second=GCRA("10/s", burst=1), month=Quota("1/month")), name="api", clock=clock)
    policy = Policy("1/s", max_wait="1s", quota="5/day", name="api", clock=clock)
    busy = Policy(concurrency=1, max_wait=0, name="api", clock=clock)
    gate.require("eu")
    for _ in range(2):
        policy.shaper.reserve("eu")
    with busy.admit("eu"):
        refusals = [
            refused_by(lambda: gate.require("eu"), QuotaExhaustedError),
            refused_by(lambda: gate.require("eu", cost=2), CostExceedsLimitError),
            refused_by(lambda: policy.admit("eu").__enter__(), QueueFullError),
            refused_by(lambda: policy.admit("eu", cost=9).__enter__(), CostExceedsLimitError),
            refused_by(lambda: policy.admit("eu", cost=4, max_wait=0).__enter__(), QuotaExhaustedError),
            refused_by(lambda: busy.admit("eu").__enter__(), QueueFullError),
        ]
        late = refused_by(lambda: policy.admit("eu", max_wait="9s", timeout="1s").__enter__(), TimeoutError)
    assert [(error.policy, error.key) for error in refusals] == [("api", "eu")] * 6
    for error in (*refusals, late):
        assert str(error).startswith("policy 'api', key 'eu': ")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_state_of_another_kind_names_its_policy_and_key(kind, tmp_path):
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "limits.db")
    one, two = GCRA("1/h"), FixedWindow("1/h")
    Gate(all_of(one=one, two=two), store=store, name="api").check("eu")
    other = Gate(all_of(one=two, two=two), store=store, name="api")
    error = refused_by(lambda: other.check("eu"), ConfigError)
    assert error.field == "strategy"
    assert error.bound == "cannot continue the state of a gcra (policy 'api', key 'eu')"
    store.close()


@pytest.mark.parametrize(
    ("span_us", "words"),
    [
        (0, "0 s"),
        (250, "250 µs"),
        (99_500, "99.5 ms"),
        (50_100_000, "50.1 s"),
        (60_000_000, "1 min"),
        (3_900_000_000, "1 h 05 min"),
        (2_678_400_000_000, "31 d"),
        (90_061_000_000, "1 d 1 h 01 min"),
        (86_402_000_000, "1 d 2 s"),
    ],
)
def test_a_span_is_written_in_common_units(span_us, words):
    assert span_words(span_us) == words


def test_the_text_and_retry_after_name_the_same_wait():
    shaper = Shaper("1 per 10 s", max_wait="2s", clock=ManualClock())
    for _ in range(5):
        shaper.reserve(max_wait=None)
    error = refused_by(shaper.schedule, QueueFullError)
    assert (error.delay, error.retry_after) == (50.0, 48.0)
    assert str(error).endswith("or retry after 48 s")
