"""On a terminal: one line, which rich redraws in place, and which stays after the loop."""

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

from shapekit import ManualClock, Policy
from shapekit import progress as progress_module
from shapekit.progress import in_log, opened, progress

from .conftest import PATIENCE_S
from .test_line import all_reports, report

THREAD = "shapekit-progress"


STEERING = re.compile(r"\x1b\[[0-9;]*m|\x1b\[2K|[\r\n]|[^\x1b\r\n]+")
"""Colours, which are ignored, and all other text that may be written here."""
BAR = 30


class Screen(io.StringIO):
    """A terminal with a single line, which records all text that could be seen on it, and when."""

    encoding = "utf-8"

    def __init__(self, clock=None):
        super().__init__()
        self._clock = clock
        self._changed = threading.Condition()
        self._at = 0
        self.seen = [""]
        self.times = []
        self.kept = []
        self.raw = ""

    def isatty(self):
        return True

    def write(self, text):
        with self._changed:
            line = self.seen[-1]
            for part in STEERING.findall(text):
                if part == "\r":
                    self._at = 0
                elif part == "\n":
                    self.kept.append(line.rstrip())
                    line, self._at = "", 0
                elif part == "\x1b[2K":
                    line = ""
                elif not part.startswith("\x1b"):
                    line = line[: self._at].ljust(self._at) + part + line[self._at + len(part) :]
                    self._at += len(part)
            assert "".join(STEERING.findall(text)) == text
            self.raw += text
            if line != self.seen[-1]:
                self.seen.append(line)
                if self._clock is not None:
                    self.times.append(self._clock.now())
            self._changed.notify_all()
            return len(text)

    def until(self, word):
        with self._changed:
            assert self._changed.wait_for(lambda: word in self.seen[-1], PATIENCE_S), self.seen[-3:]


def draw_on(screen, monkeypatch):
    """Not sys.stderr itself, which pytest restores between a fixture and its test."""
    monkeypatch.setattr(progress_module, "sys", SimpleNamespace(stderr=screen))


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A terminal of 100 columns without colours, where the bar is as long as the finished share."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("TERM", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def screen(monkeypatch, clock):
    screen = Screen(clock)
    draw_on(screen, monkeypatch)
    monkeypatch.setattr(progress_module, "TICK_S", 600)
    return screen


def bar(done, total):
    return ("━" * (BAR * done // total)).ljust(BAR)


def test_the_line_is_redrawn_in_place_and_its_last_state_stays(form, screen, clock):
    policy = Policy("10/s", clock=clock)
    form.loop(range(5), policy, lambda item: policy.admit())
    assert [line.rstrip() for line in screen.seen] == [
        "",
        f"{bar(0, 5)} 0/5 (0%)  ETA 1 s  0 s",
        f"{bar(2, 5)} 2/5 (40%)  ETA 1 s  0 s  20.0/s",
        f"{bar(3, 5)} 3/5 (60%)  ETA 1 s  0 s  15.0/s",
        f"{bar(4, 5)} 4/5 (80%)  ETA 1 s  0 s  13.3/s",
        f"{bar(5, 5)} 5/5 (100%)  ETA 0 s  0 s  12.5/s",
        f"{bar(5, 5)} 5/5 (100%)  in 0 s  12.5/s",
        "",
    ]
    assert screen.kept == [f"{bar(5, 5)} 5/5 (100%)  in 0 s  12.5/s"]


def test_the_line_is_redrawn_at_most_ten_times_a_second(form, screen, clock):
    form.loop(range(1_000), Policy("1/s", clock=clock), lambda item: clock.advance(0.007))
    *drawn, last, ended = screen.times
    assert len(drawn) == 1 + 7_000 // 105  # every fifteenth item
    assert all(after - before >= 0.1 - 1e-9 for before, after in pairwise(drawn))
    assert last == ended == 1_007.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(all_reports, min_size=1, max_size=5), st.integers(1, 120))
def test_the_line_is_never_wider_than_the_terminal_and_overwrites_the_last_one(monkeypatch, lines, columns):
    """However narrow: the count is the last part to go."""
    screen = Screen()
    draw_on(screen, monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = opened("name")
    try:
        for report in lines:
            terminal.tell(report._replace(total=lines[0].total))
            count = in_log(report._replace(total=lines[0].total)).split(" ")[0].rstrip(",")
            line = screen.seen[-1].lstrip("━╸╺ ").rstrip("… ")
            assert len(screen.seen[-1]) <= columns
            assert count[: len(line)] == line[: len(count)]
            assert len(line) >= min(len(count), columns - 1)
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (100, "━━━━━━━━━━━                    370/1,000 (37%)  held 12 s  ETA 1 min 3 s  37 s  10.0/s"),
        (70, "━━━━━          370/1,000 (37%)  held 12 s  ETA 1 min 3 s  37 s  10.0/s"),
        (55, "370/1,000 (37%)  held 12 s  ETA 1 min 3 s  37 s  10.0/s"),
        (42, "370/1,000 (37%)  held 12 s  ETA 1 min 3 s…"),
        (28, "370/1,000 (37%)  held 12 s …"),
        (10, "370/1,000…"),
    ],
)
def test_a_narrow_line_drops_its_parts_in_order(screen, monkeypatch, columns, text):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = opened("name")
    terminal.tell(report(held=12.0, eta=63.0))
    terminal.close()
    assert screen.kept == [text]


def test_on_an_ascii_terminal_the_line_is_ascii(screen, monkeypatch):
    monkeypatch.setattr(screen, "encoding", "ascii", raising=False)
    for columns in ("100", "40", "20"):
        monkeypatch.setenv("COLUMNS", columns)
        terminal = opened("name")
        terminal.tell(report(held=12.0, eta=63.0))
        terminal.close()
    assert screen.raw.isascii()
    assert screen.kept[0].startswith("-----------                    370/1,000 (37%)  held 12 s")
    assert screen.kept[2] == "370/1,000 (37%)  hel"


def test_with_colours_the_rest_of_the_bar_is_drawn_too(screen, clock, monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    for _ in progress(range(30), Policy("1/s", clock=clock)):
        clock.advance(1)
    assert [line.count("━") + line.count("╺") + line.count("╸") for line in screen.seen[1:-1]] == [BAR] * 32
    assert re.search(r"\x1b\[[0-9;]+m━{30}\x1b\[0m 30/30", screen.raw)


@pytest.mark.parametrize(
    "where", ["rich.progress.Progress.add_task", "rich.console.Console.push_render_hook"]
)
def test_a_loop_that_is_interrupted_at_its_start_raises_its_error_and_frees_the_terminal(
    where, form, screen, clock, monkeypatch
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as begun:
        begun.setattr(where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            form.loop(range(3), Policy("10/s", clock=clock), lambda item: None)
    assert screen.kept == []
    form.loop(range(3), Policy("10/s", clock=clock), lambda item: None)
    assert screen.kept[-1].startswith(f"{bar(3, 3)} 3/3 (100%)")
    for thread in [thread for thread in threading.enumerate() if thread.name == THREAD]:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_loop_that_is_left_early_leaves_a_true_line(form, screen, clock):
    policy = Policy("10/s", clock=clock)

    def body(item):
        return False if item == 3 else policy.admit()

    form.loop(range(50), policy, body)
    assert screen.kept == [f"{'━╸'.ljust(BAR)} 3/50 (6%)  stopped in item 4  in 0 s  15.0/s"]


def test_a_second_loop_goes_to_the_log_and_the_next_one_draws_again(form, screen, listener, clock):
    policy = Policy("10/s", clock=clock)

    def inner(item):
        assert list(progress(range(3), policy)) == [0, 1, 2]

    form.loop(range(2), policy, inner)
    assert [report["total"] for report in listener.reports] == [3, 3] * 2
    form.loop(range(4), policy, lambda item: None)
    assert [line.lstrip("━ ").split("  ")[0] for line in screen.kept] == ["2/2 (100%)", "4/4 (100%)"]


@pytest.mark.parametrize("error", [BrokenPipeError, OSError, ValueError])
@pytest.mark.parametrize("method", ["write", "flush"])
def test_a_terminal_that_is_gone_stops_no_loop(form, screen, clock, monkeypatch, method, error):
    def gone(*args):
        raise error("nobody reads this")

    monkeypatch.setattr(screen, method, gone)
    seen = []
    form.loop(range(5), Policy("1/s", clock=clock), seen.append)
    assert seen == [0, 1, 2, 3, 4]


def test_a_terminal_that_cannot_redraw_gets_log_lines(form, screen, listener, clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    form.loop(range(3), Policy("1/s", clock=clock), lambda item: None)
    assert screen.seen == [""]
    assert len(listener.reports) == 2


def test_without_rich_the_progress_is_logged(form, screen, listener, clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    form.loop(range(3), Policy("1/s", clock=clock), lambda item: None)
    assert screen.seen == [""]
    assert len(listener.reports) == 2


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_a_hold_shows_while_an_item_takes_long(form, screen, monkeypatch):
    """A call waits for the end of a hold in the middle of an item."""
    monkeypatch.setattr(progress_module, "TICK_S", 0.01)
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
        screen.until("0/8 (0%)  ETA 1 s  13 s")
        return False

    assert policy.shaper.reserve()
    form.loop(range(8), policy, body)
    for thread in threads():
        thread.join(PATIENCE_S)
    assert threads() == []


def test_where_no_thread_can_start_the_line_is_still_drawn(form, screen, clock, monkeypatch):
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
from shapekit import Policy
from shapekit.progress import progress
policy = Policy("50/s", max_wait="2h")
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
from shapekit import Policy
from shapekit.progress import progress
items = progress(range(100), Policy("50/s"))
print(next(items), flush=True)
"""


QUIET = """
import logging, sys
from shapekit import Policy
from shapekit.progress import progress
logging.basicConfig(level=logging.INFO)
assert list(progress(range(3), Policy("50/s"))) == [0, 1, 2]
assert not [name for name in sys.modules if name.partition(".")[0] == "rich"]
"""


def test_where_nothing_is_drawn_rich_is_not_loaded():
    run_ = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False)
    assert run_.returncode == 0, run_.stderr
    assert "3/3 (100%)" in run_.stderr


def on_a_terminal(code, columns, interrupted_at=None):
    """The text that a process writes to a terminal of this width, with a stdout that is none."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERM")}
    environment["PYTHONIOENCODING"] = "utf-8"
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
    return raw.decode(), printed.decode()


def test_a_real_terminal_that_is_narrow():
    """A key is held for an hour; the line shows it while the loop waits, until Ctrl-C is pressed."""
    raw, printed = on_a_terminal(LOOP, columns=38, interrupted_at=b"held 59 min")
    assert printed == "left\n"
    assert raw.endswith("\r\n")
    assert raw.count("\n") == 1
    frames = raw.removesuffix("\r\n").split("\r\x1b[2K")
    assert "\x1b" not in "".join(frames), "nothing of the terminal is changed but its line"
    assert max(map(len, frames)) <= 38
    first, *_, held, last, same = (frame.strip() for frame in frames)
    assert re.fullmatch(r"0/100 \(0%\)  ETA \d+ s  \d+ s", first)
    assert re.match(r"20/100 \(20%\)  held 59 min \d+ s ", held)
    assert re.match(r"20/100 \(20%\)  stopped in item 21  in", last)
    assert last == same


def test_an_abandoned_loop_does_not_keep_the_process_alive():
    raw, printed = on_a_terminal(ABANDONED, columns=80)
    assert printed == "0\n"
    assert raw.lstrip().startswith("0/100 (0%)")
    assert re.search(r"0/100 \(0%\)  stopped in item 1  in \d+ s\r\n$", raw)


def test_an_abandoned_loop_in_a_module_with_functions_prints_nothing_at_exit():
    """A function keeps the module's names to the very end, when nothing can be imported any more."""
    raw, printed = on_a_terminal(f"def main(): pass\n{ABANDONED}", columns=80)
    assert printed == "0\n"
    assert "Traceback" not in raw
