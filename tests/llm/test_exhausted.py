"""An exhausted account, as OpenAI and Anthropic report it: the budget is held, and its errors say why."""

from types import SimpleNamespace

import anthropic
import openai
import pytest

from shapekit import AccountExhaustedError
from shapekit.events import Exhausted

from .test_sdks import CHAT, COUNTED, Clients, Model

QUOTA = {"error": {"message": "…", "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}}
LOW = {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}
BILLING = {"type": "billing_error", "message": "pay"}
REFUSALS = {
    "openai": ("openai.chat.completions.create", 429, QUOTA, openai.RateLimitError),
    "anthropic": ("anthropic.messages.create", 402, {"error": BILLING}, anthropic.APIStatusError),
    "anthropic, credit": ("anthropic.messages.create", 400, {"error": LOW}, anthropic.BadRequestError),
}


@pytest.fixture
def model():
    return Model()


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def clients(request, model):
    return Clients(model, is_async=request.param)


@pytest.mark.parametrize("streamed", [{}, {"stream": True}], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "status", "refusal", "error"), REFUSALS.values(), ids=REFUSALS)
def test_the_budget_is_held_and_its_error_names_the_reason(
    clients, model, budget, used, path, status, refusal, error, streamed
):
    one = budget(requests="500/min", tokens="60k/min", capacity=60_000, max_wait="10s", name="llm")
    model.status, model.refusal, events = status, refusal, []
    with one.listen(events.append):
        with pytest.raises(error):
            clients.ask(one, path, **CHAT, **streamed)
        with pytest.raises(AccountExhaustedError) as caught:
            clients.ask(one, path, **CHAT, **streamed)
    assert caught.value.policy == "llm.tokens"
    assert len(model.requests) == 1
    assert used(one) == 0
    assert {event for event in events if isinstance(event, Exhausted)} == {
        Exhausted("llm.tokens", "default", 60.0),
        Exhausted("llm.requests", "default", 60.0),
    }


def test_a_call_that_may_wait_tries_again_after_the_hold(clients, model, budget, clock):
    one = budget(requests="500/min", tokens="60k/min", capacity=60_000)
    model.status, model.refusal = 429, QUOTA
    for _ in range(2):
        with pytest.raises(openai.RateLimitError):
            clients.ask(one, "openai.chat.completions.create", **CHAT)
    model.status = 200
    clients.ask(one, "openai.chat.completions.create", **CHAT, **COUNTED)
    assert clock.now() == pytest.approx(180.24)
    clients.ask(one, "openai.chat.completions.create", **CHAT)
    assert clock.now() == pytest.approx(180.36)


def test_an_error_may_have_the_body_that_its_response_has_not(budget):
    class Refused(Exception):
        response = SimpleNamespace(status_code=429, headers={})
        body = QUOTA["error"]

    one = budget(requests="500/min", tokens="60k/min", capacity=60_000)
    with pytest.raises(Refused), one.admit(100):
        raise Refused
    assert one.policies["requests"].shaper.held() == 60
