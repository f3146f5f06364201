"""The unchanged SDKs of OpenAI and Anthropic: one line puts a budget on their calls."""

import gc
import operator

import anthropic
import anyio
import httpx2
import openai
import pytest

from .model import Model

CHAT = {"model": "some", "messages": [{"role": "user", "content": "why?"}], "max_tokens": 500}
RESPONSE = {"model": "some", "input": "why?", "max_output_tokens": 500}
COUNTED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def one(budget):
    return budget(requests="500/min", tokens="60k/min", capacity=60_000)


class Clients:
    """Both SDKs, for threads or for asyncio, before a stub."""

    def __init__(self, model, *, is_async):
        self.is_async = is_async
        transport = httpx2.MockTransport(model)
        own = {"api_key": "none", "max_retries": 0}
        if is_async:
            http = openai.DefaultAsyncHttpx2Client(transport=transport)
            self.openai = openai.AsyncOpenAI(**own, http_client=http)
            http = anthropic.DefaultAsyncHttpxClient(transport=transport)
            self.anthropic = anthropic.AsyncAnthropic(**own, http_client=http)
        else:
            http = openai.DefaultHttpx2Client(transport=transport)
            self.openai = openai.OpenAI(**own, http_client=http)
            http = anthropic.DefaultHttpxClient(transport=transport)
            self.anthropic = anthropic.Anthropic(**own, http_client=http)

    def ask(self, one, path, most=None, **arguments):
        """Calls a wrapped method; of a stream it reads all, or the first few items."""
        method = self
        for step in path.split("."):
            method = getattr(method, step)
        create = one.wrap(method)
        if self.is_async:
            return anyio.run(self._aask, create, most, arguments)
        answer = create(**arguments)
        if not arguments.get("stream"):
            return answer
        with answer as stream:
            return [item for item, _ in zip(stream, range(most or 99), strict=False)]

    async def _aask(self, create, most, arguments):
        answer = await create(**arguments)
        if not arguments.get("stream"):
            return answer
        items = []
        async with answer as stream:
            async for item in stream:
                items.append(item)
                if len(items) == most:
                    break
        return items


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def clients(request, model):
    return Clients(model, is_async=request.param)


CALLS = {
    "chat": ("openai.chat.completions.create", CHAT, 60),
    "chat streamed": ("openai.chat.completions.create", {**CHAT, **COUNTED}, 60),
    "chat streamed without a count": ("openai.chat.completions.create", {**CHAT, "stream": True}, 8 + 1),
    "responses": ("openai.responses.create", RESPONSE, 123),
    "responses streamed": ("openai.responses.create", {**RESPONSE, "stream": True}, 123),
    "embeddings": ("openai.embeddings.create", {"model": "some", "input": "why?"}, 8),
    "messages": ("anthropic.messages.create", CHAT, 48),
    "messages streamed": ("anthropic.messages.create", {**CHAT, "stream": True}, 48),
}


@pytest.mark.parametrize(("path", "arguments", "tokens"), CALLS.values(), ids=CALLS)
def test_a_call_costs_the_usage_of_its_answer(clients, one, used, path, arguments, tokens):
    answer = clients.ask(one, path, **arguments)
    assert used(one) == tokens
    # The items that come back are the SDK's own.
    if arguments.get("stream"):
        assert all(type(item).__module__.startswith(("openai.", "anthropic.")) for item in answer)
    else:
        assert type(answer).__name__ in ("ChatCompletion", "Response", "Message", "CreateEmbeddingResponse")


def test_a_stream_that_is_left_costs_what_was_seen(clients, one, used, afterwards):
    assert len(clients.ask(one, "openai.chat.completions.create", 1, **CHAT, **COUNTED)) == 1
    assert len(clients.ask(one, "anthropic.messages.create", 2, **CHAT, stream=True)) == 2
    gc.collect()
    afterwards()
    # Anthropic has sent the input, and a token of the answer.
    assert used(one) == (8 + 1) + (42 + 1)


@pytest.mark.parametrize("path", ["openai.chat.completions.create", "anthropic.messages.create"])
def test_a_refusal_holds_all_calls_and_gives_back_the_tokens(clients, model, one, used, clock, path):
    model.status, model.headers = 429, {"retry-after": "7"}
    sdk = openai if path.startswith("openai") else anthropic
    with pytest.raises(sdk.RateLimitError):
        clients.ask(one, path, **CHAT)
    assert used(one) == 0
    model.status, model.headers = 200, {}
    clients.ask(one, path, **CHAT)
    assert clock.now() == 7.12  # the refused request was one


@pytest.mark.parametrize("streamed", [{}, COUNTED], ids=["whole", "streamed"])
def test_the_headers_of_every_answer_are_read(clients, model, one, clock, streamed):
    left = {"remaining": "100", "limit": "60000", "reset": "59.9s"}
    model.headers = {f"x-ratelimit-{name}-tokens": value for name, value in left.items()}
    clients.ask(one, "openai.chat.completions.create", **CHAT, **streamed)
    # 408 of the tokens that such a call needs are missing, and a thousand come in a second.
    assert one.policies["tokens"].forecast().first_in == pytest.approx(0.408)


def test_a_raw_response_is_returned_and_settled(clients, model, one, used):
    model.headers = {"retry-after": "7", "x-ratelimit-remaining-requests": "0"}
    for path, arguments, tokens in (CALLS["chat"], CALLS["messages"]):
        raw = path.replace("create", "with_raw_response.create")
        before = used(one)
        response = clients.ask(one, raw, **arguments)
        assert response.headers["retry-after"] == "7"
        assert used(one) - before == tokens


def test_a_manager_of_a_stream_is_entered_beside_the_call(model, one, used):
    clients = Clients(model, is_async=False)
    with one.admit(CHAT) as call, clients.anthropic.messages.stream(**CHAT) as stream:
        call.settle(stream.get_final_message())
    assert used(one) == 48


MANAGERS = (
    "anthropic.messages.stream",
    "anthropic.beta.messages.stream",
    "anthropic.messages.with_streaming_response.create",
    "openai.chat.completions.stream",
    "openai.responses.stream",
    "openai.chat.completions.with_streaming_response.create",
    "openai.beta.threads.runs.stream",
)


@pytest.mark.parametrize("path", MANAGERS)
def test_a_manager_of_a_stream_is_refused_before_it_is_made(clients, one, refused, path):
    method = operator.attrgetter(path)(clients)
    error = refused(lambda: one.wrap(method), "function")
    entered = "async with" if clients.is_async else "with"
    assert f"write: {entered} budget.admit" in str(error)


def test_a_runner_of_tools_is_refused_as_it_sends_a_request_for_each_turn(clients, one, refused):
    error = refused(lambda: one.wrap(clients.anthropic.beta.messages.tool_runner), "function")
    assert "wrap client.messages.create, and call it for each turn" in str(error)


def test_a_failed_connection_costs_neither_tokens_nor_a_slot(one, used, free_port):
    sdk = openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{free_port}/", max_retries=0)
    with pytest.raises(openai.APIConnectionError):
        one.wrap(sdk.chat.completions.create)(**CHAT)
    assert used(one) == 0
    assert one.forecast(request=1).first_in == 0.0
