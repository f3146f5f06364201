"""StoreConformance: tests that a store keeps all that stores promise.

    from shapekit.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

The tests are plain methods that raise AssertionError; pytest collects them. They need no real time, and no
library beside those of shapekit. The checks themselves come before the class, by theme: keys and names,
closing, time, and many callers at once (threads from a barrier, tasks, tasks that are cancelled).
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from traceback import walk_stack
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from shapekit._runtime.drivers import GIVING_BACK, TASKS, Driver, ThreadCall, Twin, run
from shapekit.algorithms.base import CHECK, FORECAST, PEEK, REFUND
from shapekit.algorithms.compose import all_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.inflight import ENTER, LEAVE, WATCH, Concurrency
from shapekit.algorithms.queue.wire import CONFIRM, HOLD, LOOK, RESERVE, RESUME
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.clock import ManualClock, Sleepers
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key, Operation, Store
from shapekit.testing.identity import AllowedStates, check_identity, same
from shapekit.testing.timelines import GROUPS, Trial, changes, limited, queue

__all__ = ["StoreConformance"]

LONG = "k" * 10_000
TEXTS = (
    "", " ", "a", "A", "a ", " a", "a\n", "a\nb", "a\0", "a:", "a:b", ":a", "::", "a/b", "a,b", "a|b",
    "{", "}", "{a}", "{a", "{}", "a}{b", "*", "?", "[a]", "a*", "a%", "a_", "\\", "'", '"', "$1", "\r\n",
    "ä", "a\u0308", "é", "ÿ", "\xff", "水", "😀", "\u200b", "\u202e", "\ud800", "\udfff", "\\ud800", "?",
    "ss", "ß", "K", "\u212a", "1", "01", "1.0", "None", "null", "true",
    LONG + "1", LONG + "2", "x" * 300, "x" * 301,
)  # fmt: skip
"""Keys and names that a store must keep apart."""
SHOWN = ("a", "a:b", "b", "{a}", "a b", "*", "[a]", "%", "水", "it's", "a\nb")
"""Short texts, which `keys` shows as they are."""

ONE = GCRA("1 per 1000 s", 1)


def agree(got: Any, expected: Any, what: str) -> None:
    """Raise AssertionError unless both are the same in every field."""
    if not same(expected, got):
        raise AssertionError(f"{what}: expected {expected!r}, got {got!r}")


@contextmanager
def raising(error: type[Exception], what: str) -> Iterator[None]:
    """Raise AssertionError unless the block raises this error."""
    try:
        yield
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{what} raised {other!r} instead of {error.__name__}") from other
    raise AssertionError(f"{what} did not raise {error.__name__}")


# keys and names


def keys_stay_apart(store: Store) -> None:
    """Each key has its own state, and `reset` makes only that cold."""
    texts = tuple(dict.fromkeys(TEXTS))
    check = store.bind("keys", ONE, CHECK)
    for text in texts:
        agree(check(text, 1).allowed, True, f"the first call of key {text[:40]!r}")
    for text in texts:
        agree(check(text, 1).allowed, False, f"the second call of key {text[:40]!r}")
    for text in texts:
        store.reset("keys", ONE, text)
        agree(check(text, 1).allowed, True, f"the first call of key {text[:40]!r} after its reset")
        agree(check(text, 1).allowed, False, f"the second call of key {text[:40]!r} after its reset")


def names_stay_apart(store: Store) -> None:
    """Keys of different names are different, wherever name and key are divided in the same text."""
    names = [text for text in dict.fromkeys(TEXTS) if text]
    for key in ("", "a", "b", "b:", "b:b", ":b", ":a:b", "b}", "}b", "/b", "\nb", "\0b"):
        checks = [store.bind(name, ONE, CHECK) for name in names]
        for is_first in (True, False):
            for name, check in zip(names, checks, strict=True):
                agree(check(key, 1).allowed, is_first, f"key {key!r} of name {name[:40]!r}")


def parts_stay_apart(store: Store) -> None:
    """Keys of different parts are different; and a key in parts is not the same as a single key."""
    both = all_of(a=ONE, b=ONE)
    check = store.bind("parts", both, CHECK)
    keys: list[Key] = [("x", "y"), ("y", "x"), ("a:x", "z"), ("", ":x"), "x", "y", "a:x", "('x', 'y')"]
    for is_first in (True, False):
        for key in keys:
            agree(check(key, 1).allowed, is_first, f"key {key!r}")
    for key, taken in ((("x", "new"), "a"), (("fresh", "y"), "b")):
        agree(check(key, 1).binding, taken, f"what denies {key!r}")


def keys_are_shown(store: Store) -> None:
    """`keys` shows live keys as `name:key`, and takes a prefix literally."""
    for name in ("n", "m*"):
        check = store.bind(name, ONE, CHECK)
        for text in SHOWN:
            check(text, 1)
    store.bind("p", all_of(ip=ONE, user=ONE), CHECK)(("::1", "alice"), 1)
    every = [*(f"{name}:{text}" for name in ("n", "m*") for text in SHOWN), "p:ip:::1", "p:user:alice"]
    prefixes = "n: n:a n m m* m*: m*:[a] * n:* n? p:ip: none n:% _"
    for prefix in ("", *prefixes.split(" ")):
        expected = sorted(shown for shown in every if shown.startswith(prefix))
        agree(sorted(store.keys(prefix)), expected, f"keys({prefix!r})")
    for not_text in (5, b"n"):
        with raising(ConfigError, f"keys({not_text!r})"):
            list(store.keys(not_text))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for prefix in ("m*:a", "none", "n:*", "p:ip:", "n:", ""):
        gone = [shown for shown in every if shown.startswith(prefix)]
        agree(store.reset_all(prefix), len(gone), f"reset_all({prefix!r})")
        every = [shown for shown in every if shown not in gone]
        agree(sorted(store.keys()), sorted(every), f"keys() after reset_all({prefix!r})")
    agree(store.bind("n", ONE, CHECK)("a", 1).allowed, True, "a call after reset_all")


def resets_are_complete(store: Store) -> None:
    """A reset makes a key cold, also a key in parts, and also while it is held."""
    both = all_of(a=ONE, b=GCRA("1 per 1000 s", 2))
    check = store.bind("reset", both, CHECK)
    store.reset("reset", both, ("nobody", "nothing"))
    check(("x", "y"), 1)
    store.reset("reset", both, ("x", "y"))
    agree(check(("x", "y"), 1).remaining, 0, "remaining after a reset of both parts")
    paced = queue("1/s")
    bound = ("queue", paced)
    store.bind(*bound, HOLD)("key", 5 * SECOND_US, 1)
    store.reset(*bound, "key")
    agree(store.bind(*bound, RESERVE)("key", (1, 0, 2))[0], True, "a reservation after a reset")


def denials_persist_nothing(store: Store) -> None:
    """A key that was only read, or denied, has no state and is not shown."""
    both = all_of(busy=ONE, idle=ONE)
    check = store.bind("deny", both, CHECK)
    check(("x", "y"), 1)
    agree(check(("x", "new"), 1).allowed, False, "a check whose first part is exhausted")
    agree(check(("new", "y"), 1).allowed, False, "a check whose second part is exhausted")
    bound = ("deny-one", ONE)
    looks: tuple[tuple[Operation, tuple[int, ...]], ...] = ((PEEK, ()), (FORECAST, (1,)), (REFUND, (1, 5)))
    for operation, args in looks:
        store.bind(*bound, operation)("looked at", *args)
    paced = ("deny-queue", queue("1/s"))
    looks = ((CONFIRM, ()), (LOOK, ()), (RESUME, (0,)))
    for operation, args in looks:
        store.bind(*paced, operation)("looked at", *args)
    agree(sorted(store.keys()), ["deny:busy:x", "deny:idle:y"], "the keys after denials and looks")
    agree(check(("new", "new"), 1).allowed, True, "a call of the parts that were denied before")


# names have one kind


def kinds_are_kept_apart(store: Store) -> None:
    """A program of another kind under a name is refused, and no state is lost."""
    kept = (("one", ONE), ("windows", FixedWindow(1, "1h")), ("line", queue("1 per 1000 s")))
    others = (ONE, FixedWindow(1, "1h"), SlidingWindowLog(1, "1h"), Quota("1/day"), all_of(a=ONE, b=ONE))
    for name, program in kept:
        operation: Operation = RESERVE if program.kind == "leaky_queue" else CHECK
        call = store.bind(name, program, operation)
        argument: Any = (1, 0, 7) if operation is RESERVE else 1
        call("key", argument)
        for other in others:
            if other.kind != program.kind:
                with raising(ConfigError, f"a {other.kind} under the name of a {program.kind}"):
                    store.bind(name, other, CHECK)("key", 1)
        again = call("key", argument)
        agree(bool(again[0]), False, f"a second call of the {program.kind} that was there first")


# closing


async def closed_is_closed(driver: Driver, store: Store) -> None:
    """After `close`, which may be called twice, every call raises StoreUnavailableError, and none waits."""
    waiters = Sleepers(store.clock, "conformance")
    store.wakes(waiters)
    check, peek = (store.twin("end", ONE, operation) for operation in (CHECK, PEEK))
    many = Twin(store.bind_many("end", ONE, CHECK), store.abind_many("end", ONE, CHECK))
    await driver.ask(check, "key", 1)
    for _ in range(2):
        await driver.ask(Twin(store.close, store.aclose))
    agree(waiters.is_closed, True, "whether close wakes waiting calls, by Store.wake()")
    calls: dict[str, tuple[Twin[Any], tuple[Any, ...]]] = {
        "check": (check, ("key", 1)),
        "check of a cold key": (check, ("new", 1)),
        "check of many keys": (many, (("key", "new"), (1,))),
        "peek": (peek, ("key",)),
        "reset": (Twin(store.reset, store.areset), ("end", ONE, "key")),
    }
    for name, (call, args) in calls.items():
        with raising(StoreUnavailableError, f"{name} after close"):
            await driver.ask(call, *args)
    with raising(StoreUnavailableError, "reset_all after close"):
        store.reset_all()
    with raising(StoreUnavailableError, "keys after close"):
        list(store.keys())


class CountedClock(ManualClock):
    """A clock that goes on by a microsecond with each reading, and records the readings."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.reads: list[int] = []

    def now_us(self) -> int:
        now = super().now_us()
        self.reads.append(now)
        self.advance(0.000_001)
        return now

    def wall_us(self) -> int:
        # The last reading: asking for both times counts as one reading.
        return self.reads[-1] if self.reads else super().wall_us()


def one_instant(make_store: Callable[[ManualClock], Store]) -> None:
    """A call reads the clock once, for however many keys, and decides by that reading."""
    program = GCRA("7/s", 2)
    clock = CountedClock(10**6)
    truth = AllowedStates(0)
    with closing(make_store(clock)) as store:
        check = store.bind("instant", program, CHECK)
        peek = store.bind("instant", program, PEEK)
        many = store.bind_many("instant", program, CHECK)
        calls: list[tuple[Operation, list[str], Callable[[], list[Any]]]] = [
            (CHECK, ["a", "b", "a", "c"], lambda: many(["a", "b", "a", "c"], (1,))),
            (CHECK, ["a"], lambda: [check("a", 1)]),
            (PEEK, ["a"], lambda: [peek("a")]),
        ]
        for operation, keys, call in calls * 4:
            clock.reads.clear()
            answers = call()
            agree(len(clock.reads), 1, f"how often one {operation} of {keys} read the clock")
            args = (1,) if operation is CHECK else ()
            for key, answer in zip(keys, answers, strict=True):
                lawful = truth.hear(program, operation, key, args, (clock.reads[0], 0), answer)
                if lawful:
                    raise AssertionError(f"{operation}({key!r}): expected {lawful[0]!r}, got {answer!r}")


def going_back_mints_nothing(make_store: Callable[[ManualClock], Store], seed: str) -> None:
    """However far the clock goes back, no more is admitted than up to the highest time it has shown."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated
    start_us, period_us, limit = 10**15, 1_000 * SECOND_US, 5
    programs: tuple[Any, ...] = (
        GCRA("5 per 1000 s", 5),
        FixedWindow("5 per 1000 s"),
        SlidingWindowLog("5 per 1000 s"),
        Quota("5/fixed:1000s"),
    )
    for program in programs:
        clock = ManualClock(start_us / SECOND_US)
        with closing(make_store(clock)) as store:
            check = store.bind("back", program, CHECK)
            admitted = {"early": 0, "always": 0}
            highest_us = start_us
            for visit in range(120):
                # Far apart, with enough calls of other keys at the late instants for idle keys to be dropped.
                late = visit % 2 == 1
                now_us = (
                    start_us + rng.randint(0, SECOND_US) + late * (3 * period_us + 20 * visit * SECOND_US)
                )
                highest_us = max(highest_us, now_us)
                clock.set(now_us / SECOND_US)
                for passing in range(4 * late):
                    check(f"passing-{visit}-{passing}", 1)
                for key in ("always",) if late else admitted:
                    admitted[key] += sum(check(key, 1).allowed for _ in range(limit + 1))
                most = limit * ((highest_us - start_us) // period_us + 2)
                if max(admitted.values()) > most:
                    raise AssertionError(
                        f"{program!r} admitted {admitted} until {highest_us - start_us} µs after the start, "
                        f"while the clock went back and forth: at most {most} can be right"
                    )


THREADS = 8
_PATIENCE_S = 30.0
"""How long, in real time, a test waits for anything."""

LOOPS = ("asyncio", *(("trio",) if find_spec("trio") else ()))
"""The event loops that are installed."""


def on_each_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it on asyncio, and on trio if that is installed."""
    for backend in LOOPS:
        try:
            anyio.run(work, backend=backend)
        except AssertionError as error:
            raise AssertionError(f"on {backend}: {error}") from error


def crowd(jobs: Sequence[Callable[[], None]]) -> None:
    """Run each job in its own thread, all from one barrier; raises the first error of a job."""
    barrier = threading.Barrier(len(jobs), timeout=_PATIENCE_S)
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            barrier.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
        if thread.is_alive():
            raise AssertionError(f"a thread has not ended within {_PATIENCE_S} s")
    if errors:
        raise errors[0]


def threads_admit_the_limit(*stores: Store) -> None:
    """Of more calls than the limit, from 8 threads at once, exactly the limit is admitted, for each kind."""
    limit = 40
    for kind, program in limited(limit).items():
        answers = _from_threads(stores, f"crowd-{kind}", program, CHECK, lambda: 1)
        admitted = sum(decision.allowed for decision in answers)
        agree(admitted, limit, f"calls of {THREADS} threads that got through {program!r}")


def threads_share_a_grid(*stores: Store) -> None:
    """Reservations of 8 threads are on one grid: every slot is granted, and none of them twice."""
    program, nonces = queue("10/s"), count(1)
    grants = _from_threads(stores, "crowd-queue", program, RESERVE, lambda: (1, None, next(nonces)))
    agree(
        sorted(grant[2] for grant in grants),
        _grid(stores[0], len(grants)),
        f"departures of {THREADS} threads at 10/s",
    )


def _from_threads(
    stores: Sequence[Store], name: str, program: Any, operation: Operation, new_argument: Callable[[], Any]
) -> list[Any]:
    """The answers to more calls of one key than any limit here admits."""
    bound = [store.bind(name, program, operation) for store in stores]
    answers: list[Any] = []

    def job(call: Callable[..., Any]) -> None:
        results = [call("key", new_argument()) for _ in range(8)]
        answers.extend(results)

    crowd([partial(job, bound[n % len(bound)]) for n in range(THREADS)])
    agree(len(answers), 8 * THREADS, "calls that were answered")
    return answers


def threads_share_permits(*stores: Store) -> None:
    """Of 8 threads, no more hold a permit at once than there are permits, and all get one in the end."""
    permits, visits = 3, 4
    lock, inside, most, order = threading.Lock(), [0], [0], list[int]()
    program = Concurrency(permits, "1h")

    def visit(owner: int) -> None:
        store = stores[owner % len(stores)]
        enter, watch, leave = (store.bind("crowd-permits", program, each) for each in (ENTER, WATCH, LEAVE))
        for number in range(1, visits + 1):
            # Without a clock: a call that waits in line asks until it has a permit.
            place, _ = enter("key", owner, number, 1)
            while place and number not in watch("key", owner)[1:]:
                pass
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                order.append(owner)
            with lock:
                inside[0] -= 1
            leave("key", owner, number)

    crowd([partial(visit, owner) for owner in range(THREADS)])
    agree(len(order), THREADS * visits, "visits that got a permit")
    if most[0] > permits:
        raise AssertionError(f"{most[0]} threads held {permits} permits")
    for store in stores:
        state, now, _ = store.bind("crowd-permits", program, LOOK)("key")
        agree(
            program.standing(state, now),
            (0, 0),
            "which calls are in flight and which wait when all have left",
        )


def _grid(store: Store, slots: int) -> list[int]:
    start_us = store.clock.now_us()
    return [start_us + slot * SECOND_US // 10 for slot in range(slots)]


def two_see_one_state(one: Store, other: Store) -> None:
    """A charge through one store object is seen through the other; a reset makes the key cold for both."""
    for kind, program in limited(3).items():
        checks = [store.bind(f"both-{kind}", program, CHECK) for store in (one, other, one, other)]
        agree([check("key", 1).allowed for check in checks], [True, True, True, False], f"calls of {kind}")
        other.reset(f"both-{kind}", program, "key")
        agree(checks[0]("key", 1).allowed, True, f"a call of {kind} after a reset by the other store")
    agree(sorted(one.keys()), sorted(other.keys()), "the keys that both stores show")


# keys together


async def many_agree(driver: Driver, store: Store) -> None:
    """Each of many keys, also one that comes twice, is answered in turn as by the pure program."""
    for kind, trials in GROUPS.items():
        program, (operation, args) = trials()[0].program, _operation_of(kind)
        bound = f"many-{kind}", program, operation
        ask = Twin(store.bind_many(*bound), store.abind_many(*bound))
        now = store.clock.now_us()
        at = (now, store.clock.wall_us() - now)
        truth = AllowedStates(now)
        for keys in (["a", "b", "a", "c"], [], ["b", "b", "b", "b", "b"]):
            answers = await driver.ask(ask, keys, args)
            agree(len(answers), len(keys), f"how many answers {operation} gave for {keys}")
            for key, answer in zip(keys, answers, strict=True):
                if lawful := truth.hear(program, operation, key, args, at, answer):
                    problem = f"{operation} of {key!r} in {keys}: expected {lawful[0]!r}, got {answer!r}"
                    raise AssertionError(problem)


def _operation_of(kind: str) -> tuple[Operation, tuple[Any, ...]]:
    if kind == "concurrency":
        return ENTER, (1, 77, 1)
    return (RESERVE, ((1, SECOND_US, 77),)) if kind.endswith("_queue") else (CHECK, (1,))


# tasks


async def tasks_admit_the_limit(store: Store) -> None:
    """Of more tasks at once than the limit, exactly the limit is admitted, for each kind."""
    limit = 20
    for kind, program in limited(limit).items():
        check = store.abind(f"tasks-{kind}", program, CHECK)
        admitted: list[bool] = []

        async def call(check: Callable[..., Awaitable[Any]] = check, results: list[bool] = admitted) -> None:
            results.append((await check("key", 1)).allowed)

        with anyio.fail_after(_PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(2 * limit):
                    tasks.start_soon(call)
        agree(sum(admitted), limit, f"tasks that got through {program!r}")
        agree(len(admitted), 2 * limit, "tasks that were answered")


async def cancelled_callers_give_back(store: Store) -> None:
    """A caller that is cancelled at once is charged nothing: only answered calls stay charged."""
    program = SlidingWindowLog("40/h")
    check = store.abind("cancelled", program, CHECK)
    answered = await _with_every_other_cancelled(lambda: check("key", 1), 20)
    peek = store.abind("cancelled", program, PEEK)
    with anyio.move_on_after(_PATIENCE_S):
        while (await peek("key")).current > len(answered):
            await checkpoint()
    agree((await peek("key")).current, len(answered), "units that cancelled checks have left charged")

    paced = queue("10/s")
    reserve = store.abind("cancelled-queue", paced, RESERVE)
    taken = await _with_every_other_cancelled(lambda: reserve("key", (1, None, 77)), 20)
    while len(taken) < 20:
        taken.append(await reserve("key", (1, None, 77)))
    agree(sorted(grant[2] for grant in taken), _grid(store, 20), "departures after cancelled reservations")


async def cancelled_callers_leave(store: Store) -> None:
    """A caller that is cancelled at once has neither a permit nor a place in line: only answered calls do."""
    program, numbers = Concurrency(5, "1h"), count(1)
    enter = store.abind("cancelled-permits", program, ENTER)
    answered = await _with_every_other_cancelled(lambda: enter("key", 1, next(numbers), 1), 20)
    look = store.abind("cancelled-permits", program, LOOK)

    async def standing() -> tuple[int, int]:
        state, now, _ = await look("key")
        return program.standing(state, now)

    with anyio.move_on_after(_PATIENCE_S):
        while sum(await standing()) > len(answered):
            await checkpoint()
    flying = min(5, len(answered))
    agree(
        await standing(),
        (flying, len(answered) - flying),
        "which calls are in flight and which wait after cancelled callers",
    )


async def _with_every_other_cancelled(ask: Callable[[], Awaitable[Any]], callers: int) -> list[Any]:
    answered: list[Any] = []
    scopes = [anyio.CancelScope() for _ in range(callers)]

    async def call(scope: anyio.CancelScope) -> None:
        with scope:
            answered.append(await ask())

    with anyio.fail_after(_PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(call, scope)
            await checkpoint()
            for scope in scopes[::2]:
                scope.cancel()
        while _is_errand_under_way():
            await checkpoint()
    return answered


def _is_errand_under_way() -> bool:
    """Whether a thread still works for a task that has gone, or gives back what it took."""
    if any(thread.name == GIVING_BACK for thread in threading.enumerate()):
        return True
    work = ThreadCall.work.__code__
    frames = sys._current_frames()  # noqa: SLF001 - documented, despite its name
    return any(frame.f_code is work for top in frames.values() for frame, _ in walk_stack(top))


_START_S = 10**9

Test: TypeAlias = "Callable[[StoreConformance], None]"


def _on_a_store(work: Callable[[Store], object]) -> Test:
    def test(self: StoreConformance) -> None:
        with closing(self.make_store(ManualClock(_START_S))) as store:
            work(store)

    return test


def _on_two(work: Callable[..., object]) -> Test:
    """A test on two store objects with the same states; if the store is not shared, on one object twice."""

    def test(self: StoreConformance) -> None:
        clock = ManualClock(_START_S)
        with (
            closing(self.make_store(clock)) as one,
            closing(self.same_store(one, clock) if one.shared else one) as other,
        ):
            work(one, other)

    return test


def _awaited(work: Callable[[Store], Awaitable[None]]) -> Test:
    """A test on each event loop, with a new store."""

    def test(self: StoreConformance) -> None:
        async def once() -> None:
            async with aclosing(self.make_store(ManualClock(_START_S))) as store:
                await work(store)

        on_each_loop(once)

    return test


class StoreConformance:
    """Tests for your own store: subclass this, define `make_store`, and let pytest collect it.

    The identity tests run generated timelines of operations on the store, and compare every field of every
    answer with the answer of the pure program. `timelines` is how many there are for each algorithm, `steps`
    how many operations each of them has; the same `seed` always gives the same timelines. The other tests
    check the other promises of a store, about keys, names, time, threads, tasks and closing.
    """

    timelines = 200
    """How many timelines are run for each algorithm."""
    steps = 10
    """How many operations each of them has."""
    seed = "shapekit"
    """The seed that the timelines are generated from."""

    def make_store(self, clock: ManualClock) -> Store:
        """Return a new, empty store that uses this clock. It is called often; the tests close the stores."""
        raise NotImplementedError("define how to make a store: def make_store(self, clock): return …")

    def same_store(self, store: Store, clock: ManualClock) -> Store:
        """Return another store with the states of `store`; called only if `store.shared`."""
        raise NotImplementedError("define how a second process opens the same states: def same_store(…)")

    # the same answers

    # Below the class: test_gcra_answers_as_the_program, and so on for each of GROUPS.

    def test_changed_numbers_continue_where_the_old_ones_stood(self) -> None:
        self._identical(f"{self.seed}-change", changes())

    def test_awaited_calls_answer_as_the_program(self) -> None:
        async def work() -> None:
            for kind, trials in GROUPS.items():
                for number, trial in enumerate(trials()[::4]):
                    name = f"{self.seed}-awaited-{kind}-{number}"
                    await check_identity(TASKS, self.make_store, name, (trial,), 3, self.steps)

        on_each_loop(work)

    test_many_keys_are_answered_in_turn = _on_a_store(lambda store: run(many_agree, store))
    test_awaited_many_keys_are_answered_in_turn = _awaited(partial(many_agree, TASKS))

    # time

    def test_a_call_reads_the_clock_once(self) -> None:
        one_instant(self.make_store)

    def test_going_back_mints_nothing(self) -> None:
        going_back_mints_nothing(self.make_store, self.seed)

    # keys and names

    test_no_two_keys_merge = _on_a_store(keys_stay_apart)
    test_no_two_names_merge = _on_a_store(names_stay_apart)
    test_no_two_parts_merge = _on_a_store(parts_stay_apart)
    test_keys_and_reset_all_go_by_prefix = _on_a_store(keys_are_shown)
    test_a_reset_key_is_cold = _on_a_store(resets_are_complete)
    test_denials_and_looks_persist_nothing = _on_a_store(denials_persist_nothing)
    test_another_kind_under_a_name_is_refused = _on_a_store(kinds_are_kept_apart)

    # many at once

    test_threads_are_admitted_exactly_to_the_limit = _on_two(threads_admit_the_limit)
    test_threads_share_one_grid = _on_two(threads_share_a_grid)
    test_two_objects_see_one_truth = _on_two(two_see_one_state)
    test_tasks_are_admitted_exactly_to_the_limit = _awaited(tasks_admit_the_limit)
    test_cancelled_callers_give_their_slots_back = _awaited(cancelled_callers_give_back)
    test_threads_are_never_more_than_the_permits = _on_two(threads_share_permits)
    test_cancelled_callers_give_their_permits_back = _awaited(cancelled_callers_leave)

    # the end

    test_a_closed_store_is_unavailable = _on_a_store(lambda store: run(closed_is_closed, store))
    test_an_aclosed_store_is_unavailable = _awaited(partial(closed_is_closed, TASKS))

    # how

    def _identical(self, name: str, groups: Sequence[tuple[Trial, ...]]) -> None:
        count = -(-self.timelines // len(groups))
        for number, trials in enumerate(groups):
            run(check_identity, self.make_store, f"{name}-{number}", trials, count, self.steps)


def _answers_as_the_program(kind: str) -> Test:
    def test(self: StoreConformance) -> None:
        self._identical(f"{self.seed}-{kind}", [(trial,) for trial in GROUPS[kind]()])

    return test


for _kind in GROUPS:
    setattr(StoreConformance, f"test_{_kind}_answers_as_the_program", _answers_as_the_program(_kind))
