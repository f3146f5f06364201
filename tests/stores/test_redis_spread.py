"""A spread quota on Redis: products of costs and spans that no double holds are divided exactly."""

import pytest

from shapekit import Gate, ManualClock, Quota, RedisStore

from ..redis_server import shared_server

BEYOND_DOUBLES = [
    (822_276_682_770, 709_841_762_430, 366_754_608_628_222, 316_606_007_713_832),
    (392_972_732_139, 54_436_370_042, 462_163_553_784_790, 64_020_997_326_746),
    (200_707_973_284, 157_419_186_562, 416_734_850_462_049, 326_853_288_877_300),
]
"""Where a quotient of doubles, rounded up, is a microsecond early: limit, cost, span and the exact wait."""


@pytest.mark.parametrize(("limit", "cost", "span_us", "wait_us"), BEYOND_DOUBLES)
def test_the_script_divides_exactly(tmp_path, limit, cost, span_us, wait_us):
    store = RedisStore.from_url(shared_server().url, clock=ManualClock(), prefix=f"spread-{tmp_path.name}")
    gate = Gate(Quota(limit, f"fixed:{span_us}us", spread=True), name="spread", store=store)
    assert gate.check(cost=cost)
    assert gate.check().retry_after_us == wait_us
    store.close()
