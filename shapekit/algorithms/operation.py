"""Operation: one method of a program, with all that a store has to know about it.

An operation is an object beside the program that owns it: CHECK in base.py, RESERVE in queue/queue.py. A
store runs its `step`, or sends what `sent` returns and reads the answer by `received`; if the caller has
gone, it gives back by `undone`. The other methods provide the answers while the store is gone.

Sides: while a store is gone, calls may be charged elsewhere. The identifiers that they get there, a grant's
generation or a decision's receipt, are turned negative. So a cancel or refund goes back to where the call was
charged, and has no effect anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

from shapekit.decision import Decision, Receipt

__all__ = ["Operation"]

NOWHERE = -1
"""The receipt, and the generation, of a call that was not charged."""

Undo: TypeAlias = "tuple[Operation, tuple[Any, ...]]"
"""An operation that gives back, with its arguments."""


class Side(Enum):
    """Where a call was charged."""

    PRIMARY = "primary"
    LOCAL = "local"
    NOWHERE = "nowhere"


class Moment(NamedTuple):
    """The time at which a call finds its store gone."""

    instant: int
    skew: int
    wait_us: int
    """How long until the store is tried again."""


class Operation:
    """One method of a program, as a store sees it. There is one object per operation."""

    name: str
    """The name of the program's method, in Python and in Lua."""
    is_read: ClassVar[bool] = False
    """Whether it only returns an answer and leaves the state as it is."""
    is_look: ClassVar[bool] = False
    """Whether it returns the state itself, which needs no method of the twin."""
    most_cost: ClassVar[str | None] = None
    """The bound, in Lua, of a cost passed as first argument, for programs that do not check it themselves."""
    probes: ClassVar[bool] = True
    """Whether it may check if a lost store is back, and take longer for that."""
    follows: ClassVar[bool] = False
    """Whether it changes what an earlier operation has taken."""
    on_both_sides: ClassVar[bool] = False
    """Whether it also goes to the place that replaces a lost store, because it does not know where its permit
    is.
    """
    nothing: ClassVar[Any] = None
    """The answer if there is nothing to change, if that is the same for every key."""
    instead: ClassVar[Operation | None] = None
    """The operation to run instead if there is nothing to change, if the answer depends on the key."""
    needs_store: ClassVar[bool] = True
    """Whether it raises under on_outage="raise"."""
    run: ClassVar[Run | None] = None
    """The operation that makes several such calls at once, if there is one."""

    def __repr__(self) -> str:
        return self.name

    def step(self, program: Any) -> Callable[..., Any]:
        """The method of the program."""
        step: Callable[..., Any] = getattr(program, self.name)
        return step

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        """The arguments in the form of the twin."""
        return args

    def received(self, program: Any, sent: Any) -> Any:
        """The answer of the twin, in the form of the program's."""
        return tuple(sent) if isinstance(sent, list) else sent

    def asks(self, args: tuple[Any, ...]) -> Any:
        """What is equal for calls that ask the same, and so can be one run."""
        return args

    def undone(self, args: tuple[Any, ...], answer: Any) -> tuple[Undo, ...]:
        """The operations that give back what was taken for a caller that has gone, in order.

        Permits, slots and charges are given back. Debits, settlements and holds are kept, because they record
        what has happened.
        """
        return ()

    def cost(self, args: tuple[Any, ...]) -> int:
        """The cost of the call; 0 if it cannot be too high."""
        return 0

    # while the store is gone

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        """The side it belongs to, if it `follows`, and its arguments as that side knows them."""
        return Side.PRIMARY, args

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Any:
        """The answer of on_outage="open": that of a key that was never used."""
        return self.step(program)(None, at.instant, *args, skew=at.skew)

    def closed(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Any:
        """The answer of on_outage="closed": a refusal."""
        limit = program.peek(None, at.instant, at.skew).limit
        return Decision(False, limit, limit, 0, at.instant + at.wait_us, at.wait_us)

    def locally(
        self, apply: Callable[..., Any], program: Any, part: Any, refuse: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The call that answers for on_outage="local": `apply` asks `part`, the program's share."""

        def answer(key: Any, *args: Any) -> Any:
            # A cost that the share never admits has to wait for the store.
            if (cost := self.cost(args)) and cost > part.max_cost:
                return refuse(key, *args)
            return self.given(program, part, apply(key, *args))

        return answer

    def given(self, program: Any, part: Any, answer: Any) -> Any:
        """Convert a local answer for the caller."""
        return answer


class Run(Operation):
    """Calls of one operation that ask the same, one right after the other: one step of a store.

    Its arguments are those of each call. The twin changes the state as all of them together do, and answers
    with the time and the state before, if that is short and nothing in it makes a difference between them.
    Then the program itself tells the answers, by the very steps that it decides by in process. Otherwise the
    twin makes the calls one by one, and returns their answers.
    """

    one: ClassVar[Operation]
    """The operation of each call."""

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        return (*self.one.sent(program, args[0]), len(args))

    def received_each(self, program: Any, args: tuple[Any, ...], sent: Any) -> list[Any]:
        """The answer to each call."""
        if sent[0].__class__ is list:
            return [self.one.received(program, each) for each in sent]
        now, *before = sent
        state, step, answers = program.before_run(before), self.one.step(program), []
        for own in args:
            after, answer, _, persist = step(state, now, *own)
            if persist:
                state = after
            answers.append(answer)
        return answers


def side_of(taken: Receipt) -> Side:
    """Where the charge with this receipt, or the grant of this generation, was made."""
    while isinstance(taken, tuple):
        taken = next((part for part in taken if part is not None), NOWHERE)
    if taken is None or taken >= 0:
        return Side.PRIMARY
    return Side.NOWHERE if taken == NOWHERE else Side.LOCAL


def turned(receipt: Receipt) -> Receipt:
    """Turn a local receipt into one for the caller, or back: applied twice, it changes nothing."""
    if receipt is None:
        return None
    if isinstance(receipt, tuple):
        return tuple(turned(part) for part in receipt)
    return -2 - receipt
