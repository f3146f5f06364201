"""What is no reservation is refused in words."""

import anyio
import pytest

from shapekit import Shaper


@pytest.mark.parametrize("told", [5, "x", None, ()], ids=str)
def test_only_reservations_are_given_back_settled_and_waited_for(refused, anyio_backend, told):
    shaper = Shaper("10/s")
    for call in (shaper.cancel, lambda told: shaper.settle(told, 1), shaper.remaining):
        assert "reserve()" in refused(lambda call=call: call(told), "reservation").fix
    for call, *more in ((shaper.acancel,), (shaper.asettle, 1), (shaper.aremaining,)):
        refused(
            lambda call=call, more=more: anyio.run(call, told, *more, backend=anyio_backend), "reservation"
        )
