"""A watched loop is the same loop: each item once, in order, none fetched before it is needed."""

import gc
from contextlib import aclosing

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, Policy
from shapekit.progress import aprogress, progress

from .conftest import PATIENCE_S, Form

POLICY = Policy("10/s", clock=ManualClock(1_000.0))
lengths = st.integers(0, 12)


class Source:
    """Items that count how many were fetched, as iterator, generator or async generator."""

    def __init__(self, length):
        self.length = length
        self.fetched = 0
        self.closed = False

    def __iter__(self):
        try:
            for number in range(self.length):
                self.fetched += 1
                yield number
        finally:
            self.closed = True

    async def __aiter__(self):
        for number in self:
            yield number


class Counted:
    """Has a length, and is iterable."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return self.source.length

    def __iter__(self):
        return iter(self.source)


@settings(max_examples=60)
@given(st.sampled_from(["sync", "asyncio", "trio"]), lengths, st.integers(0, 13), st.sampled_from([0, 1, 2]))
def test_every_item_comes_once_in_order_and_not_before_it_is_needed(name, length, leave_at, known):
    source, seen = Source(length), []
    items = Counted(source) if known == 1 else iter(source)
    options = {"total": length} if known == 2 else {}

    def body(item):
        seen.append(item)
        assert source.fetched == len(seen)
        return False if item == leave_at else None

    Form(name).loop(items, POLICY, body, **options)
    assert seen == list(range(min(length, leave_at + 1)))
    assert source.fetched == len(seen)


@pytest.mark.parametrize("leave_at", [0, 3, 99])
def test_async_items(anyio_backend, leave_at):
    source, seen = Source(6), []

    async def loop():
        async with aclosing(aprogress(source.__aiter__(), POLICY)) as watched:
            async for item in watched:
                seen.append(item)
                assert source.fetched == len(seen)
                if item == leave_at:
                    break
        assert source.closed

    anyio.run(loop, backend=anyio_backend)
    assert seen == list(range(min(6, leave_at + 1)))


def test_errors_of_the_source_are_raised(form):
    def broken():
        yield 1
        raise LookupError("no more pages")

    seen = []
    with pytest.raises(LookupError, match="no more pages"):
        form.loop(broken(), POLICY, seen.append)
    assert seen == [1]


def test_errors_of_the_body_are_raised_and_end_the_line(form, listener):
    def body(item):
        if item == 2:
            raise LookupError("a body's own")

    with pytest.raises(LookupError):
        form.loop(range(5), POLICY, body)
    assert listener.reports[-1]["ending"] == "stopped in item 3"
    assert listener.reports[-1]["done"] == 2


def test_a_generator_with_another_reference_goes_on_after_a_break():
    held = iter(Source(5))
    for item in progress(held, POLICY):
        if item == 1:
            break
    assert list(held) == [2, 3, 4]


def test_a_generator_without_another_reference_is_closed_by_a_break():
    source = Source(5)
    for _ in progress(iter(source), POLICY):
        break
    gc.collect()
    assert source.closed


def test_a_stream_with_a_close_of_its_own_stays_open(anyio_backend):
    class Stream:
        closed = False

        def __init__(self):
            self.left = iter(range(5))

        def __aiter__(self):
            return self

        async def __anext__(self):
            return next(self.left)

        async def aclose(self):
            self.closed = True

    async def loop():
        stream = Stream()
        async with aclosing(aprogress(stream, POLICY)) as watched:
            async for _ in watched:
                break
        assert not stream.closed
        assert await anext(stream) == 1

    anyio.run(loop, backend=anyio_backend)


def test_a_cancelled_loop_closes_its_source_and_ends_its_line(anyio_backend, listener):
    source = Source(5)

    async def loop():
        with anyio.CancelScope() as scope:
            async with aclosing(aprogress(source.__aiter__(), POLICY)) as watched:
                async for item in watched:
                    if item == 2:
                        scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert source.closed

    anyio.run(loop, backend=anyio_backend)
    assert listener.reports[-1]["ending"] == "stopped in item 3"


def test_a_loop_on_asyncio_that_is_left_by_a_break_is_closed_too(listener):
    source = Source(5)

    async def loop():
        async for _ in aprogress(source.__aiter__(), POLICY):
            break
        with anyio.fail_after(PATIENCE_S):
            while not source.closed:
                await anyio.lowlevel.checkpoint()

    anyio.run(loop)
    assert [report["ending"] for report in listener.reports] == [None, "stopped in item 1"]


def test_a_loop_that_never_begins_logs_nothing(listener):
    progress(range(3), POLICY).close()
    assert listener.lines == []


def test_the_last_line_counts_all_items(form, listener):
    form.loop(range(3), POLICY, lambda item: None)
    assert [(report["done"], report["total"], report["ending"]) for report in listener.reports] == [
        (0, 3, None),
        (3, 3, ""),
    ]


def test_an_object_that_is_not_iterable_raises_the_usual_error(form):
    with pytest.raises(TypeError, match="not iterable"):
        form.loop(5, POLICY, lambda item: None)


class Endless:
    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        raise TypeError("it depends")


def test_a_length_that_raises_counts_as_unknown(form, listener):
    form.loop(Endless(), POLICY, lambda item: None)
    assert [report["total"] for report in listener.reports] == [None, None]


@pytest.mark.parametrize(("enforce", "first"), [(True, 0.1), (False, None)])
def test_a_wrong_total_raises_nothing(form, each, enforce, first):
    clock = ManualClock(1_000.0)
    policy = Policy("10/s", clock=clock, enforce=enforce)
    form.loop(range(4), policy, lambda item: clock.advance(1), total=2)
    assert [report["eta"] for report in each.reports] == [first, 1.0, 0.0, 0.0, 0.0, 0.0]
