"""Progress loop: a loop over items whose calls are shaped, and when it will be through.

>>> from shapekit import Policy, progress
>>> stripe = Policy("10/s")
>>> for number in progress(range(3), stripe):
...     with stripe.admit():
...         print("call", number)
call 0
call 1
call 2

The loop is only watched. What is left to do is foretold by the policy itself, from the state of the key:
it knows the rate, holds and quotas, and what others do. Only where the loop is slower than its limits,
its own pace counts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sized
from types import AsyncGeneratorType
from typing import Any, Protocol, TypeAlias, TypeVar

from shapekit.algorithms.base import check_cost
from shapekit.calls import Calls
from shapekit.errors import ConfigError
from shapekit.policy import Policy
from shapekit.progress_watch import Loop, Watch
from shapekit.rate import whole
from shapekit.shaper import Shaper

__all__ = ["aprogress", "progress"]

T = TypeVar("T")


class Shaped(Protocol):
    """Whatever has a policy: a function under `@shaped`."""

    @property
    def policy(self) -> Policy: ...


Subject: TypeAlias = Policy | Shaper | Shaped


def progress(
    items: Iterable[T],
    policy: Subject,
    *,
    total: int | None = None,
    key: str | None = None,
    cost: int | None = None,
) -> Generator[T, None, None]:
    """The items, one by one, with a line that says how far the loop is and when it will be through.

    Each item is taken to make one call under `policy`: a Policy, a Shaper or a function under `@shaped`.
    Nothing is admitted here, that is up to the call. On a terminal the line is redrawn on stderr, elsewhere
    the logger `shapekit.progress` is told, at INFO, in growing intervals.

    - `total`: how many items there are, where they have no `len`.
    - `key`, `cost`: of each call, where the policy's own depend on the call.
    """
    return _watched(items, _loop(policy, _total(items, total), key, cost))


def aprogress(
    items: AsyncIterable[T] | Iterable[T],
    policy: Subject,
    *,
    total: int | None = None,
    key: str | None = None,
    cost: int | None = None,
) -> AsyncGenerator[T, None]:
    """`progress`, for `async for`, over items of either kind.

    An async generator that is given is closed with the loop. Where you leave a loop early, let `aclosing`
    close it then and there, as any async generator.
    """
    return _awatched(items, _loop(policy, _total(items, total), key, cost))


def _watched(items: Iterable[T], loop: Loop) -> Generator[T, None, None]:
    handed, is_through, watch = 0, False, Watch(loop)
    now_us = watch.now_us
    try:
        watch.step()
        for item in items:
            handed += 1
            yield item
            watch.done = handed
            if now_us() >= watch.due_us:
                watch.step()
        is_through = True
    finally:
        watch.end(handed, is_through=is_through)


async def _awatched(items: AsyncIterable[T] | Iterable[T], loop: Loop) -> AsyncGenerator[T, None]:
    source = aiter(items if isinstance(items, AsyncIterable) else _one_by_one(items))
    handed, is_through, watch = 0, False, Watch(loop)
    now_us = watch.now_us
    try:
        await watch.astep()
        async for item in source:
            handed += 1
            yield item
            watch.done = handed
            if now_us() >= watch.due_us:
                await watch.astep()
        is_through = True
    finally:
        watch.end(handed, is_through=is_through)
        if isinstance(source, AsyncGeneratorType):
            await source.aclose()


async def _one_by_one(items: Iterable[T]) -> AsyncGenerator[T, None]:
    for item in items:
        yield item


def _loop(subject: Subject, total: int | None, key: str | None, cost: int | None) -> Loop:
    if isinstance(subject, Shaper):
        shaper, enforced = subject, True
        whose: Any = "default"
        asks: Any = 1
    else:
        # A shaped function may have a key and a cost of its own, beside its policy's.
        calls = getattr(getattr(subject, "forecast", None), "__self__", None)
        policy = subject if isinstance(subject, Policy) else getattr(subject, "policy", None)
        if not isinstance(policy, Policy):
            raise ConfigError(
                "policy", subject, "has no policy", 'pass a Policy("10/s"), a Shaper or a shaped function'
            )
        shaper, enforced = policy.shaper, policy.enforce
        whose, asks = (calls.key, calls._cost) if isinstance(calls, Calls) else (policy.key, policy.cost)
    whose = _common("key", key, whose, str, 'say whose: progress(items, policy, key="…")')
    asks = _common("cost", cost, asks, int, "say what each costs: progress(items, policy, cost=…)")
    check_cost(asks, shaper.queue.max_cost, whose, "limit")
    return Loop(shaper, shaper.name, whose, asks, total, enforced)


def _common(field: str, told: Any, own: Any, kind: type, fix: str) -> Any:
    """What was said of the calls, or else what all of them have in common."""
    if told is not None:
        if not isinstance(told, kind):
            raise ConfigError(field, told, f"is not of type {kind.__name__}", fix)
        return told
    if not isinstance(own, kind):
        raise ConfigError(field, None, "depends on the call", fix)
    return own


def _total(items: object, total: int | None) -> int | None:
    if total is not None:
        return whole("total", total, least=0)
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:  # some have a length in their class, but not in themselves
        return None
