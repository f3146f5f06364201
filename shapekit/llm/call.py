"""LLMCall: one call to a language model, which takes its tokens first, then its slot.

Some errors show that a call used no tokens, some that it was never sent. After a timeout, a lost connection
or an error of the server, it is unknown what the model did.

Line: the waiting calls of one budget, first come, first served in each process.

A slot keeps its place, so a slot far ahead, taken by an estimate, would keep out calls that fit as soon as
others have settled. Therefore a call takes its slots only when they are near. Until then it waits in line:
the first call in line asks again when something was given back, and also now and then, because other
processes give back as well. A call that was first for a whole period, or a minute, takes its slots however
far they are, so that other processes cannot overtake it for ever.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from socket import gaierror
from typing import Any, NamedTuple, Self, TypeAlias

from shapekit._adapters.http import CallOutcome
from shapekit._queue.waiter import refusal
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit._runtime.process import SWITCH, ErrorsLogged
from shapekit.clock import Clock
from shapekit.errors import (
    ConfigError,
    CostExceedsLimitError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
    after_waiting,
    gave_up,
)
from shapekit.feedback import Feedback, ServerHint
from shapekit.feedback.dialects import FAMILIES, heard, picked
from shapekit.llm.prices import DIGITS, Price
from shapekit.llm.usage import StreamUsage, TokenUsage, estimated, usage_from, usage_of
from shapekit.policy import Admission, Policy, headers_of, hint_of
from shapekit.rate import SECOND_US, Duration, max_wait_us, timeout_us
from shapekit.shaper import Core, Reservation

__all__ = ["LLMCall"]

LOOK_US = SECOND_US
"""The shortest interval at which the first call asks again; a twentieth of its wait if that is longer."""


def hold_s(dialect: str, headers: Any, needs: Mapping[str, int], received_at: float) -> float:
    """Seconds until the server again has as many tokens as one more call like this one needs.

    A server's reset is the time when all tokens are there again; until then they come back evenly. The server
    may have fewer left than shapekit has counted, because others spend them as well.
    """
    waits, answer = [0.0], heard(0, picked(headers, None), received_at)
    for name in FAMILIES if dialect == "auto" else (dialect,):
        for family, hint in FAMILIES[name](answer).items():
            need, left, limit, reset_s = needs.get(family, 0), hint.remaining, hint.limit, hint.reset_s
            if left is None or left >= need or not reset_s:
                continue
            spent = 0 if limit is None else limit - left
            waits.append(reset_s if spent < need - left else reset_s * (need - left) / spent)
    return max(waits)


_UNKNOWN = (408, 499)
"""Statuses of refusals that come after a wait, in which the model may have worked."""
_NEVER_SENT = (RateLimitedError, CostExceedsLimitError, ConnectionRefusedError, gaierror)


def never_sent(error: BaseException) -> bool:
    """Whether the call did not leave: it was refused by shapekit, or there was no server to send it to.

    Clients wrap such errors in their own, so causes count, as do errors that were replaced (`from None`). In
    a group of errors, all of them have to be such errors.
    """
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, _NEVER_SENT) or CallOutcome(failure=cause).refusal is not None:
            return True
        if isinstance(cause, BaseExceptionGroup):
            return all(map(never_sent, cause.exceptions))
        seen.add(id(cause))
        replaced = cause.__context__ if cause.__suppress_context__ else None
        cause = cause.__cause__ or replaced
    return False


def never_ran(error: BaseException) -> bool:
    """Whether no model did any work: the call was never sent, or the server refused it (a 4xx, also 429)."""
    answer = CallOutcome(failure=error).answer
    if answer is not None:
        return 400 <= answer.status < 500 and answer.status not in _UNKNOWN
    return never_sent(error)


Waits: TypeAlias = tuple[Duration | None, Duration | None]
"""The `max_wait` and the `timeout` of a call; None without a bound."""


class Charge(NamedTuple):
    """What a call takes from one policy."""

    policy: Policy
    key: str
    cost: int
    unit: str | None = None
    """The currency; None for tokens and requests."""

    @property
    def core(self) -> Core:
        """The shaper core that the charge is made on."""
        return self.policy.shaper.core


class _PendingWait:
    """The bounds on the wait of one call, for everything it takes together."""

    def __init__(self, clock: Clock, key: str, policy: str, waits: Waits) -> None:
        self._clock = clock
        self._key = key
        self._policy = policy
        self.began_us = clock.now_us()
        self._max_wait_us, self._timeout_us = max_wait_us(waits[0]), timeout_us(waits[1])

    @property
    def is_bounded(self) -> bool:
        return self._max_wait_us is not None or self._timeout_us is not None

    @property
    def waited_us(self) -> int:
        return self._clock.now_us() - self.began_us

    def left_us(self) -> int | None:
        """How much longer the call may wait; None without a bound."""
        return None if self._max_wait_us is None else max(0, self._max_wait_us - self.waited_us)

    def timeout_left_us(self) -> int | None:
        """How long until the call gives up; None without a timeout. TimeoutError if it is over."""
        if self._timeout_us is None:
            return None
        waited_us = self.waited_us
        if waited_us >= self._timeout_us:
            raise gave_up(self._key, self._policy, waited_us)
        return self._timeout_us - waited_us

    def sleeps_until_us(self, nap_us: int | None) -> int | None:
        """Until when to sleep at most."""
        naps = [pause for pause in (nap_us, self.left_us(), self.timeout_left_us()) if pause is not None]
        return self._clock.now_us() + min(naps) if naps else None

    def restated(self, error: RateLimitedError) -> RateLimitedError:
        """The refusal, with the whole wait as its delay."""
        if not isinstance(error, QueueFullError) or self._max_wait_us is None:
            return error
        return after_waiting(error, self.waited_us / SECOND_US, self._max_wait_us / SECOND_US)


class Line:
    """The waiting calls of a budget, by key.

    `is_shared`: whether units that one key gives back may be those that another key waits for.
    """

    def __init__(self, clock: Clock, soon_us: int, fence_us: int, *, is_shared: bool) -> None:
        self._clock = clock
        self._is_shared = is_shared
        self._soon_us = soon_us
        self._fence_us = fence_us
        self._lock = process.lock()
        self.begin()
        _LINES.add(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child, since the calls that waited are its parent's."""
        self._places: dict[str, deque[_Asking]] = {}
        self._freed = 0

    async def take(
        self, driver: Driver, key: str, charges: Sequence[Charge], waits: Waits
    ) -> tuple[list[Reservation], int]:
        """Wait for a slot of each policy; returns the slots, and for how long the call waited in line.

        A call that raises an error keeps none of them.
        """
        pending = _PendingWait(self._clock, key, charges[0].policy.name, waits)
        await driver.stop_if_cancelled()
        asking = _Asking(driver, key, charges, pending)
        try:
            return await self._take(asking)
        except BaseException as error:
            await driver.given_back(error, partial(self._given_up, asking))
            raise

    async def _given_up(self, asking: _Asking) -> None:
        if await asking.give_back():
            self.freed(asking.key)

    def freed(self, key: str) -> None:
        """Units were given back: wake the first call of the key, or of every key if the line `is_shared`."""
        self._freed += 1
        if self._places:
            with self._lock:
                for places in self._places.values() if self._is_shared else (self._places.get(key),):
                    if places:
                        places[0].alarm.set()

    async def _take(self, asking: _Asking) -> tuple[list[Reservation], int]:
        freed = self._freed
        if asking.key not in self._places or asking.pending.left_us() == 0:
            if await asking.ask(self._soon_us) and await asking.leave(self._soon_us, 0):
                return asking.slots, 0
            await asking.check()
        process.background_ready()
        asking.alarm = asking.driver.alarm()
        try:
            self._join(asking)
            if self._freed != freed:
                # Units given back after the refusal, but before the call was in line, have woken no call.
                asking.alarm.set()
            while True:
                await self._wait(asking)
                line_us = asking.pending.waited_us
                if await asking.leave(self._soon_us, line_us):
                    return asking.slots, line_us
                await asking.check()
        finally:
            if isinstance(sys.exception(), GeneratorExit):
                # The collector may end the coroutine at any point, even where this thread holds the lock.
                process.in_background(self._leave, asking)
            else:
                self._leave(asking)

    async def _wait(self, asking: _Asking) -> None:
        """Wait until the call is first in line and has its slots."""
        first_since_us: int | None = None
        while True:
            nap_us = asking.nap_us(self._soon_us) if self._is_first(asking) else None
            until_us = asking.pending.sleeps_until_us(nap_us)
            await asking.charges[0].core.sleepers.rest(asking.driver, asking.alarm, until_us)
            # A new alarm before asking: wakes from before it are covered by the question.
            asking.alarm = asking.driver.alarm()
            is_first = self._is_first(asking)
            if not is_first and asking.pending.left_us() != 0:
                asking.pending.timeout_left_us()
                continue
            if is_first and first_since_us is None:
                first_since_us = self._clock.now_us()
            is_fence = first_since_us is not None and self._clock.now_us() - first_since_us >= self._fence_us
            asking.pending.timeout_left_us()
            if await asking.ask(None if is_fence else self._soon_us):
                return
            await asking.check()

    # the places

    def _join(self, asking: _Asking) -> None:
        with self._lock:
            while asking.key not in self._places:
                self._places.setdefault(asking.key, deque())
            self._places[asking.key].append(asking)

    def _is_first(self, asking: _Asking) -> bool:
        return self._places[asking.key][0] is asking

    def _leave(self, asking: _Asking) -> None:
        with self._lock:
            places = self._places.get(asking.key, deque())
            if asking not in places:
                return
            was_first = places[0] is asking
            places.remove(asking)
            if not places:
                self._places.pop(asking.key, None)
            elif was_first:
                places[0].alarm.set()


_LINES = process.begin_anew(Line.begin)


class _Asking:
    """One call's questions to its policies, and the slots that it was granted."""

    def __init__(self, driver: Driver, key: str, charges: Sequence[Charge], pending: _PendingWait) -> None:
        self.driver = driver
        self.key = key
        self.charges = charges
        self.pending = pending
        self.alarm: Any = None
        """Wakes the call while it waits in line; replaced each time before the call asks."""
        self._order = [*range(len(charges))]
        self._taken: dict[int, Reservation] = {}
        self._unended: set[int] = set()
        """The slots that were reported to listeners as reserved, but not yet as ended."""
        self._refused: Reservation
        self._is_refused = False
        self._bounds_us: dict[int, int | None] = {}

    async def ask(self, soon_us: int | None) -> bool:
        """Take a slot of every policy, or none. The policy that refused last is asked first.

        Without `soon_us`, a slot may be far ahead; then the next one is taken only when that has come. If it
        were taken now, it would have passed by then, and later calls would leave at the same instant.
        """
        for place in self._order:
            if not await self._take(place, soon_us):
                return False
            if soon_us is None:
                await self._tell(place, self.pending.waited_us)
                await self._wait_for(place)
        return True

    async def _take(self, place: int, soon_us: int | None) -> bool:
        """Take the slot of one charge; if it is refused, give all slots back."""
        charge, left_us = self.charges[place], self.pending.left_us()
        bounds = [bound for bound in (soon_us, left_us) if bound is not None]
        bound_us = min(bounds, default=None)
        with charge.core.reporter.watching(charge.key):
            taken = await charge.core.reserve_untold(self.driver, charge.key, charge.cost, bound_us)
        if not taken:
            self._refused, self._is_refused = taken, True
            self._order.remove(place)
            self._order.insert(0, place)
            await self.give_back()
            return False
        self._taken[place] = taken
        self._bounds_us[place] = left_us
        return True

    async def check(self) -> None:
        """Raise the error of the last refusal, unless the call may wait for the limit that refused it."""
        refused, pending, place = self._refused, self.pending, self._order[0]
        charge, left_us = self.charges[place], pending.left_us()
        delay_us = round(refused.delay * SECOND_US)
        if left_us is not None and delay_us > left_us:
            error = refusal(refused, left_us)
            # The question was for a near slot; a call that asks again is admitted earlier than that says.
            error.decision = error.decision._replace(retry_after_us=delay_us - left_us)
            error.args = (error.decision, *error.args[1:])
            raise self._restated(charge, error)
        if left_us is None and refused.decision.binding is not None:
            # A quota is spent: asked without a bound, it says until when.
            spent = await charge.core.reserve_untold(self.driver, charge.key, charge.cost, None)
            if not spent:
                raise self._restated(charge, refusal(spent, None))
            self._taken[place] = spent
            await self.give_back()
            self._is_refused = False  # something was given back meanwhile
        charge.core.reporter.waits(charge.key, delay_us, is_bounded=pending.is_bounded)

    def nap_us(self, soon_us: int) -> int:
        """How long to sleep before asking again; 0 before the first question."""
        if not self._is_refused:
            return 0
        delay_us = round(self._refused.delay * SECOND_US)
        # A slot that comes soon is refused only if the store is gone: then the delay is until the next probe.
        pause_us = delay_us - soon_us if delay_us > soon_us else delay_us
        return min(pause_us, max(LOOK_US, delay_us // 20))

    async def leave(self, soon_us: int, line_us: int) -> bool:
        """Wait until all slots have come, and report the departure: the call leaves with the last of them.

        If a hold moves one, the windows have counted those that came before at an instant that is long past
        when the call leaves. They are given back and taken anew; false if one is refused then.
        """
        came_us: dict[int, int] = {}
        due_us, has_waited = 0, line_us > 0
        while len(came_us) < len(self.charges):
            places = [place for place in range(len(self.charges)) if place not in came_us]
            for place in places:
                await self._tell(place, line_us)
            for place in places:
                delay_us, late_us = await self._wait_for(place)
                has_waited |= delay_us > 0
                came_us[place] = self.pending.waited_us - late_us
            due_us = max(came_us.values())
            for place in [place for place, at_us in came_us.items() if due_us - at_us > 2 * soon_us]:
                del came_us[place]
                await self._return(place)
                if not await self._take(place, soon_us):
                    return False
        if SWITCH.loud:
            waited_us = self.pending.waited_us
            waits_us = (waited_us, waited_us - due_us) if has_waited else (0, 0)
            for charge in self.charges:
                charge.core.reporter.departed(charge.key, charge.cost, *waits_us)
        return True

    @property
    def slots(self) -> list[Reservation]:
        """The slots that were taken, in the order of the charges."""
        return [self._taken[place] for place in range(len(self.charges))]

    async def _tell(self, place: int, line_us: int) -> None:
        """Report a slot to listeners, unless that was done."""
        if place not in self._unended:
            charge, taken = self.charges[place], self._taken[place]
            charge.core.reporter.reserved(taken.after_waiting(line_us) if line_us else taken)
            self._unended.add(place)
            await charge.core.budgets.look(self.driver, charge.key)

    async def _wait_for(self, place: int) -> tuple[int, int]:
        """Wait until a slot has come; returns as `Waiter.wait`."""
        gives_up_us = self.pending.timeout_left_us()
        waiter, left_us = self.charges[place].core.waiter, self._bounds_us[place]
        self._unended.discard(place)  # if this wait ends early, the waiter reports it
        try:
            waited_us = await waiter.wait(self.driver, self._taken[place], left_us, gives_up_us)
        except RateLimitedError as error:
            restated = self.pending.restated(error)
            if restated is error:
                raise
            raise restated.with_traceback(error.__traceback__) from error.__cause__
        self._unended.add(place)
        return waited_us

    async def give_back(self) -> bool:
        """Give back all slots that were taken; returns whether there were any."""
        had_some = bool(self._taken)
        while self._taken:
            *_, place = self._taken
            await self._return(place)
        return had_some

    async def _return(self, place: int) -> None:
        reservation, is_returned = self._taken[place], False
        with suppress(StoreUnavailableError):
            is_returned = await reservation.core.give_back(self.driver, reservation)
        # After the await: a call that is cancelled there gives the slot back twice, which is harmless.
        self._taken.pop(place, None)
        if place in self._unended:
            self._unended.discard(place)
            reservation.core.reporter.cancelled(reservation, is_returned=is_returned)

    def _restated(self, charge: Charge, error: RateLimitedError) -> RateLimitedError:
        waited = self.pending.waited_us > 0
        if charge.unit is not None and isinstance(error, QuotaExhaustedError):
            error = QuotaExhaustedError(error.decision, error.key, error.policy, charge.unit, DIGITS)
        charge.core.reporter.refused(charge.key, charge.cost, error, waited=waited)
        return self.pending.restated(error)


Learn: TypeAlias = Callable[[TokenUsage], None] | None
"""A function that gets the usage of a call, to improve later estimates."""


class BudgetLimit(NamedTuple):
    """A limit of money, or of tokens: of all, or only of those of the input or the output."""

    policy: Policy
    part: str
    """"total", "input" or "output" tokens; "money" for their cost."""
    family: str
    """The name that servers give such tokens in their headers."""
    bound: str
    """The option that says how much one call may take."""
    key: str | None = None
    """The key of a limit that all calls share."""
    currency: str | None = None

    def key_of(self, key: str) -> str:
        """The key that a call with this key takes from."""
        return key if self.key is None else self.key

    def cost(self, usage: TokenUsage, price: Price | None) -> int:
        """What a usage costs under this limit."""
        if self.part == "money" and price is not None:
            return price.cost(usage)
        cost: int = getattr(usage, self.part)
        return cost

    def reserved(self, usage: TokenUsage, price: Price | None) -> int:
        """What a call with this estimate has to reserve."""
        if self.part == "money" and price is not None:
            return max(1, price.most(usage))
        return max(1, self.cost(usage, price))

    def most(self, key: str) -> int:
        """The most that one call may take, as far as this process knows."""
        return self.policy.shaper.core.queue_of(self.key_of(key)).max_cost

    async def charge(self, driver: Driver, usage: TokenUsage, price: Price | None, key: str) -> Charge:
        """What a call takes from this limit; raises CostExceedsLimitError if that is too much."""
        cost, own_key, most = self.reserved(usage, price), self.key_of(key), self.most(key)
        if cost > most:
            unit, digits = ("tokens", 0) if self.currency is None else (self.currency, DIGITS)
            error = CostExceedsLimitError(cost, most, own_key, self.bound, self.policy.name, unit, digits)
            await self.policy.shaper.core.allowed(driver, error)
        return Charge(self.policy, own_key, cost, self.currency)


class Books(NamedTuple):
    """The limits of one budget, and what its calls have in common."""

    budget_limits: tuple[BudgetLimit, ...]
    requests: Policy | None
    refund_on: Callable[[BaseException], bool] | None
    feedback: Feedback
    clock: Clock
    line: Line
    count_tokens: Callable[[str], int]
    """Counts the tokens of a text."""
    settles_aborted: bool
    """Whether a stream that has not reported its usage is settled at what was read of it."""

    def fits(self, usage: TokenUsage, price: Price | None, key: str) -> bool:
        """Whether a call with this estimate can ever be admitted."""
        return all(limit.reserved(usage, price) <= limit.most(key) for limit in self.budget_limits)

    def usage_from(self, field: str, value: object) -> TokenUsage:
        """A usage, or one made from numbers of tokens.

        A single number is refused if input and output are counted separately.
        """
        usage = usage_from(field, value)
        if type(value) is int and any(limit.part != "total" for limit in self.budget_limits):
            fix = "pass (input, output), or the answer"
            raise ConfigError(field, value, "does not say how much of it is input", fix)
        return usage

    async def charges(self, driver: Driver, usage: TokenUsage, price: Price | None, key: str) -> list[Charge]:
        """What a call with this estimate takes from each policy."""
        charges = [await limit.charge(driver, usage, price, key) for limit in self.budget_limits]
        return charges if self.requests is None else [*charges, Charge(self.requests, key, 1)]


class LLMCall:
    """One call under a budget: `with` or `async with` waits for its tokens and its slot.

    If the block raises an error of a call that cost nothing, the reserved tokens are given back. Otherwise
    they stay charged until the call is settled. Of several settlements, the last one counts.
    """

    __slots__ = (
        *("_arguments", "_books", "_delay_us", "_entered", "_is_settled", "_learn_from", "_price", "_waits"),
        *("key", "reserved"),
    )

    def __init__(
        self,
        books: Books,
        key: str,
        reserved: TokenUsage,
        waits: Waits,
        request: Mapping[str, Any] | None = None,
        price: Price | None = None,
        learn_from: Learn = None,
    ) -> None:
        self.key = key
        """The key whose budget the call takes from."""
        self.reserved = reserved
        """The tokens that were reserved."""
        self._books = books
        self._waits = waits
        self._arguments = request
        self._price = price
        self._learn_from = learn_from
        self._entered: list[Admission] = []
        self._delay_us = 0
        self._is_settled = False

    @property
    def delay(self) -> float:
        """How many seconds the call waited for its tokens and its slot."""
        self._check_entered()
        return self._delay_us / SECOND_US

    # the books

    def settle(self, answer: Any) -> bool:
        """Charge what the call used, given as its answer, a usage, a number of tokens, or (input, output).

        The difference to the charge so far is charged or given back. Returns False, and changes nothing, if
        the answer has no usage or the charge was right already.
        """
        return run(self._settle, answer)

    async def asettle(self, answer: Any) -> bool:
        """`settle`, awaitable; a cancelled task still does it."""
        return await self._settle(TASKS, answer)

    def seen(self, heard: StreamUsage) -> TokenUsage | None:
        """What a stream has used, as far as it was read; None if its reservation stays charged."""
        if not self._books.settles_aborted:
            return None
        self._learn_from = None  # our own count cannot improve the estimates
        given = self.reserved.input
        if not given and self._arguments is not None:
            given = estimated(self._arguments, self._books.count_tokens).input
        usage = heard.seen(given, self._books.count_tokens)
        return usage if usage is not None and usage.input else None

    def observe(self, response: Any) -> ServerHint | None:
        """Read the headers of a response, and hold the key if they ask for that.

        The key is also held if the server has fewer tokens left than this call reserved, because the next
        such call would be refused. Takes a response with headers, of httpx or an SDK's `with_raw_response`.
        """
        return run(self._observe, response)

    async def aobserve(self, response: Any) -> ServerHint | None:
        """`observe`, awaitable."""
        return await self._observe(TASKS, response)

    def failed(self, error: BaseException) -> None:
        """End the call after an error: read the response in it, and give back what the call did not cost.

        A call that is dropped with its event loop does neither.
        """
        run(self._failed, error)

    async def afailed(self, error: BaseException) -> None:
        """`failed`, awaitable; a cancelled task still does it."""
        await self._failed(TASKS, error)

    def __enter__(self) -> Self:
        return run(self._enter)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            run(self._failed, error)

    async def __aenter__(self) -> Self:
        return await self._enter(TASKS)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            await self._failed(TASKS, error)

    # flows

    async def _enter(self, driver: Driver) -> Self:
        if self._entered:
            raise ConfigError("call", self.key, "was entered before", "admit each call anew")
        charges = await self._books.charges(driver, self.reserved, self._price, self.key)
        # First, since this checks the key.
        admissions = [charge.policy.admit(charge.key, cost=charge.cost).unentered() for charge in charges]
        reservations, line_us = await self._books.line.take(driver, self.key, charges, self._waits)
        self._delay_us = line_us + max(reservation.grant.wait_us for reservation in reservations)
        self._entered = [
            admission.taken(reservation)
            for admission, reservation in zip(admissions, reservations, strict=True)
        ]
        return self

    async def _settle(self, driver: Driver, answer: Any) -> bool:
        self._check_entered()
        is_counted = isinstance(answer, tuple) or type(answer) is int
        usage = self._books.usage_from("answer", answer) if is_counted else usage_of(answer)
        if usage is None:
            return False
        self._is_settled = True
        # The request itself stays charged as one.
        charges = [
            (admission, budget_limit.cost(usage, self._price))
            for budget_limit, admission in zip(self._books.budget_limits, self._entered, strict=False)
        ]
        changes = await driver.shielded(partial(self._settle_all, driver, charges))
        if self._learn_from is not None and type(answer) is not int:
            self._learn_from(usage)
        return changes

    async def _settle_all(self, driver: Driver, charges: list[tuple[Admission, int]]) -> bool:
        changed = [await _settled(driver, admission, cost) for admission, cost in charges]
        self._books.line.freed(self.key)
        return any(changed)

    async def _observe(self, driver: Driver, response: Any) -> ServerHint | None:
        hint = self._hint(response)
        if hint is not None and hint.hold_s > 0:
            for admission in self._held():
                core = admission.policy.shaper.core
                await (core.exhausted if hint.exhausted else core.hold)(driver, hint.hold_s, admission.key)
        return hint

    async def _failed(self, driver: Driver, error: BaseException) -> None:
        if not isinstance(error, GeneratorExit):
            await driver.shielded(partial(self._heard_and_freed, driver, error))

    async def _heard_and_freed(self, driver: Driver, error: BaseException) -> None:
        with log_errors(self):
            if (answer := CallOutcome(failure=error).answer) is not None:
                await self._observe(driver, answer)
        for admission in self._free(error):
            with log_errors(self):
                await _settled(driver, admission, 0)
        self._books.line.freed(self.key)

    # inside

    def _held(self) -> list[Admission]:
        """The admissions whose keys a hold stops: those on keys that all calls share only if there are no
        others.
        """
        shared = {limit.policy for limit in self._books.budget_limits if limit.key is not None}
        return [taken for taken in self._entered if taken.policy not in shared] or self._entered

    def _check_entered(self) -> None:
        if not self._entered:
            raise ConfigError("call", self.key, "was not entered", "write: with budget.admit(…) as call")

    def _free(self, error: BaseException) -> list[Admission]:
        """The admissions that an error gives back. A request that the server refused stays charged."""
        if self._is_settled:
            return []
        with log_errors(self):
            if self._books.refund_on is not None:
                return self._entered if self._books.refund_on(error) else []
            if never_sent(error):
                return self._entered
            if never_ran(error):
                return self._entered[: len(self._books.budget_limits)]
        return []

    def _hint(self, response: Any) -> ServerHint | None:
        self._check_entered()
        now = self._books.clock.wall_us() / SECOND_US
        # A refusal belongs to the incident of the key that is held.
        hint = hint_of(self._held()[0], self._books.feedback, response, now)
        needs = {
            budget_limit.family: budget_limit.cost(self.reserved, self._price)
            for budget_limit in self._books.budget_limits
        }
        wait_s = hold_s(str(self._books.feedback.dialect), headers_of(response), needs, now)
        own = self._books.feedback.bounded(ServerHint(hold_s=wait_s))
        if hint is None:
            return own if own.hold_s else None
        return hint._replace(hold_s=max(hint.hold_s, own.hold_s))


async def _settled(driver: Driver, admission: Admission, cost: int) -> bool:
    return await driver.ask(Twin(admission.settle, admission.asettle), cost)


async def settle(driver: Driver, call: LLMCall, usage: Any) -> None:
    """Settle a call that was made. An error is logged: the caller gets the answer all the same."""
    with log_errors(call):
        await driver.ask(Twin(call.settle, call.asettle), usage)


async def settle_seen(driver: Driver, call: LLMCall, stream_usage: StreamUsage) -> None:
    """Settle a call at what was read of its stream, which has not reported its usage."""
    with log_errors(call):
        if (usage := call.seen(stream_usage)) is not None:
            await driver.ask(Twin(call.settle, call.asettle), usage)


def log_errors(call: LLMCall) -> ErrorsLogged:
    """A context manager that logs errors of the work after a call."""
    return ErrorsLogged(call.key, "keeps what it reserved", "shapekit.llm")
