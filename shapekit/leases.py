"""Leases: turns that a process takes ahead of its callers, so that few of them wait for a trip.

In front of a store that is far away stands a desk for each key. A caller takes a turn from its stock; one
who finds none waits there, and all who have gathered are served by the next trip. Trips are made by a
thread of their own, a tender for each key that is in use: so nobody who goes away takes a trip along, and
a stock is refilled, and given back, while nobody asks for anything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any
from weakref import WeakSet

from shapekit import nonce
from shapekit.alarm import AsyncAlarm
from shapekit.algorithms.grant import Asked, Granted
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.confirmations import Confirmations, Standing
from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US, Duration, duration_us
from shapekit.stock import MOST, Ask, GiveBack, Next, Refill, Rest, Stock, Wait
from shapekit.stores.base import Store

LONGEST_US = 60 * SECOND_US
"""The longest lease: what a worker that dies has owned, nobody can use."""
_TRIPS = 32
"""Trips at one time, on as many connections."""
_DESKS = 256
"""Keys after which those out of use are forgotten for the first time."""
_NAP_S = 60.0


class _Call:
    """One caller, who waits for the answer."""

    __slots__ = ("alarm", "asked", "error", "granted", "is_gone")

    def __init__(self, asked: Asked, alarm: Any) -> None:
        self.asked = asked
        self.alarm = alarm
        self.granted: Granted | None = None
        self.error: Exception | None = None
        self.is_gone = False

    def answered(self) -> Granted:
        if self.granted is not None:
            return self.granted
        error, self.error = self.error, None
        try:
            raise error or StoreUnavailableError("nobody has answered")
        finally:
            # Its traceback holds this frame.
            error = None


class _Desk:
    """One key: its stock, who waits there, and what wakes its tender."""

    __slots__ = ("calls", "news", "stock", "tender")

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.calls: list[_Call] = []
        self.news = threading.Event()
        self.tender: threading.Thread | None = None


class Leases:
    """The turns that this process owns of one shaper; in place of the store's `reserve`."""

    def __init__(self, name: str, store: Store, queue: LeakyQueue, lease_us: int) -> None:
        self._what = f"shaper {name!r}"
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._queue = queue
        self._lease_us = lease_us
        bound = (name, queue)
        self._reserve_many = store.bind(*bound, "reserve_many")
        self._cancel_many = store.bind(*bound, "cancel_many")
        self._confirm = store.bind(*bound, "confirm")
        self._anew()
        _LEASES.add(self)

    def _anew(self) -> None:
        """Own nothing: a forked child has what it takes itself, and none of its parent's threads."""
        self._lock = threading.Lock()
        self._trips = threading.BoundedSemaphore(_TRIPS)
        self._desks: dict[str, _Desk] = {}
        self._sweeps_at = _DESKS
        self._is_closed = False

    # callers

    def ask(self, key: str, asked: Asked) -> Granted:
        """A turn, or a refusal."""
        call = self._taken(key, asked, threading.Event)
        if not isinstance(call, _Call):
            return call
        try:
            call.alarm.wait()
        except BaseException:
            self._leave(key, call)
            raise
        return call.answered()

    async def aask(self, key: str, asked: Asked) -> Granted:
        """`ask`, awaitable."""
        call = self._taken(key, asked, AsyncAlarm)
        if not isinstance(call, _Call):
            return call
        try:
            await call.alarm.wait()
        except BaseException:
            self._leave(key, call)
            raise
        return call.answered()

    def _taken(self, key: str, asked: Asked, alarm: Callable[[], Any]) -> Granted | _Call:
        """A turn of the stock; or what to wait for."""
        cost, bound_us, _ = asked
        with self._lock:
            self._check_open()
            now = self._clock.now_us()
            desk = self._desk(key)
            if cost == 1:
                desk.stock.come(now)
            if not desk.calls and (granted := desk.stock.take(now, cost, bound_us)) is not None:
                return granted
            call = _Call(asked, alarm())
            desk.calls.append(call)
            self._attend(key, desk)
            return call

    def _leave(self, key: str, call: _Call) -> None:
        """Whoever goes away before the answer has no turn: the next one has it."""
        with self._lock:
            call.is_gone = True
            if call.granted is not None and call.granted[0]:
                desk = self._desk(key)
                desk.stock.put_back(call.granted)
                self._attend(key, desk)

    # how a key stands

    def known(self, key: str) -> Standing | None:
        """How a key stands, if that was heard within a lease."""
        desk = self._desks.get(key)
        known = None if desk is None else desk.stock.known(self._clock.now_us())
        return None if known is None else Standing(*known)

    def doubts(self, key: str) -> object:
        """What to take along with a question, and to hand back with its answer."""
        desk = self._desks.get(key)
        return None if desk is None else desk.stock.doubts

    def hear(self, key: str, standing: Standing, asked_us: int, doubts: object) -> None:
        """How a key stands, as the store has just said."""
        with self._lock:
            desk = self._desks.get(key)
            if desk is not None:
                now = self._clock.now_us()
                desk.stock.hear(standing[:3], standing.ahead_us, asked_us, now, doubts)
                if desk.tender is not None:
                    desk.news.set()

    def doubt(self, key: str) -> None:
        """The key was changed here. Takes no lock: a coroutine that is thrown away comes by here."""
        desk = self._desks.get(key)
        if desk is not None:
            desk.stock.doubt()

    # the end

    def close(self) -> None:
        """Give back all that is owned, and serve nobody any more."""
        with self._lock:
            self._is_closed = True
            desks = list(self._desks.values())
            tenders = [desk.tender for desk in desks if desk.tender is not None]
            for desk in desks:
                desk.news.set()
        for tender in tenders:
            tender.join()

    async def aclose(self) -> None:
        """`close`, awaitable."""
        from anyio.to_thread import run_sync  # noqa: PLC0415 - who never awaits need not load an event loop

        await run_sync(self.close)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(f"{self._what} was closed")

    # under the lock

    def _desk(self, key: str) -> _Desk:
        desk = self._desks.get(key)
        if desk is None:
            if len(self._desks) >= self._sweeps_at:
                self._desks = {key: desk for key, desk in self._desks.items() if desk.tender is not None}
                self._sweeps_at = max(_DESKS, 2 * len(self._desks))
            stock = Stock(
                self._lease_us,
                self._queue.leaves_by,
                slots=self._queue.slots(self._lease_us),
                clock_decides=self._clock_decides,
                counted=bool(self._queue.constraints),
            )
            desk = self._desks[key] = _Desk(stock)
        return desk

    def _attend(self, key: str, desk: _Desk) -> None:
        if desk.tender is None:
            tender = threading.Thread(target=self._tend, args=(key, desk), name="shapekit-lease", daemon=True)
            desk.tender = tender
            try:
                tender.start()
            except RuntimeError:
                # No more threads: the interpreter ends, or the machine is full.
                desk.tender = None
                calls, desk.calls = desk.calls, []
                _fail(calls, StoreUnavailableError("there is no thread left to ask the store on"))
        desk.news.set()

    def _serve(self, desk: _Desk, now: int) -> None:
        """Those who have gathered, in order, as far as the stock goes."""
        while desk.calls:
            call = desk.calls[0]
            if not call.is_gone:
                cost, bound_us, _ = call.asked
                granted = desk.stock.take(now, cost, bound_us)
                if granted is None:
                    return
                call.granted = granted
                call.alarm.set()
            del desk.calls[0]

    # tending

    def _tend(self, key: str, desk: _Desk) -> None:
        try:
            self._work(key, desk)
        except BaseException:
            with self._lock:
                desk.tender = None
                calls, desk.calls = desk.calls, []
                _fail(calls, StoreUnavailableError("whoever asked the store has gone"))
            raise

    def _work(self, key: str, desk: _Desk) -> None:
        """Until nobody waits and nothing is owned."""
        while True:
            with self._lock:
                desk.news = threading.Event()
                now = self._clock.now_us()
                self._serve(desk, now)
                todo = self._next(desk, now)
                if isinstance(todo, Rest):
                    desk.tender = None
                    return
                calls = desk.calls[:MOST] if isinstance(todo, Refill) else []
                del desk.calls[: len(calls)]
            if isinstance(todo, Wait):
                self._clock.sleep(min(_NAP_S, (todo.until_us - now) / SECOND_US), desk.news)
            else:
                self._go(key, desk, todo, calls)

    def _next(self, desk: _Desk, now: int) -> Next:
        if not self._is_closed:
            return desk.stock.next(now, len(desk.calls))
        _fail(desk.calls, StoreUnavailableError(f"{self._what} was closed"))
        desk.calls = []
        return desk.stock.surrender()

    def _go(self, key: str, desk: _Desk, todo: Next, calls: Sequence[_Call]) -> None:
        """One trip. What goes wrong is told those who wait for it, and where nobody does, nobody."""
        asked_us, doubts = self._clock.now_us(), desk.stock.doubts
        try:
            with self._trips:
                if isinstance(todo, Refill):
                    further = (todo.further, todo.span_us, nonce.fresh())
                    standing, granted = self._reserve_many(key, [call.asked for call in calls], further)
                elif isinstance(todo, GiveBack):
                    self._cancel_many(key, todo.grants)
                    return
                else:
                    standing, granted = self._confirm(key), ()
        except Exception as error:
            with self._lock:
                desk.stock.failed()
                if isinstance(todo, Ask):
                    calls, desk.calls = desk.calls, []
                _fail(calls, error)
            if not calls and not isinstance(error, StoreUnavailableError):
                raise
            return
        except BaseException:
            # Its callers are told with those who wait at the desk.
            with self._lock:
                desk.calls[:0] = calls
            raise
        with self._lock:
            now = self._clock.now_us()
            desk.stock.hear(standing[:3], now - standing[3], asked_us, now, doubts)
            if isinstance(todo, Ask):
                return
            answers = desk.stock.fill(granted[: len(calls)], granted[len(calls) :], now)
            for call, answer in zip(calls, answers, strict=True):
                if not call.is_gone:
                    call.granted = answer
                    call.alarm.set()
                elif answer[0]:
                    desk.stock.put_back(answer)


class LeasedConfirmations(Confirmations):
    """Whoever leaves by a lease asks nobody while the key was heard of within it."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue, leases: Leases) -> None:
        super().__init__(store, name, queue)
        self._leases = leases

    def leaving(self, key: str) -> Standing:
        known = self._leases.known(key)
        if known is not None:
            return known
        asked_us, doubts = self._clock.now_us(), self._leases.doubts(key)
        standing = self.ask(key)
        self._leases.hear(key, standing, asked_us, doubts)
        return standing

    async def aleaving(self, key: str) -> Standing:
        known = self._leases.known(key)
        if known is not None:
            return known
        asked_us, doubts = self._clock.now_us(), self._leases.doubts(key)
        standing = await self.aask(key)
        self._leases.hear(key, standing, asked_us, doubts)
        return standing

    def _forget(self, key: str) -> None:
        super()._forget(key)
        self._leases.doubt(key)


def leased(
    name: str, store: Store, queue: LeakyQueue, lease: Duration
) -> tuple[Leases | None, Confirmations]:
    """The leases of a shaper, and what asks whether its turns still stand.

    None where a turn costs no trip that could be saved.
    """
    lease_us = duration_us("lease", lease, most=LONGEST_US)
    if store.instant:
        return None, Confirmations(store, name, queue)
    leases = Leases(name, store, queue, lease_us)
    return leases, LeasedConfirmations(store, name, queue, leases)


def _fail(calls: Sequence[_Call], error: Exception) -> None:
    for call in calls:
        # An exception for each: a shared one would collect all their tracebacks.
        call.error = copy(error)
        call.error.__cause__ = error.__cause__
        call.alarm.set()


_LEASES: WeakSet[Leases] = WeakSet()


def _forked() -> None:
    for leases in list(_LEASES):
        leases._anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
