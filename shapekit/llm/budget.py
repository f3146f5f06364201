"""LLMBudget: limits requests, tokens and money; calls reserve an estimate and settle their actual usage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.gcra import TokenBucket
from shapekit.algorithms.quota import Quota, QuotaUsage
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.clock import Clock
from shapekit.config import RefundSpec, checked_key, never_counted
from shapekit.errors import ConfigError
from shapekit.events import Listener
from shapekit.feedback import Feedback
from shapekit.feedback.dialects import FAMILIES
from shapekit.gate import checked_name
from shapekit.keys import KeySpec, KeyTemplate, text_of
from shapekit.llm.call import Books, BudgetLimit, Learn, Line, LLMCall
from shapekit.llm.prices import Price, PriceSpec, Spending, limits_of_money, money
from shapekit.llm.usage import CountSpec, EstimateSpec, Learning, ModelRequest, TokenUsage, counter, estimated
from shapekit.llm.wrap import wrapped
from shapekit.policy import Policy
from shapekit.rate import (
    AS_CONFIGURED,
    COUNT,
    SECOND_US,
    Duration,
    Rate,
    boolean,
    exactly,
    max_wait_us,
    one_of,
    parse_rates,
)
from shapekit.shaper import Outlook
from shapekit.stores import StoreLike, open_store

__all__ = ["LLMBudget"]

F = TypeVar("F", bound=Callable[..., Any])

_FAMILIES = {"total": "tokens", "input": "input-tokens", "output": "output-tokens"}
PARTS = 120
"""In how many parts a period is counted for a limit that must not be exceeded."""
MOST_SOON_US = 250_000
"""How far ahead a call takes its slots at most: half a part of a minute."""
MOST_FENCE_US = 60 * SECOND_US
"""How long calls of other processes can overtake the first waiting call of a process, at most."""
_ALL = "all"
"""The key of a limit over all keys."""
_BUDGETS = "_shapekit_budgets"
"""The attribute of a wrapped function that has the budgets of its calls."""
_FIX = 'write LLMBudget(requests="500/min", tokens="90k/min")'


class LLMBudget:
    """The limits of a language model: requests, tokens, money.

        >>> budget = LLMBudget(requests="500/min", tokens="90k/min")
        >>> with budget.admit({"messages": [{"role": "user", "content": "why?"}], "max_tokens": 500}) as call:
        ...     call.reserved.total, call.settle({"usage": {"prompt_tokens": 9, "completion_tokens": 40}})
        (508, True)

    A call takes its tokens first, by an estimate, and then its slot among the requests, which are paced. It
    gets both or neither. After the answer, `settle` charges what the call used. `wrap` does all of this.

    - `requests`: the rate of calls, evenly spaced.
    - `tokens`: a rate of tokens, such as `"90k/min"`, or any strategy.
      `input_tokens`, `output_tokens`: if the server counts them separately. A rate is exceeded in no window
      of its period, even if some calls take longer to arrive than others, by up to a 120th of the period.
      This costs 1.7 % of the tokens and 0.8 % of the requests.
    - `tokens_per_day`: how many tokens in a day, or a `Quota`.
    - `spend`: how much money per calendar day, week or month, such as `"50 USD/day"`, or in any window of
      another period, such as `"5 USD/hour"`. A call reserves the most that it can cost; a call that may spend
      more than is left is refused with QuotaExhaustedError.
    - `total`: the same, over all keys together.
    - `prices`: the prices of a million tokens of each model, as a table or the path of a TOML or JSON file:
      `{"currency": "USD", "some-model": {"input": "2.50", "output": "10"}}`. Without their own prices,
      `cached` and `written` (to a cache) cost as much as `input`, and `reasoning` as much as `output`.
    - `tz`: the time zone in which the days, weeks and months of `spend` and `total` begin, instead of UTC.
    - `alerts`: the shares of a day's tokens and of money at which a `BudgetReached` is emitted.
    - `capacity`: lets more through: counts the tokens with a `TokenBucket` of this capacity, which is full at
      first and refilled at the rate. The worst window admits the limit plus the capacity. One call can ask
      for at most the capacity.
    - `estimate`: how much a call may use: tokens, (input, output), or a callable that gets the arguments of
      the call. By default the length of the prompt, and the longest answer that the call allows.
    - `learn=False`: earlier calls do not correct the estimates by length.
    - `count`: a function that counts the tokens of a text, or a tiktoken encoding. By default, three bytes
      count as a token.
    - `key`: what the limit is counted for: text, a template over the arguments (`"{model}"`), or a callable.
    - `max_wait`: a call that would wait longer, for its tokens and its slot together, is refused.
    - `refund_on`: exceptions (or a predicate) after which a call cost nothing. By default errors of calls
      that were not sent (refused by shapekit, connection refused), and refusals by the server (a 4xx), which
      use a request and no tokens.
    - `on_abort="estimate"`: a stream that ends before it reports its usage is charged what it reserved,
      rather than its input and the part of its answer that was read.
    - `provider`: "openai" or "anthropic" reads only the headers of this provider, "auto" those of any.
    """

    def __init__(
        self,
        *,
        requests: Rate | str | None = None,
        tokens: Rate | str | Algorithm[Any] | None = None,
        input_tokens: Rate | str | Algorithm[Any] | None = None,
        output_tokens: Rate | str | Algorithm[Any] | None = None,
        tokens_per_day: int | str | Quota | None = None,
        spend: str | None = None,
        total: str | None = None,
        prices: PriceSpec | None = None,
        tz: str | None = None,
        alerts: Sequence[float] = (0.8, 0.95),
        capacity: int | None = None,
        estimate: EstimateSpec | None = None,
        learn: bool = True,
        count: CountSpec | None = None,
        key: KeySpec = "default",
        max_wait: Duration | None = None,
        refund_on: RefundSpec | None = None,
        on_abort: str = "seen",
        provider: str = "auto",
        name: str | None = None,
        store: StoreLike | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store, self._owns_store = open_store(store, clock)
        self.name = checked_name(name, self._store, "llm")
        """The name of the budget, which the names of its policies begin with."""
        self._feedback = Feedback(one_of("provider", provider, ("auto", *FAMILIES)))
        given = {
            "requests": requests,
            "tokens": tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        for field, limit in given.items():
            number = limit.strip() if isinstance(limit, str) else limit
            if exactly(number) is not None or (isinstance(number, str) and re.fullmatch(COUNT, number)):
                # Other rates would be per second, and limits of models are published per minute.
                raise ConfigError(field, limit, "does not say in which time", f'write {field}="{number}/min"')
        if capacity is not None and tokens is None and input_tokens is None and output_tokens is None:
            raise ConfigError("capacity", capacity, "has no rate of tokens to apply to", _FIX)
        gates = {
            "total": (*_counted("tokens", tokens, capacity), *_day(tokens_per_day)),
            "input": _counted("input_tokens", input_tokens, capacity),
            "output": _counted("output_tokens", output_tokens, capacity),
        }
        budget_limits = tuple(
            BudgetLimit(
                self._policy(_FAMILIES[part], gates=own), part, _FAMILIES[part], _bound(part, own, capacity)
            )
            for part, own in gates.items()
            if own
        )
        limits, self._prices = limits_of_money(spend, total, prices, tz)
        budget_limits += tuple(
            BudgetLimit(
                self._policy(name, quota=limit.quota),
                "money",
                name,
                f"{name}=",
                _ALL if name == "total" else None,
                limit.currency,
            )
            for name, limit in limits.items()
        )
        if not budget_limits:
            raise ConfigError("tokens", tokens, "is missing", _FIX)
        self.policies = {budget_limit.family: budget_limit.policy for budget_limit in budget_limits}
        """The policies of the budget, by what they count: "tokens", "input-tokens", "requests" …"""
        max_wait_us(max_wait)  # raise a mistake here, not in the first call
        if requests is not None:
            try:
                rates_of_requests = parse_rates(requests)
            except ConfigError as error:
                raise error.within("requests") from None
            is_strict = capacity is None and all(rate.burst is None for rate in rates_of_requests)
            headroom = Fraction(1, PARTS + 1) if is_strict else 0.0
            self.policies["requests"] = self._policy("requests", rate=requests, headroom=headroom)
        percents = _percents(alerts)
        for policy in self.policies.values():
            policy.shaper.core.budgets.percents = percents
        paced = self.policies.get("requests")
        rates = [limit for limit in given.values() if limit is not None and not isinstance(limit, Algorithm)]
        periods_us = [rate.period_us for limit in rates for rate in parse_rates(limit)] or [60 * SECOND_US]
        soon_us = min(MOST_SOON_US, min(periods_us) // (2 * PARTS))
        is_shared = any(budget_limit.key is not None for budget_limit in budget_limits)
        line = Line(self._store.clock, soon_us, min(MOST_FENCE_US, max(periods_us)), is_shared=is_shared)
        self._count = counter(count)
        self._books = Books(
            budget_limits,
            paced,
            never_counted(refund_on),
            self._feedback,
            self._store.clock,
            line,
            self._count,
            settles_aborted=one_of("on_abort", on_abort, ("seen", "estimate")) == "seen",
        )
        self._estimate: TokenUsage | Callable[..., Any] | None = None
        if estimate is not None:
            self._estimate = estimate if callable(estimate) else self._books.usage_from("estimate", estimate)
        gates_of_all = [
            gate for budget_limit in budget_limits for gate in budget_limit.policy.shaper.core.queue.gates
        ]
        lowers = all(isinstance(gate, TokenBucket) for gate in gates_of_all)
        self._learning = (
            Learning(scales_input=count is None, lowers=lowers) if boolean("learn", learn) else None
        )
        self._key = checked_key(key)
        self._max_wait = max_wait

    def admit(
        self,
        request: ModelRequest | None = None,
        *,
        key: str | None = None,
        model: str | None = None,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,
    ) -> LLMCall:
        """A context manager that waits until the call may leave, and yields its `LLMCall`.

        `request` is how many tokens to reserve, or the arguments of the call as a dict. `model` names the
        model whose price applies, if the dict does not.
        """
        waits = self._max_wait if max_wait is AS_CONFIGURED else max_wait, timeout
        given = request if isinstance(request, Mapping) else None
        call_key, reserved, price, learn_from = self._estimated(request, key, model)
        return LLMCall(self._books, call_key, reserved, waits, given, price, learn_from)

    aadmit = admit
    """`admit`, for `async with`."""

    def wrap(self, function: F) -> F:
        """Wrap a function: its calls wait for their limits, and are settled by the usage in their answers.

        Made for the `create` methods of the OpenAI and Anthropic SDKs, whose headers are read as well; any
        function, coroutine function or asynchronous generator function can be wrapped. Streams are settled
        when they report their usage: OpenAI's chat does so with `stream_options={"include_usage": True}`.
        """
        if not callable(function):
            raise ConfigError("function", function, "cannot be called", "wrap client.chat.completions.create")
        # In `__dict__`, which `functools.wraps` copies.
        budgets = getattr(function, "__dict__", {}).get(_BUDGETS, ())
        if self in budgets:
            bound = "is wrapped already: each call would be charged twice"
            raise ConfigError("function", function, bound, "wrap it once")
        made: F = wrapped(function, self.admit)
        setattr(made, _BUDGETS, (*budgets, self))
        return made

    def forecast(
        self,
        calls: int = 1,
        request: ModelRequest | None = None,
        *,
        key: str | None = None,
        model: str | None = None,
    ) -> Outlook:
        """When `calls` more such calls will have left, if they came now and no other calls did."""
        return run(self._forecast, calls, request, key, model)

    async def aforecast(
        self,
        calls: int = 1,
        request: ModelRequest | None = None,
        *,
        key: str | None = None,
        model: str | None = None,
    ) -> Outlook:
        """`forecast`, awaitable."""
        return await self._forecast(TASKS, calls, request, key, model)

    async def _forecast(
        self, driver: Driver, calls: int, request: ModelRequest | None, key: str | None, model: str | None
    ) -> Outlook:
        call_key, reserved, price, _ = self._estimated(request, key, model)
        charges = await self._books.charges(driver, reserved, price, call_key)
        outlooks = [await charge.core.forecast(driver, calls, charge.key, charge.cost) for charge in charges]
        return Outlook(max(each.first_in for each in outlooks), max(each.last_in for each in outlooks))

    def quotas(self, key: str | None = None) -> list[QuotaUsage]:
        """How much of each quota of tokens is used and left, for a key. Consumes nothing."""
        return run(self._quotas, key)

    async def aquotas(self, key: str | None = None) -> list[QuotaUsage]:
        """`quotas`, awaitable."""
        return await self._quotas(TASKS, key)

    async def _quotas(self, driver: Driver, key: str | None) -> list[QuotaUsage]:
        call_key, used = self._call_key(key), list[QuotaUsage]()
        for budget_limit in self._books.budget_limits:
            if budget_limit.currency is None:
                used += await driver.ask(
                    Twin(budget_limit.policy.quotas, budget_limit.policy.aquotas), call_key
                )
        return used

    def spending(self, key: str | None = None) -> list[Spending]:
        """How much money of each limit is spent and left, for a key. Consumes nothing."""
        return run(self._spending, key)

    async def aspending(self, key: str | None = None) -> list[Spending]:
        """`spending`, awaitable."""
        return await self._spending(TASKS, key)

    async def _spending(self, driver: Driver, key: str | None) -> list[Spending]:
        call_key, found = self._call_key(key), list[Spending]()
        for budget_limit in self._books.budget_limits:
            if budget_limit.currency is not None:
                ask = Twin(budget_limit.policy.quotas, budget_limit.policy.aquotas)
                (quota,) = await driver.ask(ask, budget_limit.key_of(call_key))
                limit, used, left = map(money, (quota.limit, quota.used, quota.remaining))
                times = quota.resets_at, quota.resets_in
                found.append(
                    Spending(budget_limit.family, quota.per, budget_limit.currency, limit, used, left, *times)
                )
        return found

    def listen(self, listener: Listener) -> ExitStack:
        """Add a listener for the events of this budget; closing the returned `Listening` removes it."""
        with ExitStack() as listening:
            for policy in self.policies.values():
                listening.enter_context(policy.listen(listener))
            return listening.pop_all()

    def close(self) -> None:
        """Wake all waiting calls; close the store if this budget made it."""
        run(self._close)

    async def aclose(self) -> None:
        """`close`, awaitable."""
        await self._close(TASKS)

    async def _close(self, driver: Driver) -> None:
        for policy in self.policies.values():
            await driver.ask(Twin(policy.close, policy.aclose))
        if self._owns_store:
            await driver.ask(Twin(self._store.close, self._store.aclose))

    def _policy(self, family: str, **limits: Any) -> Policy:
        return Policy(**limits, name=f"{self.name}.{family}", store=self._store, feedback=self._feedback)

    def _estimated(
        self, request: ModelRequest | None, key: str | None, model: str | None
    ) -> tuple[str, TokenUsage, Price | None, Learn]:
        """The key of a call, what it reserves, its price, and the function that learns from its usage."""
        call_key = self._call_key(key, request)
        if model is None and isinstance(request, Mapping):
            model = request.get("model")
        price = None if self._prices is None else self._prices.of(model)
        reserved, learn_from = self._reserved(request, price, call_key, model)
        return call_key, reserved, price, learn_from

    def _reserved(
        self, request: ModelRequest | None, price: Price | None, call_key: str, model: str | None
    ) -> tuple[TokenUsage, Learn]:
        """What a call reserves, and the function that learns from its usage."""
        if request is not None and not isinstance(request, Mapping):
            return self._books.usage_from("request", request), None
        estimate = self._estimate
        if isinstance(estimate, TokenUsage):
            return estimate, None
        if request is None:
            fix = "pass a number of tokens, or the call's arguments"
            raise ConfigError("request", request, "is missing, and the estimate depends on it", fix)
        if estimate is not None:
            return self._books.usage_from("estimate", estimate(**request)), None
        usage = estimated(request, self._count)
        if self._learning is None:
            return usage, None
        like = repr((call_key, model))
        learned = self._learning.scaled(like, usage)
        # A learned estimate never decides whether a call can be admitted at all.
        fits = self._books.fits(usage, price, call_key) and self._books.fits(learned, price, call_key)
        return learned if fits else usage, partial(self._learning.learn, like, usage)

    def _call_key(self, key: str | None, request: ModelRequest | None = None) -> str:
        return text_of(self._key_of(request) if key is None else key)

    def _key_of(self, request: ModelRequest | None) -> str:
        key = self._key
        if isinstance(key, str):
            return key
        if not isinstance(request, Mapping):
            fix = 'pass key="…", or the arguments'
            raise ConfigError("key", key, "depends on the values of a call, and none are given", fix)
        if isinstance(key, KeyTemplate):
            missing = [field for field in key.fields if field not in request]
            if missing:
                known = ", ".join(map(str, request)) or "none"
                fix = f"use one of: {known}"
                raise ConfigError("key", key.text, f"names {missing[0]!r}, which the call does not have", fix)
            return key(request)
        return key(**request)

    def __repr__(self) -> str:
        return f"LLMBudget({', '.join(self.policies)}, name={self.name!r})"


def _counted(
    field: str, tokens: Rate | str | Algorithm[Any] | None, capacity: int | None
) -> tuple[Algorithm[Any], ...]:
    """The strategies that keep a rate of tokens: never above the limit, unless a capacity is given."""
    if tokens is None:
        return ()
    if isinstance(tokens, Algorithm):
        if capacity is not None:
            fix = "set it in the strategy"
            raise ConfigError("capacity", capacity, f"conflicts with {field}=, which is a strategy", fix)
        return (tokens,)
    try:
        rate = Rate.parse(tokens)
        if capacity is not None or rate.burst is not None:
            return (TokenBucket(rate, capacity),)
        # One part longer than the period: a call may arrive that much later than another one.
        span = timedelta(microseconds=rate.period_us + -(-rate.period_us // PARTS))
        return (SlidingWindow(rate.limit, span, buckets=PARTS + 1, conservative=True),)
    except ConfigError as error:
        raise error.within(field) from None


def _bound(part: str, gates: Sequence[Algorithm[Any]], capacity: int | None) -> str:
    """The option to raise for more tokens of one call."""
    if isinstance(min(gates, key=lambda gate: gate.max_cost), Quota):
        return "tokens_per_day="
    tokens = _FAMILIES[part].replace("-", "_")
    return f"{tokens}= or capacity=" if capacity is None else "capacity="


def _percents(alerts: Sequence[float]) -> tuple[int, ...]:
    fix = "write shares such as alerts=(0.5, 0.8, 0.95)"
    if not isinstance(alerts, list | tuple):
        raise ConfigError("alerts", alerts, "is not a list of shares", fix)
    percents = set[int]()
    for share in alerts:
        percent = (exactly(share) or Fraction(0)) * 100
        if percent.denominator != 1 or not 1 <= percent <= 100:
            raise ConfigError("alerts", share, "is not a share of 0.01, 0.02 … 1", fix)
        percents.add(int(percent))
    return tuple(sorted(percents))


def _day(tokens: int | str | Quota | None) -> tuple[Quota, ...]:
    if tokens is None or isinstance(tokens, Quota):
        return () if tokens is None else (tokens,)
    try:
        if isinstance(tokens, str):
            quota = Quota(tokens if "/" in tokens else f"{tokens}/day")
        else:
            quota = Quota(tokens, "day")
    except ConfigError as error:
        raise error.within("tokens_per_day") from None
    if quota.per != "day":
        fix = f"write tokens_per_day=Quota({tokens!r})"
        raise ConfigError("tokens_per_day", tokens, "is not of a day", fix)
    return (quota,)
