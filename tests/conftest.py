"""Fixtures of all tests: hypothesis's profile, virtual time, threads and event loops, and a few helpers."""

import functools
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shapekit import ConfigError, ManualClock, Policy
from shapekit._runtime import process
from shapekit._runtime.process import SWITCH

from .crew import PATIENCE_S, Crew
from .worlds import World

# Beside pytest's own cache: a test run leaves nothing else at the top of the repository.
_CACHE = Path(__file__).parent.parent / ".pytest_cache" / "hypothesis"
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(_CACHE))

# The machine decides how long an example takes. Examples that once failed stand beside their tests as
# `@example` lines. Every run tries the same ones: pyproject.toml gives the seed, which hypothesis itself
# would ignore where the variable CI is set, and no database adds to it.
settings.register_profile(
    "shapekit",
    deadline=None,
    derandomize=False,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# `--hypothesis-seed=$RANDOM` tries something new, and `pytest tests/fuzz --hypothesis-profile=fuzz` with it
# goes on doing so for half an hour.
settings.register_profile("fuzz", settings.get_profile("shapekit"), max_examples=20_000)
settings.load_profile("shapekit")

# A shell has its background jobs ignore Ctrl-C, and so would every command that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, for many tests wait for servers, processes and slots."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish():
    leave_out_what_is_here()


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        leave_out_what_is_here()


def leave_out_what_is_here():
    """The objects of thousands of tests are no garbage: searching them again and again stops all threads for
    up to a third of a second, also those whose timing is tested.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_listener_left():
    """A test that leaves a listener behind, or shaping off, fails itself, and not another test."""
    yield
    assert not SWITCH.loud


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def clock():
    """Virtual time that jumps whenever all threads and tasks sleep."""
    return ManualClock(autojump=True)


@pytest.fixture
def afterwards():
    """Waits until the background thread has done all of its work."""

    def wait():
        done = threading.Event()
        process.background_ready()
        process.in_background(done.set)
        assert done.wait(PATIENCE_S)

    return wait


@pytest.fixture
def crew():
    """Threads."""
    crew = Crew()
    yield crew
    crew.join()
    assert crew.raised() == []


@pytest.fixture
def restless():
    """The interpreter switches threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["sync", "asyncio", "trio"])
def world(request):
    return World(request.param)


@pytest.fixture
def policy(clock):
    """Makes a policy on the test's clock."""
    return functools.partial(Policy, clock=clock)


@pytest.fixture(scope="session")
def fits():
    """How many calls of cost 1 could still leave in the next `seconds`; consumes them."""

    def count(policy, seconds=0.0, key="default"):
        taken = 0
        while policy.shaper.reserve(key, max_wait=seconds):
            taken += 1
        return taken

    return count


@pytest.fixture(scope="session")
def until_asleep():
    """Waits until exactly so many sleepers lie in a ManualClock."""

    def wait(clock, sleepers):
        with clock._changed:
            assert clock._changed.wait_for(lambda: len(clock._sleepers) == sleepers, PATIENCE_S)

    return wait


@pytest.fixture(scope="session")
def refused():
    """Calls, expects ConfigError about one of the fields, with its value, its bound and a fix."""

    def check(call, *fields):
        with pytest.raises(ConfigError) as caught:
            call()
        error = caught.value
        assert error.field in fields, f"{error.field} is not among {fields}: {error}"
        for part in (error.field, error.value, error.bound, error.fix):
            assert part
            assert part in str(error)
        assert len(str(error)) < 600
        return error

    return check


@pytest.fixture(scope="session")
def outcome():
    """The result of a call, and None; or None, and the ConfigError that it raises. Other errors pass."""

    def called(call):
        try:
            return call(), None
        except ConfigError as error:
            return None, error

    return called
