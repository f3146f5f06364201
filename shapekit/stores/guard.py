"""Guard: one part of a store's truth that can be lost by itself, and what is answered while it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from fractions import Fraction
from typing import Any

from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.base import Apply, ApplyMany, Key, Operation, Program, Store
from shapekit.stores.breaker import Attempt, Breaker
from shapekit.stores.deadline import Deadline
from shapekit.stores.outage import Closed, Local, Open, Outage, Raise
from shapekit.stores.sides import FOLLOWING, Side, routed

MODES = {mode.mode: mode for mode in (Raise, Open, Closed)}


class Guard:
    """Asks the primary while it is there, and answers in the outage's mode while it is not."""

    def __init__(
        self, primary: Store, deadline: Deadline, timeout_us: int, on_outage: str, part: Fraction | None
    ) -> None:
        self.primary = primary
        self.instant = primary.instant
        self.breaker = Breaker(primary.clock, lambda: repr(primary), timeout_us)
        self._timeout_s = timeout_us / SECOND_US
        self._deadline = deadline
        self.outage: Outage = (
            MODES[on_outage](primary.clock, self.breaker)
            if part is None
            else Local(primary.clock, self.breaker, part)
        )
        self._closed = False
        self.asked_last: tuple[str, Program, Key] | None = None
        """The last key that lay here, of which program under which name."""

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        asked = self._asked(name, program, operation, operation)
        if operation == "leave" and self.outage.local is not None:
            return _on_both_sides(self.outage.bind(name, program, operation), asked)
        if operation not in FOLLOWING:
            return asked
        own = self.outage.own(name, program, operation)
        standing = self._asked(name, program, "peek", "refund") if operation == "refund" else None
        unmoved = self.outage.bind(name, program, operation)

        def apply(key: Key, *args: Any) -> Any:
            side, args = routed(operation, args)
            if side is Side.PRIMARY:
                return asked(key, *args)
            if side is Side.LOCAL and own is not None:
                return own(key, *args)
            return unmoved(key, *args) if standing is None else standing(key)

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        if operation in FOLLOWING:
            apply = self.bind(name, program, operation)
            return lambda keys, args: [apply(key, *args) for key in keys]
        ask = self._prepared(self.primary.bind_many, name, program, operation)
        return self.guarded(ask, self.outage.bind_many(name, program, operation), self.breaker.attempt)

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        asked = self._aasked(name, program, operation, operation)
        if operation == "leave" and self.outage.local is not None:
            return _on_both_sides(self.outage.bind(name, program, operation), asked)
        if operation not in FOLLOWING:
            return asked
        own = self.outage.own(name, program, operation)
        standing = self._aasked(name, program, "peek", "refund") if operation == "refund" else None
        unmoved = self.outage.bind(name, program, operation)

        async def aapply(key: Key, *args: Any) -> Any:
            side, args = routed(operation, args)
            if side is Side.PRIMARY:
                return await asked(key, *args)
            if side is Side.LOCAL and own is not None:
                return own(key, *args)
            return unmoved(key, *args) if standing is None else await standing(key)

        return aapply

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        if operation not in FOLLOWING:
            ask = self._prepared(self.primary.abind_many, name, program, operation)
            return self.aguarded(ask, self.outage.bind_many(name, program, operation), self.breaker.attempt)
        aapply = self.abind(name, program, operation)

        async def aapply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            return [await aapply(key, *args) for key in keys]

        return aapply_many

    def _asked(self, name: str, program: Program, operation: Operation, instead: Operation) -> Apply:
        ask = self._prepared(self.primary.bind, name, program, operation)
        return self.guarded(ask, self.outage.bind(name, program, instead), self._attempts(operation))

    def _aasked(
        self, name: str, program: Program, operation: Operation, instead: Operation
    ) -> Callable[..., Awaitable[Any]]:
        ask = self._prepared(self.primary.abind, name, program, operation)
        return self.aguarded(ask, self.outage.bind(name, program, instead), self._attempts(operation))

    def _attempts(self, operation: Operation) -> Callable[[], Attempt]:
        # Waiters who are about to leave must not be late because they probe.
        return self.breaker.attempt_unless_lost if operation == "confirm" else self.breaker.attempt

    def guarded(
        self,
        ask: Callable[..., Any],
        outage: Apply,
        attempt: Callable[[], Attempt],
        within: Apply | None = None,
    ) -> Apply:
        call = within or (at_leisure if self.instant else self._deadline.call)

        def apply(*args: Any) -> Any:
            self._check_open()
            with attempt() as may_ask:
                if may_ask:
                    return call(ask, *args)
            return outage(*args)

        return apply

    def aguarded(
        self, ask: Callable[..., Awaitable[Any]], outage: Apply, attempt: Callable[[], Attempt]
    ) -> Callable[..., Awaitable[Any]]:
        call = at_leisure if self.instant else self._in_time

        async def aapply(*args: Any) -> Any:
            self._check_open()
            with attempt() as may_ask:
                if may_ask:
                    return await call(ask, *args)
            return outage(*args)

        return aapply

    async def _in_time(self, ask: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        from anyio import move_on_after  # noqa: PLC0415 - who never awaits need not load an event loop

        with move_on_after(self._timeout_s):
            return await ask(*args)
        raise self._deadline.missed()

    def _prepared(self, bind: Callable[..., Callable[..., Any]], *what: Any) -> Callable[..., Any]:
        """The primary's own call, bound now, or at its first use if the primary is gone now."""
        bound: Callable[..., Any] | None = None

        def ask(*args: Any) -> Any:
            nonlocal bound
            if bound is None:
                bound = bind(*what)
            return bound(*args)

        if not self.breaker.is_open:
            with self.breaker.attempt():
                bound = bind(*what)
        return ask

    def refuse(self, *_: Any) -> Any:
        raise self.breaker.refusal()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this ResilientStore is closed; make a new one")

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        if self.outage.local is not None:
            self.outage.local.close()


def _on_both_sides(here: Apply, asked: Callable[..., Any]) -> Callable[..., Any]:
    """A seat does not say where it was taken; where it was not, giving it back does nothing."""

    def apply(*args: Any) -> Any:
        here(*args)
        return asked(*args)

    return apply


def at_leisure(call: Callable[..., Any], *args: Any) -> Any:
    """Make a call that nothing bounds but itself."""
    return call(*args)
