"""Servers' headers place holds, on tokens and slots together."""

import pytest

from shapekit import LLMBudget
from shapekit.llm.call import hold_s

from .errors import Response

NOW = 1_000.0


def openai_says(left, limit=60_000, reset="60s", family="tokens"):
    fields = {"remaining": left, "limit": limit, "reset": reset}
    return {f"x-ratelimit-{name}-{family}": str(value) for name, value in fields.items() if value is not None}


def anthropic_says(left, limit=30_000, reset="1970-01-01T00:17:40Z", family="input-tokens"):
    fields = {"remaining": left, "limit": limit, "reset": reset}
    return {f"anthropic-ratelimit-{family}-{name}": str(value) for name, value in fields.items()}


CASES = {
    # headers, what a call needs, seconds until the server has it
    "enough": (openai_says(500), {"tokens": 500}, 0.0),
    "one is missing": (openai_says(0, 60, "60s"), {"tokens": 1}, 1.0),
    "half of it comes back in half the time": (openai_says(0, 100, "60s"), {"tokens": 50}, 30.0),
    "more than there ever is": (openai_says(0, 100, "60s"), {"tokens": 500}, 60.0),
    "some is left": (openai_says(50, 100, "30s"), {"tokens": 60}, 6.0),
    "no reset": (openai_says(0, 100, None), {"tokens": 50}, 0.0),
    "no limit": (openai_says(0, None, "30s"), {"tokens": 50}, 30.0),
    "requests alone": (openai_says(0, 100, "60s", "requests"), {"tokens": 50}, 0.0),
    "input": (anthropic_says(0), {"input-tokens": 15_000, "output-tokens": 9_000}, 30.0),
    "output": (
        anthropic_says(0, family="output-tokens"),
        {"input-tokens": 15_000, "output-tokens": 3_000},
        6.0,
    ),
    "both": (
        anthropic_says(0) | anthropic_says(0, family="output-tokens"),
        {"input-tokens": 15_000, "output-tokens": 3_000},
        30.0,
    ),
    "of another family": (anthropic_says(0), {"tokens": 500}, 0.0),
    "nothing": ({}, {"tokens": 500}, 0.0),
    "nonsense": (openai_says("many", "few", "soon"), {"tokens": 500}, 0.0),
}


@pytest.mark.parametrize(("headers", "needs", "wait_s"), CASES.values(), ids=CASES)
def test_the_hold_lasts_until_the_server_has_as_much_as_a_call_needs(headers, needs, wait_s):
    assert hold_s("auto", headers, needs, NOW) == pytest.approx(wait_s)


def test_only_the_headers_of_the_named_provider_count():
    headers = openai_says(0, 100, "60s")
    assert hold_s("openai", headers, {"tokens": 50}, NOW) == 30.0
    assert hold_s("anthropic", headers, {"tokens": 50}, NOW) == 0.0


@pytest.fixture
def one(budget):
    return budget(requests="10/s", tokens="60k/min", capacity=60_000)


def shown(world, one, *responses, asked=1_000):
    """Makes a call that receives these answers; returns the hint of the last."""
    call = one.admit(asked)

    async def show():
        return [await call.aobserve(response) for response in responses][-1]

    def body(entered):
        return [entered.observe(response) for response in responses][-1]

    return world.enter(call, body)


def test_calls_wait_for_a_server_that_has_less_left_than_the_budget(world, one, clock):
    hint = shown(world, one, Response(200, openai_says(400)))
    assert hint.hold_s == pytest.approx(600 * 60 / 59_600)
    world.enter(one.admit(10))
    assert clock.now() == pytest.approx(hint.hold_s + 0.1, abs=1e-5)


def test_a_hold_stops_tokens_and_slots_together(world, one):
    """Otherwise tokens would be granted all through the hold, and spent in one burst at its end."""
    shown(world, one, Response(429, {"retry-after": "7"}))
    assert {family: policy.forecast(cost=60_000 if family == "tokens" else 1).first_in
            for family, policy in one.policies.items()} == {"tokens": 8.0, "requests": 7.1}  # fmt: skip


def test_a_late_answer_shortens_no_hold(world, one):
    shown(world, one, Response(429, {"retry-after": "7"}), Response(200, openai_says(60_000)))
    assert one.forecast(request=1).first_in == pytest.approx(7.1)


def test_a_header_never_raises_what_the_budget_has_left(world, one, used):
    shown(world, one, Response(200, openai_says(60_000)), asked=50_000)
    assert used(one) == 50_000
    assert one.policies["tokens"].forecast(cost=60_000).first_in == 50.0


def test_no_header_stops_a_worker_for_ever(world, one):
    hint = shown(world, one, Response(200, openai_says(0, 60_000, "99999h")))
    assert 0 < hint.hold_s <= 900


def test_only_the_key_of_the_call_is_held(world, budget):
    one = budget(requests="10/s", tokens="60k/min", capacity=60_000, key="{model}")
    shown(world, one, Response(429, {"retry-after": "7"}), asked={"model": "a", "max_tokens": 5})
    assert one.forecast(request=5, key="a").first_in > 7
    assert one.forecast(request=5, key="b").first_in == 0


def test_the_headers_of_the_presets_server_are_read(world, clock):
    response = Response(200, openai_says(0, 60_000, "60s"))
    for provider, held in (("openai", True), ("anthropic", False), ("auto", True)):
        one = LLMBudget(tokens="60k/min", capacity=60_000, provider=provider, clock=clock)
        hint = shown(world, one, response)
        assert bool(hint and hint.hold_s) is held


def test_an_answer_without_headers_gives_no_hint(world, one):
    assert shown(world, one, Response(200, {})) is None
