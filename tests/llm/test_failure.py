"""Failures: what an error implies about the cost of its call."""

from socket import gaierror

import httpx
import openai
import pytest

from shapekit import CostExceedsLimitError, ManualClock, Policy, QueueFullError
from shapekit.integrations.httpx import ShapedTransport
from shapekit.llm.call import never_ran, never_sent

from .errors import RefusedByServer, caused


def refusal():
    policy = Policy("1/h", max_wait=0)
    with policy.admit(), pytest.raises(QueueFullError) as caught:
        policy.admit().__enter__()
    return caught.value


REFUSED = ConnectionRefusedError("nobody there")
LOOP = RuntimeError("a loop of causes")
LOOP.__cause__ = LOOP


def answered():
    """The error of an SDK whose client got a 429 of ours."""
    answering = httpx.MockTransport(lambda request: httpx.Response(200))
    transport = ShapedTransport(answering, rate="1/h", max_wait=0, on_reject="respond", clock=ManualClock())
    with httpx.Client(transport=transport) as client:
        _, response = [client.get("http://api.x/") for _ in range(2)]
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


UNSENT = {
    "refused by us": refusal(),
    "answered by us": answered(),
    "too much for us": caused(CostExceedsLimitError(5, 1, "default", "tokens=", "llm.tokens", "tokens")),
    "refused connection": REFUSED,
    "no such host": gaierror("no such host"),
    "in a client's error": caused(caused(REFUSED)),
    "all addresses": caused(ExceptionGroup("all", [REFUSED, ConnectionRefusedError("x")])),
}
SENT = {
    "timeout": TimeoutError("x"),
    "reset": ConnectionResetError("x"),
    "cancelled": KeyboardInterrupt(),
    "one of two addresses": caused(ExceptionGroup("all", [REFUSED, TimeoutError("x")])),
    "something else": LookupError("x"),
    "a loop": LOOP,
}


@pytest.mark.parametrize("error", UNSENT.values(), ids=UNSENT)
def test_a_call_that_did_not_leave_cost_nothing(error):
    assert never_sent(error)
    assert never_ran(error)


@pytest.mark.parametrize("error", SENT.values(), ids=SENT)
def test_the_cost_of_other_errors_is_unknown(error):
    assert not never_sent(error)
    assert not never_ran(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429])
def test_a_call_that_the_server_refused_was_sent_but_did_not_run(status):
    assert never_ran(RefusedByServer(status))
    assert not never_sent(RefusedByServer(status))


@pytest.mark.parametrize("status", [200, 302, 408, 499, 500, 502, 503, 504, 529])
def test_the_cost_of_other_answers_is_unknown(status):
    assert not never_ran(RefusedByServer(status))


def test_earlier_errors_in_the_context_do_not_count():
    """Only the cause of an error counts: where a fallback failed after a refusal, something was sent."""
    error = TimeoutError("the second server")
    error.__context__ = REFUSED
    assert not never_ran(error)
    error.__suppress_context__ = True
    assert never_ran(error)  # raised in place of the refusal, `from None`


def test_a_failed_connection_counts_as_never_sent(free_port):
    url = f"http://localhost:{free_port}/"
    with pytest.raises(httpx.ConnectError) as caught:
        httpx.get(url)
    assert never_sent(caught.value)
    sdk = openai.OpenAI(api_key="none", base_url=url, max_retries=0)
    with pytest.raises(openai.APIConnectionError) as wrapped:
        sdk.models.list()
    assert never_sent(wrapped.value)


@pytest.mark.anyio
async def test_a_failed_asynchronous_connection_counts_as_never_sent(free_port):
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError) as caught:
            await client.get(f"http://localhost:{free_port}/")
    assert never_sent(caught.value)
