"""Loops of each kind in virtual time, and listeners of the log."""

import logging
from contextlib import aclosing, nullcontext

import anyio
import pytest
from anyio.lowlevel import checkpoint

from shapekit import ManualClock
from shapekit.progress import Log, aprogress, progress

PATIENCE_S = 20.0
"""Longer than any event takes: only a failing test waits this long."""


class Listener(logging.Handler):
    """Keeps the reports that are logged; calls `on_report` with each at once."""

    def __init__(self):
        super().__init__()
        self.reports = []
        self.lines = []
        self.on_report = lambda report: None

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.reports.append(record.progress)
        self.on_report(record.progress)


class Form:
    """One kind of loop. It enters what `body` returns: usually an admission.

    `afterwards` is awaited on the event loop of the loop, if it has one.
    """

    def __init__(self, name):
        self.name = name
        self.is_sync = name == "sync"
        self.afterwards = checkpoint

    def loop(self, items, subject, body, **options):
        """Loops to the end, or until `body` returns False, which breaks."""
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
    """Jumps by itself as soon as all threads and tasks sleep."""
    return ManualClock(1_000.0, autojump=True)


@pytest.fixture
def listener():
    """Reads the log at INFO."""
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
    """Receives a report at every item."""
    monkeypatch.setattr(Log, "pause_us", lambda log, elapsed_us: 0)
    return listener
