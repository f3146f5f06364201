"""pytest's plugin, in runs of pytest itself, as a project with shapekit installed sees it."""

import sys
import time

import pytest

from shapekit import GCRA, ConfigError, Gate, Policy, Shaper, SystemClock
from shapekit.clock import virtual_time

from ..redis_server import shared_server

pytest_plugins = ["pytester"]

STRICT = ("-q", "-W", "error", "--strict-markers", "-p", "no:cacheprovider")

CLIENT = """
import httpx
from shapekit import GCRA, Adaptive, Gate, Policy, Shaper, shaped
from shapekit.integrations.httpx import shape

@shaped("1/min")
def fetch():
    return "content"

@shaped("1/min")
async def afetch():
    return "content"

gate = Gate(GCRA("1/min"))
shaper = Shaper("1/min")
month = Policy("100/s", quota="2/month")
found = Shaper(adaptive=Adaptive(min="1/s", max="50/s"))
narrow = Policy("1/min", concurrency=1)
http = shape(httpx.Client(base_url="https://api.example.com"), rate="10/min")
ahttp = shape(httpx.AsyncClient(base_url="https://api.example.com"), rate="10/min")
"""


@pytest.fixture
def project(pytester):
    """A project whose module `client` makes its limits when it is imported; runs its tests."""
    name = f"client_{time.monotonic_ns()}"  # a new name for each run: this process keeps loaded modules
    pytester.makepyfile(**{name: CLIENT})
    pytester.syspathinsert()

    def run(tests, *args, subprocess=False):
        pytester.makepyfile(test_it=tests.replace("import client", f"import {name} as client"))
        start = pytester.runpytest_subprocess if subprocess else pytester.runpytest_inprocess
        return start(*STRICT, *args)

    yield run
    sys.modules.pop(name, None)


def passed(result, *, count):
    result.assert_outcomes(passed=count)


def test_time_jumps_for_a_function_that_was_shaped_at_import(project):
    tests = """
    import threading
    import anyio, pytest
    import client

    def test_in_one_thread(shapekit_time):
        for _ in range(3):
            client.fetch()
        assert shapekit_time.now() == 120.0

    def test_in_threads(shapekit_time):
        left = []
        def call():
            client.fetch()
            left.append(shapekit_time.now())
        threads = [threading.Thread(target=call) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert sorted(left) == [0.0, 60.0, 120.0]

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_in_tasks(shapekit_time, backend):
        left = []
        async def call():
            await client.afetch()
            left.append(shapekit_time.now())
        async def three():
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(call)
        anyio.run(three, backend=backend)
        assert left == [0.0, 60.0, 120.0]

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
    async def test_on_the_loop_of_a_plugin(shapekit_time):
        await client.afetch()
        await client.afetch()
        assert shapekit_time.now() == 60.0
    """
    passed(project(tests), count=6)


def test_time_moves_for_gates_shapers_and_policies(project):
    tests = """
    import anyio, pytest
    from shapekit import QuotaExhaustedError
    import client

    def test_gate(shapekit_time):
        assert client.gate.check() and not client.gate.check()
        assert client.gate.peek().retry_after == 60.0
        shapekit_time.advance(60.0)
        assert client.gate.check()

    def test_shaper(shapekit_time):
        assert [client.shaper.reserve().delay for _ in range(3)] == [0.0, 60.0, 120.0]
        assert client.shaper.schedule().delay == 180.0
        assert shapekit_time.now() == 180.0

    def test_calendar(shapekit_time):
        def call():
            with client.month.admit():
                pass
        call(), call()
        with pytest.raises(QuotaExhaustedError):
            call()
        shapekit_time.set(31 * 86400.0)
        call()

    @pytest.mark.parametrize("backend", ["asyncio", "trio"])
    def test_concurrency(shapekit_time, backend):
        in_flight, most = set(), []
        async def call(number):
            async with client.narrow.aadmit():
                in_flight.add(number)
                most.append(len(in_flight))
                await anyio.lowlevel.checkpoint()
                in_flight.discard(number)
        async def three():
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(call, number)
        anyio.run(three, backend=backend)
        assert most == [1, 1, 1]
        assert shapekit_time.now() == 120.0
    """
    passed(project(tests), count=5)


def test_clients_of_httpx_wait_in_virtual_time(project):
    tests = """
    import httpx, pytest
    import client

    def test_client(shapekit_time, respx_mock):
        respx_mock.get("https://api.example.com/things").respond(200)
        for _ in range(11):
            client.http.get("/things")
        assert shapekit_time.now() == 60.0

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
    async def test_async_client(shapekit_time, respx_mock):
        respx_mock.get("https://api.example.com/things").respond(200)
        for _ in range(11):
            await client.ahttp.get("/things")
        assert shapekit_time.now() == 60.0
    """
    passed(project(tests), count=3)


def test_a_test_does_not_see_the_state_of_an_earlier_one(project):
    tests = """
    import pytest
    from shapekit import listen
    import client

    @pytest.fixture(autouse=True)
    def virtual(shapekit_time):
        assert shapekit_time.now() == 0.0

    @pytest.mark.parametrize("time", [1, 2])
    def test_limits(time, shapekit_time):
        assert client.gate.check()
        assert client.shaper.schedule().delay == 0.0
        client.fetch()
        client.shaper.hold("1h")

    @pytest.mark.parametrize("time", [1, 2])
    def test_when_idle_keys_were_dropped(time, shapekit_time):
        assert [client.shaper.reserve("alice").delay for _ in range(2)] == [0.0, 60.0]
        shapekit_time.advance(86400.0)
        client.shaper.reserve("bob")

    @pytest.mark.parametrize("time", [1, 2])
    def test_permits(time):
        client.narrow.admit().__enter__()  # and never given back

    @pytest.mark.parametrize("time", [1, 2])
    def test_overrides(time):
        assert not client.month.configured()
        assert [client.month.shaper.reserve().delay for _ in range(2)] == [0.0, 0.01]
        client.month.configure("1/min")
        assert client.month.shaper.reserve().delay > 1.0

    @pytest.mark.parametrize("time", [1, 2])
    def test_incidents(time, respx_mock, shapekit_time):
        respx_mock.get("https://api.example.com/things").respond(429)
        for _ in range(3):
            client.http.get("/things")
        assert shapekit_time.now() == 6.0 + 1.0 + 6.0 + 2.0  # held for 1 s, then for 2 s

    @pytest.mark.parametrize("time", [1, 2])
    def test_scopes(time, respx_mock):
        scopes = client.http._transport.policy.scoped.scopes
        assert not scopes.any_known
        rates = {"limit": "60", "remaining": "59", "reset": "9", "resource": "core"}
        headers = {f"x-ratelimit-{field}": value for field, value in rates.items()}
        respx_mock.get("https://api.example.com/things").respond(200, headers=headers)
        client.http.get("/things")
        assert scopes.any_known

    @pytest.mark.parametrize("time", [1, 2])
    def test_what_was_found_of_a_rate(time, shapekit_time):
        rates = []
        for _ in range(5):
            client.found.adaptive.succeeded(age=0)
            rates.append(client.found.adaptive.rate())
            shapekit_time.advance(0.4)
        FOUND.append(rates)
        assert FOUND[-1] == FOUND[0]
        assert rates[-1] > rates[0]

    FOUND = []

    @pytest.mark.parametrize("time", [1, 2])
    def test_warnings(time, caplog):
        client.shaper.reserve()
        client.shaper.reserve()
        client.shaper.schedule()
        assert "nothing bounds that" in caplog.text

    @pytest.mark.parametrize("time", [1, 2])
    def test_events(time, shapekit_time):
        heard = []
        with listen(lambda event: heard.append(type(event).__name__)):
            client.shaper.hold("30s")
            for _ in range(2):
                client.month.admit().__enter__()
                shapekit_time.advance(1.0)
        assert heard.count("Held") == 1
        assert heard.count("BudgetReached") == 2
    """
    passed(project(tests), count=18)


def test_outside_of_the_fixture_time_is_real(project):
    tests = """
    import time
    import client

    def now():
        return client.shaper.core.clock.now_us() / 1e6

    def test_before():
        assert client.gate.check() and not client.gate.check()
        assert abs(now() - time.time()) < 60

    def test_with_it(shapekit_time):
        assert client.gate.check()
        client.fetch(), client.fetch()
        assert now() == 60.0

    def test_afterwards():
        assert client.gate.check() and not client.gate.check()  # as new
        assert client.shaper.reserve().departs_at > 1e9
        assert abs(now() - time.time()) < 60
    """
    passed(project(tests), count=3)


def test_the_marker_keeps_real_time(project):
    tests = """
    import time
    import pytest
    import client

    @pytest.fixture(autouse=True)
    def virtual(shapekit_time):
        return shapekit_time

    def test_virtual(virtual):
        assert client.shaper.core.clock.now_us() == 0

    @pytest.mark.shapekit_real_time
    def test_real(virtual):
        assert virtual is None
        assert client.shaper.core.clock.now_us() > 1e15
    """
    passed(project(tests), count=2)


def test_the_marker_is_listed(pytester):
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.shapekit_real_time: *"])


def test_off(project):
    tests = """
    import client

    def test_off(shapekit_off):
        for _ in range(3):
            client.fetch()

    def test_on():
        assert client.shaper.reserve().delay == 0.0 < client.shaper.reserve().delay
    """
    passed(project(tests), count=2)


def test_each_worker_of_xdist_has_a_time_of_its_own(project):
    tests = """
    import pytest
    import client

    @pytest.mark.parametrize("calls", range(1, 9))
    def test_virtual(shapekit_time, calls):
        for _ in range(calls):
            client.fetch()
        assert shapekit_time.now() == 60.0 * (calls - 1)
    """
    passed(project(tests, "-n", "2", subprocess=True), count=8)


def test_nothing_is_loaded_where_no_fixture_is_used(pytester):
    pytester.makepyfile("""
    import sys

    def test_loaded():
        assert "_shapekit_pytest" in sys.modules
        assert not [name for name in sys.modules if name.partition(".")[0] == "shapekit"]
    """)
    passed(pytester.runpytest_subprocess(*STRICT), count=1)


# parts of the fixture


def test_a_clock_and_what_was_bound_to_it_are_real_again_after_an_error():
    clock, gate = SystemClock(), Gate(GCRA("1/h"))

    def look():
        with virtual_time() as virtual:
            virtual.advance(5.0)
            assert (clock.now_us(), clock.wall_us(), clock.ticks()[1:]) == (5_000_000, 5_000_000, (1, 0))
            assert gate.check()
            assert not gate.check()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        look()
    assert clock.now_us() > 1e15
    assert clock.wall_us() > 1e15
    assert clock.ticks()[0] is time.monotonic_ns
    assert gate.check()
    assert not gate.check()


def test_objects_made_inside_are_real_afterwards():
    with virtual_time():
        shaper = Shaper("1/h")
        assert shaper.reserve().departs_at == 0.0
    assert shaper.reserve().departs_at > 1e9


def test_threads_that_still_sleep_at_the_end_are_woken(crew, until_asleep):
    shaper = Shaper("1/h")
    with virtual_time() as virtual:
        virtual._autojump = False
        shaper.reserve()
        crew.start(shaper.schedule)
        until_asleep(virtual, 1)
    [reservation] = crew.join()
    assert reservation.delay == 3600.0


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_call_that_would_wait_for_another_clock_is_refused(kind, tmp_path):
    store = tmp_path / "limits.db" if kind == "sqlite" else f"redis://127.0.0.1:{shared_server().port}"
    policy = Policy("1/h", name=f"virtual-{time.time_ns()}", store=store)
    with virtual_time(), policy.admit():
        refusal = r"shaper 'virtual-.*real time.*MemoryStore.*shapekit_real_time"
        with pytest.raises(ConfigError, match=refusal), policy.admit():
            pass
        assert 3500.0 < policy.forecast().first_in <= 3600.0  # the slot was given back
    policy.close()
