"""The first awaited calls of a process, one of which is cancelled while it waits: they load nothing."""

import subprocess
import sys

import pytest

ASYNCIO = """
import asyncio, sys
from shapekit import Shaper

shaper = Shaper("2/min")

async def main():
    before = set(sys.modules)
    await shaper.aschedule()
    task = asyncio.create_task(shaper.aschedule())
    while not shaper.core.sleepers.sleeping:
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print(*sorted(set(sys.modules) - before), shaper.forecast().last_in > 31)

asyncio.run(main())
"""
"""At last: whether the next call would still have to wait behind the one that was cancelled."""
TRIO = """
import sys
import trio
from shapekit import Shaper

shaper = Shaper("2/min")

async def main():
    before = set(sys.modules)
    await shaper.aschedule()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shaper.aschedule)
        while not shaper.core.sleepers.sleeping:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    print(*sorted(set(sys.modules) - before), shaper.forecast().last_in > 31)

trio.run(main)
"""


@pytest.mark.parametrize("program", [ASYNCIO, TRIO], ids=["asyncio", "trio"])
def test_the_first_calls_and_to_give_back_a_slot_load_nothing(program):
    run = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("False\n", "")
