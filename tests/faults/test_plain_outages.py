"""A plain RedisStore whose server is gone: StoreUnavailableError in time, later it works again by itself."""

import socket
from contextlib import suppress
from functools import partial
from threading import Thread

import anyio
import pytest
from anyio import create_task_group, to_thread
from anyio.lowlevel import checkpoint
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from shapekit import GCRA, Gate, RedisStore, Shaper, StoreUnavailableError
from shapekit.stores.redis import connections as redis_connections
from shapekit.stores.redis import protocol as redis_program

from ..redis_server import RedisServer
from .conftest import BURST, PATIENCE_S
from .faults import FAULTS

each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


@each_fault
def test_calls_fail_in_time_and_work_again_when_the_server_is_back(
    fault, server, open_store, gate_on, promptly
):
    store = open_store(server)
    gate, shaper = gate_on(store), Shaper("10/d", store=store, name="shaper")
    gate.check()
    shaper.reserve()
    fault.harm(server)
    promptly(gate.check)
    promptly(shaper.reserve)
    promptly(gate.check, "another key")
    fault.heal(server)
    # Whether what was sent meanwhile has been charged depends on the fault; more than that never is.
    spent = 1 + fault.runs_late
    left = gate.check().remaining
    assert left == BURST - 1 if fault.forgets else BURST - 1 - spent <= left <= BURST - 2
    assert shaper.reserve().accepted


@pytest.mark.anyio
@each_fault
async def test_asynchronous_calls_fail_in_time_and_work_again_when_the_server_is_back(
    fault, server, open_store, gate_on, apromptly
):
    store = open_store(server)
    gate, shaper = gate_on(store), Shaper("10/d", store=store, name="shaper")
    await gate.acheck()
    await shaper.areserve()
    fault.harm(server)
    await apromptly(gate.acheck)
    await apromptly(shaper.areserve)
    await apromptly(gate.acheck_many, ["one", "two"])
    fault.heal(server)
    spent = 1 + fault.runs_late
    left = (await gate.acheck()).remaining
    assert left == BURST - 1 if fault.forgets else BURST - 1 - spent <= left <= BURST - 2
    assert (await shaper.areserve()).accepted
    await store.aclose()


@pytest.mark.parametrize(
    ("fault", "kind", "fix"),
    [
        ("read-only", ReadOnlyError, "; lead the URL or the client to the primary"),
        ("out of memory", OutOfMemoryError, "'maxmemory'; raise maxmemory, or remove other keys"),
    ],
)
def test_an_error_of_a_server_is_the_cause_with_its_own_class_and_a_fix(
    fault, kind, fix, server, open_store, gate_on, promptly
):
    # A client of a Sentinel looks for the new master when the error says that this server is none any more.
    gate = gate_on(open_store(server))
    gate.check()
    FAULTS[fault].harm(server)
    error = promptly(gate.check)
    assert isinstance(error.__cause__, kind)
    assert fix in str(error)


@pytest.mark.parametrize("backend", ["threads", "asyncio", "trio"])
@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("ssl_cert_reqs=none", "; if this goes on, check the certificates and the ssl_ options"),
        ("ssl_ca_certs=/nowhere.pem", "; see whether the socket, or the files that ssl_ options name, are"),
        ("ssl_ca_certs=/", "; see whether the socket, or the files that ssl_ options name, are"),
    ],
)
def test_trouble_with_tls_says_where_to_look(option, fix, backend, prefix, gate_on):
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]

        def answer():
            with plain.accept()[0] as client, suppress(ConnectionError):
                client.sendall(b"-ERR this is not TLS\r\n")
                while client.recv(1_000):
                    pass

        speaker = Thread(target=answer)
        speaker.start()
        store = RedisStore.from_url(f"rediss://:secret@127.0.0.1:{port}?{option}", prefix=prefix)
        gate = gate_on(store)

        async def ask():
            with pytest.raises(StoreUnavailableError) as caught:
                await gate.acheck()
            await store.aclose()
            return caught.value

        if backend == "threads":
            with pytest.raises(StoreUnavailableError) as caught:
                gate.check()
            error = caught.value
            store.close()
        else:
            error = anyio.run(ask, backend=backend)
        # A client that misses a file may not have connected.
        socket.create_connection(plain.getsockname()).close()
        speaker.join(PATIENCE_S)
        assert not speaker.is_alive()
    assert fix in str(error)
    assert str(port) in str(error)
    assert "secret" not in str(error)


class Moved:
    """A name that leads to a server, and from the failover on to another one. Open connections stay."""

    def __init__(self, old, new, proxy):
        self._old, self._new, self._proxy = old, new, proxy
        proxy.lead_to(old.port)

    def fail_over(self):
        FAULTS["read-only"].harm(self._old)
        self._proxy.lead_to(self._new.port)

    def fail_back(self):
        FAULTS["read-only"].heal(self._old)
        FAULTS["read-only"].harm(self._new)
        self._proxy.lead_to(self._old.port)


@pytest.fixture(params=["yes", "no"], ids=["a replica reads", "a replica refuses all"])
def moved(request, server, proxy):
    with RedisServer() as other:
        for one in (server, other):
            with one.client() as client:
                # None of them ever reaches its primary.
                client.config_set("replica-serve-stale-data", request.param)
        yield Moved(server, other, proxy)


@pytest.mark.parametrize("owner", ["ours", "the caller's"])
def test_a_demoted_server_is_left_for_the_one_that_its_name_now_leads_to(
    owner, moved, proxy, open_store, gate_on, prefix, crew, until
):
    client = Redis.from_url(proxy.url())
    gate = gate_on(open_store(proxy) if owner == "ours" else RedisStore(client, prefix=prefix))
    assert gate.check().remaining == BURST - 1
    proxy.strike("hold", times=4)
    crew.at_once(*[gate.peek] * 4)
    until(lambda: not proxy.pending)
    proxy.release(4)
    assert len(crew.join()) == 4
    moved.fail_over()
    # The first call finds out, and the connections that others left open are not used for what follows.
    assert gate.check("one").remaining == BURST - 1
    crew.at_once(*[partial(gate.peek, "one")] * 4)
    assert {decision.remaining for decision in crew.join()} == {BURST - 1}
    moved.fail_back()
    assert [gate.check().remaining for _ in range(2)] == [BURST - 2, BURST - 3]
    client.close()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("owner", ["ours", "the caller's"])
async def test_a_demoted_server_is_left_by_asynchronous_callers_too(
    owner, moved, proxy, open_store, gate_on, prefix
):
    client = AsyncRedis.from_url(proxy.url())
    store = open_store(proxy) if owner == "ours" else RedisStore(aclient=client, prefix=prefix)
    gate = gate_on(store)

    async def standing():
        """What is left of four keys, each looked up on a connection of its own."""
        standing = {}

        async def look(key):
            standing[key] = (await gate.apeek(key)).remaining

        async with create_task_group() as group:
            for key in ("default", "one", "two", "three"):
                group.start_soon(look, key)
        return standing

    assert (await gate.acheck()).remaining == BURST - 1
    assert len(await standing()) == 4
    moved.fail_over()
    assert (await gate.acheck("one")).remaining == BURST - 1
    assert await standing() == {"default": BURST, "one": BURST - 1, "two": BURST, "three": BURST}
    moved.fail_back()
    assert [(await gate.acheck()).remaining for _ in range(2)] == [BURST - 2, BURST - 3]
    await store.aclose()
    await client.aclose()


def test_one_failed_connection_is_a_warning_about_the_others(server, prefix, gate_on, crew, until):
    store = RedisStore.from_url(f"{server.url}?socket_timeout={PATIENCE_S}", prefix=prefix)
    gate = gate_on(store)
    gate.peek()

    def together(call):
        """Eight at once, each on a connection of its own: the server answers none until all have one."""
        with server.client() as client:
            client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            crew.at_once(*[call] * 8)
            until(lambda: len(client.client_list()) >= 9)
            client.execute_command("CLIENT", "UNPAUSE")
        return crew.join()

    assert len(together(gate.peek)) == 8
    server.kill()
    server.start()
    try:
        gate.check()
    except StoreUnavailableError:
        gate.check()
    assert sorted(decision.remaining for decision in together(gate.check)) == list(range(1, 9))
    store.close()


@pytest.mark.anyio
async def test_asynchronous_callers_are_warned_too(server, open_store, gate_on):
    store = open_store(server)
    gate = gate_on(store)

    async def together():
        """Eight at once, each on a connection of its own."""
        async with create_task_group() as group:
            for number in range(8):
                group.start_soon(gate.acheck, f"key {number}")

    await together()
    server.kill()
    server.start()
    try:
        await gate.acheck()
    except StoreUnavailableError:
        # One pass of the loop, so that it notices what happened to the other connections.
        await checkpoint()
        await gate.acheck()
    await together()
    assert [(await gate.apeek(f"key {number}")).remaining for number in range(8)] == [BURST - 1] * 8
    await store.aclose()


def test_connections_that_were_idle_for_a_while_are_examined(server, open_store, gate_on, monkeypatch):
    monkeypatch.setattr(redis_connections, "TRUSTED_S", 0.0)
    gate = gate_on(open_store(server))
    gate.check()
    server.kill()
    server.start()
    assert gate.check().remaining == BURST - 1


@pytest.mark.anyio
async def test_idle_asynchronous_connections_are_examined(server, open_store, gate_on, monkeypatch):
    monkeypatch.setattr(redis_connections, "TRUSTED_S", 0.0)
    store = open_store(server)
    gate = gate_on(store)
    await gate.acheck()
    # On a thread: the loop must go on to notice what happens to its connections.
    await to_thread.run_sync(server.kill)
    await to_thread.run_sync(server.start)
    assert (await gate.acheck()).remaining == BURST - 1
    await store.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_connections_that_were_idle_for_long_are_not_used_again(
    proxy, open_store, gate_on, monkeypatch, how
):
    """What lies between may have forgotten them, and neither end can see that."""
    store = open_store(proxy)
    gate = gate_on(store)
    for _ in range(2):
        await gate.acheck() if how == "async" else gate.check()
    assert proxy.connections == 1
    monkeypatch.setattr(redis_connections, "KEPT_S", 0.0)
    monkeypatch.setattr(redis_connections, "TRUSTED_S", 0.0)
    await gate.acheck() if how == "async" else gate.check()
    assert proxy.connections == 2
    await store.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_connections_that_were_idle_when_another_one_failed_are_not_used_again(
    proxy, open_store, gate_on, how
):
    """A server that has lost its power ends none of them, and each would fail one more call."""
    store = open_store(proxy)
    gate = gate_on(store)

    async def check(key):
        return await (gate.acheck(key) if how == "async" else to_thread.run_sync(gate.check, key))

    proxy.strike("hold", times=3)
    async with create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(check, f"key {number}")
        for _ in range(3):
            assert await to_thread.run_sync(proxy.holds.acquire, True, PATIENCE_S)
        proxy.release(3)
    assert proxy.connections == 3
    proxy.strike("drop")
    with pytest.raises(StoreUnavailableError):
        await check("key")
    assert await check("key")
    assert proxy.connections == 4
    await store.aclose()


def test_idle_connections_of_a_callers_client_are_examined(server, gate_on, prefix):
    with server.client() as client:
        gate = gate_on(RedisStore(client, prefix=prefix))
        gate.check()
        server.kill()
        server.start()
        assert gate.check().remaining == BURST - 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_idle_connections_of_a_callers_asynchronous_client_are_examined(server, gate_on, prefix):
    async with AsyncRedis.from_url(server.url) as client:
        gate = gate_on(RedisStore(aclient=client, prefix=prefix))
        await gate.acheck()
        await to_thread.run_sync(server.kill)
        await to_thread.run_sync(server.start)
        assert (await gate.acheck()).remaining == BURST - 1


@pytest.mark.anyio
async def test_many_keys_at_once_wait_no_longer_than_one(
    server, open_store, gate_on, apromptly, anyio_backend_name
):
    # Trio has forty threads at once.
    keys = 500 if anyio_backend_name == "asyncio" else 40
    store = open_store(server)
    gate = gate_on(store)
    await gate.acheck()
    server.freeze()
    async with create_task_group() as group:
        for number in range(keys):
            group.start_soon(apromptly, gate.acheck, f"key {number}")
    await store.aclose()


def test_forgotten_scripts_heal_within_the_same_call(server, open_store, gate_on):
    store = open_store(server)
    gate, shaper = gate_on(store), Shaper("10/d", store=store, name="shaper")
    gate.check()
    shaper.reserve()
    with server.client() as client:
        for used in range(2, 5):
            client.script_flush()
            assert gate.check().remaining == BURST - used
            client.script_flush()
            assert round(shaper.reserve().delay / 8_640) == used - 1


@pytest.mark.anyio
async def test_forgotten_scripts_heal_for_asynchronous_callers_too(server, open_store, gate_on):
    store = open_store(server)
    gate = gate_on(store)
    await gate.acheck()
    with server.client() as client:
        client.script_flush()
    assert (await gate.acheck()).remaining == BURST - 2
    await store.aclose()


def test_after_flushall_keys_are_cold_and_calls_go_on(server, open_store, gate_on):
    gate = gate_on(open_store(server))
    gate.check()
    with server.client() as client:
        client.flushall()
    assert [gate.check().remaining for _ in range(2)] == [BURST - 1, BURST - 2]


def test_after_flushall_a_call_at_a_changed_rate_is_decided(server, open_store, monkeypatch):
    # Programs leave their descriptions again and again: here, with each call.
    monkeypatch.setattr(redis_program, "INTRODUCED_FOR_S", 0.0)
    running = Gate(GCRA("10/d"), store=open_store(server), name="gate")
    running.check()
    with server.client() as client:
        client.flushall()
    running.check()
    changed = Gate(GCRA("20/d", burst=10), store=open_store(server), name="gate")
    assert changed.check().allowed


def test_a_server_that_loads_its_data_is_not_there_yet(server, gate_on, prefix):
    # It answers every two megabytes, and each key takes it a tenth of a second.
    store = RedisStore.from_url(f"{server.url}?socket_timeout=20", prefix=prefix)
    gate = gate_on(store)
    gate.check()
    with server.client() as client:
        client.config_set("rdbcompression", "no")
        for number in range(20):
            client.set(f"ballast{number}", b"*" * 2**21)
        client.save()
    server.kill()
    server.launch("--key-load-delay", "100000")
    message = ""
    while "loading" not in message.lower():
        with pytest.raises(StoreUnavailableError) as caught:
            gate.check()
        message = str(caught.value)
    server.kill()
    server.start()
    assert gate.check().remaining == BURST - 2
    store.close()


def test_nothing_is_left_behind(server, hasty, leftovers, promptly):
    for fault in FAULTS.values():
        store = RedisStore.from_url(hasty(server))
        gate = Gate(GCRA("10/d"), store=store, name="gate")
        gate.check()
        fault.harm(server)
        promptly(gate.check)
        store.close()
        fault.heal(server)
        assert (leftovers.sockets, leftovers.threads) == (0, set())


@pytest.mark.anyio
async def test_nothing_is_left_behind_by_asynchronous_callers(
    server, hasty, leftovers, apromptly, anyio_backend_name
):
    before = leftovers.sockets
    for fault in FAULTS.values():
        store = RedisStore.from_url(hasty(server))
        gate = Gate(GCRA("10/d"), store=store, name="gate")
        await gate.acheck()
        fault.harm(server)
        await apromptly(gate.acheck)
        await store.aclose()
        fault.heal(server)
        assert leftovers.sockets == before
    # Trio keeps worker threads for a while; asyncio's are not used here.
    assert anyio_backend_name == "trio" or leftovers.threads == set()


def test_a_silent_server_is_connected_to_once_for_each_call(monkeypatch, prefix, promptly):
    """A connection that fails is opened to be checked, and once more to be used."""
    monkeypatch.setattr(redis_connections, "TRUSTED_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}?socket_timeout=0.05"
        store = RedisStore.from_url(url, prefix=prefix)
        gate = Gate(GCRA("10/d"), store=store, name="gate")
        for _ in range(3):
            promptly(gate.check)
        store.close()
        deaf.setblocking(False)
        assert len(list(iter(lambda: _accepted(deaf), None))) == 3


def _accepted(listener):
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return None
    connection.close()
    return connection
