"""Threads of tests: none may hang, and no exception in one of them is lost."""

import threading
from contextlib import ExitStack, contextmanager

PATIENCE_S = 30.0
"""Longer than any event takes: only a failing test waits this long."""


class Crew:
    """Threads; their exceptions fail the test, unless the test collects them."""

    def __init__(self):
        self._threads = []
        self._returned = []
        self._raised = []

    def start(self, job, *args):
        def work():
            try:
                self._returned.append(job(*args))
            except BaseException as error:
                self._raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def at_once(self, *jobs):
        """Each begins when all are there."""
        barrier = threading.Barrier(len(jobs))

        def begin(job):
            barrier.wait(PATIENCE_S)
            return job()

        for job in jobs:
            self.start(begin, job)

    def join(self):
        """Wait for all; returns their results since the last time."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread hangs"
        returned, self._returned = self._returned, []
        return returned

    def raised(self):
        """The exceptions raised since the last time."""
        raised, self._raised = self._raised, []
        return raised


def in_threads(jobs):
    """Run each in a thread of its own; raises the exception of the first of them."""
    crew = Crew()
    for job in jobs:
        crew.start(job)
    crew.join()
    for error in crew.raised():
        raise error


@contextmanager
def held_elsewhere(*locks):
    """Another thread holds these locks meanwhile: the thread that holds a lock may take it again."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            is_held.set()
            is_over.wait(PATIENCE_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert is_held.wait(PATIENCE_S)
    try:
        yield
    finally:
        is_over.set()
        holder.join(PATIENCE_S)
