"""The cost in the body of a GraphQL answer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.feedback import Feedback, ServerHint, shopify_graphql


def cost(requested, left, *, most=1000.0, rate=50.0):
    return {
        "requestedQueryCost": requested,
        "actualQueryCost": None,
        "throttleStatus": {"maximumAvailable": most, "currentlyAvailable": left, "restoreRate": rate},
    }


def test_enough_points_hold_nothing():
    assert shopify_graphql(cost(101, 899)) == ServerHint(0.0, 899, 1000, None, 2.02)


def test_another_such_query_is_affordable_later():
    assert shopify_graphql(cost(101, 1)) == ServerHint(2.0, 1, 1000, None, 19.98)


def test_a_query_that_can_never_be_afforded_holds_nothing():
    assert shopify_graphql(cost(1001, 1)).hold_s == 0


def test_more_points_than_the_bucket_holds_are_a_full_bucket():
    assert shopify_graphql(cost(1, 2000)) == ServerHint(0.0, 2000, 1000, None, 0.0)


def test_the_hold_is_bounded_by_feedback():
    hint = shopify_graphql(cost(1000, 0, rate=0.001))
    assert Feedback(max_hold=60).bounded(hint).hold_s == 60


def test_the_slowest_rate_that_is_one():
    assert shopify_graphql(cost(1, 1, rate=1e-6)).remaining == 1
    assert shopify_graphql(cost(1, 1, rate=math.nextafter(1e-6, 0))) is None


MALFORMED = [
    None,
    {},
    [],
    "cost",
    cost(1, None),
    cost(1, "1"),
    cost(1, True),
    cost(1, -1),
    cost(1, float("nan")),
]
MALFORMED += [cost(1, 1, rate=0), cost(1, 1, rate=float("inf")), cost(1, 1, most=None), {"throttleStatus": 3}]
MALFORMED += [cost(1, 10**400), cost(1, 1, most=1e16), cost(1, 1, rate=5e-324)]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_body_reads_as_none(malformed):
    assert shopify_graphql(malformed) is None


numbers = st.sampled_from([0, 5e-324, 1e-6, 1, 1e15, 10**15 + 1, 10**400, -(10**400)])
anything = numbers | st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3)


@given(st.builds(cost, anything, anything, most=anything, rate=anything))
def test_nothing_in_a_body_raises_or_holds_for_longer_than_the_bound(body):
    hint = shopify_graphql(body)
    if hint is not None:
        assert 0 <= Feedback().bounded(hint).hold_s <= 900
        assert 0 <= hint.reset_s < math.inf
