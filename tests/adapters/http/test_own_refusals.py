"""A 429 of ours stands for an error and says nothing about the server: no key is held, no rate changes."""

import pytest
import requests

from shapekit import Adaptive, Policy, QueueFullError, QuotaExhaustedError
from shapekit._adapters.http import CallOutcome
from shapekit.integrations import requests as shaped_requests
from shapekit.integrations.tenacity import shaped_retrying

LIMITS = [({"rate": "1/h"}, QueueFullError), ({"quota": "1/month"}, QuotaExhaustedError)]


def answering(library):
    return library.MockTransport(lambda request: library.Response(200))


def refused_by(library, ours, **shaping):
    """The second response of a shaped client."""
    transport = ours.ShapedTransport(answering(library), max_wait=0, on_reject="respond", **shaping)
    with library.Client(transport=transport) as client:
        client.get("http://api.x/")
        return client.get("http://api.x/")


def refused_by_requests(url, **shaping):
    session = shaped_requests.shape(requests.Session(), max_wait=0, on_reject="respond", **shaping)
    with session:
        session.get(url)
        return session.get(url)


@pytest.mark.parametrize(("limits", "error"), LIMITS)
def test_a_429_of_ours_is_distinguished_from_one_of_the_server_by_every_client(
    server, clock, both, limits, error
):
    library, ours = both
    of_client = refused_by(library, ours, clock=clock, **limits)
    carried = library.HTTPStatusError("told", request=of_client.request, response=of_client)
    endings = [
        CallOutcome(of_client),
        CallOutcome(failure=carried),
        CallOutcome(refused_by_requests(server.url, clock=clock, **limits)),
    ]
    for ending in endings:
        assert ending.refusal.code == error.code
        assert ending.refusal.is_exhausted is (error is QuotaExhaustedError)
        assert ending.refusal.retry_after > 0


def test_the_refusal_of_an_inner_route_holds_no_other(both, clock):
    library, ours = both
    below = ours.ShapedTransport(
        answering(library), routes={"https://x/search": "1/h"}, max_wait=0, on_reject="respond", clock=clock
    )
    with library.Client(transport=ours.ShapedTransport(below, rate="10/s", clock=clock)) as client:
        assert [client.get("https://x/search").status_code for _ in range(2)] == [200, 429]
        client.get("https://x/users")
    assert clock.now() == pytest.approx(0.2)


def test_a_refusal_of_ours_that_is_observed_or_retried_holds_no_key(both, clock):
    refusal = refused_by(*both, rate="1/h", clock=clock)
    policy = Policy("10/s", clock=clock)
    with policy.admit() as admission:
        assert admission.observe(refusal) is None
    assert shaped_retrying(policy, reserve=1, sleep=lambda _: None)(lambda: refusal) is refusal
    assert policy.shaper.held() == 0


def test_a_429_of_ours_is_neither_a_refusal_nor_a_success_to_an_adaptive_rate(both, clock):
    library, ours = both
    refusal = refused_by(library, ours, rate="1/h", clock=clock)
    policy = Policy(adaptive=Adaptive("1/s", "1000/s"), clock=clock)
    rate = policy.shaper.adaptive.rate()
    for _ in range(100):
        with policy.admit() as admission:
            admission.observe(refusal)
    assert policy.shaper.adaptive.rate() == rate
    for _ in range(100):
        with policy.admit() as admission:
            admission.observe(library.Response(200))
    assert policy.shaper.adaptive.rate() > rate
