"""A wrapper leads to its policy, so that code with only the client can hold, resume and forecast it."""

import httpx
import httpx2
import pytest
import requests

from shapekit import ConfigError, ManualClock, Policy
from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2
from shapekit.integrations.requests import ShapedAdapter

WRAPPERS = [shaped_httpx.ShapedTransport, shaped_httpx2.ShapedTransport, ShapedAdapter]
EACH = pytest.mark.parametrize("wrapper", WRAPPERS, ids=["httpx", "httpx2", "requests"])


@EACH
def test_policy_is_the_one_that_was_given(wrapper):
    policy = Policy("10/s")
    assert wrapper(policy=policy).policy is policy


@EACH
def test_policy_is_the_one_that_the_wrapper_made(wrapper):
    policy = wrapper(rate="2/s", name="api", clock=ManualClock(autojump=True)).policy
    assert (policy.name, policy.shaper.forecast(3).last_in) == ("api", 1.0)


@EACH
def test_policy_raises_where_only_routes_are_shaped(wrapper):
    shaped = wrapper(routes={"https://api.example.com": "10/s"})
    with pytest.raises(ConfigError, match="policy=None is missing, as only routes are shaped"):
        _ = shaped.policy


def test_a_hold_holds_the_client():
    clock = ManualClock(autojump=True)
    transport = shaped_httpx.ShapedTransport(
        httpx.MockTransport(lambda _: httpx.Response(200)), rate="10/s", clock=clock
    )
    transport.policy.shaper.hold(5, key="api.example.com")
    with httpx.Client(transport=transport) as client:
        assert client.get("https://api.example.com").extensions["shapekit"].delay == 5.0


def test_each_transport_of_a_shaped_client_has_the_same_policy():
    for library, shape in ((httpx, shaped_httpx.shape), (httpx2, shaped_httpx2.shape)):
        client = shape(library.Client(mounts={"http://other": library.HTTPTransport()}), rate="10/s")
        one, other = client._transport, next(iter(client._mounts.values()))
        assert one.policy is other.policy


def test_a_copy_of_a_sessions_adapter_has_the_same_policy():
    adapter = ShapedAdapter(rate="10/s")
    session = requests.Session()
    session.mount("https://", adapter)
    assert session.get_adapter("https://api.example.com").policy is adapter.policy
