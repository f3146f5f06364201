"""Checked by mypy and pyright, never run: the public types are what they should be."""

from typing import assert_type

from shapekit import GCRA, Decision, Forecast, Gate, Quota, all_of


def decides(gate: Gate) -> None:
    assert_type(gate.check("key"), Decision)
    assert_type(gate.check_many(["a", "b"]), list[Decision])
    assert_type(gate.forecast("key", cost=2), Forecast)
    assert_type(gate.check("key").retry_after, float)
    assert_type(bool(gate.peek()), bool)


async def awaits(gate: Gate) -> None:
    assert_type(await gate.acheck("key"), Decision)
    assert_type(await gate.aforecast("key"), Forecast)


def builds() -> Gate:
    return Gate(all_of(second=GCRA("10/s"), month=Quota(1_000, "month")), name="api")
