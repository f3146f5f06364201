"""`@shaped`: a function whose calls leave at the right moment.

>>> from shapekit import shaped
>>> @shaped(rate=10)
... def call(path: str) -> str:
...     return path
>>> call("/v1"), call.policy.name
('/v1', 'shapekit.decorator.call')

Calls: finds the key and the cost of each call of one function, from its arguments.
"""

from __future__ import annotations

import functools
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from itertools import chain, count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from shapekit._runtime.drivers import TASKS, may_be_cancelled, run, stop_if_cancelled
from shapekit.config import CostSpec, PolicyOptions, checked_cost, checked_key, checked_options, is_limited
from shapekit.errors import ConfigError
from shapekit.keys import KeyTemplate
from shapekit.policy import Admission, Policy, checked_policy
from shapekit.rate import RateLike, one_of
from shapekit.shaper import Outlook, Reservation, checked_rates

if TYPE_CHECKING:
    import inspect

__all__ = ["Calls", "Shaped", "shaped", "signature_of"]


class Calls:
    """Finds the key and the cost of each call of one function, and admits it to the policy."""

    __slots__ = ("_bind", "cost", "key", "policy")

    def __init__(self, policy: Policy, function: Callable[..., Any], key: Any, cost: CostSpec) -> None:
        signature = signature_of(function)
        if isinstance(key, KeyTemplate):
            key = KeyTemplate(key.text, signature.parameters)
        self.policy = policy
        self._bind = signature.bind
        self.key: str | KeyTemplate | Callable[..., str] = key
        self.cost = cost

    def admission(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], cost: CostSpec | None = None
    ) -> Admission:
        """The admission of one call; `cost` replaces the cost that the function's calls have."""
        key = self.key
        if cost is None:
            cost = self.cost
        if isinstance(key, KeyTemplate):
            bound = self._bind(*args, **kwargs)
            bound.apply_defaults()
            key = key(bound.arguments)
        elif not isinstance(key, str):
            key = key(*args, **kwargs)
            if not isinstance(key, str):
                raise ConfigError("key", key, "is not text, and a callable gave it", "return a str")
        if not isinstance(cost, int):
            cost = cost(*args, **kwargs)
            if type(cost) is not int:
                raise ConfigError("cost", cost, "is not whole, and a callable gave it", "return an int")
        return self.policy.admit(key, cost=cost)

    def enclosing(self) -> Callable[[Sequence[Any], Mapping[str, Any]], Admission]:
        """`admission`, for calls that begin and end in one task."""
        if self.policy.permits is None:
            return self.admission
        return lambda args, kwargs: self.admission(args, kwargs).enclosing()

    def forecast(self, calls: int = 1, /, *, key: str | None = None) -> Outlook:
        """When `calls` more calls would leave, if all were made now and no others were."""
        if key is None and not isinstance(self.key, str):
            raise ConfigError("key", None, "depends on the call", 'name the key: forecast(10, key="…")')
        cost = self.cost if isinstance(self.cost, int) else None
        call_key = self.key if key is None and isinstance(self.key, str) else key
        return self.policy.forecast(calls, key=call_key, cost=cost)

    def taker(self) -> Callable[[], Reservation | None] | None:
        """A prepared `reserve`, if all calls have the same key and cost and need no admission; else None."""
        policy = self.policy
        core = policy.shaper.core
        plain = policy.enforce and policy.refund_on is None and policy.permits is None
        # A remote store's answer may come after the slot, which only an admission checks.
        is_at_once = plain and core.store.instant
        if not (is_at_once and isinstance(self.key, str) and isinstance(self.cost, int)):
            return None
        # An operator's override may allow a higher cost, which each call has to look up.
        return core.taker(self.key, self.cost) if self.cost <= core.queue.max_cost else None


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function; an empty one if the function has none."""
    import inspect  # noqa: PLC0415 - only for decorated functions

    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Some built-ins have none: then no key can name a parameter.
        return inspect.Signature()


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
Q = ParamSpec("Q")

_EXAMPLE = 'write @shaped(rate=10) or @shaped("100/min")'


class Shaped(ABC, Generic[P, R_co]):
    """A shaped function, as type checkers see it: called like the function that was decorated."""

    policy: Policy

    @abstractmethod
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @abstractmethod
    def forecast(self, calls: int = 1, /, *, key: str | None = None) -> Outlook:
        """When `calls` more calls would leave, if all were made now and no others were."""

    # For class methods, functions of a class, methods, and static methods. Where `self` is a Callable, mypy
    # also compares its first parameter, so that only class methods are bound to a class.
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[type[S], Q], R], instance: S | None, owner: type[S], /
    ) -> Callable[Q, R]: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Shaped[P, R_co]: ...
    @overload
    def __get__(
        self: Shaped[Concatenate[S, Q], R_co], instance: S, owner: type | None = None, /
    ) -> Callable[Q, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> Shaped[P, R_co]: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...


def shaped(
    rate: RateLike | None = None,
    *,
    policy: Policy | None = None,
    per: str = "class",
    **options: Unpack[PolicyOptions],
) -> Callable[[Callable[P, R]], Shaped[P, R]]:
    """Delay each call of a function until it may leave; the arguments are those of `Policy`.

    Works on functions, coroutine functions, generators and async generators (shaped when they start),
    methods, classmethods and staticmethods. `key` and a callable `cost` get the arguments of the call:
    `key="{user_id}"`, `cost=lambda text: len(text)`. Without a key, all calls share one limit, for a
    method across all instances; `per="instance"` gives each instance its own. `policy=` takes an existing
    `Policy`, together with `key` and `cost` only. Without `name`, the limit is named `module.qualname`, for
    a script `file.qualname`; further decorators on the same function add `#2`, `#3` and so on. On a shared
    store, a lambda needs a name.
    """
    if callable(rate) or hasattr(rate, "__get__"):
        raise ConfigError("rate", rate, "is a function, and @shaped needs a rate", _EXAMPLE)
    if isinstance(rate, Policy):
        raise ConfigError("rate", rate, "is a policy in the place of the rate", "write @shaped(policy=…)")
    given = checked_options("shaped", options)
    key, cost = given.pop("key", None), given.pop("cost", None)
    if policy is None:
        if rate is None and not is_limited(given):
            raise ConfigError("rate", rate, "is missing", _EXAMPLE)
    else:
        checked_policy(policy)
        for field, value in {"rate": rate, **given}.items():
            if value is not None:
                raise ConfigError(field, value, "conflicts with policy=", "set it in the policy")
    if rate is not None:
        checked_rates(rate, "@shaped")
    one_of("per", per, ("class", "instance"))
    if per == "instance" and key is not None:
        raise ConfigError("per", per, "conflicts with key=", 'name it in the key: "{self.account}"')

    def decorate(function: Any, /) -> Any:
        if isinstance(function, (classmethod, staticmethod)):
            return type(function)(decorate(function.__func__))
        if not callable(function):
            raise ConfigError("function", function, "cannot be called", "decorate a function")
        own = policy
        if own is None:
            name = _name(function) if given.get("name") is None else given["name"]
            extra = {"key": key, "cost": cost, "name": name}
            own = Policy(
                rate, **{**given, **{field: value for field, value in extra.items() if value is not None}}
            )
        own_key: Any = own.key if key is None else checked_key(key)
        if per == "instance":
            if not isinstance(own.key, str):
                fix = 'name it in the key: "{self.account}"'
                raise ConfigError("per", per, "conflicts with the policy's key", fix)
            own_key = _per_instance(own, function)
        own_cost = own.cost if cost is None else checked_cost(cost)
        return _wrapped(function, Calls(own, function, own_key, own_cost))

    return decorate


def _wrapped(function: Callable[..., Any], calls: Calls) -> Any:
    import inspect  # noqa: PLC0415 - only for decorated functions

    wrapper: Any
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    # A callable object is judged by its mark as a coroutine function, or by its __call__. A class is called
    # like a plain function, whatever its metaclass does.
    if not (isinstance(inner, type) or inspect.isroutine(inner) or inspect.iscoroutinefunction(inner)):
        inner = type(inner).__call__
    if inspect.isasyncgenfunction(inner):
        wrapper = _async_generator(function, calls)
    elif inspect.iscoroutinefunction(inner):
        wrapper = _coroutine(function, calls)
    elif inspect.isgeneratorfunction(inner):
        wrapper = _generator(function, calls)
    else:
        wrapper = _plain(function, calls)
    functools.update_wrapper(wrapper, function)
    wrapper.policy = calls.policy
    wrapper.forecast = calls.forecast
    return wrapper


def _plain(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    take, core, admission = calls.taker(), calls.policy.shaper.core, calls.enclosing()

    def call(*args: Any, **kwargs: Any) -> Any:
        with admission(args, kwargs):
            return function(*args, **kwargs)

    if take is None:
        return call

    def call_at_once(*args: Any, **kwargs: Any) -> Any:
        if (reservation := take()) is not None:
            run(core.leave, reservation)
        return function(*args, **kwargs)

    return call_at_once


def _coroutine(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    take, core, admission = calls.taker(), calls.policy.shaper.core, calls.enclosing()

    async def call(*args: Any, **kwargs: Any) -> Any:
        async with admission(args, kwargs):
            return await function(*args, **kwargs)

    if take is None:
        return call

    async def call_at_once(*args: Any, **kwargs: Any) -> Any:
        if may_be_cancelled():
            await stop_if_cancelled()
        if (reservation := take()) is not None:
            await core.leave(TASKS, reservation)
        return await function(*args, **kwargs)

    return call_at_once


def _generator(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with calls.admission(args, kwargs):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(function: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with calls.admission(args, kwargs):
            inner = function(*args, **kwargs)
            try:
                item = await anext(inner)
                while True:
                    # Async generators have no `yield from`: pass on what the caller sends or throws.
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await inner.aclose()

    return call


def _name(function: Any) -> str | None:
    """The name of a function's limit, the same in every process: its module and qualified name, with a number
    from the second limit on the same function on. None for a lambda, which has no name of its own.
    """
    taken, layer = [], function
    while layer is not None:
        attributes = getattr(layer, "__dict__", {})
        taken.append(getattr(attributes.get("policy"), "name", None))
        layer = layer.func if isinstance(layer, functools.partial) else attributes.get("__wrapped__")
    while isinstance(function, functools.partial):
        function = function.func
    definition = function if hasattr(function, "__qualname__") else type(function)
    path = f"{_module(definition.__module__)}.{definition.__qualname__}"
    if path.endswith("<lambda>"):
        return None
    # Not with a colon, which separates a name from a key where both are shown.
    return next(name for name in chain((path,), map(f"{path}#{{}}".format, count(2))) if name not in taken)


_SCRIPTS = ("__main__", "__mp_main__")
"""What a process and the children that multiprocessing has spawned call the script that was started."""


def _module(name: str) -> str:
    """The name of a module; for the script that was started, the one under which it can be imported."""
    if name not in _SCRIPTS:
        return name
    contents = vars(sys.modules[name]) if name in sys.modules else {}
    if (spec := contents.get("__spec__")) is not None:
        return str(spec.name)
    return PurePath(contents.get("__file__") or name).stem


def _per_instance(policy: Policy, function: Callable[..., Any]) -> Callable[..., str]:
    """A callable that gives each living instance its own key, and forgets it with the instance."""
    if policy.shaper.core.store.shared:
        fix = 'name what differs: key="{self.account}"'
        raise ConfigError("per", "instance", "means nothing to other processes", fix)
    signature = signature_of(function)
    first = next(iter(signature.parameters), "")
    if not first:
        raise ConfigError("per", "instance", "needs a method, and this is a function", "leave it out")
    numbers = count(1)
    known: dict[int, tuple[str, weakref.ref[Any]]] = {}

    def key(*args: Any, **kwargs: Any) -> str:
        instance = args[0] if args else signature.bind(**kwargs).arguments.get(first)
        mark = id(instance)
        found = known.get(mark)
        if found is None:
            try:
                # Without a lock, and with a C function as the weakref callback: an instance may be made, used
                # or collected at any line of any thread. Of two threads that come at once, the first wins.
                watch = weakref.ref(instance, functools.partial(known.pop, mark))
            except TypeError:
                bound = f"needs a weak reference to a {type(instance).__name__}, which has none"
                raise ConfigError("per", "instance", bound, "add __weakref__ to its __slots__") from None
            found = known.setdefault(mark, (f"instance-{next(numbers)}", watch))
        return found[0]

    return key
