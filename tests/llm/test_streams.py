"""Streams are passed on unchanged, and settled by their usage, or by what was seen of them."""

import gc

import anyio
import pytest

from shapekit import LLMBudget, SQLiteStore
from shapekit.llm import LLMCall

from .errors import RefusedByServer
from .streams import ANSWER, CHUNKS, AsyncStream, Stream, awhole, streaming, whole


@pytest.fixture
def one(budget):
    return budget(requests="10/s", tokens="60k/min")


def test_a_stream_is_settled_at_its_end(one, used):
    stream = one.wrap(streaming(Stream()))()
    assert used(one) == 102
    assert whole(stream) == CHUNKS
    assert used(one) == 60


@pytest.mark.anyio
async def test_an_asynchronous_stream_is_settled_at_its_end(one, used):
    stream = await one.wrap(streaming(AsyncStream()))()
    assert used(one) == 102
    assert await awhole(stream) == CHUNKS
    assert used(one) == 60


def test_a_stream_is_settled_as_soon_as_it_has_its_usage(one, used):
    stream = one.wrap(streaming(Stream([*CHUNKS, "and on"])))()
    for _ in range(3):
        next(stream)
    assert used(one) == 60


FATES = ["closed", "left", "thrown away", "broken"]
SEEN = 2 + 1  # the tokens of "why?" and "a"
ABORTED = [(fate, on_abort) for fate in FATES for on_abort in ("seen", "estimate")]


def charged(on_abort):
    return SEEN if on_abort == "seen" else 102


@pytest.mark.parametrize(("fate", "on_abort"), ABORTED)
def test_a_stream_that_ends_before_its_usage_costs_what_was_seen(budget, used, afterwards, fate, on_abort):
    one = budget(tokens="60k/min", on_abort=on_abort)
    inner = Stream(["a", "b"], error=ConnectionResetError("lost"))
    stream = one.wrap(streaming(inner))()
    assert next(stream) == "a"
    if fate == "closed":
        stream.close()
    elif fate == "left":
        with stream as same:
            assert same is stream
    elif fate == "broken":
        with pytest.raises(ConnectionResetError):
            whole(stream)
    if fate == "left":
        del same
    del stream
    gc.collect()
    afterwards()
    assert used(one) == charged(on_abort)
    assert inner.closed == (fate in ("closed", "left"))


@pytest.mark.parametrize(("fate", "on_abort"), ABORTED)
@pytest.mark.anyio
async def test_an_asynchronous_stream_that_ends_before_its_usage_costs_what_was_seen(
    budget, used, afterwards, fate, on_abort
):
    one = budget(tokens="60k/min", on_abort=on_abort)
    inner = AsyncStream(["a", "b"], error=ConnectionResetError("lost"))
    stream = await one.wrap(streaming(inner))()
    assert await anext(stream) == "a"
    if fate == "closed":
        await stream.close()
    elif fate == "left":
        async with stream as same:
            assert same is stream
    elif fate == "broken":
        with pytest.raises(ConnectionResetError):
            await awhole(stream)
    if fate == "left":
        del same
    del stream
    gc.collect()
    afterwards()
    assert used(one) == charged(on_abort)
    assert inner.closed == (fate in ("closed", "left"))


def entered(ask):
    with ask() as stream:
        yield from map(str, stream)  # bare, it would close the stream first


def closed(ask):
    stream = ask()
    try:
        yield from map(str, stream)
    finally:
        stream.close()


@pytest.mark.parametrize("reads", [entered, closed])
def test_a_reader_may_be_collected_while_this_thread_uses_the_store(tmp_path, used, afterwards, reads):
    store = SQLiteStore(tmp_path / "limits.db")
    one = LLMBudget(tokens="60k/min", tokens_per_day=1_000_000, store=store, name="one")
    reader = reads(one.wrap(streaming(Stream())))
    assert next(reader) == "a"
    with store._file._turn:  # as in the middle of a call, where the collector may run
        reader.close()
    afterwards()
    assert used(one) == SEEN
    store.close()


@pytest.mark.anyio
async def test_an_asynchronous_reader_that_is_closed_settles_its_stream(one, used, afterwards):
    stream = await one.wrap(streaming(AsyncStream()))()

    async def reads():
        async with stream:
            async for item in stream:
                yield item

    reader = reads()
    assert await anext(reader) == "a"
    await reader.aclose()
    afterwards()
    assert used(one) == SEEN


@pytest.mark.parametrize("fate", FATES)
def test_a_usage_is_settled_however_the_stream_ends_after_it(one, used, fate):
    stream = one.wrap(streaming(Stream(CHUNKS, error=ConnectionResetError("lost"))))()
    for _ in CHUNKS:
        next(stream)
    if fate == "closed":
        stream.close()
    elif fate == "broken":
        with pytest.raises(ConnectionResetError):
            next(stream)
    del stream
    assert used(one) == 60


@pytest.mark.parametrize(("error", "tokens"), [(RefusedByServer(429), 0), (TimeoutError(), 102)])
def test_a_stream_that_fails_before_its_first_item_costs_what_its_error_implies(one, used, error, tokens):
    stream = one.wrap(streaming(Stream([], error=error)))()
    with pytest.raises(type(error)):
        next(stream)
    assert used(one) == tokens


@pytest.mark.anyio
async def test_an_asynchronous_stream_that_fails_before_its_first_item_costs_what_its_error_implies(
    one, used
):
    stream = await one.wrap(streaming(AsyncStream([], error=RefusedByServer(429))))()
    with pytest.raises(RefusedByServer):
        await anext(stream)
    assert used(one) == 0


def test_a_refusal_in_the_middle_is_no_proof_that_nothing_ran(one, used):
    stream = one.wrap(streaming(Stream(["a"], error=RefusedByServer(429))))()
    with pytest.raises(RefusedByServer):
        whole(stream)
    assert used(one) == SEEN


def test_a_wrapped_stream_keeps_its_attributes(one):
    inner = Stream()
    stream = one.wrap(streaming(inner))()
    assert stream.response is inner.response
    assert repr(inner) in repr(stream)
    with pytest.raises(AttributeError):
        stream.nothing  # noqa: B018


@pytest.mark.parametrize("ends", [True, False])
def test_generators_are_streams(one, used, ends):
    closed = []

    def ask(prompt="why?", max_tokens=100):
        try:
            yield from CHUNKS
        finally:
            closed.append(True)

    with one.wrap(ask)() as stream:
        assert (whole(stream) if ends else [next(stream)]) == (CHUNKS if ends else CHUNKS[:1])
    assert closed == [True]
    assert used(one) == (60 if ends else SEEN)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.anyio
async def test_asynchronous_generators_are_streams_that_leave_when_they_start(one, used, ends):
    closed = []

    async def ask(prompt="why?", max_tokens=100):
        try:
            for chunk in CHUNKS:
                yield chunk
        finally:
            closed.append(True)

    stream = one.wrap(ask)()
    assert used(one) == 0
    if ends:
        assert await awhole(stream) == CHUNKS
    else:
        assert await anext(stream) == "a"
        await stream.aclose()
    assert closed == [True]
    assert used(one) == (60 if ends else SEEN)


@pytest.mark.anyio
async def test_a_task_cancelled_in_a_stream_pays_what_was_seen(one, used):
    class Endless(AsyncStream):
        async def __anext__(self):
            await anyio.sleep_forever()

    stream = await one.wrap(streaming(Endless()))()
    with anyio.move_on_after(0):
        await anext(stream)
    assert used(one) == 2  # the question


@pytest.mark.anyio
async def test_a_task_cancelled_while_a_usage_is_read_closes_the_stream(monkeypatch, one, used):
    async def never(call, answer):
        scope.cancel()
        await anyio.sleep_forever()

    monkeypatch.setattr(LLMCall, "aobserve", never)
    inner = AsyncStream()
    with anyio.CancelScope() as scope:
        await one.wrap(streaming(inner))()
    assert inner.closed == 1
    assert used(one) == 2  # the question


def test_an_interrupt_while_a_usage_is_read_closes_the_stream(monkeypatch, one, used):
    def interrupted(call, answer):
        raise KeyboardInterrupt

    monkeypatch.setattr(LLMCall, "observe", interrupted)
    inner = Stream()
    with pytest.raises(KeyboardInterrupt):
        one.wrap(streaming(inner))()
    assert inner.closed == 1
    assert used(one) == 2


def test_a_complete_stream_without_a_usage_costs_what_was_seen(one, used):
    assert whole(one.wrap(streaming(Stream(["a", "bcd"])))()) == ["a", "bcd"]
    assert used(one) == 2 + 2


def test_where_the_input_is_unknown_the_estimate_stands(budget, used):
    one = budget(tokens="60k/min", estimate=500)
    with one.wrap(lambda: Stream(["a"]))() as stream:
        next(stream)
    assert used(one) == 500


def test_a_bare_estimate_does_not_hide_the_input(budget, used):
    one = budget(tokens="60k/min", estimate=500)
    with one.wrap(streaming(Stream(["a", "b"])))() as stream:
        next(stream)
    assert used(one) == SEEN


@pytest.mark.parametrize(
    ("items", "tokens"),
    [
        ([{"choices": [{"delta": {"content": "yes"}}, {"delta": {"reasoning_content": "hmm"}}]}], 2 + 2),
        ([{"choices": [{"text": "yes"}]}], 2 + 1),
        ([{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}], 2 + 1),
        ([{"choices": [{"delta": {"reasoning": "hmm", "content": None}}]}], 2 + 1),
        ([{"choices": [{"delta": {"reasoning": "hmm", "reasoning_content": "hmm"}}]}], 2 + 1),
        ([{"data": {"choices": [{"delta": {"content": "yes"}}]}}], 2 + 1),
        ([{"type": "response.created", "response": {"usage": None}}], 2),
        ([{"type": "response.output_text.delta", "delta": "yes, I do"}], 2 + 3),
        (
            [
                {"type": "message_start", "message": {"usage": {"input_tokens": 40, "output_tokens": 1}}},
                {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hmm"}},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "yes"}},
            ],
            40 + 2,
        ),
    ],
)
def test_the_pieces_of_each_dialect_so_far_are_counted(one, used, items, tokens):
    stream = one.wrap(streaming(Stream([*items, "never read"])))()
    for _ in items:
        next(stream)
    stream.close()
    assert used(one) == tokens


@pytest.mark.parametrize(
    "item",
    [
        {"type": "content-delta", "delta": {"message": {"content": {"text": "yes"}}}},
        {"message": {"role": "assistant", "content": "yes"}, "done": False},
        {"event": "message", "data": '{"choices": [{"delta": {"content": "yes"}}]}'},
        {"choices": [{"delta": {"role": "assistant", "musings": "yes"}}]},
        {"choices": 3},
        b'data: {"choices": [{"delta": {"content": "yes"}}]}',
        object(),
    ],
)
def test_a_stream_in_a_form_of_its_own_keeps_what_it_reserved(one, used, item):
    assert whole(one.wrap(streaming(Stream([item] * 3)))()) == [item] * 3
    assert used(one) == 102


@pytest.mark.parametrize("bearer", ["data", "x_groq"])
def test_a_usage_is_found_inside_an_envelope(one, used, bearer):
    chunk = {"choices": [{"delta": {}}], bearer: {"choices": [{"delta": {}}], "usage": ANSWER["usage"]}}
    whole(one.wrap(streaming(Stream([chunk])))())
    assert used(one) == 60
