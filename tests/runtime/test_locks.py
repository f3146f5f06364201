"""Locks: an interrupt leaves them as they were, wherever it strikes."""

import signal
import threading

import pytest

from shapekit._runtime import process


class TimeUp(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def interrupted():
    def strike(*_):
        raise TimeUp

    def take_again_and_again(lock):
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
        while True:
            with lock:
                """The signal comes around here."""

    def interrupted(lock):
        with pytest.raises(TimeUp):
            take_again_and_again(lock)

    before = signal.signal(signal.SIGALRM, strike)
    yield interrupted
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", [process.rlock, process.WholeLock])
def test_an_interrupt_leaves_a_lock_as_it_was(make, interrupted):
    lock = make()
    for _ in range(300):
        interrupted(lock)
        assert not process.is_inside(lock)
        with lock:
            interrupted(lock)
            assert process.is_inside(lock)
        assert not process.is_inside(lock)


def test_a_thread_that_is_interrupted_as_it_waits_for_a_lock_has_not_taken_it(interrupted):
    lock, is_taken, is_over = process.WholeLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_taken.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_taken.wait()
    for _ in range(20):
        interrupted(lock)
        assert not process.is_inside(lock)
    is_over.set()
    holder.join()
    with lock:
        assert process.is_inside(lock)
