"""A call whose target is known is checked as any other, whether or not its scopes are learned or heard of."""

import pytest

from shapekit import GCRA, CostExceedsLimitError, Policy
from shapekit.keys import Target

TARGET = Target("GET", "https", "api.example.com", None, "/search")


@pytest.fixture(params=["heard", "unheard"])
def policy(request, clock):
    policy = Policy("10/s", gates=(GCRA("10/s", burst=5),), name="api", clock=clock)
    if request.param == "unheard":
        yield policy
        return
    with policy.listen(lambda event: None):
        yield policy


def admission(policy, cost):
    admission = policy.admit(cost=cost)
    admission.target = TARGET
    return admission


def test_a_cost_above_the_limit_never_leaves(policy):
    with pytest.raises(CostExceedsLimitError), admission(policy, 6):
        pass
    with admission(policy, 5) as admitted:
        assert admitted.delay == 0


@pytest.mark.anyio
async def test_nor_does_a_task_s(policy):
    with pytest.raises(CostExceedsLimitError):
        async with admission(policy, 6):
            pass
    async with admission(policy, 5) as admitted:
        assert admitted.delay == 0
