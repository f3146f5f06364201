"""A store that can be taken away, and workers that share it, each through a ResilientStore of its own."""

import asyncio
import time

from shapekit import MemoryStore
from shapekit.stores.resilient import LONGEST_BACK_OFF_US, ResilientStore
from shapekit.testing import FaultyStore, ManualClock

PATIENCE_S = 20.0
"""Longer than any event takes: reached only where a test fails."""
RECOVERY_S = LONGEST_BACK_OFF_US / 1e6
"""After this long without a fault, the next call is a probe."""
MODES = ("raise", "open", "closed", "local")


class Host:
    """One faulty store on a clock that stands still, and what its workers make of it."""

    def __init__(self, clock=None):
        self.clock = ManualClock(1_000.0) if clock is None else clock
        self.faulty = FaultyStore(MemoryStore(self.clock))

    def worker(self, mode, share=None, timeout=PATIENCE_S):
        if mode == "local" and share is None:
            share = 0.5
        return ResilientStore(self.faulty, on_outage=mode, share=share, timeout=timeout)

    def recover(self):
        """Mend the store, and wait until every worker's next call is a probe."""
        self.faulty.mend()
        self.clock.advance(RECOVERY_S)


def patient(store):
    """Make the timeout so long that a slow machine is no outage."""
    store._deadline._timeout_us = round(PATIENCE_S * 1e6)
    return store


async def blocked_meanwhile(question, steps, block_s):
    """The result of a question, if something blocks the loop after so many of its steps."""
    task = asyncio.create_task(question)
    for _ in range(steps):
        await asyncio.sleep(0)
    time.sleep(block_s)  # noqa: ASYNC251 - to block it is the point
    return await task
