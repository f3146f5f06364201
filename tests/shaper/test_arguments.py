"""What is no reservation, or one of another shaper, is refused in words."""

import anyio
import pytest

from shapekit import Adaptive, MemoryStore, Shaper
from shapekit.shaper import received, sent


@pytest.mark.parametrize("value", [5, "x", None, ()], ids=str)
def test_only_reservations_can_be_cancelled_settled_and_waited_for(refused, anyio_backend, value):
    shaper = Shaper("10/s")
    for call in (shaper.cancel, lambda value: shaper.settle(value, 1), shaper.remaining):
        assert "reserve()" in refused(lambda call=call: call(value), "reservation").fix
    for call, *more in ((shaper.acancel,), (shaper.asettle, 1), (shaper.aremaining,)):
        refused(
            lambda call=call, more=more: anyio.run(call, value, *more, backend=anyio_backend), "reservation"
        )


@pytest.mark.parametrize(
    "other", [{"rate": "1/s"}, {"adaptive": Adaptive("1/s", "5/s"), "name": "api"}], ids=str
)
def test_a_reservation_of_another_shaper_changes_nothing(refused, anyio_backend, other):
    store = MemoryStore()
    own = Shaper("1/s", store=store, name="api")
    another = Shaper(**other)
    reservation = another.reserve()
    for call in (own.cancel, lambda other: own.settle(other, 50), own.remaining):
        error = refused(lambda call=call: call(reservation), "reservation")
        assert error.bound == f"is of another shaper, {another.name!r}"
    for call, *more in ((own.acancel,), (own.asettle, 50), (own.aremaining,)):
        refused(
            lambda call=call, more=more: anyio.run(call, reservation, *more, backend=anyio_backend),
            "reservation",
        )
    assert own.forecast().first_in == 0


def test_the_same_shaper_may_be_made_twice_and_in_another_process():
    store = MemoryStore()
    one, other = (Shaper("1/s", store=store, name="api") for _ in range(2))
    reservation = received(other.core, sent(one.reserve()))
    assert one.settle(reservation, 3)
    assert one.forecast().first_in > 2
    assert other.cancel(one.reserve())
