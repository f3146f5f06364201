"""A task that was cancelled before it called takes nothing, however soon its slot would have come."""

import asyncio
from itertools import count

import anyio
import httpx
import pytest

from shapekit import GCRA, Gate, LLMBudget, MemoryStore, Policy, RedisStore, ResilientStore, Shaper, shaped
from shapekit.integrations.httpx import ShapedTransport
from shapekit.keys import Target
from shapekit.stores.sqlite import SQLiteStore

from ..redis_server import shared_server

_names = count()

STORES = {
    "memory": lambda _: MemoryStore(),
    "file": lambda path: SQLiteStore(path / "limits.db"),
    "redis": lambda _: RedisStore.from_url(shared_server().url, prefix=f"before{next(_names)}"),
    "resilient": lambda _: ResilientStore(MemoryStore(), on_outage="open"),
}


@pytest.fixture(params=STORES)
async def store(request, tmp_path):
    store = STORES[request.param](tmp_path)
    yield store
    await store.aclose()


def gate(store):
    gate = Gate(GCRA("1/h"), store=store, name="n")
    return gate, lambda: bool(gate.peek().remaining)


def shaper(store, **options):
    shaper = Shaper("1/h", store=store, name="n", **options)
    return shaper, lambda: not shaper.forecast().first_in


def policy(store, **options):
    policy = Policy("1/h", store=store, name="n", **options)
    return policy, lambda: not policy.forecast().first_in and _no_permit_is_taken(policy)


def _no_permit_is_taken(policy):
    return policy.permits is None or policy.permits.registry._keys == {}


async def enter(admission):
    await admission.__aenter__()


def scoped(store):
    made, is_free = policy(store)
    admission = made.aadmit()
    admission.target = Target("GET", "https", "api.example.com", None, "/search")
    made.scoped.scopes.learn("default", admission.target, "search")
    return enter(admission), is_free


def decorated(store):
    @shaped("1/h", store=store, name="n")
    async def call():
        """What must not be reached."""

    return call(), lambda: not call.forecast().first_in


def sent(store):
    transport = ShapedTransport(
        httpx.MockTransport(lambda _: httpx.Response(200)), rate="1/h", key="default", store=store, name="n"
    )
    request = httpx.Request("GET", "https://api.example.com/")
    made = Policy("1/h", store=store, name="n")
    return transport.handle_async_request(request), lambda: not made.forecast(key="default").first_in


def budgeted(store):
    budget = LLMBudget(requests="1/h", tokens="9/h", store=store, name="n")
    return enter(budget.admit(9)), lambda: not budget.forecast(1, 9).first_in


def of(make, ask, **options):
    def case(store):
        made, is_free = make(store, **options)
        return ask(made), is_free

    return case


CASES = {
    "Gate.acheck": of(gate, lambda made: made.acheck()),
    "Gate.acheck_many": of(gate, lambda made: made.acheck_many(["default"])),
    "Gate.arequire": of(gate, lambda made: made.arequire()),
    "Shaper.areserve": of(shaper, lambda made: made.areserve()),
    "Shaper.aschedule": of(shaper, lambda made: made.aschedule()),
    "Shaper.aschedule, prefetching": of(shaper, lambda made: made.aschedule(), prefetch="1s"),
    "async with shaper": of(shaper, enter),
    "Policy.aadmit": of(policy, lambda made: enter(made.aadmit())),
    "Policy.aadmit, not enforced": of(policy, lambda made: enter(made.aadmit()), enforce=False),
    "Policy.aadmit, with a permit": of(policy, lambda made: enter(made.aadmit()), concurrency=1),
    "Policy.aadmit, permit not enforced": of(
        policy, lambda made: enter(made.aadmit()), concurrency=1, enforce=False
    ),
    "Policy.aadmit, of a scope": scoped,
    "@shaped": decorated,
    "httpx": sent,
    "LLMBudget.aadmit": budgeted,
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_call_in_a_cancelled_scope_takes_nothing(case, store):
    call, is_free = case(store)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await call
    assert scope.cancelled_caught
    assert is_free()


@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_call_in_an_inner_scope_of_a_cancelled_one_takes_nothing(case, store):
    call, is_free = case(store)
    with anyio.CancelScope() as scope, anyio.CancelScope():
        scope.cancel()
        await call
    assert is_free()


@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_shielded_call_goes_on(case, store):
    call, is_free = case(store)
    with anyio.CancelScope() as scope:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            await call
    assert not is_free()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_task_that_asyncio_is_about_to_cancel_takes_nothing(case, store):
    call, is_free = case(store)

    async def cancel_itself():
        asyncio.current_task().cancel()
        await call

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(cancel_itself())
    assert is_free()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_task_that_was_cancelled_and_cleans_up_may_call():
    """The cancellation has struck: asyncio strikes once, and what comes after it is the task's own affair."""
    shaper, left = Shaper("1/h"), []

    async def clean_up():
        try:
            await asyncio.sleep(3_600)
        finally:
            left.append(await shaper.aschedule())

    task = asyncio.ensure_future(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left[0].accepted


def test_without_a_loop_nothing_can_be_cancelled():
    call = Shaper("1/h").aschedule()
    with pytest.raises(StopIteration):
        call.send(None)
