"""A reply that is lost after the script ran costs one slot, never two, and the call is never repeated."""

import pytest
import redis
import redis.asyncio
from anyio import create_task_group

from shapekit import RedisStore, Shaper, StoreUnavailableError

from .conftest import BURST, TIMEOUT_S

HARMS = ("cut", "drop", "swallow")
SLOT_S = 8_640

bounds = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}

each_harm = pytest.mark.parametrize("harm", HARMS)


@pytest.fixture(params=["ours", "retrying", "decoding"])
def store(request, proxy, prefix, open_store):
    """With our own client, with a caller's that repeats what failed, and with one that decodes replies."""
    if request.param == "ours":
        yield open_store(proxy)
        return
    decoding = request.param == "decoding"
    with redis.Redis(port=proxy.port, decode_responses=decoding, **bounds) as client:
        assert client.connection_pool.connection_kwargs["retry"]._retries > 0
        yield RedisStore(client, prefix=prefix)


@pytest.fixture(params=["ours", "retrying", "decoding", "threaded"])
async def astore(request, proxy, prefix, open_store, anyio_backend_name):
    """The same for asynchronous callers; and with a synchronous client alone, on worker threads."""
    if request.param == "ours":
        store = open_store(proxy)
        yield store
        await store.aclose()
    elif request.param == "threaded" or anyio_backend_name == "trio":
        with redis.Redis(port=proxy.port, decode_responses=request.param == "decoding", **bounds) as client:
            yield RedisStore(client, prefix=prefix)
    else:
        decoding = request.param == "decoding"
        async with redis.asyncio.Redis(port=proxy.port, decode_responses=decoding, **bounds) as client:
            assert client.connection_pool.connection_kwargs["retry"]._retries > 0
            yield RedisStore(aclient=client, prefix=prefix)


@each_harm
def test_a_check(harm, proxy, store, gate_on, promptly, admitted):
    gate = gate_on(store)
    gate.check()
    sent = proxy.scripts
    proxy.strike(harm)
    promptly(gate.check)
    assert (proxy.scripts - sent, proxy.pending) == (1, 0)
    assert admitted() == 2
    assert gate.check().remaining == BURST - 3


@each_harm
@pytest.mark.parametrize("operation", ["refund", "debit"])
def test_a_repeated_settlement(harm, operation, proxy, store, gate_on, promptly, admitted):
    gate = gate_on(store)
    decisions = [gate.check(cost=2) for _ in range(3)]
    settle = getattr(gate, operation)
    settle("default", decisions[0], cost=1)  # from here on the server knows the script
    once = admitted() + (2 if operation == "debit" else -2)
    for _ in range(2):
        proxy.strike(harm)
        promptly(settle, "default", decisions[1], cost=2)
        assert admitted() == once
    assert settle("default", decisions[1], cost=2).remaining == BURST - once
    assert admitted() == once


@each_harm
def test_a_reservation(harm, proxy, store, promptly):
    shaper = Shaper("10/d", store=store, name="shaper")
    assert shaper.reserve().delay == 0
    proxy.strike(harm)
    promptly(shaper.reserve)
    assert round(shaper.reserve().delay / SLOT_S) == 2


@pytest.mark.anyio
@each_harm
async def test_an_asynchronous_check(harm, proxy, astore, gate_on, apromptly, admitted):
    gate = gate_on(astore)
    await gate.acheck()
    sent = proxy.scripts
    proxy.strike(harm)
    await apromptly(gate.acheck)
    assert (proxy.scripts - sent, proxy.pending) == (1, 0)
    assert admitted() == 2
    assert (await gate.acheck()).remaining == BURST - 3


@pytest.mark.anyio
@each_harm
async def test_an_asynchronous_reservation(harm, proxy, astore, apromptly):
    shaper = Shaper("10/d", store=astore, name="shaper")
    assert (await shaper.areserve()).delay == 0
    proxy.strike(harm)
    await apromptly(shaper.areserve)
    assert round((await shaper.areserve()).delay / SLOT_S) == 2


@pytest.mark.anyio
async def test_callers_that_share_a_trip_lose_one_slot_each(proxy, open_store, gate_on, admitted):
    store = open_store(proxy)
    gate = gate_on(store)
    await gate.acheck()
    outcomes = []

    async def call():
        try:
            outcomes.append(await gate.acheck())
        except StoreUnavailableError as error:
            outcomes.append(error)

    proxy.strike("drop")
    async with create_task_group() as group:
        for _ in range(6):
            group.start_soon(call)
    assert any(isinstance(outcome, StoreUnavailableError) for outcome in outcomes)
    assert (len(outcomes), admitted()) == (6, 7)
    # Each has an error of its own: a shared one would collect all their tracebacks.
    assert len({id(outcome) for outcome in outcomes}) == 6
    await store.aclose()


def test_a_lost_reply_to_the_introduction_is_made_up_for(proxy, open_store, gate_on, promptly):
    gate = gate_on(open_store(proxy))
    proxy.refuse()
    promptly(gate.check)
    proxy.accept()
    assert gate.check().remaining == BURST - 1


def test_connections_that_are_cut_all_at_once(proxy, open_store, gate_on, crew, promptly):
    gate = gate_on(open_store(proxy))
    crew.at_once(*[gate.peek] * 8)
    crew.join()
    proxy.refuse()
    promptly(gate.check)
    promptly(gate.check)
    proxy.accept()
    assert gate.check().remaining == BURST - 1
