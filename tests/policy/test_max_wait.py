"""Every way of passing `max_wait`: without it the policy's own applies, and None is no bound."""

import httpx
import pytest

from shapekit import LLMBudget, ManualClock, Policy, QueueFullError, Shaper
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.tenacity import shaped_retrying
from shapekit.keys import Target


@pytest.fixture
def clock():
    return ManualClock(autojump=True)


def by_shaper(clock, **options):
    shaper = Shaper("1/min", max_wait="5s", clock=clock)
    return lambda: shaper.schedule(**options).delay


def by_policy(clock, **options):
    policy = Policy("1/min", max_wait="5s", clock=clock)

    def call():
        with policy.admit(**options) as admission:
            return admission.delay

    return call


def by_scope(clock, **options):
    policy = Policy("1/min", max_wait="5s", clock=clock)
    target = Target("GET", "https", "api.example.com", None, "/search")
    policy.scoped.scopes.learn("default", target, "search")

    def call():
        admission = policy.admit(**options)
        admission.target = target
        with admission:
            return admission.delay

    return call


def by_permit(clock, **options):
    policy = Policy("1/min", concurrency=2, max_wait="5s", clock=clock)

    def call():
        with policy.admit(**options) as admission:
            return admission.delay

    return call


def by_budget(clock, **options):
    budget = LLMBudget(requests="1/min burst 1", tokens="1M/min", max_wait="5s", clock=clock)

    def call():
        with budget.admit(1, **options) as admitted:
            return admitted.delay

    return call


def by_request(clock, **options):
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    client = httpx.Client(transport=ShapedTransport(inner, rate="1/min", max_wait="5s", clock=clock))

    def call():
        answer = client.get("https://api.example.com", extensions={"shapekit": options})
        return answer.extensions["shapekit"].delay

    return call


def by_retrying(clock, **options):
    policy = Policy("1/min", max_wait="5s", clock=clock)
    retrying = shaped_retrying(policy, **options)
    return lambda: retrying(lambda: None) or 60.0 * (clock.now() >= 60)


WAYS = [by_shaper, by_policy, by_scope, by_permit, by_budget, by_request, by_retrying]


@pytest.mark.parametrize("way", WAYS)
def test_without_max_wait_the_configured_one_applies(way, clock):
    call = way(clock)
    call()
    with pytest.raises(Exception, match="5 s") as caught:
        call()
    assert isinstance(caught.value, QueueFullError) or isinstance(caught.value.__cause__, QueueFullError)


@pytest.mark.parametrize("way", WAYS)
def test_max_wait_none_is_no_bound(way, clock):
    call = way(clock, max_wait=None)
    call()
    assert call() == pytest.approx(60)
