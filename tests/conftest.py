"""What all tests share: hypothesis's profile, the event loops, and how to expect a ConfigError."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from shapekit import ConfigError
from shapekit.switch import SWITCH

# Beside pytest's own cache: a test run leaves nothing else at the top of the repository.
_CACHE = Path(__file__).parent.parent / ".pytest_cache" / "hypothesis"
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(_CACHE))

settings.register_profile("shapekit", deadline=None)
# A run tries the same as the one before, for pyproject.toml gives the seed. `--hypothesis-seed=$RANDOM` tries
# something new, and `pytest tests/fuzz --hypothesis-profile=fuzz` with it goes on doing so for half an hour.
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile("shapekit")

# A shell has what it starts in the background ignore Ctrl-C, and so would every command that tests interrupt.
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
    """Thousands of tests and what they leave are no garbage: to look through them again and again stops
    everybody for up to a third of a second, also those whose instants are looked at."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nobody_listens_any_more():
    """A test that leaves somebody behind who listens, or shaping off, fails itself, and not another one."""
    yield
    assert SWITCH.is_plain


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture(scope="session")
def refused():
    """Calls, expects ConfigError about one of the fields, and that it says field, value, bound and fix."""

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
