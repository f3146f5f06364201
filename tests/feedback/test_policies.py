"""One Feedback for several policies: they share its settings, and each has incidents of its own."""

from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import LLMBudget, ManualClock, Policy
from shapekit.feedback import Feedback
from shapekit.integrations.httpx import ShapedTransport

ANSWERS = st.tuples(
    st.sampled_from(["stripe", "github"]),
    st.sampled_from([(200, {}), (429, {}), (429, {"retry-after": "3"}), (402, {}), (503, {})]),
    st.floats(0, 3),
    st.floats(0, 3),
)


def answered(policy, clock, status, headers, passes, took):
    """The hint of an answer, and how long the policy is held then."""
    clock.advance(passes)
    admission = policy.admit().__enter__()
    clock.advance(took)
    hint = admission.observe(SimpleNamespace(status_code=status, headers=headers))
    return hint, policy.shaper.held()


def policies(feedbacks, **options):
    clock = ManualClock(1e9, autojump=True)
    made = {
        name: Policy("10/s", name=name, clock=clock, feedback=feedback, **options)
        for name, feedback in feedbacks.items()
    }
    return clock, made


@given(st.lists(ANSWERS, max_size=12))
def test_a_shared_feedback_holds_like_separate_ones(story):
    shared = Feedback(max_hold="8s")
    together = policies({"stripe": shared, "github": shared})
    apart = policies({name: Feedback(max_hold="8s") for name in ("stripe", "github")})
    for name, answer, passes, took in story:
        (clock, one), (other_clock, other) = together, apart
        assert answered(one[name], clock, *answer, passes, took) == answered(
            other[name], other_clock, *answer, passes, took
        )


def test_a_success_of_one_does_not_end_the_incident_of_another():
    shared = Feedback()
    clock, made = policies({"stripe": shared, "github": shared})
    assert answered(made["stripe"], clock, 429, {}, 0, 0)[1] == 1
    clock.advance(1)
    answered(made["github"], clock, 200, {}, 0.1, 0.1)
    assert answered(made["stripe"], clock, 429, {}, 0, 0)[1] == 2


def test_the_routes_of_one_client_have_separate_incidents():
    clock = ManualClock(1e9, autojump=True)

    def server(_):
        clock.advance(0.5)
        return httpx.Response(429)

    routes = {"https://api.example.com/search": "10/s"}
    transport = ShapedTransport(
        httpx.MockTransport(server), rate="10/s", routes=routes, feedback=Feedback(), clock=clock
    )
    with httpx.Client(transport=transport) as client:
        client.get("https://api.example.com/search")
        client.get("https://api.example.com/")
        assert transport.policy.shaper.held(key="api.example.com") == 1


@pytest.mark.parametrize("others", [{}, {"requests": "10/s"}], ids=["tokens", "requests"])
def test_a_budget_holds_each_key_separately(others):
    clock = ManualClock(1e9, autojump=True)
    budget = LLMBudget(
        tokens="90k/min",
        total="5 USD/day",
        prices={"m": {"input": 1, "output": 1}},
        key="{user}",
        clock=clock,
        **others,
    )
    for user in "ab":
        with budget.admit({"model": "m", "user": user, "max_tokens": 5}) as call:
            clock.advance(0.5)
            assert call.observe(SimpleNamespace(status_code=429, headers={})).hold_s == 1
        assert budget.policies["tokens"].shaper.held(key=user) == 1
