"""What a store promises beside its answers: about keys, names, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shapekit.algorithms.compose import all_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key, Store
from shapekit.testing.trials import queue
from shapekit.testing.truth import same

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
    check = store.bind("keys", ONE, "check")
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
        checks = [store.bind(name, ONE, "check") for name in names]
        for turn in (True, False):
            for name, check in zip(names, checks, strict=True):
                agree(check(key, 1).allowed, turn, f"key {key!r} of name {name[:40]!r}")


def parts_stay_apart(store: Store) -> None:
    """The key of one part is not that of another; and a key in parts is not one key."""
    both = all_of(a=ONE, b=ONE)
    check = store.bind("parts", both, "check")
    keys: list[Key] = [("x", "y"), ("y", "x"), ("a:x", "z"), ("", ":x"), "x", "y", "a:x", "('x', 'y')"]
    for turn in (True, False):
        for key in keys:
            agree(check(key, 1).allowed, turn, f"key {key!r}")
    for key, taken in ((("x", "new"), "a"), (("fresh", "y"), "b")):
        agree(check(key, 1).binding, taken, f"what denies {key!r}")


def keys_are_shown(store: Store) -> None:
    """`keys` shows what is live as `name:key`, and takes a prefix literally."""
    for name in ("n", "m*"):
        check = store.bind(name, ONE, "check")
        for text in SHOWN:
            check(text, 1)
    store.bind("p", all_of(ip=ONE, user=ONE), "check")(("::1", "alice"), 1)
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
    agree(store.bind("n", ONE, "check")("a", 1).allowed, True, "a call after reset_all")


def resets_are_complete(store: Store) -> None:
    """A reset makes a key cold, also one in parts, and also while it is held."""
    both = all_of(a=ONE, b=GCRA("1 per 1000 s", 2))
    check = store.bind("reset", both, "check")
    store.reset("reset", both, ("nobody", "nothing"))
    check(("x", "y"), 1)
    store.reset("reset", both, ("x", "y"))
    agree(check(("x", "y"), 1).remaining, 0, "remaining after a reset of both parts")
    paced = queue("1/s")
    bound = ("queue", paced)
    store.bind(*bound, "hold")("key", 5 * SECOND_US, 1)
    store.reset(*bound, "key")
    agree(store.bind(*bound, "reserve")("key", (1, 0, 2))[0], True, "a reservation after a reset")


def denials_persist_nothing(store: Store) -> None:
    """What was only looked at, or denied, is not there: no state, and no key to be seen."""
    both = all_of(busy=ONE, idle=ONE)
    check = store.bind("deny", both, "check")
    check(("x", "y"), 1)
    commit = store.bind("deny", both, "commit")
    agree(check(("x", "new"), 1).allowed, False, "a check whose first part is exhausted")
    agree(check(("new", "y"), 1).allowed, False, "a check whose second part is exhausted")
    agree(commit(("x", "new"), 1, 0).allowed, False, "a commit whose first part is exhausted")
    bound = ("deny-one", ONE)
    for operation, *args in (("peek",), ("forecast", 1), ("earliest", 1), ("refund", 1, 5)):
        store.bind(*bound, operation)("looked at", *args)  # type: ignore[arg-type]
    paced = ("deny-queue", queue("1/s"))
    for operation, *args in (("confirm",), ("look",), ("resume", 0)):
        store.bind(*paced, operation)("looked at", *args)  # type: ignore[arg-type]
    agree(sorted(store.keys()), ["deny:busy:x", "deny:idle:y"], "the keys after denials and looks")
    agree(check(("new", "new"), 1).allowed, True, "a call of the parts that were denied before")


# names have one kind


def kinds_are_kept_apart(store: Store) -> None:
    """Another kind under a name is refused, and loses nothing."""
    kept = (("one", ONE), ("windows", FixedWindow(1, "1h")), ("line", queue("1 per 1000 s")))
    others = (ONE, FixedWindow(1, "1h"), SlidingWindowLog(1, "1h"), Quota("1/day"), all_of(a=ONE, b=ONE))
    for name, program in kept:
        operation = "reserve" if program.kind == "leaky_queue" else "check"
        call = store.bind(name, program, operation)  # type: ignore[arg-type]
        asked: Any = (1, 0, 7) if operation == "reserve" else 1
        call("key", asked)
        for other in others:
            if other.kind != program.kind:
                with raising(ConfigError, f"a {other.kind} under the name of a {program.kind}"):
                    store.bind(name, other, "check")("key", 1)
        again = call("key", asked)
        agree(bool(again[0]), False, f"a second call of the {program.kind} that was there first")


# the end


def closed_is_closed(store: Store) -> None:
    """After `close`, which may be called again, every call raises StoreUnavailableError."""
    check = store.bind("end", ONE, "check")
    check("key", 1)
    many = store.bind_many("end", ONE, "check")
    store.close()
    store.close()
    calls: dict[str, Callable[[], Any]] = {
        "check": lambda: check("key", 1),
        "check of a cold key": lambda: check("new", 1),
        "check of many keys": lambda: many(("key", "new"), (1,)),
        "peek": lambda: store.bind("end", ONE, "peek")("key"),
        "reset": lambda: store.reset("end", ONE, "key"),
        "reset_all": store.reset_all,
        "keys": lambda: list(store.keys()),
    }
    for what, call in calls.items():
        with raising(StoreUnavailableError, f"{what} after close"):
            call()
