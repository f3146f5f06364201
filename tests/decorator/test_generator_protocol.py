"""A shaped generator answers next, send, throw and close as the bare one does, and so do async ones.

Each body stands here in both forms. They record every event: what they receive, and how they end.
"""

import contextlib

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, shaped


def echo(notes):
    """Yields what it is sent; stops at "stop" with a result; survives ValueError."""
    got = "first"
    try:
        while got != "stop":
            try:
                got = yield got
                notes.append(("got", got))
            except ValueError as error:
                notes.append(("caught", str(error)))
                got = "survived"
        return "result"
    finally:
        notes.append("ended")


async def aecho(notes):
    got = "first"
    try:
        while got != "stop":
            try:
                got = yield got
                notes.append(("got", got))
            except ValueError as error:
                notes.append(("caught", str(error)))
                got = "survived"
    finally:
        await checkpoint()
        notes.append("ended")


def failing(notes):
    yield 1
    try:
        yield 2
    finally:
        notes.append("ended")
        raise LookupError("of the body")


async def afailing(notes):
    yield 1
    try:
        yield 2
    finally:
        notes.append("ended")
        raise LookupError("of the body")


def empty(notes):
    notes.append("started")
    return
    yield


async def aempty(notes):
    notes.append("started")
    return
    yield


BODIES = [(echo, aecho), (failing, afailing), (empty, aempty)]
STEPS = st.lists(
    st.sampled_from(
        [
            ("next",),
            ("next",),
            ("send", None),
            ("send", "x"),
            ("send", "stop"),
            ("throw", ValueError),
            ("throw", KeyError),
            ("throw", GeneratorExit),
            ("throw", StopIteration),
            ("throw", StopAsyncIteration),
            ("close",),
        ]
    ),
    max_size=6,
)


def played(make, steps):
    """The answer of a generator to each step, and the record of its body."""
    notes = []
    generator = make(notes)
    answers = []
    for step, *argument in steps:
        try:
            if step == "next":
                answers.append(next(generator))
            elif step == "send":
                answers.append(generator.send(*argument))
            elif step == "throw":
                answers.append(generator.throw(argument[0]("thrown")))
            else:
                answers.append(generator.close())
        except BaseException as error:
            answers.append((type(error), *map(str, error.args)))
    seen = list(notes)
    # The rest of it ends here, and not when it is collected.
    with contextlib.suppress(LookupError):
        generator.close()
    return answers, seen


async def aplayed(make, steps):
    notes = []
    generator = make(notes)
    answers = []
    for step, *argument in steps:
        try:
            if step == "next":
                answers.append(await anext(generator))
            elif step == "send":
                answers.append(await generator.asend(*argument))
            elif step == "throw":
                answers.append(await generator.athrow(argument[0]("thrown")))
            else:
                answers.append(await generator.aclose())
        except BaseException as error:
            answers.append((type(error), *map(str, error.args)))
    seen = list(notes)
    with contextlib.suppress(LookupError):
        await generator.aclose()
    return answers, seen


@pytest.mark.parametrize("body", [sync for sync, _ in BODIES], ids=lambda body: body.__name__)
@settings(max_examples=60)
@given(steps=STEPS)
def test_a_shaped_generator_answers_as_the_bare_one(body, steps):
    call = shaped("1/s", clock=ManualClock(autojump=True))(body)
    assert played(call, steps) == played(body, steps)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("body", [awaited for _, awaited in BODIES], ids=lambda body: body.__name__)
@settings(max_examples=40)
@given(steps=STEPS)
def test_a_shaped_async_generator_answers_as_the_bare_one(body, backend, steps):
    call = shaped("1/s", clock=ManualClock(autojump=True))(body)

    async def both():
        return await aplayed(call, steps), await aplayed(body, steps)

    answered, wanted = anyio.run(both, backend=backend)
    assert answered == wanted


@pytest.mark.parametrize("decorate", [lambda body: body, shaped(1)], ids=["bare", "shaped"])
def test_a_body_that_ignores_close_raises_the_usual_error(decorate):
    @decorate
    def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    generator = stubborn()
    next(generator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        generator.close()


@pytest.mark.anyio
@pytest.mark.parametrize("decorate", [lambda body: body, shaped(1)], ids=["bare", "shaped"])
async def test_an_async_body_that_ignores_close_raises_the_usual_error(decorate):
    @decorate
    async def stubborn():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    generator = stubborn()
    await anext(generator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        await generator.aclose()
