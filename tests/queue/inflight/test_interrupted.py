"""Control-C at any line of taking a permit, waiting for one, and giving it back: nothing is lost for ever."""

import gc
import linecache
import sys

import anyio
import pytest

from shapekit import ManualClock, Policy, QueueFullError
from shapekit._runtime.drivers import run

from .rooms import given_back, is_forgotten, standing

# An interrupt before an admission is entered leaves it unentered, like a coroutine that is not awaited yet.
pytestmark = pytest.mark.filterwarnings("ignore:the admission of .* was never entered:RuntimeWarning")

OURS = (
    *("_queue/inflight.py", "policy.py", "_runtime/drivers.py"),
    *("_adapters/transport.py", "algorithms/inflight.py"),
)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line of ours that this thread comes by."""

    def __init__(self, at):
        self.left = at
        self.where = None
        self._before = None

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        # Not None: coverage is measured by a trace, too.
        sys.settrace(self._before)

    def _called(self, frame, event, arg):
        file = frame.f_code.co_filename
        is_ours = "shapekit" in file and file.endswith(OURS) and frame.f_code.co_name != "__del__"
        return self._line if is_ours else None

    def _line(self, frame, event, arg):
        # On its way out of a `with` a trace comes by its first line once more. No signal is heeded there: the
        # lock would stay locked.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not text.lstrip().startswith(("with ", "async with ")):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line


def interrupted_at_every_line(make, work):
    """Interrupts `work` at one line after the other, until it comes through; returns how many there were."""
    # Lost permits are found by looking through all objects made since, a few hundred times.
    gc.collect()
    gc.freeze()
    for at in range(1, 2_000):
        policy = make()
        with Interrupt(at) as interrupt:
            try:
                work(policy)
            except KeyboardInterrupt:
                """It was interrupted."""
        if interrupt.where is None:
            return at
        gc.collect()
        given_back()
        assert standing(policy) == (0, 0), interrupt.where
        assert is_forgotten(policy), interrupt.where
    raise AssertionError("it never came through")


def test_a_call_that_is_interrupted_anywhere_has_no_permit():
    def work(policy):
        with policy.admit():
            pass

    assert interrupted_at_every_line(lambda: Policy(concurrency=1), work) > 40


def test_a_caller_that_is_interrupted_anywhere_while_it_waits_has_no_place():
    def work(policy):
        # As a whole: the call with the permit leaves, whatever becomes of the waiting one.
        admission = policy.admit()
        try:
            admission.__enter__()
            with pytest.raises(TimeoutError):
                policy.admit(timeout="1s").__enter__()
        finally:
            admission.leave()

    def make():
        return Policy(concurrency=1, clock=ManualClock(1_000.0, autojump=True))

    assert interrupted_at_every_line(make, work) > 60


def test_a_task_that_is_interrupted_anywhere_has_no_permit():
    def work(policy):
        async def call():
            async with policy.aadmit():
                pass

        anyio.run(call)

    assert interrupted_at_every_line(lambda: Policy(concurrency=1), work) > 40


def test_a_call_that_has_ended_runs_no_finalizer():
    """An interrupt that came in the midst of one would be lost."""
    policy = Policy(concurrency=1)
    with policy.admit() as admission:
        permit = admission._permit
        assert hasattr(permit, "__del__")
    assert not hasattr(permit, "__del__")
    refused = policy.permits.untaken("default")
    with policy.admit(), pytest.raises(QueueFullError):
        run(policy.permits.take, refused, 0)
    assert not hasattr(refused, "__del__")
