"""Progress: wraps a loop whose items make shaped calls, and shows how far it is and when it will end.

>>> from shapekit import Policy
>>> from shapekit.progress import progress
>>> stripe = Policy("10/s")
>>> for number in progress(range(3), stripe):
...     with stripe.admit():
...         print("call", number)
call 0
call 1
call 2

The policy forecasts the rest from the state of the key, with its rate, holds, quotas and the calls of other
processes. If the loop is slower than its limits, its own pace decides. On a terminal, rich draws the
progress; otherwise it is logged:

>>> in_log(Report(370, 1_000, 37.0, 63.0, 12.0, 0.0, 1_795_305_600.0))
'370/1,000 (37%), 37 s, 10.0/s, held 12 s, ETA 1 min 3 s'
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sized
from contextlib import suppress
from datetime import UTC, datetime
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from shapekit._runtime.drivers import TASKS, Driver, ThreadAlarm, run
from shapekit._runtime.process import SWITCH, from_signal, rlock
from shapekit.algorithms.base import check_cost
from shapekit.decorator import Calls
from shapekit.errors import ConfigError, ShapekitError, StoreUnavailableError
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, whole
from shapekit.shaper import Shaper

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["aprogress", "progress"]

MINUTE, HOUR, DAY = 60, 3_600, 86_400
_UNITS = ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s"))
TRIP_US = SECOND_US  # how long a remote store's answer is reused; meanwhile the display counts down
OUTAGE_US = 10 * SECOND_US  # the pause before a store that did not answer is asked again
PLAY_US = 2_000  # how long a forecast is reused, per call: some fifty times what the slowest takes
MOST_PLAY_US = 10 * SECOND_US  # how long at most: no forecast takes more than a fiftieth of this
PLAYED_AT_ONCE = 200  # the most calls simulated between two items, in 8 ms at most; more on a thread
TICK_S = 0.5  # how often, in real time, a thread checks for an item that takes long
SMOOTH = 4  # the newest item has a weight of one in this many in the estimated work per item

log = logging.getLogger("shapekit.progress")
T = TypeVar("T")


class Report(NamedTuple):
    """The progress of a loop, in items and seconds."""

    done: int
    total: int | None
    elapsed: float
    eta: float | None  # until the last item is done; None if unknown
    held: float
    continues: float  # until a spent quota lets the next call leave; 0 if none is spent
    at: float  # epoch seconds
    ending: str | None = None  # empty after a normal end; None while the loop runs


class Log:
    """Writes progress to the log: every ten seconds at first, then less often, down to every ten minutes."""

    is_live = False

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_heard(self) -> bool:
        return log.isEnabledFor(logging.INFO)

    def pause_us(self, elapsed_us: int) -> int:
        return min(max(elapsed_us, 10 * SECOND_US), 10 * MINUTE * SECOND_US)

    def tell(self, report: Report) -> None:
        log.info("%s: %s", self._name, in_log(report), extra={"progress": report._asdict()})

    def close(self) -> None:
        """Nothing to release."""


class Terminal:
    """Draws a bar and a line in place with rich, at most ten times a second; the last line stays."""

    is_live = is_heard = True

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - an extra
        from rich.table import Column  # noqa: PLC0415

        # On a narrow terminal the bar shrinks first, then the line is cut.
        cut = Column(no_wrap=True, overflow="crop" if console.options.ascii_only else "ellipsis")
        columns = BarColumn(30), TextColumn("{task.description}", markup=False, table_column=cut)
        self._console = console
        # Printed output is not redirected: stdout may be a file, and rich would send it to the terminal.
        self._bar = Progress(
            *columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._bar.add_task("", total=None)

    def pause_us(self, elapsed_us: int) -> int:
        return SECOND_US // 10

    def tell(self, report: Report) -> None:
        count, passed, coming = _parts(report)
        line = "  ".join((count, *coming, *passed))
        try:
            self._bar.update(
                self._task, completed=report.done, total=report.total, description=line, refresh=True
            )
            self._bar.start()  # draws, the first time
        except (OSError, ValueError, ImportError):
            # The terminal is gone, or the interpreter is ending and rich cannot import: the loop goes on.
            self._console.quiet = True

    def close(self) -> None:
        try:
            self._bar.stop()
        except ImportError:
            pass  # as in `tell`
        except Exception as error:
            # If a signal interrupted rich's start, its stop fails too: the loop's own error is raised.
            if from_signal(error):
                raise
        finally:
            _DRAWN.discard(self)


_DRAWN: WeakSet[Terminal] = WeakSet()
"""The output that draws: a terminal has room for one loop, and a second one goes to the log. The output of a
loop that is interrupted before it begins leaves this set when it is collected.
"""


def opened(name: str) -> Terminal | Log:
    """The output: the terminal if stderr is one and rich is installed, otherwise the log."""
    stream = sys.stderr
    try:
        if stream is None or not stream.isatty():
            return Log(name)
        from rich.console import Console  # noqa: PLC0415 - an extra, and slow to load
    except (ValueError, ModuleNotFoundError):  # ValueError: the stream is closed
        return Log(name)

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True  # rich would end the process

        def show_cursor(self, show: bool = True) -> bool:
            return False  # a killed process could not show the cursor again

    console = Screen(file=stream)
    if console.is_interactive:
        terminal = Terminal(console)
        # Without a lock, which a signal handler could leak: two threads that come at once may both log.
        _DRAWN.add(terminal)
        if len(_DRAWN) == 1:
            return terminal
        _DRAWN.discard(terminal)
    return Log(name)


def in_log(report: Report) -> str:
    """The progress as one line of text."""
    count, passed, coming = _parts(report)
    return ", ".join((count, *passed, *coming))


def _parts(report: Report) -> tuple[str, list[str], list[str]]:
    """The count, what has passed, and what is to come or how the loop ended."""
    share = f" ({100 * report.done // report.total}%)" if report.total else ""
    count = f"{report.done:,} done" if report.total is None else f"{report.done:,}/{report.total:,}{share}"
    passed = [("" if report.ending is None else "in ") + span(report.elapsed)]
    if report.done and report.elapsed > 0:
        passed.append(_rate(report.done / report.elapsed))
    if report.ending is not None:
        return count, passed, [report.ending] if report.ending else []
    coming = []
    if report.continues > report.held:
        near = "in " if report.continues < HOUR else ""
        coming.append(f"continues {near}{_then(report.continues, report.at, HOUR)}")
    elif report.held > 0:
        coming.append(f"held {span(math.ceil(report.held))}")
    if report.eta is not None:
        coming.append(f"ETA {_then(report.eta, report.at, DAY)}")
    return count, passed, coming


def _rate(per_second: float) -> str:
    for seconds, unit in ((1, "s"), (MINUTE, "min"), (HOUR, "h")):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,.1f}/{unit}"
    return f"{per_second * DAY:,.1f}/d"


def _then(seconds: float, at: float, near: int) -> str:
    """The time left if it is short, else the date, in local time."""
    if seconds < near:
        return span(math.ceil(seconds))
    if seconds > 36_525 * DAY:
        return "in more than a century"
    now, then = (datetime.fromtimestamp(instant, UTC).astimezone() for instant in (at, at + seconds))
    day = "" if then.date() == now.date() else f"{then.day} {then:%b} "
    return day + ("" if then.year == now.year else f"{then.year} ") + f"{then:%H:%M}"


def span(seconds: float) -> str:
    """A span in its two largest units, rounded down to whole seconds.

    >>> span(0.9), span(96), span(7_200), span(100_000)
    ('0 s', '1 min 36 s', '2 h', '1 d 3 h')
    """
    left = int(seconds)
    for large, large_unit, small, small_unit in _UNITS:
        if left >= large:
            more = left % large // small
            return f"{left // large:,} {large_unit}" + (f" {more} {small_unit}" if more else "")
    return f"{left} s"


class Loop(NamedTuple):
    """The loop's subject: items, each of which makes a call on `key` that costs `cost`."""

    shaper: Shaper
    key: str
    cost: int
    total: int | None
    enforced: bool


class Watch:
    """Follows one loop from start to end; all instants are on the clock that its calls sleep by."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._clock = loop.shaper.core.store.clock
        self.now_us = self._clock.now_us
        self.done = 0  # how many items are done
        self.due_us = 0  # when the next `step` is due
        self._began_us = self._told_us = self._next_us = self._ask_us = self._play_us = self.now_us()
        self._end_us: int | None = None  # when the last item will be done, without `_shift_us`
        self._shift_us = 0  # by how much holds have shifted all calls of the key
        self._shifted_us: int | None = None  # by how much they had before the loop began
        self._held_until_us = self._continues_us = 0
        # When an item was handed out, and its call's wait at that time; and once it is done, the time it took
        # beyond that wait, which is work unless the key was held.
        self._in_hand: tuple[int, int] | None = None
        self._timed: tuple[int, int] | None = None
        self._work_us: float | None = None  # how long the work for an item takes
        self._player: threading.Thread | None = None
        self._sees_holds = True
        self._over = ThreadAlarm()
        # Reentrant: the garbage collector may end an abandoned loop at any point, on any thread.
        self._lock = rlock()
        self._output = opened(loop.shaper.name)

    def begin(self) -> None:
        """Watch for items that take long, until `end`."""
        if self._output.is_live:
            _start(threading.Thread(target=self._tick_on, name="shapekit-progress"))

    async def step(self, driver: Driver) -> None:
        """Called between two items."""
        now = self.now_us()
        if self._in_hand is not None:
            (since_us, wait_us), self._in_hand = self._in_hand, None
            self._timed = (since_us, max(0, now - since_us - wait_us))
        is_time = now >= self._next_us
        if is_time and not self._output.is_heard:
            self._next_us = now + self._output.pause_us(now - self._began_us)
            is_time = False
        self.due_us = self._next_us
        if not is_time:
            return
        if not self._is_shaped():
            self._worked(0)
            self._in_hand = (now, 0)
        elif now >= self._ask_us:
            self._ask_us = now + OUTAGE_US
            with suppress(StoreUnavailableError):
                self._hear(await driver.ask(self._loop.shaper.core.look, self._loop.key))
        self._tell()

    def tick(self) -> None:
        """Called during an item that takes long: counts down, and notices a hold placed meanwhile."""
        if self.now_us() - self._told_us < SECOND_US:
            return
        if self._sees_holds and self._is_shaped():
            try:
                key_state = run(self._loop.shaper.core.status.ask, self._loop.key)
            except ShapekitError:
                self._sees_holds = False  # the store is gone, or async-only
            else:
                self._shift_us, self._held_until_us = (
                    key_state.shift_us,
                    key_state.until_us + key_state.ahead_us,
                )
        self._tell()

    def end(self, handed: int, *, is_through: bool) -> None:
        """End the loop, after `handed` items were handed out."""
        ending = "stopped" if handed == self.done else f"stopped in item {handed:,}"
        try:
            with self._lock:
                try:
                    self._tell("" if is_through else ending)
                finally:
                    self._over.set()
        finally:
            self._output.close()

    def _is_shaped(self) -> bool:
        return self._loop.enforced and not SWITCH.offs

    def _hear(self, looked: tuple[Any, int, int]) -> None:
        """Record the state of the key, and forecast when the last call leaves, as `forecast` does."""
        shaper, _, cost, total, _ = self._loop
        state, at, skew = looked
        now, queue = self.now_us(), shaper.core.queue_of(self._loop.key)
        self._ask_us = now if shaper.core.store.instant else now + TRIP_US
        _, shift, until, *_ = queue.confirm(state, at)
        self._shift_us, self._held_until_us = shift, now + until - at
        if self._shifted_us is None:
            self._shifted_us = shift - max(0, until - at)
        self._worked(self._held_until_us)
        # Without max_wait, only a spent quota refuses, and says for how long. The slot is not kept.
        # A cost above an operator's override is never admitted: until that ends, there is no forecast.
        is_too_dear = cost > queue.max_cost
        accepted, wait = (True, 0) if is_too_dear else queue.reserve(state, at, (cost, None, 0), skew)[1][:2]
        self._continues_us = 0 if accepted else now + wait
        self._in_hand = (now, wait)
        self._sees_holds = True
        rest = 0 if total is None else total - self.done

        def play() -> None:
            try:
                last = queue.outlook(state, at, rest, cost, skew)[1] if rest > 0 else 0
            except ConfigError:  # Too many calls for limits that have to be simulated.
                self._end_us = None
            else:
                self._end_us = now - shift + last

        if is_too_dear:
            self._end_us = None
        elif rest <= 0 or not queue.constraints.algorithms:
            play()
        elif now >= self._play_us and (self._player is None or not self._player.is_alive()):
            self._play_us = now + min(rest * PLAY_US, MOST_PLAY_US)
            if rest <= PLAYED_AT_ONCE:
                play()
            else:
                self._player = threading.Thread(target=play, daemon=True)
                _start(self._player)

    def _worked(self, held_until_us: int) -> None:
        """Count the time of the last item as work, unless the key was held."""
        if self._timed is None:
            return
        (since_us, work_us), self._timed = self._timed, None
        if since_us >= held_until_us:
            before = work_us if self._work_us is None else self._work_us
            self._work_us = before + (work_us - before) / SMOOTH

    def _tell(self, ending: str | None = None) -> None:
        with self._lock:
            if self._over.is_set():
                return
            now = self._told_us = self.now_us()
            passed_us = now - self._began_us
            spans_us = passed_us, self._held_until_us - now, self._continues_us - now
            elapsed, held, continues = (max(0, span_us) / SECOND_US for span_us in spans_us)
            eta, at = self._eta(now), self._clock.wall_us() / SECOND_US
            self._output.tell(Report(self.done, self._loop.total, elapsed, eta, held, continues, at, ending))
            self._next_us = now + self._output.pause_us(passed_us)
            self.due_us = self._next_us if self._in_hand is None else 0

    def _eta(self, now: int) -> float | None:
        """The time that the limits require or the work takes, whichever is longer."""
        if self._loop.total is None:
            return None
        work_us = None
        if self._work_us is not None:
            # A few items are a rough sample, so the work per item is at most the average of all items,
            # without holds.
            spent_us = now - self._began_us - (self._shift_us - (self._shifted_us or 0))
            rest = max(0, self._loop.total - self.done)
            work_us = rest * min(self._work_us, max(0, spent_us) / max(1, self.done))
        if not self._is_shaped():
            return None if work_us is None else work_us / SECOND_US
        if self._end_us is None:
            return None
        return max(0, self._end_us + self._shift_us - now, work_us or 0) / SECOND_US

    def _tick_on(self) -> None:
        # Not a daemon: that could be stopped in the middle of a write when the interpreter ends.
        while threading.main_thread().is_alive() and not self._over.wait(TICK_S):
            self.tick()


def _start(thread: threading.Thread) -> None:
    with suppress(RuntimeError):  # without a thread the loop still works
        thread.start()


class Shaped(Protocol):
    """An object with a policy, such as a function under `@shaped`."""

    @property
    def policy(self) -> Policy: ...


Subject: TypeAlias = Policy | Shaper | Shaped


def progress(
    items: Iterable[T],
    policy: Subject,
    *,
    total: int | None = None,
    key: str | None = None,
    cost: int | None = None,
) -> Generator[T, None, None]:
    """Iterate over items, and show how far the loop is and when it will end.

    Each item is expected to make one call under `policy`: a Policy, a Shaper or a function under `@shaped`.
    `progress` itself admits nothing; the calls do. On a terminal, rich (the extra `progress`) draws on
    stderr; otherwise the logger `shapekit.progress` logs at INFO, less and less often.

    - `total`: the number of items, if they have no `len`.
    - `key`, `cost`: those of each call, if the policy's own depend on the call.
    """
    return _watched(items, _loop(policy, _total(items, total), key, cost))


def aprogress(
    items: AsyncIterable[T] | Iterable[T],
    policy: Subject,
    *,
    total: int | None = None,
    key: str | None = None,
    cost: int | None = None,
) -> AsyncGenerator[T, None]:
    """`progress` for `async for`, over synchronous or asynchronous items.

    An async generator passed as `items` is closed with the loop. If you leave a loop early, close it with
    `aclosing`, as any async generator.
    """
    return _awatched(items, _loop(policy, _total(items, total), key, cost))


def _watched(items: Iterable[T], loop: Loop) -> Generator[T, None, None]:
    handed, is_through, watch = 0, False, Watch(loop)
    now_us = watch.now_us
    try:
        watch.begin()
        run(watch.step)
        for item in items:
            handed += 1
            yield item
            watch.done = handed
            if now_us() >= watch.due_us:
                run(watch.step)
        is_through = True
    finally:
        watch.end(handed, is_through=is_through)


async def _awatched(items: AsyncIterable[T] | Iterable[T], loop: Loop) -> AsyncGenerator[T, None]:
    source = aiter(items if isinstance(items, AsyncIterable) else _one_by_one(items))
    handed, is_through, watch = 0, False, Watch(loop)
    now_us = watch.now_us
    try:
        watch.begin()
        await watch.step(TASKS)
        async for item in source:
            handed += 1
            yield item
            watch.done = handed
            if now_us() >= watch.due_us:
                await watch.step(TASKS)
        is_through = True
    finally:
        watch.end(handed, is_through=is_through)
        if isinstance(source, AsyncGeneratorType):
            await source.aclose()


async def _one_by_one(items: Iterable[T]) -> AsyncGenerator[T, None]:
    for item in items:
        yield item


def _loop(subject: Subject, total: int | None, key: str | None, cost: int | None) -> Loop:
    own_key: Any = "default"
    charge: Any = 1
    if isinstance(subject, Shaper):
        shaper, enforced = subject, True
    else:
        # A shaped function may have its own key and cost in addition to its policy's.
        calls = getattr(getattr(subject, "forecast", None), "__self__", None)
        policy = subject if isinstance(subject, Policy) else getattr(subject, "policy", None)
        if not isinstance(policy, Policy):
            fix = 'pass a Policy("10/s"), a Shaper, a shaped function, or one of LLMBudget(…).policies'
            raise ConfigError("policy", subject, "has no policy", fix)
        shaper, enforced = policy.shaper, policy.enforce
        own_key, charge = (calls.key, calls.cost) if isinstance(calls, Calls) else (policy.key, policy.cost)
    own_key = _common("key", key, own_key, str, 'name the key: progress(items, policy, key="…")')
    charge = _common("cost", cost, charge, int, "give the cost of each call: progress(items, policy, cost=…)")
    check_cost(charge, shaper.core.queue_of(own_key).max_cost, own_key, "limit", shaper.name)
    return Loop(shaper, own_key, charge, total, enforced)


def _common(field: str, value: Any, own: Any, kind: type, fix: str) -> Any:
    """The value given, or else the policy's own if it is the same for all calls."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(field, value, f"is not of type {kind.__name__}", fix)
    if value is None and not isinstance(own, kind):
        raise ConfigError(field, None, "depends on the call", fix)
    return own if value is None else value


def _total(items: object, total: int | None) -> int | None:
    if total is not None:
        return whole("total", total, least=0)
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:  # the class may have a length that the object lacks
        return None
