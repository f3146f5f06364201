"""Deployments of a router: each has the limits to itself, and one that is held is left out."""

import asyncio

import litellm
import pytest

from shapekit.integrations.litellm import QueueFullError

from .server import TOTAL, refused
from .test_calls import used


@pytest.fixture
def router(server):
    """A router over deployments of one model; the names are their ids."""

    def made(*names, **options):
        deployments = [
            {
                "model_name": "some",
                "litellm_params": {"model": "openai/some", "api_base": server.url, "api_key": name},
                "model_info": {"id": name},
            }
            for name in names
        ]
        return litellm.Router(model_list=deployments, **{"num_retries": 0, **options})

    return made


@pytest.fixture
def arguments(question):
    return {"model": "some", "messages": question["messages"], "max_tokens": 100}


def hold(limits, *keys):
    for key in keys:
        limits.policies["requests"].shaper.hold("1h", key=key)


def test_each_deployment_has_its_own_limits(budget, shape, router, arguments, clock):
    limits = budget()
    shape(limits)
    deployments = router("east", "west")

    async def ask():
        await asyncio.gather(*(deployments.acompletion(**arguments) for _ in range(8)))

    asyncio.run(ask())
    assert used(limits, "east") + used(limits, "west") == 8 * TOTAL
    assert clock.now() <= 0.7


def test_a_deployment_that_is_held_is_left_out(budget, shape, router, arguments, server):
    limits = budget()
    shape(limits, max_wait="1s")
    hold(limits, "east")
    deployments = router("east", "west")

    async def ask():
        for _ in range(6):
            await deployments.acompletion(**arguments)

    asyncio.run(ask())
    assert (used(limits, "east"), used(limits, "west")) == (0, 6 * TOTAL)


def test_a_deployment_that_is_too_small_for_a_call_is_left_out_and_all_too_small_refuse(
    budget, shape, router, arguments
):
    shape(budget(tokens="50/min"), max_wait="1s")
    with pytest.raises(litellm.BadRequestError, match="exceeds the budget of 50 tokens"):
        asyncio.run(router("east", "west").acompletion(**arguments))


def test_a_refused_attempt_goes_to_the_next_group(budget, shape, router, arguments, server):
    limits = budget()
    shape(limits, max_wait="1s")
    hold(limits, "east", "west")
    deployments = router("east", "west", fallbacks=[{"some": ["other"]}])
    deployments.add_deployment(
        litellm.types.router.Deployment(
            model_name="other",
            litellm_params={"model": "openai/other", "api_base": server.url, "api_key": "none"},
            model_info={"id": "other"},
        )
    )
    answer = asyncio.run(deployments.acompletion(**arguments))
    assert answer.usage.total_tokens == TOTAL
    assert used(limits, "other") == TOTAL


def test_where_all_are_held_the_refusal_names_the_wait_and_a_router_tries_them_again_later(
    budget, shape, router, arguments, callbacks_done, clock
):
    limits = budget()
    shape(limits, max_wait="1s")
    hold(limits, "east")
    deployments = router("east")

    async def ask():
        with pytest.raises(QueueFullError) as caught:
            await deployments.acompletion(**arguments)
        await callbacks_done()
        assert caught.value.retry_after > 3590
        limits.policies["requests"].shaper.resume(key="east")
        await deployments.acompletion(**arguments)

    asyncio.run(ask())
    assert used(limits, "east") == TOTAL


def test_a_retry_is_an_attempt_and_goes_where_the_server_has_not_refused(
    budget, shape, router, arguments, server
):
    limits = budget()
    shape(limits, max_wait="1s")
    server.answers.append(refused(429, retry_after=60))
    deployments = router("east", "west", num_retries=1)

    async def ask():
        for _ in range(4):
            await deployments.acompletion(**arguments)

    asyncio.run(ask())
    assert len(server.requests) == 5
    assert sorted((used(limits, "east"), used(limits, "west"))) == [0, 4 * TOTAL]
