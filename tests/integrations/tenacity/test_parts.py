"""The parts that serve any Retrying: when to retry, when to stop, and how long the server says to wait."""

import copy
import pickle
import time
from email.utils import formatdate

import httpx
import httpx2
import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    AccountExhaustedError,
    Gate,
    ManualClock,
    Policy,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
)
from shapekit.clock import virtual_time
from shapekit.errors import CostExceedsLimitError, StoreUnavailableError
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.tenacity import retry_if_throttled, stop_when_quota_exhausted, wait_retry_after

from .answers import CLIENTS, forms

QUARTER = tenacity.wait_fixed(0.25)


def limited():
    """A refusal by shapekit, which asks for 10 s."""
    gate = Gate(GCRA("1/10s"), clock=ManualClock())
    gate.require()
    with pytest.raises(RateLimitedError) as caught:
        gate.require()
    return caught.value


def spent():
    policy = Policy(quota="1/month", clock=ManualClock())
    with policy.admit():
        pass
    with pytest.raises(QuotaExhaustedError) as caught, policy.admit():
        pass
    return caught.value


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_retried_in_every_form(after, status):
    seen = [retry_if_throttled()(after(**form)) for form in forms(status)]
    assert seen == [True] * 2 * len(CLIENTS)


@pytest.mark.parametrize("status", [200, 304, 400, 404, 428, 430, 500, 502, 504])
def test_other_answers_are_not_retried(after, status):
    assert not any(retry_if_throttled()(after(**form)) for form in forms(status))


def test_refusals_of_ours_are_retried_if_they_may_pass(after):
    may_pass = [limited(), QueueFullError(limited().decision, "key", 3.0, 1.0)]
    assert [retry_if_throttled()(after(failure=error)) for error in may_pass] == [True, True]
    never = [spent(), CostExceedsLimitError(2, 1, "key"), StoreUnavailableError("gone"), KeyError("no")]
    assert not any(retry_if_throttled()(after(failure=error)) for error in never)
    assert not any(retry_if_throttled()(after(result=value)) for value in (None, 429, "429", object()))


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_an_exhausted_account_is_not_retried(after, library):
    for code, is_retried in (("insufficient_quota", False), ("rate_limit_exceeded", True)):
        request = library.Request("GET", "http://test/")
        response = library.Response(429, json={"error": {"code": code}}, request=request)
        error = library.HTTPStatusError("told", request=request, response=response)
        seen = [retry_if_throttled()(after(**form)) for form in ({"result": response}, {"failure": error})]
        assert seen == [is_retried, is_retried]
    refusal = AccountExhaustedError(limited().decision, "key")
    assert not retry_if_throttled()(after(failure=refusal))
    assert stop_when_quota_exhausted()(after(failure=refusal))


def test_the_error_of_a_shaped_client_counts_as_a_refusal(after):
    clock = ManualClock()
    answering = httpx.MockTransport(lambda request: httpx.Response(200))
    transport = ShapedTransport(answering, rate="1/10s", max_wait=0, clock=clock)
    with httpx.Client(transport=transport) as client:
        client.get("http://test/")
        with pytest.raises(httpx.TransportError) as caught:
            client.get("http://test/")
    state = after(failure=caught.value)
    assert retry_if_throttled()(state)
    assert wait_retry_after(QUARTER)(state) == 10.0


def test_only_a_spent_quota_stops(after):
    stop = stop_when_quota_exhausted()
    assert stop(after(failure=spent()))
    for state in (after(failure=limited()), after(failure=KeyError()), after(result=spent()), after()):
        assert not stop(state)


@pytest.mark.parametrize("error", [QueueFullError, QuotaExhaustedError, AccountExhaustedError])
def test_a_429_of_ours_counts_as_the_error_that_it_stands_for(after, error):
    lasts = error is not QueueFullError
    for form in forms(429, Shapekit_Refused=error.code, Retry_After="7"):
        state = after(**form)
        assert retry_if_throttled()(state) is not lasts
        assert stop_when_quota_exhausted()(state) is lasts
        assert wait_retry_after(QUARTER)(state) == 7.0
        assert wait_retry_after(QUARTER, max_hold="4s")(state) == 4.0


def test_a_spent_quota_ends_retrying_that_would_go_on():
    policy, attempts = Policy(quota="2/month", clock=ManualClock()), []

    def call():
        with policy.admit():
            attempts.append("made")
            raise KeyError

    retrying = tenacity.Retrying(stop=stop_when_quota_exhausted(), reraise=True)
    with pytest.raises(QuotaExhaustedError):
        retrying(call)
    assert len(attempts) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_the_servers_wait_is_obeyed_in_every_form(after, status):
    wait = wait_retry_after(QUARTER)
    assert [wait(after(**form)) for form in forms(status, Retry_After="7")] == [7.0] * 2 * len(CLIENTS)
    assert [wait(after(**form)) for form in forms(status, retry_after_ms="1500")] == [1.5] * 2 * len(CLIENTS)


def test_an_instant_is_compared_with_the_date_of_the_answer(after):
    now = time.time()
    fields = {
        "Date": formatdate(now - 3_000, usegmt=True),
        "Retry_After": formatdate(now - 2_960, usegmt=True),
    }
    waits = [wait_retry_after(QUARTER)(after(**form)) for form in forms(429, **fields)]
    assert waits == [40.0] * 2 * len(CLIENTS)


@pytest.mark.parametrize("fields", [{}, {"Retry_After": "0"}, {"Retry_After": "soon"}, {"Retry_After": "-1"}])
def test_where_the_server_names_no_wait_the_fallback_waits(after, fields):
    wait = wait_retry_after(QUARTER)
    # Twice: the hold concluded from the first refusal must not pass for a wait that the server names.
    for form in [
        *forms(429, **fields),
        *forms(429, **fields),
        *forms(503, **fields),
        {"failure": KeyError()},
    ]:
        assert wait(after(**form)) == 0.25


@pytest.mark.parametrize("moved", [copy.deepcopy, lambda wait: pickle.loads(pickle.dumps(wait))])
def test_the_fallback_waits_in_copies_too(after, moved):
    wait = moved(wait_retry_after(QUARTER))
    assert [wait(after(**form)) for form in forms(429)] == [0.25] * 2 * len(CLIENTS)


def test_the_fallback_waits_in_virtual_time_and_after_it(after):
    wait = wait_retry_after(QUARTER)
    state = after(**next(forms(429)))
    with virtual_time():
        assert wait(state) == 0.25
    assert wait(state) == 0.25


def test_the_fallback_grows_by_the_attempts(after):
    state = after(failure=KeyError())
    state.attempt_number = 3
    assert wait_retry_after(tenacity.wait_incrementing(1, 1))(state) == 3
    assert 0 <= wait_retry_after()(state) <= 4


def test_a_refusal_of_ours_waits_its_retry_after(after):
    assert wait_retry_after(QUARTER)(after(failure=limited())) == 10.0


@given(seconds=st.integers(1, 10**12), most=st.integers(1, 100))
def test_no_answer_causes_a_wait_longer_than_the_bound(seconds, most):
    state = tenacity.RetryCallState(tenacity.Retrying(), fn=None, args=(), kwargs={})
    state.set_result(httpx.Response(429, headers={"Retry-After": str(seconds)}))
    assert wait_retry_after(QUARTER, max_hold=most)(state) == min(seconds, most)


def test_refusals_of_ours_are_bounded_too(after):
    assert wait_retry_after(max_hold="4s")(after(failure=limited())) == 4.0
    assert wait_retry_after()(after(failure=spent())) == 900.0


def test_parts_combine_with_those_of_tenacity(after):
    state = after(**next(forms(429, Retry_After="7")))
    assert (wait_retry_after() + tenacity.wait_fixed(1))(state) == 8.0
    assert (retry_if_throttled() | tenacity.retry_if_exception_type(KeyError))(after(failure=KeyError()))
    assert (stop_when_quota_exhausted() | tenacity.stop_after_attempt(1))(state)


def test_wrong_arguments_are_refused(refused):
    refused(lambda: wait_retry_after(5), "fallback")
    refused(lambda: wait_retry_after(max_hold="long"), "max_hold")
