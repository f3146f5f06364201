"""The witness that excuses tests of real time: it sees what the system counts, and no more."""

import os
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import pytest

from .witness import PATIENCE_S, Stall, Stalls, Stopwatch, Witness, watched, with_children

HOST = 7
"""A process."""


class Machine:
    """The files in which a system describes its processes."""

    def __init__(self, folder):
        self.folder = folder
        self.stolen(0)

    def waited(self, thread, seconds):
        """A thread has been kept waiting for so long."""
        folder = self.folder / str(HOST) / "task" / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"123456 {round(seconds * 1e9)} 42\n")
        self.is_at_disk(thread, False)

    def is_at_disk(self, thread, is_there):
        """Whether a thread waits for the disk now."""
        folder = self.folder / str(HOST) / "task" / str(thread)
        (folder / "stat").write_text(f"{thread} (a D) c) {'D' if is_there else 'S'} 1 1 0\n")

    def ended(self, thread):
        """The thread has ended."""
        folder = self.folder / str(HOST) / "task" / str(thread)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    def stolen(self, seconds):
        """The host has let other machines run for so long."""
        ticks = round(seconds * os.sysconf("SC_CLK_TCK"))
        (self.folder / "stat").write_text(f"cpu  1 2 3 4 5 6 7 {ticks} 0 0\ncpu0 1 2 3 4 5 6 7 99 0 0\n")

    def born(self, process, parent):
        """A process with a name that is hard to read."""
        (self.folder / str(process)).mkdir()
        (self.folder / str(process) / "stat").write_text(f"{process} (a b) c) S {parent} 1 1 0")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def witness(machine):
    """One that has looked before."""
    for thread in (1, 2):
        machine.waited(thread, 10.0)
    with closing(Witness([HOST], machine.folder)) as witness:
        yield witness


def test_a_look_shows_which_threads_have_waited_since_the_last_one(machine, witness):
    machine.waited(1, 10.25)
    machine.waited(2, 10.5)
    assert sorted(witness.look()) == [0.25, 0.5]
    assert witness.look() == []
    machine.waited(1, 10.375)
    assert witness.look() == [0.125]


def test_waits_before_the_first_look_do_not_count(machine, witness):
    assert witness.look() == []
    machine.waited(3, 0.25)
    witness.find()
    assert witness.look() == [0.25]
    machine.waited(3, 0.75)
    assert witness.look() == [0.5]


def test_a_thread_that_has_ended_waits_no_more(machine, witness):
    (machine.folder / str(HOST) / "task" / "2" / "schedstat").write_text("")
    machine.waited(1, 10.5)
    assert witness.look() == [0.5]


def test_time_that_the_host_gave_to_other_machines_counts(machine, witness):
    machine.stolen(0.5)
    assert witness.look() == [0.5]
    assert witness.look() == []


def test_a_thread_that_waits_for_the_disk_at_two_looks_was_kept_for_the_time_between(machine, witness):
    machine.is_at_disk(1, True)
    start = time.monotonic()
    assert witness.look() == [], "it may have come there just now"
    seen = time.monotonic()
    least = time.monotonic() - seen
    (waited,) = witness.look()
    assert least <= waited <= time.monotonic() - start
    machine.is_at_disk(1, False)
    assert witness.look() == []


def test_a_process_that_is_gone_is_skipped(tmp_path):
    witness = Witness([HOST], tmp_path / "nothing")
    witness.find()
    assert witness.look() == []


def test_a_stopwatch_leaves_out_what_threads_have_waited(machine):
    machine.waited(1, 10.0)
    machine.waited(2, 10.0)
    with Stopwatch(machine.folder / str(HOST) / "task") as watch:
        machine.waited(1, 1010.0)
        machine.ended(2)
        machine.waited(3, 500.0)
    assert -1500 < watch.took < -1400


def test_children_are_found_however_deep(machine):
    for process, parent in ((1, 0), (20, 1), (21, 20), (22, 21), (23, 1)):
        machine.born(process, parent)
    assert sorted(with_children([20], machine.folder)) == [20, 21, 22]
    assert with_children([99], machine.folder) == [99]


def test_threads_that_wait_in_one_look_may_have_waited_for_one_another_during_it():
    assert Stall.of(1.0, 2.0, [0.25, 0.5]) == (1.0, 2.0, 0.5, 0.75)
    assert Stall.of(1.0, 2.0, [0.75, 0.5]) == (1.0, 2.0, 0.75, 1.0)
    assert Stall.of(1.0, 2.0, [3.0, 0.5]) == (1.0, 2.0, 3.0, 3.0)


def test_stalls_count_where_they_overlap():
    stalls = Stalls([(1.0, 1.01, 0.25, 0.5), (2.0, 2.01, 0.125, 0.125), (3.0, 3.01, 0.25, 0.25)])
    assert stalls.within(1.005, 1.005) == 0.5
    assert stalls.within(0, 1.0) == 0.5
    assert stalls.within(0, 0.99) == stalls.within(1.02, 1.99) == 0
    assert stalls.within(0, 9) == 0.875
    assert stalls.around(1.05) == 0.25
    assert stalls.around(1.5) == 0


def test_a_late_event_is_moved_back_by_the_seen_stalls_and_never_before_it_was_due():
    stalls = Stalls([(1.0, 1.01, 0.25, 0.25)])
    assert stalls.undone(0.75, 1.5) == 1.25
    assert stalls.undone(0.75, 0.875) == 0.875, "it had not begun by then"
    assert stalls.undone(1.0, 1.125) == 1.0
    assert stalls.undone(1.25, 1.5) == 1.5, "it was over by then"
    assert Stalls([]).undone(0.75, 1.5) == 1.5


@contextmanager
def busy(program):
    """A process that has printed a line, so that it runs."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            yield process
        finally:
            process.kill()


def test_the_witness_sees_processes_that_share_a_processor():
    pin = f"import os, time; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])"
    rival = f"{pin}; print('runs', flush=True)\nwhile True: pass"
    needs = f"{pin}; print('runs', flush=True); input()\nwhile time.process_time() < 0.2: pass"
    with busy(rival), busy(needs) as process, watched(process.pid) as witness:
        start = time.monotonic()
        process.communicate("go\n", timeout=PATIENCE_S)
        end = time.monotonic()
    assert witness.stalls.within(start, end) > 0.02
