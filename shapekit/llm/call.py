"""LLMCall: the leave of one call to a language model: its tokens first, then its slot.

Some errors say that a call used up no tokens, some that it was never sent. Of a timeout, a lost connection
or an error of the server it is unknown what the model did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from socket import gaierror
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from shapekit._adapters.http import CallOutcome
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit._runtime.process import ErrorsLogged
from shapekit.clock import Clock
from shapekit.errors import ConfigError, CostExceedsLimitError, RateLimitedError
from shapekit.feedback import Feedback, ServerHint
from shapekit.feedback.dialects import DIALECTS, FAMILIES, heard, picked, wanted
from shapekit.llm.line import Charge, Line
from shapekit.llm.prices import DIGITS, Price
from shapekit.llm.usage import StreamUsage, TokenUsage, estimated, told_usage, usage_of
from shapekit.policy import Admission, Policy, hint_of
from shapekit.rate import SECOND_US, Duration

__all__ = [
    "DIALECTS_OF_TOKENS",
    "BudgetLimit",
    "LLMCall",
    "Learn",
    "hold_s",
    "log_errors",
    "never_ran",
    "never_sent",
    "settle",
    "settle_seen",
    "told_tokens",
]

DIALECTS_OF_TOKENS = tuple(FAMILIES)
"""The servers that tell tokens from requests."""


def hold_s(dialect: str, headers: Any, needs: Mapping[str, int], received_at: float) -> float:
    """Seconds until the server has as many tokens again as one more call like this one needs.

    A server's reset is when all is there again, and what is missing comes back evenly until then. It may
    have less left than we believe, because others spend it too.
    """
    waits = [0.0]
    for name in FAMILIES if dialect == "auto" else (dialect,):
        answer = heard(0, picked(headers, wanted(DIALECTS[name].reads)), received_at)
        for family, hint in FAMILIES[name](answer).items():
            need, left, limit, reset_s = needs.get(family, 0), hint.remaining, hint.limit, hint.reset_s
            if left is None or left >= need or not reset_s:
                continue
            spent = 0 if limit is None else limit - left
            waits.append(reset_s if spent < need - left else reset_s * (need - left) / spent)
    return max(waits)


_UNKNOWN = (408, 499)
"""Of the refusals those that come after a wait: the model may have been at work."""
_NEVER_SENT = (RateLimitedError, ConnectionRefusedError, gaierror)


def never_sent(error: BaseException) -> bool:
    """Whether the call did not leave: refused by us, or without a server to send it to.

    Clients wrap such errors in their own, so what they come from counts: their causes, or what was replaced
    by them (`from None`). Of several that failed together, all.
    """
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, _NEVER_SENT):
            return True
        if isinstance(cause, BaseExceptionGroup):
            return all(map(never_sent, cause.exceptions))
        seen.add(id(cause))
        replaced = cause.__context__ if cause.__suppress_context__ else None
        cause = cause.__cause__ or replaced
    return False


def never_ran(error: BaseException) -> bool:
    """Whether no model did anything: it was never sent, or the server refused it (a 4xx, 429 too)."""
    answer = CallOutcome(failure=error).answer
    if answer is not None:
        return 400 <= answer.status < 500 and answer.status not in _UNKNOWN
    return never_sent(error)


Learn: TypeAlias = Callable[[TokenUsage], None] | None
"""What is told the usage of a call, to estimate the next ones by it."""


class BudgetLimit(NamedTuple):
    """A limit of tokens: all of them, or only those of the input, or of the output. Or one of money."""

    policy: Policy
    part: str
    """"total", "input" or "output"; "money" for what they cost."""
    family: str
    """What servers call such tokens in their headers."""
    most: int
    """The most that one call may take out."""
    bound: str
    """The option that says so."""
    key: str | None = None
    """The key of a limit that all calls share."""
    currency: str | None = None

    def key_of(self, key: str) -> str:
        """The key that a call with this key takes from."""
        return key if self.key is None else self.key

    def cost(self, usage: TokenUsage, price: Price | None) -> int:
        """What a usage takes out of it."""
        if self.part == "money" and price is not None:
            return price.cost(usage)
        cost: int = getattr(usage, self.part)
        return cost

    def reserved(self, usage: TokenUsage, price: Price | None) -> int:
        """What a call of this estimate is to reserve."""
        if self.part == "money" and price is not None:
            return max(1, price.most(usage))
        return max(1, self.cost(usage, price))

    def charge(self, usage: TokenUsage, price: Price | None, key: str) -> Charge:
        """What a call takes from it, or CostExceedsLimitError."""
        cost, whose = self.reserved(usage, price), self.key_of(key)
        if cost > self.most:
            unit, digits = ("tokens", 0) if self.currency is None else (self.currency, DIGITS)
            raise CostExceedsLimitError(cost, self.most, whose, self.bound, self.policy.name, unit, digits)
        return Charge(self.policy, whose, cost, self.currency)


class Books(NamedTuple):
    """What the calls of one budget are counted by."""

    budget_limits: tuple[BudgetLimit, ...]
    requests: Policy | None
    refund_on: Callable[[BaseException], bool] | None
    feedback: Feedback
    clock: Clock
    line: Line
    count_tokens: Callable[[str], int]
    """Counts the tokens of a text."""
    settles_aborted: bool
    """Whether a stream that has not told its usage is settled at what was seen of it."""

    def fits(self, usage: TokenUsage, price: Price | None) -> bool:
        """Whether a call of this estimate can ever be admitted."""
        return all(
            budget_limit.reserved(usage, price) <= budget_limit.most for budget_limit in self.budget_limits
        )

    def charges(self, usage: TokenUsage, price: Price | None, key: str) -> list[Charge]:
        """What a call of this estimate takes from each policy."""
        charges = [budget_limit.charge(usage, price, key) for budget_limit in self.budget_limits]
        return charges if self.requests is None else [*charges, Charge(self.requests, key, 1)]


class LLMCall:
    """One call under a budget: `with` or `async with` waits for its tokens and its slot.

    If the block raises an error of a call that cost nothing, the reserved tokens are given back. Otherwise
    they stay charged until the call is settled. Of several settlements, the last one counts.
    """

    __slots__ = (
        *("_asked", "_books", "_delay_us", "_entered", "_is_settled", "_learn_from", "_price", "_waits"),
        *("key", "reserved"),
    )

    def __init__(
        self,
        books: Books,
        key: str,
        reserved: TokenUsage,
        waits: dict[str, Duration],
        asked: Mapping[str, Any] | None = None,
        price: Price | None = None,
        learn_from: Learn = None,
    ) -> None:
        self.key = key
        """The key whose budget the call takes from."""
        self.reserved = reserved
        """The tokens that were reserved."""
        self._books = books
        self._waits = waits
        self._asked = asked
        self._price = price
        self._learn_from = learn_from
        self._entered: list[Admission] = []
        self._delay_us = 0
        self._is_settled = False

    @property
    def delay(self) -> float:
        """The seconds that the call waited, for its tokens and for its slot."""
        self._check_entered()
        return self._delay_us / SECOND_US

    # the books

    def settle(self, answer: Any) -> bool:
        """Charge what the call used: its answer, a usage, a number of tokens, or (input, output).

        The difference is charged, or given back. Returns False, and changes nothing, if the answer has no
        usage or the charge was right already.
        """
        return run(self._settle, answer)

    async def asettle(self, answer: Any) -> bool:
        """`settle`, awaitable; a cancelled task still does it."""
        return await self._settle(TASKS, answer)

    def seen(self, heard: StreamUsage) -> TokenUsage | None:
        """What a stream has used, as far as it was read; None if its reservation stays charged instead."""
        if not self._books.settles_aborted:
            return None
        self._learn_from = None  # what was counted here says nothing of how to count
        given = self.reserved.input
        if not given and self._asked is not None:
            given = estimated(self._asked, self._books.count_tokens).input
        usage = heard.seen(given, self._books.count_tokens)
        return usage if usage.input else None

    def observe(self, response: Any) -> ServerHint | None:
        """Read what an answer's headers say, and hold the key if it asks for that.

        The key is also held if the server has fewer tokens left than this call reserved, because the next
        such call would be refused. Takes a response with headers, of httpx or an SDK's `with_raw_response`.
        """
        return run(self._observe, response)

    async def aobserve(self, response: Any) -> ServerHint | None:
        """`observe`, awaitable."""
        return await self._observe(TASKS, response)

    def failed(self, error: BaseException) -> None:
        """End the call after an error: read the response in it, and give back what the call did not cost.

        A call that is discarded with its event loop does neither.
        """
        run(self._failed, error)

    async def afailed(self, error: BaseException) -> None:
        """`failed`, awaitable; a cancelled task still does it."""
        await self._failed(TASKS, error)

    def __enter__(self) -> Self:
        return run(self._enter)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            run(self._failed, error)

    async def __aenter__(self) -> Self:
        return await self._enter(TASKS)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._failed(TASKS, error)

    # flows

    async def _enter(self, driver: Driver) -> Self:
        if self._entered:
            raise ConfigError("call", self.key, "was entered before", "admit each call anew")
        charges = self._books.charges(self.reserved, self._price, self.key)
        reservations, line_us = await self._books.line.take(driver, self.key, charges, self._waits)
        self._delay_us = line_us + max(reservation.grant.wait_us for reservation in reservations)
        self._entered = [
            charge.policy.admit(charge.key, cost=charge.cost).taken(reservation)
            for charge, reservation in zip(charges, reservations, strict=True)
        ]
        return self

    async def _settle(self, driver: Driver, answer: Any) -> bool:
        usage = self._usage(answer)
        if usage is None:
            return False
        self._is_settled = True
        with driver.shielded():
            changed = [await _settled(driver, admission, cost) for admission, cost in self._charges(usage)]
        self._books.line.freed(self.key)
        if self._learn_from is not None and type(answer) is not int:
            self._learn_from(usage)
        return any(changed)

    async def _observe(self, driver: Driver, response: Any) -> ServerHint | None:
        hint = self._heard(response)
        if hint is not None and hint.hold_s > 0:
            for policy, key in self._held():
                hold = policy.shaper.core.exhausted if hint.exhausted else policy.shaper.core.hold
                await hold(driver, hint.hold_s, key)
        return hint

    async def _failed(self, driver: Driver, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):
            return
        with driver.shielded():
            with log_errors(self):
                if (answer := CallOutcome(failure=error).answer) is not None:
                    await self._observe(driver, answer)
            for admission in self._free(error):
                with log_errors(self):
                    await _settled(driver, admission, 0)
        self._books.line.freed(self.key)

    # inside

    def _held(self) -> list[tuple[Policy, str]]:
        """What a hold stops: the key of the call, unless all calls have only one in common."""
        books = self._books
        policies = [budget_limit.policy for budget_limit in books.budget_limits if budget_limit.key is None]
        own = [*policies, *([] if books.requests is None else [books.requests])]
        if own:
            return [(policy, self.key) for policy in own]
        return [(budget_limit.policy, budget_limit.key_of(self.key)) for budget_limit in books.budget_limits]

    def _check_entered(self) -> None:
        if not self._entered:
            raise ConfigError("call", self.key, "was not entered", "write: with budget.admit(…) as call")

    def _usage(self, answer: Any) -> TokenUsage | None:
        self._check_entered()
        if isinstance(answer, tuple) or type(answer) is int:
            return told_tokens("answer", answer, self._books.budget_limits)
        return usage_of(answer)

    def _charges(self, usage: TokenUsage) -> list[tuple[Admission, int]]:
        """What each limit is charged; the request, which was one, is none of them."""
        return [
            (admission, budget_limit.cost(usage, self._price))
            for budget_limit, admission in zip(self._books.budget_limits, self._entered, strict=False)
        ]

    def _free(self, error: BaseException) -> list[Admission]:
        """What an error gives back. A request that the server has refused was one all the same."""
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

    def _heard(self, response: Any) -> ServerHint | None:
        self._check_entered()
        last, now = self._entered[-1], self._books.clock.wall_us() / SECOND_US
        hint = hint_of(last, self._books.feedback, response, now)
        answer = CallOutcome(result=response).answer
        if answer is None:
            return hint
        needs = {
            budget_limit.family: budget_limit.cost(self.reserved, self._price)
            for budget_limit in self._books.budget_limits
        }
        wait_s = hold_s(str(self._books.feedback.dialect), answer.headers, needs, now)
        own = self._books.feedback.bounded(ServerHint(hold_s=wait_s))
        if hint is None:
            return own if own.hold_s else None
        return hint._replace(hold_s=max(hint.hold_s, own.hold_s))


async def _settled(driver: Driver, admission: Admission, cost: int) -> bool:
    changed: bool = await driver.ask(Twin(admission.settle, admission.asettle), cost)
    return changed


async def settle(driver: Driver, call: LLMCall, usage: Any) -> None:
    """Settle a call that was made. Where that fails, its answer is the caller's all the same."""
    with log_errors(call):
        await driver.ask(Twin(call.settle, call.asettle), usage)


async def settle_seen(driver: Driver, call: LLMCall, heard: StreamUsage) -> None:
    """Settle a call at what was seen of its stream, which has not told its usage."""
    with log_errors(call):
        if (usage := call.seen(heard)) is not None:
            await driver.ask(Twin(call.settle, call.asettle), usage)


def log_errors(call: LLMCall) -> ErrorsLogged:
    """A context for what is done after a call was made."""
    return ErrorsLogged(call.key, "keeps what it reserved", "shapekit.llm")


def told_tokens(field: str, told: object, budget_limits: Sequence[BudgetLimit]) -> TokenUsage:
    """A usage, or the tokens that are given as numbers.

    A bare number says nothing where input and output are counted apart.
    """
    usage = told if isinstance(told, TokenUsage) else told_usage(field, told)
    if type(told) is int and any(budget_limit.part != "total" for budget_limit in budget_limits):
        raise ConfigError(
            field, told, "does not say how much of it is input", "pass (input, output), or the answer"
        )
    return usage
