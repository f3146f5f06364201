"""pytest's plugin: the fixtures `shapekit_off` and `shapekit_time`, and the marker `shapekit_real_time`.

It lives beside the package, because pytest loads it in every project of an environment, and importing any
part of the package loads all of it. Only a fixture that is used does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shapekit import ManualClock

REAL_TIME = "shapekit_real_time"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, also to `--strict-markers`."""
    config.addinivalue_line("markers", f"{REAL_TIME}: the test keeps real time, and `shapekit_time` is None")


@pytest.fixture
def shapekit_off() -> Iterator[None]:
    """Every call of this test leaves at once, unshaped: nothing is counted, and nothing is refused."""
    from shapekit import off  # noqa: PLC0415

    with off():
        yield


@pytest.fixture
def shapekit_time(request: pytest.FixtureRequest) -> Iterator[ManualClock | None]:
    """Virtual time for every limit in memory, which jumps ahead whenever all threads and tasks wait.

    It begins at 0, with all limits as new, and leaves them as new. None in a test that is marked
    `shapekit_real_time`.
    """
    if request.node.get_closest_marker(REAL_TIME) is not None:
        yield None
        return
    from shapekit.clock import virtual_time  # noqa: PLC0415

    with virtual_time() as clock:
        yield clock
