"""Loops of each kind in virtual time, and who hears what is told of them."""

import logging
from contextlib import aclosing, nullcontext

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import ManualClock
from shapekit.progress import Log, aprogress, progress

PATIENCE_S = 20.0
"""Longer than any event takes: reached only where a test fails."""


class Listener(logging.Handler):
    """Keeps what the log is told; `on_told` is called with it, then and there."""

    def __init__(self):
        super().__init__()
        self.told = []
        self.lines = []
        self.on_told = lambda told: None

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.told.append(record.progress)
        self.on_told(record.progress)


class Form:
    """One kind of loop. What `body` returns is entered: an admission, as a rule.

    `afterwards` is awaited on the event loop that there was, if any.
    """

    def __init__(self, name):
        self.name = name
        self.is_sync = name == "sync"
        self.afterwards = checkpoint

    def loop(self, items, subject, body, **options):
        """Loops to the end; or until `body` returns False, which breaks."""
        if not self.is_sync:
            anyio.run(lambda: self._aloop(items, subject, body, options), backend=self.name)
            return
        for item in progress(items, subject, **options):
            done = body(item)
            if done is False:
                break
            with done or nullcontext():
                pass

    async def _aloop(self, items, subject, body, options):
        try:
            async with aclosing(aprogress(items, subject, **options)) as watched:
                async for item in watched:
                    done = body(item)
                    if done is False:
                        break
                    async with done or nullcontext():
                        pass
        finally:
            await self.afterwards()


@pytest.fixture(params=["sync", "asyncio", "trio"])
def form(request):
    return Form(request.param)


@pytest.fixture
def clock():
    """Jumps by itself as soon as everybody sleeps."""
    return ManualClock(1_000.0, autojump=True)


@pytest.fixture
def listener():
    """Hears the log at INFO."""
    log = logging.getLogger("shapekit.progress")
    listener, before = Listener(), log.level
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield listener
    log.setLevel(before)
    log.propagate = True
    log.removeHandler(listener)


@pytest.fixture
def each(listener, monkeypatch):
    """Hears the log, which is told of every item."""
    monkeypatch.setattr(Log, "pause_us", lambda log, elapsed_us: 0)
    return listener
