"""LLMCall: the leave of one call to a language model: its tokens first, then its turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from shapekit.admission import Admission
from shapekit.alarm import shielded
from shapekit.clock import Clock
from shapekit.ending import Ending
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.feedback import Feedback, ServerHint
from shapekit.llm_estimate import told_usage
from shapekit.llm_failure import never_ran, never_sent
from shapekit.llm_limits import hold_s
from shapekit.llm_usage import TokenUsage, usage_of
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, Duration, duration_us

__all__ = ["LLMCall", "Purse", "Unheard", "checked_parts"]


class Purse(NamedTuple):
    """A limit of tokens: all of them, or only those of the input, or of the output."""

    policy: Policy
    part: str
    """"total", "input" or "output"."""
    family: str
    """What servers call such tokens in their headers."""

    def cost(self, usage: TokenUsage) -> int:
        """What a usage takes out of it."""
        cost: int = getattr(usage, self.part)
        return cost


class LLMCall:
    """One call's leave: entered, by `with` or `async with`, when its tokens and its turn have come.

    If the block raises, what cost nothing comes back; in all other cases what was reserved stands until
    somebody settles. After that the last word counts.
    """

    __slots__ = (
        "_clock",
        "_entered",
        "_feedback",
        "_is_settled",
        "_purses",
        "_refund_on",
        "_requests",
        "_waits",
        "key",
        "reserved",
    )

    def __init__(
        self,
        purses: Sequence[Purse],
        requests: Policy | None,
        key: str,
        reserved: TokenUsage,
        waits: dict[str, Duration],
        refund_on: Callable[[BaseException], bool] | None,
        feedback: Feedback,
        clock: Clock,
    ) -> None:
        self.key = key
        self.reserved = reserved
        """The tokens that were reserved."""
        self._purses = purses
        self._requests = requests
        self._waits = waits
        self._refund_on = refund_on
        self._feedback = feedback
        self._clock = clock
        self._entered: list[Admission] = []
        self._is_settled = False

    @property
    def delay(self) -> float:
        """Seconds the call was delayed, for its tokens and for its turn."""
        self._check_entered()
        return sum(admission.delay for admission in self._entered)

    # the books

    def settle(self, answer: Any) -> bool:
        """Say what the call used up: its answer, a usage, a number of tokens, or (input, output).

        The difference is charged, or given back. False, and what was charged stands, if the answer says
        nothing of a usage, or nothing was to change.
        """
        usage = self._usage(answer)
        if usage is None:
            return False
        self._is_settled = True
        changed = [admission.settle(cost) for admission, cost in self._charges(usage)]
        return any(changed)

    async def asettle(self, answer: Any) -> bool:
        """`settle`, awaitable; a cancelled task still does it."""
        usage = self._usage(answer)
        if usage is None:
            return False
        self._is_settled = True
        with shielded():
            changed = [await admission.asettle(cost) for admission, cost in self._charges(usage)]
        return any(changed)

    def observe(self, response: Any) -> ServerHint | None:
        """Hear what an answer's headers say: if it asks for it, nobody leaves for a while.

        That is so too where the server has fewer tokens left than this call had reserved: the next one like
        it would be refused. Takes a response with headers, as httpx or an SDK's `with_raw_response` has it.
        """
        hint = self._heard(response)
        if hint is not None and hint.hold_s > 0:
            for policy in self._policies():
                policy.shaper.hold(hint.hold_s, key=self.key)
        return hint

    async def aobserve(self, response: Any) -> ServerHint | None:
        """`observe`, awaitable."""
        hint = self._heard(response)
        if hint is not None and hint.hold_s > 0:
            for policy in self._policies():
                await policy.shaper.ahold(hint.hold_s, key=self.key)
        return hint

    def failed(self, error: BaseException) -> None:
        """The call has ended in an error: hear what that says, and give back what it cost nothing of."""
        with Unheard(self.key):
            if (answer := Ending(failure=error).answer) is not None:
                self.observe(answer)
        for admission in self._free(error):
            with Unheard(self.key):
                admission.settle(0)

    async def afailed(self, error: BaseException) -> None:
        """`failed`, awaitable; a cancelled task still does it."""
        with shielded():
            with Unheard(self.key):
                if (answer := Ending(failure=error).answer) is not None:
                    await self.aobserve(answer)
            for admission in self._free(error):
                with Unheard(self.key):
                    await admission.asettle(0)

    # entering

    def __enter__(self) -> Self:
        try:
            for admission in self._admissions():
                admission.__enter__()
                self._entered.append(admission)
        except BaseException:
            for admission in self._entered:
                with suppress(StoreUnavailableError):
                    admission.settle(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)

    async def __aenter__(self) -> Self:
        try:
            for admission in self._admissions():
                await admission.__aenter__()
                self._entered.append(admission)
        except GeneratorExit:
            # Thrown away together with its loop: nothing can be awaited any more.
            raise
        except BaseException:
            with shielded():
                for admission in self._entered:
                    with suppress(StoreUnavailableError):
                        await admission.asettle(0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            await self.afailed(error)

    # inside

    def _policies(self) -> Iterator[Policy]:
        yield from (purse.policy for purse in self._purses)
        if self._requests is not None:
            yield self._requests

    def _admissions(self) -> Iterator[Admission]:
        """One for each policy in turn; what waiting took for one is not left for the next."""
        if self._entered:
            raise ConfigError("call", self.key, "was entered before", "admit each call anew")
        start = self._clock.now_us()
        bounds = {name: duration_us(name, bound, least=0) for name, bound in self._waits.items()}
        costs = [max(1, purse.cost(self.reserved)) for purse in self._purses]
        for policy, cost in zip(self._policies(), [*costs, 1], strict=False):
            gone = self._clock.now_us() - start
            left = {name: max(0, bound_us - gone) / SECOND_US for name, bound_us in bounds.items()}
            yield policy.admit(self.key, cost=cost, **left)

    def _check_entered(self) -> None:
        if not self._entered:
            raise ConfigError("call", self.key, "was not entered", "write: with budget.admit(…) as call")

    def _usage(self, answer: Any) -> TokenUsage | None:
        self._check_entered()
        if isinstance(answer, TokenUsage):
            return answer
        if not isinstance(answer, tuple) and type(answer) is not int:
            return usage_of(answer)
        usage = told_usage("answer", answer)
        if type(answer) is int:
            checked_parts("answer", answer, self._purses)
        return usage

    def _charges(self, usage: TokenUsage) -> list[tuple[Admission, int]]:
        """What each purse is charged; the request, which was one, is none of them."""
        return [
            (admission, purse.cost(usage))
            for purse, admission in zip(self._purses, self._entered, strict=False)
        ]

    def _free(self, error: BaseException) -> list[Admission]:
        """What an error gives back. A request that the server has refused was one all the same."""
        if self._is_settled:
            return []
        if self._refund_on is not None:
            return self._entered if self._refund_on(error) else []
        if never_sent(error):
            return self._entered
        return self._entered[: len(self._purses)] if never_ran(error) else []

    def _heard(self, response: Any) -> ServerHint | None:
        self._check_entered()
        last = self._entered[-1]
        hint = last._heard(response)
        answer = Ending(result=response).answer
        if answer is None:
            return hint
        needs = {purse.family: purse.cost(self.reserved) for purse in self._purses}
        wait_s = hold_s(str(self._feedback.dialect), answer.headers, needs, last._shaper.wall())
        own = self._feedback.bounded(ServerHint(hold_s=wait_s))
        if hint is None:
            return own if own.hold_s else None
        return hint._replace(hold_s=max(hint.hold_s, own.hold_s))


class Unheard:
    """A context for what comes after the call: a store that is gone takes neither answer nor error away."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, StoreUnavailableError):
            return False
        logging.getLogger("shapekit.llm").warning("key %r keeps what it reserved: %s", self._key, error)
        return True


def checked_parts(field: str, told: object, purses: Sequence[Purse]) -> None:
    """A bare number says nothing to who counts input and output apart."""
    if any(purse.part != "total" for purse in purses):
        raise ConfigError(
            field, told, "does not say how much of it is input", "pass (input, output), or the answer"
        )
