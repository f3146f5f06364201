"""The subjects of progress: a policy, a shaper, a shaped function; other objects are refused."""

import pytest

from shapekit import GCRA, CostExceedsLimitError, Gate, Policy, Shaper, shaped
from shapekit.progress import aprogress, progress


@pytest.fixture(params=[progress, aprogress])
def loop(request):
    return request.param


def ends(each):
    return [report["eta"] for report in each.reports]


def test_a_shaper(form, each, clock):
    shaper = Shaper("10/s", clock=clock, name="stripe")
    form.loop(range(3), shaper, lambda item: shaper)
    assert ends(each) == [0.2, 0.2, 0.1, 0.0, 0.0]
    assert each.lines[0] == "stripe: 0/3 (0%), 0 s, ETA 1 s"


def test_a_policy_by_its_own_key_and_cost(form, each, clock):
    policy = Policy("10/s", clock=clock, key="acme", cost=2)
    form.loop(range(3), policy, lambda item: policy.admit())
    assert ends(each) == [0.4, 0.4, 0.2, 0.0, 0.0]


def test_another_key_and_another_cost(form, each, clock):
    policy = Policy("10/s", clock=clock, key="{tenant}", cost=len)
    form.loop(range(3), policy, lambda item: policy.admit("acme", cost=5), key="acme", cost=5)
    assert ends(each) == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_a_shaped_function(each, clock):
    @shaped("10/s", clock=clock, key="acme", cost=2)
    def call():
        """Twice as dear as others."""

    for _ in progress(range(3), call):
        call()
    assert ends(each) == [0.4, 0.4, 0.2, 0.0, 0.0]


def test_a_shaped_function_with_a_key_and_a_cost_beside_its_policy(each, clock):
    policy = Policy("10/s", clock=clock)

    class Client:
        @shaped(policy=policy, key="acme", cost=3)
        def call(self):
            """On a key of its own."""

    client = Client()
    for _ in progress(range(3), client.call):
        client.call()
    assert ends(each) == [0.6, 0.6, 0.3, 0.0, 0.0]


def test_an_object_with_a_policy(each, clock):
    class Client:
        policy = Policy("10/s", clock=clock)

    for _ in progress(range(3), Client()):
        with Client.policy.admit():
            """A call of the client."""
    assert ends(each) == [0.2, 0.2, 0.1, 0.0, 0.0]


@pytest.mark.parametrize("subject", [None, "10/s", 10, Gate(GCRA("10/s")), Policy, lambda: None])
def test_an_object_without_a_policy_is_refused(loop, refused, subject):
    error = refused(lambda: loop(range(3), subject), "policy")
    assert "Shaper" in str(error)


@pytest.mark.parametrize("total", [-1, 1.5, True, "3", 10**13])
def test_an_invalid_total_is_refused(loop, refused, total):
    refused(lambda: loop(range(3), Policy("10/s"), total=total), "total")


@shaped("10/s", key="{tenant}")
def for_tenant(tenant):
    """Its key depends on the call."""


@pytest.mark.parametrize(
    "subject", [Policy("10/s", key="{tenant}"), Policy("10/s", key=lambda tenant: tenant), for_tenant]
)
def test_a_key_that_depends_on_the_call_has_to_be_passed(loop, refused, subject):
    error = refused(lambda: loop(range(3), subject), "key")
    assert 'progress(items, policy, key="…")' in str(error)
    loop(range(3), subject, key="acme")


@shaped("10/s", cost=len)
def by_length(text):
    """Its cost depends on the call."""


@pytest.mark.parametrize("subject", [Policy("10/s", cost=len), by_length])
def test_a_cost_that_depends_on_the_call_has_to_be_passed(loop, refused, subject):
    error = refused(lambda: loop(range(3), subject), "cost")
    assert "progress(items, policy, cost=…)" in str(error)
    loop(range(3), subject, cost=5)


@pytest.mark.parametrize("key", [1, b"acme", lambda: "acme"])
def test_an_invalid_key_is_refused(loop, refused, key):
    refused(lambda: loop(range(3), Policy("10/s"), key=key), "key")


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, "2"])
def test_an_invalid_cost_is_refused(loop, refused, cost):
    refused(lambda: loop(range(3), Policy("10/s"), cost=cost), "cost")


def test_a_cost_that_can_never_be_admitted(loop):
    with pytest.raises(CostExceedsLimitError):
        loop(range(3), Policy("10/s; 100/min"), cost=101)
