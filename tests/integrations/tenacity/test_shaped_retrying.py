"""shaped_retrying: each attempt is shaped, all calls obey the answers, and the last attempt is the end."""

import threading

import httpx
import pytest
import tenacity

import shapekit
from shapekit import (
    AccountExhaustedError,
    ManualClock,
    MemoryStore,
    Policy,
    QueueFullError,
    QuotaExhaustedError,
    StoreUnavailableError,
)
from shapekit._runtime import drivers
from shapekit.integrations.tenacity import retry_if_throttled, shaped_retrying, wait_retry_after
from shapekit.testing import FaultyStore

from ..anew import import_without

SECOND = wait_retry_after(tenacity.wait_fixed(1))
PATIENCE_S = 20.0
ON_KEY_ERROR = tenacity.retry_if_exception_type(KeyError)


class Upstream:
    """Gives its answers in turn, raising exceptions, and records when it was called."""

    def __init__(self, clock, *answers):
        self.clock = clock
        self.answers = list(answers)
        self.instants = []

    def __call__(self):
        self.instants.append(self.clock.now())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def reply(status, **headers):
    return httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


TOO_MUCH, ILL, FINE = reply(429, Retry_After="7"), reply(503), reply(200)


def carried(response):
    request = httpx.Request("GET", "http://test/")
    return httpx.HTTPStatusError("told", request=request, response=response)


def by_call(retrying, upstream):
    return retrying(upstream)


def by_decorator(retrying, upstream):
    @retrying.wraps
    def ask(question):
        return upstream()

    return ask("now?")


def by_iterator(retrying, upstream):
    for attempt in retrying:
        with attempt:
            answer = upstream()
        if not attempt.retry_state.outcome.failed:
            attempt.retry_state.set_result(answer)
    return answer


@pytest.fixture(params=[by_call, by_decorator, by_iterator])
def run(request):
    return request.param


def test_each_attempt_waits_for_the_server_and_for_its_slot(clock, run):
    policy = Policy("1/10s", burst=2, clock=clock)
    upstream = Upstream(clock, TOO_MUCH, ILL, FINE)
    retrying = shaped_retrying(policy, wait=SECOND)
    assert run(retrying, upstream) is FINE
    assert upstream.instants == [0.0, 7.0, 17.0]
    seen = retrying.statistics
    assert seen["attempt_number"] == 3
    assert seen["idle_for"] == pytest.approx(8.0)
    assert seen["waited_for_server"] == pytest.approx(7.0)
    assert seen["waited_for_slots"] == pytest.approx(9.0)


def test_the_answer_that_an_exception_carries_is_obeyed(clock, run):
    upstream = Upstream(clock, carried(TOO_MUCH), carried(ILL), FINE)
    assert run(shaped_retrying(Policy("10/s", clock=clock), wait=SECOND), upstream) is FINE
    assert upstream.instants == pytest.approx([0.0, 7.1, 8.1])


def test_a_refusal_of_one_call_holds_all_of_the_key(clock):
    store = MemoryStore(clock)
    mine, yours = (Policy("10/s", name="upstream", store=store) for _ in range(2))
    stop = tenacity.stop_after_attempt(1)
    shaped_retrying(mine, stop=stop)(Upstream(clock, TOO_MUCH))
    other = Upstream(clock, FINE)
    shaped_retrying(yours)(other)
    assert other.instants == pytest.approx([7.1])


def test_an_exhausted_account_is_called_once(clock, run):
    spent = httpx.Response(429, json={"error": {"code": "insufficient_quota"}})
    policy, upstream = Policy("10/s", max_wait="10s", clock=clock), Upstream(clock, spent)
    assert run(shaped_retrying(policy, wait=SECOND), upstream) is spent
    with pytest.raises(AccountExhaustedError):
        run(shaped_retrying(policy, wait=SECOND), upstream)
    assert upstream.instants == [0.0]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_call_of_a_loop_that_is_left_ends_with_its_block(clock, enabled):
    policy = Policy(concurrency=1, clock=clock)
    loop = iter(shaped_retrying(policy, enabled=enabled))
    for attempt in loop:
        with attempt:
            break
    with policy.admit(max_wait=0), pytest.raises(QueueFullError), policy.admit(max_wait=0):
        pass
    loop.close()
    with policy.admit(max_wait=0):
        pass


def test_a_call_is_in_flight_once_however_often_it_is_tried(clock):
    policy = Policy(concurrency=1, clock=clock)
    for attempt in shaped_retrying(policy, retry=ON_KEY_ERROR, wait=SECOND):
        with attempt:
            with pytest.raises(QueueFullError), policy.admit(max_wait=0):
                pass
            if attempt.retry_state.attempt_number < 3:
                raise KeyError
        with policy.admit(max_wait=0):
            pass


def test_a_first_attempt_is_shaped_too(clock):
    upstream, retrying = Upstream(clock, FINE), shaped_retrying(Policy("10/s", clock=clock), cost=3, key="me")
    for _ in range(3):
        retrying(upstream)
    assert upstream.instants == pytest.approx([0.0, 0.3, 0.6])


def test_retrying_ends_as_its_last_attempt(clock, run):
    policy = Policy("10/s", clock=clock)
    options = {"wait": SECOND, "stop": tenacity.stop_after_attempt(2), "reserve": 100}
    assert run(shaped_retrying(policy, **options), Upstream(clock, ILL)) is ILL
    error = carried(ILL)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        run(shaped_retrying(policy, **options), Upstream(clock, error))
    assert caught.value is error
    with pytest.raises(KeyError):
        run(shaped_retrying(policy, **options), upstream := Upstream(clock, KeyError()))
    assert len(upstream.instants) == 1


def test_where_the_budget_is_spent_the_original_error_is_raised(clock, run):
    error, policy = KeyError("original"), Policy("10/s", clock=clock)
    retrying = shaped_retrying(policy, budget=0.1, reserve=2, retry=ON_KEY_ERROR, wait=SECOND)
    made = []
    for _ in range(12):
        with pytest.raises(KeyError) as caught:
            run(retrying, upstream := Upstream(clock, error))
        assert caught.value is error
        made.append(len(upstream.instants))
    assert made == [3, *[1] * 9, 2, 1]
    assert retrying.statistics["attempt_number"] == 1


def test_try_again_is_shaped_and_paid_for_and_ends_with_its_cause(clock):
    policy, instants = Policy("10/s", clock=clock), []

    def call():
        instants.append(clock.now())
        raise tenacity.TryAgain from KeyError("cause")

    with pytest.raises(KeyError, match="cause"):
        shaped_retrying(policy, reserve=2, wait=tenacity.wait_none())(call)
    assert instants == pytest.approx([0.0, 0.1, 0.2])


def test_the_result_of_retry_error_callback_is_returned(clock):
    retrying = shaped_retrying(
        Policy("10/s", clock=clock), wait=SECOND, retry_error_callback=lambda state: "gave up", reserve=1
    )
    assert retrying(Upstream(clock, ILL)) == "gave up"


def test_other_stops_keep_the_budget(clock):
    retrying = shaped_retrying(Policy("10/s", clock=clock), reserve=3, wait=SECOND)
    ask = retrying.wraps(upstream := Upstream(clock, ILL))
    ask.retry_with(stop=tenacity.stop_never)()
    assert len(upstream.instants) == 4


def test_attempts_that_tenacity_stops_are_not_paid_for(clock):
    retrying = shaped_retrying(
        Policy("10/s", clock=clock), budget=0.001, reserve=1, wait=SECOND, stop=tenacity.stop_after_attempt(1)
    )
    retrying(Upstream(clock, ILL))
    retrying.copy(stop=tenacity.stop_after_attempt(2))(upstream := Upstream(clock, ILL))
    assert len(upstream.instants) == 2


def test_the_hooks_of_tenacity_see_each_attempt(clock):
    calls = []
    hooks = {
        name: lambda state, name=name: calls.append((name, state.attempt_number))
        for name in ("before", "after", "before_sleep")
    }
    shaped_retrying(Policy("10/s", clock=clock), wait=SECOND, **hooks)(Upstream(clock, ILL, FINE))
    assert calls == [("before", 1), ("after", 1), ("before_sleep", 1), ("before", 2)]


def test_a_refusal_of_the_first_attempt_is_raised(clock):
    policy = Policy("1/s", clock=clock)
    policy.shaper.reserve(cost=9)
    with pytest.raises(QueueFullError):
        shaped_retrying(policy, max_wait="2s", retry=tenacity.retry_always)(upstream := Upstream(clock, FINE))
    spent = Policy(quota="1/month", clock=clock)
    spent.shaper.reserve()
    with pytest.raises(QuotaExhaustedError):
        shaped_retrying(spent, retry=tenacity.retry_always)(upstream)
    assert upstream.instants == []


def test_a_retry_that_is_refused_is_not_made(clock, run):
    policy = Policy(quota="1/month", clock=clock)
    retrying = shaped_retrying(policy, wait=SECOND)
    assert run(retrying, Upstream(clock, ILL)) is ILL
    assert retrying.statistics["attempt_number"] == 1
    policy = Policy(quota="1/month", clock=clock)
    with pytest.raises(KeyError):
        run(shaped_retrying(policy, wait=SECOND, retry=ON_KEY_ERROR), Upstream(clock, KeyError()))


class Stopped(BaseException):
    """An interrupt at any point of a retry that is paid for already."""


def stopping(*_, **__):
    raise Stopped


@pytest.mark.parametrize(
    "options",
    [
        {"max_wait": 0},
        {"sleep": stopping},
        {"before_sleep": stopping},
        {"sleep": lambda _: None, "interrupted": True},
    ],
    ids=["refused", "in its sleep", "before that", "in its wait for a slot"],
)
def test_a_retry_that_is_not_made_costs_nothing(clock, run, monkeypatch, options):
    policy, options = Policy("1/h", clock=clock), dict(options)
    if options.pop("interrupted", False):
        waits = iter([policy.shaper.schedule, stopping])
        monkeypatch.setattr(
            type(policy.shaper), "schedule", lambda _, *args, **waited: next(waits)(*args, **waited)
        )
    retrying = shaped_retrying(policy, budget=0.001, reserve=1, retry=ON_KEY_ERROR, wait=SECOND, **options)
    with pytest.raises((KeyError, Stopped)):
        run(retrying, upstream := Upstream(clock, KeyError()))
    assert len(upstream.instants) == 1
    budget = retrying.attempts.budget
    assert drivers.run(budget.spend)
    assert not drivers.run(budget.spend)


def test_a_retry_that_another_stop_forbids_after_it_was_paid_for_costs_nothing(clock):
    retrying = shaped_retrying(Policy("10/s", clock=clock), budget=0.001, reserve=1, wait=SECOND)
    forbidden = retrying.copy()
    forbidden.stop = tenacity.stop_any(retrying.stop, tenacity.stop_after_attempt(1))
    forbidden(upstream := Upstream(clock, ILL))
    assert len(upstream.instants) == 1
    assert drivers.run(retrying.attempts.budget.spend)


def test_a_call_that_was_refused_earns_nothing(clock):
    policy = Policy("1/s", clock=clock)
    retrying = shaped_retrying(policy, budget=1.0, reserve=1, max_wait=0, wait=SECOND, retry=ON_KEY_ERROR)
    drivers.run(retrying.attempts.budget.spend)
    policy.shaper.reserve(cost=100)
    for _ in range(5):
        with pytest.raises(QueueFullError):
            retrying(Upstream(clock, FINE))
    assert not drivers.run(retrying.attempts.budget.spend)


def test_a_call_that_never_counted_is_given_back(clock):
    policy = Policy("1/s", refund_on=ConnectionError, clock=clock)
    retrying = shaped_retrying(
        policy, retry=tenacity.retry_if_exception_type(ConnectionError), wait=tenacity.wait_none()
    )
    upstream = Upstream(clock, ConnectionError(), ConnectionError(), FINE)
    assert retrying(upstream) is FINE
    assert upstream.instants == [0.0, 0.0, 0.0]


def test_a_store_that_goes_away_does_not_hide_the_answer():
    store = FaultyStore(MemoryStore(ManualClock(autojump=True)))
    retrying = shaped_retrying(Policy("10/s", name="upstream", store=store), wait=SECOND)

    def call():
        store.down = True
        return TOO_MUCH

    assert retrying(call) is TOO_MUCH
    with pytest.raises(StoreUnavailableError):
        retrying(call)


def test_a_retry_is_not_made_while_the_store_is_gone():
    store = FaultyStore(MemoryStore(ManualClock(autojump=True)))
    retrying = shaped_retrying(
        Policy("10/s", name="upstream", store=store),
        wait=SECOND,
        before_sleep=lambda state: setattr(store, "down", True),
    )
    assert retrying(lambda: ILL) is ILL


def test_threads_may_share_one(monkeypatch):
    # A thread that wakes up has all the time it needs to look at the clock.
    monkeypatch.setattr("shapekit.clock._SETTLE_S", PATIENCE_S)
    clock = ManualClock()
    policy = Policy("1000/s", clock=clock)
    policy.shaper.reserve()
    retrying = shaped_retrying(policy, budget=0.5, reserve=3, wait=tenacity.wait_none())
    instants = []
    ask = retrying.wraps(lambda: instants.append(clock.now()) or ILL)
    threads = [threading.Thread(target=lambda: [ask() for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    with clock._lock:
        assert clock._changed.wait_for(lambda: len(clock._sleepers) == len(threads), PATIENCE_S)
    while any(thread.is_alive() for thread in threads):
        clock.advance(0.001)
    # What the first calls of each thread earn may be lost, while the bucket is full.
    assert 40 + 10 <= len(instants) <= 40 + 20 + 3
    assert instants == pytest.approx([0.001 * (number + 1) for number in range(len(instants))])


def test_switched_off_for_once(clock):
    policy = Policy("1/h", clock=clock)
    upstream = Upstream(clock, ILL)
    assert shaped_retrying(policy, enabled=False)(upstream) is ILL
    with shapekit.off():
        shaped_retrying(policy, wait=tenacity.wait_none())(upstream)
    assert upstream.instants == [0.0] * 6


def test_another_sleep_may_be_given(clock):
    slept = []
    retrying = shaped_retrying(Policy("10/s", clock=clock), wait=SECOND, sleep=slept.append)
    retrying(Upstream(clock, TOO_MUCH, ILL, FINE))
    assert slept == [7.0, 1.0]


def test_shaped_retrying_returns_a_retrying_of_tenacity(clock):
    assert isinstance(shaped_retrying(Policy("10/s", clock=clock)), tenacity.Retrying)


@pytest.mark.parametrize(
    ("field", "given"),
    [("key", 5), ("cost", 0), ("max_wait", "soon"), ("reraise", True), ("retry_error_cls", KeyError)],
)
def test_wrong_arguments_are_refused(refused, clock, field, given):
    refused(lambda: shaped_retrying(Policy("10/s", clock=clock), **{field: given}), field)


def test_a_policy_is_needed(refused):
    refused(lambda: shaped_retrying("10/s"), "policy")
    refused(lambda: shaped_retrying(Policy("10/s", key="{user}")), "key")


def test_without_the_package_the_import_error_names_the_extra(monkeypatch):
    with pytest.raises(ImportError, match=r'pip install "shapekit\[tenacity\]"'):
        import_without("tenacity", "tenacity", monkeypatch)


def test_the_defaults_retry_throttled_calls(clock):
    retrying = shaped_retrying(Policy("10/s", clock=clock))
    assert isinstance(retrying.retry, retry_if_throttled)
    assert isinstance(retrying.wait, wait_retry_after)
    assert retrying(upstream := Upstream(clock, TOO_MUCH)) is TOO_MUCH
    assert len(upstream.instants) == 5


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_is_not_made_because_before_fails_is_not_in_flight(clock, raised):
    policy = Policy(concurrency=1, clock=clock)

    def before(state):
        raise raised

    kept = []
    for _ in range(3):
        with pytest.raises(raised) as caught:
            shaped_retrying(policy, before=before, max_wait=0)(lambda: 1)
        kept.append(caught.value)  # and with it the frames of the call
        with policy.admit(max_wait=0):
            pass
