"""@shaped on generators and async generators: shaped when they start, and otherwise as they were."""

import functools
import inspect

import pytest

from shapekit import QueueFullError, shaped


def pages(clock):
    yield clock.now()
    yield clock.now()


async def apages(clock):
    yield clock.now()
    yield clock.now()


def noting(notes):
    notes.append("started")
    yield 1
    raise LookupError("of the body")


async def anoting(notes):
    notes.append("started")
    yield 1
    raise LookupError("of the body")


def test_a_generator_takes_its_slot_when_it_starts_and_none_later(clock):
    call = shaped("1/s", clock=clock)(pages)
    first, second, never = call(clock), call(clock), call(clock)
    assert call.forecast().first_in == 0.0
    # The order of starting counts, not that of calling.
    assert next(second) == 0.0
    assert list(first) == [1.0, 1.0]
    assert next(second) == 1.0
    never.close()
    assert call.forecast().first_in == 1.0


@pytest.mark.anyio
async def test_an_async_generator_takes_its_slot_when_it_starts_and_none_later(clock):
    call = shaped("1/s", clock=clock)(apages)
    first, second, never = call(clock), call(clock), call(clock)
    assert call.forecast().first_in == 0.0
    assert await anext(second) == 0.0
    assert [page async for page in first] == [1.0, 1.0]
    assert await anext(second) == 1.0
    await never.aclose()
    assert call.forecast().first_in == 1.0
    await second.aclose()


def test_the_return_value_of_a_generator_passes_through_yield_from(clock):
    @shaped("1/s", clock=clock)
    def inner():
        got = yield "first"
        return f"result {got}"

    results = []

    def outer():
        results.append((yield from inner()))

    generator = outer()
    assert next(generator) == "first"
    with pytest.raises(StopIteration):
        generator.send("x")
    assert results == ["result x"]


def test_a_refused_generator_raises_when_it_starts(clock):
    notes = []
    call = shaped("1/s", max_wait=0, clock=clock)(noting)
    assert next(call(notes)) == 1
    refused = call(notes)
    with pytest.raises(QueueFullError):
        next(refused)
    assert notes == ["started"]
    assert list(refused) == []


@pytest.mark.anyio
async def test_a_refused_async_generator_raises_when_it_starts(clock):
    notes = []
    call = shaped("1/s", max_wait=0, clock=clock)(anoting)
    started, refused = call(notes), call(notes)
    assert await anext(started) == 1
    with pytest.raises(QueueFullError):
        await anext(refused)
    assert notes == ["started"]
    assert [item async for item in refused] == []
    await started.aclose()


def test_a_generator_that_fails_may_have_its_cost_back(clock):
    failing = shaped("1/s", refund_on=LookupError, clock=clock)(noting)
    with pytest.raises(LookupError):
        list(failing([]))
    assert failing.forecast().first_in == 0.0
    # To come to an end is no failure.
    ending = shaped("1/s", refund_on=Exception, clock=clock)(pages)
    assert len(list(ending(clock))) == 2
    assert ending.forecast().first_in == 1.0


@pytest.mark.anyio
async def test_an_async_generator_that_fails_may_have_its_cost_back(clock):
    failing = shaped("1/s", refund_on=LookupError, clock=clock)(anoting)
    with pytest.raises(LookupError):
        async for _ in failing([]):
            pass
    assert failing.forecast().first_in == 0.0
    ending = shaped("1/s", refund_on=Exception, clock=clock)(apages)
    assert len([page async for page in ending(clock)]) == 2
    assert ending.forecast().first_in == 1.0


def test_keys_of_the_call_serve_generators_too(clock):
    @shaped("1/s", key="{user}", clock=clock)
    def numbers(user):
        yield clock.now()

    assert [next(numbers(user)) for user in "aba"] == [0.0, 0.0, 1.0]


def test_shaped_generators_are_still_generator_functions():
    call, acall = shaped(1)(pages), shaped(1)(apages)
    assert inspect.isgeneratorfunction(call)
    assert inspect.isasyncgenfunction(acall)
    for made, original in ((call, pages), (acall, apages)):
        assert inspect.signature(made) == inspect.signature(original)
        assert made.__wrapped__ is original


def test_generator_methods(clock):
    class Client:
        @shaped("1/s", clock=clock)
        def numbers(self, up_to):
            yield from range(up_to)

    assert list(Client().numbers(3)) == [0, 1, 2]
    assert list(functools.partial(Client().numbers, 2)()) == [0, 1]
    assert clock.now() == 1.0
