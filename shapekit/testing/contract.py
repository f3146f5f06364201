"""What a store promises beside its answers: about keys, names, and its end.

What a store promises about time: one reading per call, and nothing gained by a clock that goes back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shapekit._runtime.sleepers import Sleepers
from shapekit.algorithms.base import CHECK, FORECAST, PEEK, REFUND
from shapekit.algorithms.compose import all_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.queue.queue import CONFIRM, HOLD, LOOK, RESERVE, RESUME
from shapekit.algorithms.quota.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.clock import ManualClock
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key, Operation, Store
from shapekit.testing.timelines import queue
from shapekit.testing.truth import Truth, same

LONG = "k" * 10_000
TEXTS = (
    "", " ", "a", "A", "a ", " a", "a\n", "a\nb", "a\0", "a:", "a:b", ":a", "::", "a/b", "a,b", "a|b",
    "{", "}", "{a}", "{a", "{}", "a}{b", "*", "?", "[a]", "a*", "a%", "a_", "\\", "'", '"', "$1", "\r\n",
    "ä", "a\u0308", "é", "ÿ", "\xff", "水", "😀", "\u200b", "\u202e", "\ud800", "\udfff", "\\ud800", "?",
    "ss", "ß", "K", "\u212a", "1", "01", "1.0", "None", "null", "true",
    LONG + "1", LONG + "2", "x" * 300, "x" * 301,
)  # fmt: skip
"""Keys and names that somebody may have, and that a store must keep apart."""
SHOWN = ("a", "a:b", "b", "{a}", "a b", "*", "[a]", "%", "水", "it's", "a\nb")
"""Short texts, which `keys` shows as they are."""

ONE = GCRA("1 per 1000 s", 1)


def agree(got: Any, expected: Any, what: str) -> None:
    """AssertionError unless both are the same in every field."""
    if not same(expected, got):
        raise AssertionError(f"{what}: expected {expected!r}, got {got!r}")


@contextmanager
def raising(error: type[Exception], what: str) -> Iterator[None]:
    """AssertionError unless the block raises this error."""
    try:
        yield
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{what} raised {other!r} instead of {error.__name__}") from other
    raise AssertionError(f"{what} did not raise {error.__name__}")


# keys and names


def keys_stay_apart(store: Store) -> None:
    """Each key has a state of its own, which `reset` alone makes cold."""
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
    """Keys of one name are not those of another, wherever the border between the two lies."""
    names = [text for text in dict.fromkeys(TEXTS) if text]
    for key in ("", "a", "b", "b:", "b:b", ":b", ":a:b", "b}", "}b", "/b", "\nb", "\0b"):
        checks = [store.bind(name, ONE, CHECK) for name in names]
        for turn in (True, False):
            for name, check in zip(names, checks, strict=True):
                agree(check(key, 1).allowed, turn, f"key {key!r} of name {name[:40]!r}")


def parts_stay_apart(store: Store) -> None:
    """The key of one part is not that of another; and a key in parts is not one key."""
    both = all_of(a=ONE, b=ONE)
    check = store.bind("parts", both, CHECK)
    keys: list[Key] = [("x", "y"), ("y", "x"), ("a:x", "z"), ("", ":x"), "x", "y", "a:x", "('x', 'y')"]
    for turn in (True, False):
        for key in keys:
            agree(check(key, 1).allowed, turn, f"key {key!r}")
    for key, taken in ((("x", "new"), "a"), (("fresh", "y"), "b")):
        agree(check(key, 1).binding, taken, f"what denies {key!r}")


def keys_are_shown(store: Store) -> None:
    """`keys` shows what is live as `name:key`, and takes a prefix literally."""
    for name in ("n", "m*"):
        check = store.bind(name, ONE, CHECK)
        for text in SHOWN:
            check(text, 1)
    store.bind("p", all_of(ip=ONE, user=ONE), CHECK)(("::1", "alice"), 1)
    every = [*(f"{name}:{text}" for name in ("n", "m*") for text in SHOWN), "p:ip:::1", "p:user:alice"]
    prefixes = (
        "",
        "n:",
        "n:a",
        "n",
        "m",
        "m*",
        "m*:",
        "m*:[a]",
        "*",
        "n:*",
        "n?",
        "p:ip:",
        "none",
        "n:%",
        "_",
    )
    for prefix in prefixes:
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
    """A reset makes a key cold, also one in parts, and also while it is held."""
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
    """What was only looked at, or denied, is not there: no state, and no key to be seen."""
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
    """Another kind under a name is refused, and loses nothing."""
    kept = (("one", ONE), ("windows", FixedWindow(1, "1h")), ("line", queue("1 per 1000 s")))
    others = (ONE, FixedWindow(1, "1h"), SlidingWindowLog(1, "1h"), Quota("1/day"), all_of(a=ONE, b=ONE))
    for name, program in kept:
        operation: Operation = RESERVE if program.kind == "leaky_queue" else CHECK
        call = store.bind(name, program, operation)
        asked: Any = (1, 0, 7) if operation is RESERVE else 1
        call("key", asked)
        for other in others:
            if other.kind != program.kind:
                with raising(ConfigError, f"a {other.kind} under the name of a {program.kind}"):
                    store.bind(name, other, CHECK)("key", 1)
        again = call("key", asked)
        agree(bool(again[0]), False, f"a second call of the {program.kind} that was there first")


# the end


def closed_is_closed(store: Store) -> None:
    """After `close`, which may be called again, every call raises StoreUnavailableError, and nobody waits."""
    waiters = Sleepers(store.clock, "conformance")
    store.wakes(waiters)
    check = store.bind("end", ONE, CHECK)
    check("key", 1)
    many = store.bind_many("end", ONE, CHECK)
    store.close()
    store.close()
    agree(waiters.is_closed, True, "whether close wakes those who wait, by Store.wake()")
    calls: dict[str, Callable[[], Any]] = {
        "check": lambda: check("key", 1),
        "check of a cold key": lambda: check("new", 1),
        "check of many keys": lambda: many(("key", "new"), (1,)),
        "peek": lambda: store.bind("end", ONE, PEEK)("key"),
        "reset": lambda: store.reset("end", ONE, "key"),
        "reset_all": store.reset_all,
        "keys": lambda: list(store.keys()),
    }
    for what, call in calls.items():
        with raising(StoreUnavailableError, f"{what} after close"):
            call()


class CountedClock(ManualClock):
    """Goes on by a microsecond with each reading, and counts them."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.reads: list[int] = []

    def now_us(self) -> int:
        now = super().now_us()
        self.reads.append(now)
        self.advance(0.000_001)
        return now

    def wall_us(self) -> int:
        # Of the reading before: a store that asks for both hands has asked for one instant.
        return self.reads[-1] if self.reads else super().wall_us()


def one_instant(make_store: Callable[[ManualClock], Store]) -> None:
    """A call reads the clock once, however many keys it asks for, and decides by what it read."""
    program = GCRA("7/s", 2)
    clock = CountedClock(10**6)
    store = make_store(clock)
    truth = Truth(0)
    try:
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
    finally:
        store.close()


def going_back_mints_nothing(make_store: Callable[[ManualClock], Store], seed: str) -> None:
    """However far the clock goes back, no more is admitted than until the highest time it has shown."""
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
        store = make_store(clock)
        try:
            check = store.bind("back", program, CHECK)
            admitted = {"early": 0, "always": 0}
            highest_us = start_us
            for turn in range(120):
                # Far apart, with enough of others at the late instants for idle keys to be dropped.
                late = turn % 2 == 1
                now_us = start_us + rng.randint(0, SECOND_US) + late * (3 * period_us + turn * 20 * SECOND_US)
                highest_us = max(highest_us, now_us)
                clock.set(now_us / SECOND_US)
                for passing in range(4 * late):
                    check(f"passing-{turn}-{passing}", 1)
                for key in ("always",) if late else admitted:
                    admitted[key] += sum(check(key, 1).allowed for _ in range(limit + 1))
                most = limit * ((highest_us - start_us) // period_us + 2)
                if max(admitted.values()) > most:
                    raise AssertionError(
                        f"{program!r} admitted {admitted} until {highest_us - start_us} µs after the start, "
                        f"while the clock went back and forth: at most {most} can be right"
                    )
        finally:
            store.close()
