"""On a terminal: one line, redrawn in place, that stays when the loop is over."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, Policy, progress, progress_line, progress_watch

from .conftest import PATIENCE_S
from .test_line import tolds

THREAD = "shapekit-progress"


class Screen(io.StringIO):
    """A terminal with a single line, which remembers all that could be seen on it, and when."""

    def __init__(self, clock=None):
        super().__init__()
        self._clock = clock
        self._changed = threading.Condition()
        self.seen = [""]
        self.times = []
        self.kept = []
        self.frames = []

    def isatty(self):
        return True

    def write(self, text):
        with self._changed:
            line, at = self.seen[-1], 0
            for character in text:
                if character == "\r":
                    at = 0
                elif character == "\n":
                    self.kept.append(line.rstrip())
                    line = ""
                else:
                    line = line[:at].ljust(at) + character + line[at + 1 :]
                    at += 1
            self.seen.append(line)
            self.frames.append(text.strip("\r\n"))
            if self._clock is not None:
                self.times.append(self._clock.now())
            self._changed.notify_all()

    def until(self, word):
        with self._changed:
            assert self._changed.wait_for(lambda: word in self.seen[-1], PATIENCE_S), self.seen[-3:]


def draw_on(screen, monkeypatch):
    """Not by sys.stderr itself, which pytest puts back between a fixture and its test."""
    monkeypatch.setattr(progress_line, "sys", SimpleNamespace(stderr=screen))


@pytest.fixture
def screen(monkeypatch, clock):
    screen = Screen(clock)
    draw_on(screen, monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TERM", raising=False)
    monkeypatch.setattr(progress_watch, "TICK_S", 600)
    return screen


def test_the_line_is_redrawn_in_place_and_its_last_state_stays(form, screen, clock):
    policy = Policy("10/s", clock=clock)
    form.loop(range(5), policy, lambda item: policy.admit())
    assert [line.rstrip() for line in screen.seen] == [
        "",
        "0/5 (0%)  [..............................]  0 s  ETA 1 s",
        "2/5 (40%)  [############..................]  0 s  20.0/s  ETA 1 s",
        "3/5 (60%)  [##################............]  0 s  15.0/s  ETA 1 s",
        "4/5 (80%)  [########################......]  0 s  13.3/s  ETA 1 s",
        "5/5 (100%)  [##############################]  0 s  12.5/s  ETA 0 s",
        "",
    ]
    assert screen.kept == ["5/5 (100%)  in 0 s  12.5/s"]


def test_it_is_redrawn_ten_times_a_second_at_most(form, screen, clock):
    form.loop(range(1_000), Policy("1/s", clock=clock), lambda item: clock.advance(0.007))
    *drawn, last = screen.times
    assert len(drawn) == 1 + 7_000 // 105  # every fifteenth item
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(drawn))
    assert last == 1_007.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(tolds, st.integers(1, 120)), min_size=1, max_size=5))
def test_it_is_never_wider_than_the_terminal_and_leaves_nothing_of_the_last_line(monkeypatch, lines):
    """Whatever becomes of the terminal's size meanwhile."""
    screen = Screen()
    terminal = progress_line.Terminal(screen)
    before = 0
    for told, columns in lines:
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal.tell(told)
        width = max(1, columns - 1)
        assert min(before, width) <= len(screen.frames[-1]) <= width
        before = len(screen.frames[-1].rstrip())


@pytest.mark.parametrize("no_color", ["1", None])
def test_it_is_plain_text(screen, clock, monkeypatch, no_color):
    monkeypatch.setenv("NO_COLOR", no_color) if no_color else monkeypatch.delenv("NO_COLOR", raising=False)
    for _ in progress(range(30), Policy("1/s", clock=clock)):
        clock.advance(1)
    assert all(line.isprintable() and line.isascii() for line in screen.seen)


def test_leaving_leaves_a_true_line(form, screen, clock):
    policy = Policy("10/s", clock=clock)

    def body(item):
        return False if item == 3 else policy.admit()

    form.loop(range(50), policy, body)
    assert screen.kept == ["3/50 (6%)  in 0 s  15.0/s  stopped in item 4"]


def test_a_second_loop_goes_to_the_log_and_the_next_one_draws_again(form, screen, listener, clock):
    policy = Policy("10/s", clock=clock)

    def inner(item):
        assert list(progress(range(3), policy)) == [0, 1, 2]

    form.loop(range(2), policy, inner)
    assert [told["total"] for told in listener.told] == [3, 3] * 2
    form.loop(range(4), policy, lambda item: None)
    assert [line.split("  ")[0] for line in screen.kept] == ["2/2 (100%)", "4/4 (100%)"]


def test_a_terminal_that_is_gone_stops_nobody(form, screen, clock, monkeypatch):
    def gone(text):
        raise BrokenPipeError("nobody reads this")

    monkeypatch.setattr(screen, "write", gone)
    seen = []
    form.loop(range(5), Policy("1/s", clock=clock), seen.append)
    assert seen == [0, 1, 2, 3, 4]


def test_a_terminal_that_cannot_go_back_is_none(form, screen, listener, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    form.loop(range(3), Policy("1/s", clock=clock), lambda item: None)
    assert screen.seen == [""]
    assert len(listener.told) == 2


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_a_hold_shows_while_an_item_takes_long(form, screen, monkeypatch):
    """Who waits for a hold to end does so in the midst of an item."""
    monkeypatch.setattr(progress_watch, "TICK_S", 0.01)
    clock = ManualClock(1_000.0)
    policy = Policy("10/s", clock=clock)

    def body(item):
        policy.shaper.hold("30s")
        clock.advance(2)
        screen.until("held 28 s  ETA 29 s")
        clock.advance(10)
        screen.until("held 18 s  ETA 19 s")
        policy.shaper.resume()
        clock.advance(1)
        screen.until("13 s  ETA 1 s")
        return False

    assert policy.shaper.reserve()
    form.loop(range(8), policy, body)
    for thread in threads():
        thread.join(PATIENCE_S)
    assert threads() == []


def test_without_a_thread_it_does_without(form, screen, clock, monkeypatch):
    def none_left(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    policy = Policy("10/s; 10_000/h", clock=clock)

    def body(item):
        assert len(screen.seen) == 2 + max(0, item - 1)
        return policy.admit() if item < 5 else False

    form.loop(range(2_000), policy, body)
    assert not any("ETA" in line for line in screen.seen)


LOOP = """
from shapekit import Policy, progress
policy = Policy("50/s")
try:
    for number in progress(range(100), policy):
        if number == 20:
            policy.shaper.hold("1h")
        with policy.admit():
            pass
except KeyboardInterrupt:
    print("left", flush=True)
"""
ABANDONED = """
from shapekit import Policy, progress
items = progress(range(100), Policy("50/s"))
print(next(items), flush=True)
"""


def on_a_terminal(code, columns, interrupted_at=None):
    """What a process writes to a terminal of this width, and to a stdout that is none."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    raw, deadline = b"", time.monotonic() + PATIENCE_S
    try:
        while True:
            ready, _, _ = select.select([ours], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"it hangs: {raw!r}"
            try:
                raw += os.read(ours, 65_536)
            except OSError:  # the other side has ended
                break
            if interrupted_at is not None and interrupted_at in raw:
                process.send_signal(signal.SIGINT)
                interrupted_at = None
        printed, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 0, raw
    return raw.decode("ascii"), printed.decode()


def test_a_real_terminal_that_is_narrow():
    """A key is held for an hour; the line says so while the loop waits, until somebody presses Ctrl-C."""
    raw, printed = on_a_terminal(LOOP, columns=38, interrupted_at=b"held 59 min")
    assert printed == "left\n"
    assert raw.endswith("\r\n")
    assert raw.count("\n") == 1
    frames = raw.removesuffix("\r\n").split("\r")[1:]
    assert max(map(len, frames)) <= 37
    first, *_, held, last = (frame.rstrip() for frame in frames)
    assert re.fullmatch(r"0/100 \(0%\)  \d+ s  ETA \d+ s", first)
    assert re.fullmatch(r"20/100 \(20%\)  held 59 min \d+ s", held)
    assert re.fullmatch(r"20/100 \(20%\)  stopped in item 21", last)


def test_a_loop_that_is_left_lying_about_does_not_keep_the_process():
    raw, printed = on_a_terminal(ABANDONED, columns=80)
    assert printed == "0\n"
    assert raw.startswith("\r0/100 (0%)")
