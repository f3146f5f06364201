"""Operation: one thing that a program can be asked, and all that a store has to know of it.

An operation is an object beside the program that owns it: CHECK in base.py, RESERVE in queue/queue.py. A
store runs its `step`, or sends what `sent` returns and reads the answer by `received`; where the caller has
gone, it gives back by `undone`. The other methods say what is answered while the store is gone.

Sides: while a store is gone its callers may be charged in another place. What they are given there, a grant's
generation and a decision's receipt, is turned below zero: so a cancel or a refund goes back to where the call
was charged, and moves nothing in any other place or process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

from shapekit.decision import Decision, Receipt

__all__ = ["Operation"]

NOWHERE = -1
"""The receipt, and the generation, of what was charged nowhere."""

Undo: TypeAlias = "tuple[Operation, tuple[Any, ...]]"
"""What gives back, and its arguments."""


class Side(Enum):
    """Where something was charged."""

    PRIMARY = "primary"
    LOCAL = "local"
    NOWHERE = "nowhere"


class Moment(NamedTuple):
    """When a call finds its store gone."""

    instant: int
    skew: int
    wait_us: int
    """How long until the store is asked again."""


class Operation:
    """One thing that a program can be asked. There is one object of each; stores ask it what they need."""

    name: ClassVar[str]
    """The method of the program, in Python and in Lua."""
    is_read: ClassVar[bool] = False
    """Whether it returns its answer alone, and leaves the state as it is."""
    is_look: ClassVar[bool] = False
    """Whether it answers with the state itself, which takes no method of the twin."""
    most_cost: ClassVar[str | None] = None
    """What a script holds the first argument against, a cost that the program does not check, in Lua."""
    probes: ClassVar[bool] = True
    """Whether it may find out that a lost store is back, and be late by that."""
    follows: ClassVar[bool] = False
    """Whether it moves what an earlier one has taken."""
    on_both_sides: ClassVar[bool] = False
    """Whether it goes to a lost store's place, too, since it does not say where its permit was taken."""
    nothing: ClassVar[int | None] = None
    """What it answers where there is nothing to move, if that is the same for every key."""
    instead: ClassVar[Operation | None] = None
    """What is asked where there is nothing to move, if that depends on the key."""
    needs_store: ClassVar[bool] = True
    """Whether on_outage="raise" raises for it."""

    def __repr__(self) -> str:
        return self.name

    def step(self, program: Any) -> Callable[..., Any]:
        """The method of the program."""
        step: Callable[..., Any] = getattr(program, self.name)
        return step

    def sent(self, program: Any, args: tuple[Any, ...]) -> Sequence[Any]:
        """The arguments as the twin has them."""
        return args

    def received(self, program: Any, sent: Any) -> Any:
        """The answer of the twin, as the program would have given it."""
        return tuple(sent) if isinstance(sent, list) else sent

    def undone(self, args: tuple[Any, ...], answer: Any) -> tuple[Undo, ...]:
        """What gives back what was taken for a caller who is gone, one after the other.

        Permits, slots and charges are given back. A debit or a settlement tells of calls that were made, a
        hold of what a server said: they stand, whoever has heard of them.
        """
        return ()

    def cost(self, args: tuple[Any, ...]) -> int:
        """What the call costs; 0 where that cannot be too much."""
        return 0

    # while the store is gone

    def routed(self, args: tuple[Any, ...]) -> tuple[Side, tuple[Any, ...]]:
        """Where it belongs, if it `follows`, and its arguments as that side knows them."""
        return Side.PRIMARY, args

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Any:
        """The answer of on_outage="open": that of a key which was never used, and stays so."""
        return self.step(program)(None, at.instant, *args, skew=at.skew)

    def closed(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Any:
        """The answer of on_outage="closed": a refusal."""
        limit = program.peek(None, at.instant, at.skew).limit
        return Decision(False, limit, limit, 0, at.instant + at.wait_us, at.wait_us)

    def locally(
        self, apply: Callable[..., Any], program: Any, part: Any, refuse: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The call that answers for on_outage="local": `part` is the program's share, which `apply` asks."""

        def answer(key: Any, *args: Any) -> Any:
            # What is more than the share ever admits has to wait for the store.
            if (cost := self.cost(args)) and cost > part.max_cost:
                return refuse(key, *args)
            return self.given(program, part, apply(key, *args))

        return answer

    def given(self, program: Any, part: Any, answer: Any) -> Any:
        """A local answer for the outside."""
        return answer


def side_of(taken: Receipt) -> Side:
    """Where the charge of a receipt, or the grant of a generation, was made."""
    while isinstance(taken, tuple):
        taken = next((part for part in taken if part is not None), NOWHERE)
    if taken is None or taken >= 0:
        return Side.PRIMARY
    return Side.NOWHERE if taken == NOWHERE else Side.LOCAL


def turned(receipt: Receipt) -> Receipt:
    """A local receipt for the outside, or back: doing it twice changes nothing."""
    if receipt is None:
        return None
    if isinstance(receipt, tuple):
        return tuple(turned(part) for part in receipt)
    return -2 - receipt
