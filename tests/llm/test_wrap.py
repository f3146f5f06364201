"""wrap: the answer of a function is returned unchanged, and settled by its usage."""

import functools
import inspect

import anyio
import pytest

from shapekit import ConfigError, LLMBudget, MemoryStore, TokenUsage
from shapekit.testing import FaultyStore

from .errors import RefusedByServer
from .streams import ANSWER, CHUNKS, AsyncStream, Stream, awhole, whole


def asked(prompt="why?", *, max_tokens=100, **more):
    """A function that calls a model, and returns its answer."""
    return ANSWER


async def aasked(prompt="why?", *, max_tokens=100, **more):
    return ANSWER


@pytest.fixture
def one(budget):
    return budget(requests="10/s", tokens="60k/min")


def run(function, *args, **kwargs):
    """Calls a function of either kind; a generator to its first item."""
    if inspect.isasyncgenfunction(function):
        return anyio.run(anext, function(*args, **kwargs))
    if inspect.iscoroutinefunction(function):
        return anyio.run(functools.partial(function, *args, **kwargs))
    return function(*args, **kwargs)


@pytest.mark.parametrize("function", [asked, aasked])
def test_the_answer_is_returned_and_settled(one, used, function):
    assert run(one.wrap(function), "why?") is ANSWER
    assert used(one) == 60


def test_a_wrapped_function_is_what_it_was(one):
    wrapped = one.wrap(asked)
    assert (wrapped.__name__, wrapped.__doc__) == ("asked", asked.__doc__)
    assert inspect.signature(wrapped) == inspect.signature(asked)
    assert inspect.iscoroutinefunction(one.wrap(aasked))


@pytest.mark.parametrize("function", [asked, aasked])
def test_a_budget_wraps_a_function_once(one, budget, used, function):
    wrapped = one.wrap(function)

    @functools.wraps(wrapped)
    def decorated(*args, **kwargs):
        return wrapped(*args, **kwargs)

    for again in (wrapped, decorated):
        with pytest.raises(ConfigError, match="is wrapped already: each call would be charged twice"):
            one.wrap(again)
    other = budget(tokens="60k/min")
    run(other.wrap(wrapped), "why?")
    run(one.wrap(function), "why?")  # the function itself may be wrapped anew
    assert (used(one), used(other)) == (120, 60)


def test_the_estimate_sees_what_the_call_is_given(clock):
    seen = []

    def estimate(prompt, max_tokens, **more):
        seen.append((prompt, max_tokens, more))
        return 70

    one = LLMBudget(tokens="60k/min", estimate=estimate, key="{prompt}", clock=clock)
    one.wrap(asked)("who?", temperature=0)
    one.wrap(asked)()
    assert seen == [("who?", 100, {"temperature": 0}), ("why?", 100, {})]


class Strict:
    def ask(self, *, prompt):
        pytest.fail("it cannot be called so")

    async def aask(self, *, prompt):
        pytest.fail("it cannot be called so")

    async def stream(self, *, prompt):
        yield pytest.fail("it cannot be called so")

    __call__ = ask


@pytest.mark.parametrize("kind", ["ask", "aask", "stream", "__call__"])
@pytest.mark.parametrize(
    "options", [{}, {"key": "{prompt}"}, {"estimate": lambda prompt: 7}], ids=["plain", "key", "estimate"]
)
def test_wrong_arguments_raise_the_functions_own_error_and_charge_nothing(budget, used, kind, options):
    function = Strict() if kind == "__call__" else getattr(Strict(), kind)
    one = budget(requests="10/s", tokens="60k/min", **options)
    with pytest.raises(TypeError, match=r"Strict\.\w+\(\) got an unexpected"):
        run(one.wrap(function), "why?", max_tokens=10**9)
    assert used(one) == 0
    assert one.policies["requests"].forecast().first_in == 0


def test_a_function_with_hidden_parameters_is_budgeted(one, used):
    """A decorator may add arguments, and some functions do not declare theirs."""

    @functools.wraps(asked)
    def patched(*args, retries, **kwargs):
        return asked(*args, **kwargs)

    assert one.wrap(patched)("why?", retries=3) is ANSWER
    assert used(one) == 60
    one.wrap(dict)(prompt="why?", max_tokens=9)
    assert used(one) > 60 + 9


def test_an_answer_without_usage_leaves_the_estimate(one, used):
    assert one.wrap(lambda **_: "yes")(prompt="why", max_tokens=9) == "yes"
    assert used(one) == 10


@pytest.mark.parametrize(("status", "tokens"), [(429, 0), (400, 0), (500, 102)])
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_an_error_is_handed_on_and_its_cost_with_it(one, used, status, tokens, kind):
    def fail(prompt="why?", max_tokens=100):
        raise RefusedByServer(status)

    async def afail(prompt="why?", max_tokens=100):
        raise RefusedByServer(status)

    with pytest.raises(RefusedByServer):
        run(one.wrap(fail if kind == "plain" else afail))
    assert used(one) == tokens


def test_wrap_decorates_methods_and_objects(one, used):
    class Model:
        def __init__(self):
            self.wrapped = one.wrap(self.ask)

        def ask(self, prompt="why?"):
            return ANSWER

        async def __call__(self, prompt="why?"):
            return ANSWER

    model = Model()
    assert model.wrapped() is ANSWER
    assert anyio.run(one.wrap(model)) is ANSWER
    assert used(one) == 120


def test_a_coroutine_function_behind_a_decorator_is_one(one, used):
    """Like those of the SDKs, whose decorator checks arguments."""

    @functools.wraps(aasked)
    def checked(*args, **kwargs):
        return aasked(*args, **kwargs)

    assert anyio.run(one.wrap(checked)) is ANSWER
    assert used(one) == 60


def test_an_object_that_only_sends_later_is_refused_and_costs_nothing(one, used, refused):
    class Manager:
        def __enter__(self):
            pytest.fail("it was not entered")

        def __exit__(self, *_):
            pass

    refused(one.wrap(lambda **_: aasked()), "function")
    refused(one.wrap(lambda **_: Manager()), "function")
    assert used(one) == 0


class AsyncManager:
    """Like those of the SDKs: it holds a coroutine, and awaits it when it is entered."""

    def __init__(self, request):
        self.request = request

    async def __aenter__(self):
        pytest.fail("it was not entered")

    async def __aexit__(self, *_):
        pass


class SettledAtOnce(AsyncManager):
    usage = None

    def __enter__(self):
        pytest.fail("it was not entered")

    def __exit__(self, *_):
        pass


def test_a_manager_that_annotations_announce_is_refused_before_it_is_made(one, refused):
    def stream(prompt: "NameForTypeCheckers") -> "AsyncManager":  # noqa: F821
        pytest.fail("it was not called")

    error = refused(lambda: one.wrap(stream), "function")
    assert "returns a context that sends later; write: async with budget.admit" in str(error)


def test_an_answer_that_can_be_entered_is_no_manager(one, used):
    def ask(prompt="why?") -> SettledAtOnce:
        answer = SettledAtOnce(None)
        answer.usage = ANSWER["usage"]
        return answer

    assert one.wrap(ask)().usage
    assert used(one) == 60


@pytest.mark.parametrize("annotation", ["NameForTypeCheckers", "no expression", "int", None])
def test_other_annotations_of_the_answer_are_ignored(one, used, annotation):
    def ask(prompt="why?"):
        return ANSWER

    ask.__annotations__["return"] = annotation
    assert one.wrap(ask)() is ANSWER
    assert used(one) == 60


# errors beside an answer do not hide the answer


class Cohere:
    """Its raw methods are separate ones, whose answers have nothing to parse."""

    class with_raw_response:
        @staticmethod
        def chat(prompt="why?", max_tokens=100):
            raise AssertionError("another method was called")

    def chat(self, prompt="why?", max_tokens=100):
        return ANSWER


def test_a_raw_method_that_is_no_twin_is_not_called(one, used):
    assert one.wrap(Cohere().chat)() is ANSWER
    assert used(one) == 60


class Lazy:
    """An answer that fails when its usage is read."""

    @property
    def usage(self):
        raise LookupError("not there yet")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_whose_usage_cannot_be_read_is_returned(one, used, caplog, is_async):
    answer = Lazy()

    async def aask(prompt="why?", max_tokens=100):
        return answer

    assert run(one.wrap(aask if is_async else lambda prompt="why?", max_tokens=100: answer)) is answer
    assert used(one) == 102
    assert caplog.records[-1].exc_info[0] is LookupError


@pytest.mark.parametrize("is_async", [False, True])
def test_an_item_that_cannot_be_read_is_passed_on(one, used, caplog, is_async):
    items = [{"choices": 3}, *CHUNKS]

    async def read():
        return await awhole(await one.wrap(aask)())

    async def aask(prompt="why?", max_tokens=100):
        return AsyncStream(items)

    received = (
        anyio.run(read)
        if is_async
        else whole(one.wrap(lambda prompt="why?", max_tokens=100: Stream(items))())
    )
    assert received == items
    assert used(one) == 60
    assert caplog.records[-1].exc_info[0] is TypeError


@pytest.mark.parametrize("kind", ["answer", "stream", "error"])
@pytest.mark.parametrize("function", [asked, aasked])
def test_a_failed_settlement_is_logged_and_the_answer_is_returned(clock, used, caplog, function, kind):
    store = FaultyStore(MemoryStore(clock))
    one = LLMBudget(tokens="60k/min", tokens_per_day="1M", store=store)

    def ask(prompt="why?", max_tokens=100):
        store.down = True
        if kind == "error":
            raise RefusedByServer(429)
        return ANSWER if kind == "answer" else Stream() if function is asked else AsyncStream()

    async def aask(prompt="why?", max_tokens=100):
        return ask()

    async def read():
        answer = await one.wrap(aask)()
        return await awhole(answer) if kind == "stream" else answer

    def result():
        if function is aasked:
            return anyio.run(read)
        answer = one.wrap(ask)()
        return whole(answer) if kind == "stream" else answer

    if kind == "error":
        with pytest.raises(RefusedByServer):
            result()
    else:
        assert result() == (ANSWER if kind == "answer" else CHUNKS)
    store.mend()
    assert used(one) == 102
    assert "keeps what it reserved" in caplog.text
    one.close()


def test_a_failing_predicate_does_not_hide_the_error(clock, used, caplog):
    def mistaken(error):
        raise LookupError("no such field")

    def fail(prompt="why?", max_tokens=100):
        raise RefusedByServer(429)

    one = LLMBudget(tokens="60k/min", tokens_per_day="1M", refund_on=mistaken, clock=clock)
    with pytest.raises(RefusedByServer) as caught:
        one.wrap(fail)()
    assert caught.value.__context__ is None
    assert used(one) == 102
    assert caplog.records[-1].exc_info[0] is LookupError


def test_a_call_shows_what_it_reserved(one):
    with one.admit({"prompt": "why?", "max_tokens": 5}) as call:
        assert call.reserved == TokenUsage(2, 5)
