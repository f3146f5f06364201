"""Many callers at once: threads from a barrier, tasks, and tasks that are cancelled."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib.util import find_spec
from itertools import count
from traceback import walk_stack
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from shapekit._runtime.threads import GIVING_BACK, Errand
from shapekit.algorithms.base import CHECK, PEEK
from shapekit.algorithms.inflight import ENTER, LEAVE, WATCH, Concurrency
from shapekit.algorithms.queue.queue import LOOK, RESERVE
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.base import Operation, Store
from shapekit.testing.contract import ONE, agree, raising
from shapekit.testing.timelines import GROUPS, limited, queue
from shapekit.testing.truth import Truth

THREADS = 8
_PATIENCE_S = 30.0
"""How long, in real time, anything here is waited for."""

LOOPS = ("asyncio", *(("trio",) if find_spec("trio") else ()))
"""The event loops that can be tried here."""


def on_each_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it on asyncio, and on trio where that is installed."""
    for backend in LOOPS:
        try:
            anyio.run(work, backend=backend)
        except AssertionError as error:
            raise AssertionError(f"on {backend}: {error}") from error


def crowd(jobs: Sequence[Callable[[], None]]) -> None:
    """Run each job in a thread of its own, all from one barrier; raises what the first of them raised."""
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


def threads_admit_the_limit(stores: Sequence[Store]) -> None:
    """Of more calls than the limit, from 8 threads at once, exactly the limit is admitted; each kind."""
    limit = 40
    for kind, program in limited(limit).items():
        answers = _from_threads(stores, f"crowd-{kind}", program, CHECK, lambda: 1)
        admitted = sum(decision.allowed for decision in answers)
        agree(admitted, limit, f"calls of {THREADS} threads that got through {program!r}")


def threads_share_a_grid(stores: Sequence[Store]) -> None:
    """Reservations of 8 threads stand on one grid: every slot is given out, and none of them twice."""
    program, nonces = queue("10/s"), count(1)
    grants = _from_threads(stores, "crowd-queue", program, RESERVE, lambda: (1, None, next(nonces)))
    agree(
        sorted(grant[2] for grant in grants),
        _grid(stores[0], len(grants)),
        f"departures of {THREADS} threads at 10/s",
    )


def _from_threads(
    stores: Sequence[Store], name: str, program: Any, operation: Operation, asked: Callable[[], Any]
) -> list[Any]:
    """The answers to more calls of one key than any limit here admits."""
    bound = [store.bind(name, program, operation) for store in stores]
    answers: list[Any] = []

    def job(call: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            told = [call("key", asked()) for _ in range(8)]
            answers.extend(told)

        return run

    crowd([job(bound[n % len(bound)]) for n in range(THREADS)])
    agree(len(answers), 8 * THREADS, "calls that were answered")
    return answers


def threads_share_permits(stores: Sequence[Store]) -> None:
    """Of 8 threads no more hold a permit at once than there are; and all get one, as others leave."""
    permits, visits = 3, 4
    lock, inside, most, order = threading.Lock(), [0], [0], list[int]()
    program = Concurrency(permits, "1h")

    def visit(store: Store, owner: int, number: int) -> None:
        bound = ("crowd-permits", program)
        # Nobody here looks at a clock: whoever stands in line asks again until it is told that it has one.
        place, _ = store.bind(*bound, ENTER)("key", owner, number, 1)
        watch = store.bind(*bound, WATCH)
        while place and number not in watch("key", owner)[1:]:
            pass
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            order.append(owner)
        with lock:
            inside[0] -= 1
        store.bind(*bound, LEAVE)("key", owner, number)

    def job(owner: int) -> Callable[[], None]:
        store = stores[owner % len(stores)]

        def run() -> None:
            for number in range(1, visits + 1):
                visit(store, owner, number)

        return run

    crowd([job(owner) for owner in range(THREADS)])
    agree(len(order), THREADS * visits, "visits that got a permit")
    if most[0] > permits:
        raise AssertionError(f"{most[0]} threads held {permits} permits")
    for store in stores:
        state, now, _ = store.bind("crowd-permits", program, LOOK)("key")
        agree(program.standing(state, now), (0, 0), "who is in flight and who waits when all have left")


def _grid(store: Store, slots: int) -> list[int]:
    start_us = store.clock.now_us()
    return [start_us + slot * SECOND_US // 10 for slot in range(slots)]


def two_see_one_state(one: Store, other: Store) -> None:
    """What one store object charges, the other sees; what one resets is cold for both."""
    for kind, program in limited(3).items():
        checks = [store.bind(f"both-{kind}", program, CHECK) for store in (one, other, one, other)]
        agree([check("key", 1).allowed for check in checks], [True, True, True, False], f"turns of {kind}")
        other.reset(f"both-{kind}", program, "key")
        agree(checks[0]("key", 1).allowed, True, f"a call of {kind} after a reset by the other store")
    agree(sorted(one.keys()), sorted(other.keys()), "the keys that both stores show")


# keys together


def many_agree(store: Store) -> None:
    """`bind_many` answers for each key in turn, also for one that comes twice, as the truth does."""
    for kind, trials in GROUPS.items():
        operation, args = _asked(kind)
        program = trials()[0].program
        ask = store.bind_many(f"many-{kind}", program, operation)
        truth = Truth(store.clock.now_us())
        for keys in (["a", "b", "a", "c"], [], ["b", "b", "b", "b", "b"]):
            _agree_on(truth, store, program, operation, keys, args, ask(keys, args))


async def amany_agree(store: Store) -> None:
    """`many_agree`, through the awaitable form."""
    for kind, trials in GROUPS.items():
        operation, args = _asked(kind)
        program = trials()[0].program
        ask = store.abind_many(f"amany-{kind}", program, operation)
        truth = Truth(store.clock.now_us())
        for keys in (["a", "b", "a", "c"], [], ["b", "b", "b", "b", "b"]):
            _agree_on(truth, store, program, operation, keys, args, await ask(keys, args))


def _asked(kind: str) -> tuple[Operation, tuple[Any, ...]]:
    if kind == "concurrency":
        return ENTER, (1, 77, 1)
    return (RESERVE, ((1, SECOND_US, 77),)) if kind.endswith("_queue") else (CHECK, (1,))


def _agree_on(
    truth: Truth,
    store: Store,
    program: Any,
    operation: Operation,
    keys: Sequence[str],
    args: tuple[Any, ...],
    answers: list[Any],
) -> None:
    agree(len(answers), len(keys), f"how many answers {operation} gave for {keys}")
    now = store.clock.now_us()
    at = (now, store.clock.wall_us() - now)
    for key, answer in zip(keys, answers, strict=True):
        lawful = truth.hear(program, operation, key, args, at, answer)
        if lawful:
            raise AssertionError(f"{operation} of {key!r} in {keys}: expected {lawful[0]!r}, got {answer!r}")


# tasks


async def tasks_admit_the_limit(store: Store) -> None:
    """Of more tasks at once than the limit, exactly the limit is admitted; each kind."""
    limit = 20
    for kind, program in limited(limit).items():
        check = store.abind(f"tasks-{kind}", program, CHECK)
        admitted: list[bool] = []

        async def call(check: Callable[..., Awaitable[Any]] = check, told: list[bool] = admitted) -> None:
            told.append((await check("key", 1)).allowed)

        with anyio.fail_after(_PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(2 * limit):
                    tasks.start_soon(call)
        agree(sum(admitted), limit, f"tasks that got through {program!r}")
        agree(len(admitted), 2 * limit, "tasks that were answered")


async def cancelled_callers_give_back(store: Store) -> None:
    """A caller that is cancelled at once holds nothing: only what was answered stays charged."""
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
    """A caller that is cancelled at once has neither a permit nor a place: only who was answered has one."""
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
        "who is in flight and who waits after cancelled callers",
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
    """Whether a thread still does what was asked by somebody who has gone, or gives it back."""
    if any(thread.name == GIVING_BACK for thread in threading.enumerate()):
        return True
    work = Errand.work.__code__
    frames = sys._current_frames()  # noqa: SLF001 - documented, whatever its name
    return any(frame.f_code is work for top in frames.values() for frame, _ in walk_stack(top))


async def aclosed_is_closed(store: Store) -> None:
    """After `aclose` every awaited call raises StoreUnavailableError."""
    check = store.abind("aend", ONE, CHECK)
    await check("key", 1)
    await store.aclose()
    with raising(StoreUnavailableError, "a check after aclose"):
        await check("key", 1)
    with raising(StoreUnavailableError, "a check of many keys after aclose"):
        await store.abind_many("aend", ONE, CHECK)(["key"], (1,))
    with raising(StoreUnavailableError, "a reset after aclose"):
        await store.areset("aend", ONE, "key")
