"""HTTP: shapes the requests of any client.

The wrapper of a client says how to read its requests, and gets an `Admission` for each request that it sends:

    request_shaper = RequestShaper("ShapedThing", Reading(host, target), rate="10/s")
    try:
        admission = request_shaper.enter(request, options)
    except RateLimitedError as error:
        ...                                  # `too_many(error)` where `request_shaper.responds`
    try:
        response = send(request)
    except BaseException as error:
        admission.__exit__(type(error), error, error.__traceback__)
        raise
    if may_say(admission, response.status, response.headers):
        admission.target = target(request)
        run(observe, admission, response)

The key of most requests is their host, and most responses say nothing about limits: shapekit reads no more
of either than it takes to see that. Every step counts, because a program does much between two requests, so
that each of them finds the CPU's caches cold.

Request options: options of single requests, for clients whose requests cannot carry any.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit._runtime.process import SWITCH, ErrorsLogged, from_signal
from shapekit.config import OTHER_LIMITS, CostSpec, PolicyOptions, checked_cost, is_limited
from shapekit.decision import Decision
from shapekit.errors import (
    UNSHOWN,
    AccountExhaustedError,
    ConfigError,
    QueueFullError,
    RateLimitedError,
    ShapekitError,
)
from shapekit.feedback import STATUSES, OwnRefusal, error_of, own_refusal, says_exhausted
from shapekit.feedback.dialects import OURS
from shapekit.keys import SCOPE, KeyOf, KeySpec, KeyTemplate, Routes, Target, key_of, parsed
from shapekit.policy import Admission, Policy, body_of, checked_policy, headers_of, status_of
from shapekit.rate import (
    AS_CONFIGURED,
    MAX_SPAN_US,
    SECOND_US,
    Duration,
    Fits,
    RateLike,
    boolean,
    duration_us,
    max_wait_us,
    one_of,
    parse_rates,
    whole,
)
from shapekit.shaper import Reservation, checked_rates


class RequestOptions(TypedDict, total=False):
    """The options of a single request."""

    cost: int
    """The cost of this request, instead of the wrapper's."""
    key: str
    """The key of this request, instead of the one from its URL."""
    max_wait: Duration | None
    skip: bool
    """Whether the request is neither shaped nor counted."""


_NONE = RequestOptions()
_SAID: ContextVar[RequestOptions] = ContextVar("shapekit_request_options", default=_NONE)


@contextmanager
def request_options(**options: Unpack[RequestOptions]) -> Iterator[None]:
    """Set options for all requests that this thread or task, and tasks that it starts, send in the block.

        with request_options(cost=5, max_wait="2s"):
            response = session.get(url)

    They also apply to redirects and retries. A nested block adds to the options of the outer one.
    """
    before = _SAID.set(_SAID.get() | options)
    try:
        yield
    finally:
        _SAID.reset(before)


def options_now() -> RequestOptions | None:
    """The options of a request that is sent now; None without any."""
    return _SAID.get() or None


ON_REJECT = ("raise", "respond")

RouteSpec: TypeAlias = Policy | RateLike


class Shaping(PolicyOptions, total=False):
    """The keywords that every wrapper of a client takes: those of `Policy`, and a few of its own.

    `key` is a template over the URL, a callable, "host", which is the default, "host+method", "origin" or
    "default". With `policy=`, the default is the policy's own key.
    """

    rate: RateLike | None
    policy: Policy | None
    """An existing policy, instead of its keywords: of those, only `key` and `cost` may go with it."""
    routes: Mapping[str, RouteSpec]
    """Other policies, or rates, for some URLs and everything below them; the longest match wins."""
    on_reject: str
    """What happens to a refused request: "raise" an error, or "respond" with a 429 made by shapekit."""


_OWN = ("policy", "key", "routes", "on_reject")
"""Keywords that a policy does not take, or not in the same form."""
_BESIDE_POLICY = (*_OWN, "cost")


class ShapingInfo(NamedTuple):
    """How a request was admitted: a response carries it under "shapekit"."""

    key: str
    outcome: Reservation | Decision
    """The slot that was taken, or the refusal."""

    @classmethod
    def of(cls, admission: Admission) -> Self:
        """From an admission that was entered."""
        return tuple.__new__(cls, (admission.key, admission.reservation))

    @property
    def delay(self) -> float:
        """Seconds the request was delayed; 0 if it was refused."""
        return self.outcome.delay

    @property
    def decision(self) -> Decision:
        """The decision, as from a gate."""
        return self.outcome if isinstance(self.outcome, Decision) else self.outcome.decision


class Answer429(NamedTuple):
    """The parts of a 429 made by shapekit."""

    status: int
    headers: dict[str, str]
    body: bytes
    info: ShapingInfo


class Reading(NamedTuple):
    """How a wrapper reads the requests of its client."""

    host: Callable[[Any], str]
    """Returns a request's host, as its `Target` has it: the key of most requests."""
    target: Callable[[Any], Target]
    key: Callable[[Any], KeyOf] = key_of
    """Parses `key=`."""
    route: Callable[[object], Target] = parsed
    """Parses the keys of `routes=`."""


CostT = TypeVar("CostT", bound=CostSpec)


class _Plan(NamedTuple, Generic[CostT]):
    """The options of the requests of one client or route."""

    policy: Policy
    key: Callable[[Any], str]
    cost: CostT


class RequestShaper:
    """Shapes the requests of one client; made from the keywords of its wrapper.

    `wrapper` is the wrapper's name in users' code, so that errors can show the right call.
    """

    def __init__(self, wrapper: str, reading: Reading, **shaping: Unpack[Shaping]) -> None:
        for field in shaping:
            if field not in Shaping.__annotations__:
                known = ", ".join(Shaping.__annotations__)
                raise ConfigError(field, UNSHOWN, "is unknown", f"use some of {known}")
        self.responds = one_of("on_reject", shaping.get("on_reject", "raise"), ON_REJECT) == "respond"
        self._wrapper = wrapper
        self._reading = reading
        self._spec = shaping
        routes = shaping.get("routes") or {}
        if not isinstance(routes, Mapping):
            raise ConfigError("routes", routes, "is not a table", 'write {"https://api.x/search": "1/s"}')
        self._main = self._own_plan()
        self._routes = Routes({url: self._route(url, spec) for url, spec in routes.items()}, reading.route)
        self._plain = self._plain_plan()
        if self._main is None and not routes:
            raise ConfigError("rate", shaping.get("rate"), "is missing", f'write {wrapper}(rate="10/s")')

    @property
    def policy(self) -> Policy:
        """The policy of the requests that match no route; ConfigError if those are not shaped."""
        if self._main is None:
            fix = "give the routes policies of your own, and use these"
            raise ConfigError("policy", None, "is missing, as only routes are shaped", fix)
        return self._main.policy

    def refuse_responding(self, bound: str, error: str) -> None:
        """Raise ConfigError for `on_reject="respond"`, in a wrapper that cannot make a response."""
        if self.responds:
            fix = f'leave on_reject="raise": the error is {error}, and its retry_after says when'
            raise ConfigError("on_reject", "respond", bound, fix)

    def enter(self, request: Any, options: Any = None, *, fits_s: float | None = None) -> Admission | None:
        """Wait until a request may leave, and return its entered admission; None if it is not shaped.

        `options`: those of this request alone. `fits_s`: a longer wait is of no use, whatever `max_wait` is.
        """
        plan = self._plain
        if plan is not None and options is None and not (SWITCH.loud or plan.policy.scoped.scopes.any_known):
            # The path of most requests: a target and an admission to enter would cost them a fifth more.
            policy, key_of_request, cost = plan
            key, max_wait = key_of_request(request), AS_CONFIGURED
            if SCOPE not in key:
                if fits_s is not None:
                    max_wait = self._shorter(policy, AS_CONFIGURED, fits_s)
                reservation = policy.shaper.schedule(key, cost=cost, max_wait=max_wait)
                if policy.scoped.scopes.any_known:
                    reservation = run(
                        policy.scoped.kept, reservation, self._reading.target(request), max_wait=max_wait
                    )
                return Admission(policy, key, cost, _NO_WAITS, reservation)
        admission = self.admission(request, options, fits_s=fits_s)
        return None if admission is None else admission.__enter__()

    async def aenter(
        self, request: Any, options: Any = None, *, fits_s: float | None = None
    ) -> Admission | None:
        """`enter`, awaitable."""
        plan = self._plain
        if plan is not None and options is None and not (SWITCH.loud or plan.policy.scoped.scopes.any_known):
            policy, key_of_request, cost = plan
            key, max_wait = key_of_request(request), AS_CONFIGURED
            if SCOPE not in key:
                if fits_s is not None:
                    max_wait = self._shorter(policy, AS_CONFIGURED, fits_s)
                reservation = await policy.shaper.aschedule(key, cost=cost, max_wait=max_wait)
                if policy.scoped.scopes.any_known:
                    reservation = await policy.scoped.kept(
                        TASKS, reservation, self._reading.target(request), max_wait=max_wait
                    )
                return Admission(policy, key, cost, _NO_WAITS, reservation)
        admission = self.admission(request, options, fits_s=fits_s)
        return None if admission is None else await admission.__aenter__()

    def admission(
        self, request: Any, options: Any = None, *, fits_s: float | None = None
    ) -> Admission | None:
        """The admission of a request, for the caller to enter; None if the request is not shaped."""
        given = _NONE if options is None else _checked_options(options)
        plan = self._routes.find(self._reading.target(request)) or self._main
        if plan is None or given.get("skip"):
            return None
        policy, key, cost = plan
        own_key, max_wait = given.get("key"), given.get("max_wait", AS_CONFIGURED)
        if (own_cost := given.get("cost")) is not None:
            cost = own_cost
        elif not isinstance(cost, int):
            cost = cost(request)
            if type(cost) is not int:
                raise ConfigError("cost", cost, "is not whole, and a callable gave it", "return an int")
        admission = policy.admit(
            key(request) if own_key is None else own_key,
            cost=cost,
            max_wait=max_wait if fits_s is None else self._shorter(policy, max_wait, fits_s),
        )
        admission.target = self._reading.target(request)
        return admission

    def _plain_plan(self) -> _Plan[int] | None:
        """The plan, if all requests follow it and only wait for their slots, as most do; else None."""
        plan = self._main
        if plan is None or self._spec.get("routes") or not isinstance(plan.cost, int):
            return None
        return _Plan(plan.policy, plan.key, plan.cost) if plan.policy.is_plain else None

    def _own_plan(self) -> _Plan[CostSpec] | None:
        policy, rate = self._spec.get("policy"), self._spec.get("rate")
        if policy is not None:
            checked_policy(policy)
            for field, value in self._spec.items():
                if field not in _BESIDE_POLICY and value is not None:
                    raise ConfigError(field, value, "conflicts with policy=", "set it in the policy")
            return self._plan(policy)
        if rate is None and not is_limited(self._spec):
            return None
        if rate is not None:
            checked_rates(rate, self._wrapper)
        return self._plan(self._made(rate, self._spec.get("name")), "host")

    def _route(self, url: str, spec: RouteSpec) -> _Plan[CostSpec]:
        self._reading.route(url)  # first, as the errors below show a valid URL whole
        if isinstance(spec, Policy):
            return self._plan(spec)
        try:
            parse_rates(spec)
        except ConfigError as error:
            raise error.within(f"routes[{url!r}]") from None
        for field in ("policy", *OTHER_LIMITS):
            # Whether that limit also applies to the route, alone or together with the rate, is unclear.
            if self._spec.get(field):
                fix = "give the route a Policy"
                raise ConfigError(f"routes[{url!r}]", spec, f"is a bare rate beside {field}=", fix)
        name = self._spec.get("name")
        return self._plan(self._made(spec, name and f"{name} {url}"), "host")

    def _made(self, rate: RateLike | None, name: str | None) -> Policy:
        options: dict[str, Any] = {field: value for field, value in self._spec.items() if field not in _OWN}
        options |= {"rate": rate, "name": name}
        return Policy(**options)

    def _plan(self, policy: Policy, otherwise: str | None = None) -> _Plan[CostSpec]:
        policy.feedback  # noqa: B018 - loaded now: it takes longer than a slot, and would block an event loop
        spec = self._spec.get("key")
        key = self._key(otherwise if spec is None else spec, policy.key)
        return _Plan(policy, key, checked_cost(self._spec.get("cost", policy.cost)))

    def _key(self, spec: KeySpec | None, own: KeySpec | KeyTemplate) -> Callable[[Any], str]:
        if spec == "host":
            return self._reading.host
        if spec is None and isinstance(own, str):
            return lambda _: own
        key, target = self._reading.key(own if spec is None else spec), self._reading.target
        return lambda request: key(target(request), request)

    def _shorter(self, policy: Policy, max_wait: Duration | None, fits_s: float) -> timedelta:
        # Clients accept timeouts that are longer than any wait, such as sys.maxsize.
        fits = Fits(seconds=min(max(0.0, fits_s), MAX_SPAN_US // SECOND_US))
        own_us = policy.shaper.core.max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)
        return fits if own_us is None else min(timedelta(microseconds=own_us), fits)


def _checked_options(options: Any) -> RequestOptions:
    if not isinstance(options, Mapping):
        raise ConfigError("shapekit", options, "is not a dict", 'write {"cost": 5}')
    for field in options:
        if field not in RequestOptions.__annotations__:
            known = ", ".join(RequestOptions.__annotations__)
            raise ConfigError(f"shapekit.{field}", UNSHOWN, "is unknown", f"use some of {known}")
    if options.get("cost") is not None:
        whole("shapekit.cost", options["cost"])
    if options.get("max_wait", AS_CONFIGURED) not in (AS_CONFIGURED, None):
        duration_us("shapekit.max_wait", options["max_wait"], least=0)
    if options.get("key") is not None and not isinstance(options["key"], str):
        raise ConfigError("shapekit.key", options["key"], "is not text", 'pass a str such as "tenant-1"')
    boolean("shapekit.skip", options.get("skip", False))
    return cast("RequestOptions", options)


_NO_WAITS: Mapping[str, Any] = {}


def too_many(error: RateLimitedError) -> Answer429:
    """The 429 for a request that shapekit has refused and not sent."""
    retry_after = max(1, math.ceil(error.retry_after))
    body = {"code": error.code, "key": error.key, "retry_after": error.retry_after}
    headers = {"Retry-After": str(retry_after), "Content-Type": "application/json", OURS: error.code}
    if isinstance(error, AccountExhaustedError):
        # The SDKs of OpenAI and Anthropic obey this header, and would retry otherwise.
        headers["X-Should-Retry"] = "false"
    return Answer429(429, headers, json.dumps(body).encode(), ShapingInfo(error.key, error.decision))


def may_say(admission: Admission, status: int, headers: Iterable[Any]) -> bool:
    """A quick look at a response: false if observing it would do nothing, as for most responses.

    `headers`: (name, value) pairs, or names alone.
    """
    policy = admission.policy
    feedback = policy.feedback
    try:
        return policy.shaper.core.queue.adapts or not (
            feedback is None or feedback.hears_nothing(status, headers)
        )
    except Exception as error:
        if from_signal(error):
            raise
        return True  # `observe` will raise and log the error


def hearing(admission: Admission) -> ErrorsLogged:
    """A context for reading a response: an error is logged, and the caller gets the response all the same."""
    return ErrorsLogged(admission.key, "does not hear what its server says")


async def observe(driver: Driver, admission: Admission, response: Any) -> None:
    """Observe a response: read what it says about limits."""
    with hearing(admission):
        await driver.ask(Twin(admission.observe, admission.aobserve), response)


class ResponseView(NamedTuple):
    """A response in the form that `Admission.observe` takes."""

    status: int
    headers: Any
    body: Any = None
    """The body, if it was read; None if not."""


class CallOutcome(NamedTuple):
    """What a call returned, or what it raised."""

    result: Any = None
    failure: BaseException | None = None

    @property
    def answer(self) -> ResponseView | None:
        """The server's response: the result, or what the exception carries, or is itself."""
        sources = [self.result]
        if self.failure is not None:
            sources = [getattr(self.failure, "response", None), self.failure]
        for source in sources:
            status = status_of(source)
            if isinstance(status, int):
                # If an SDK has closed the response, its error has the body.
                body = body_of(source) or body_of(self.failure)
                return ResponseView(status, headers_of(source) or (), body)
        return None

    @property
    def refusal(self) -> OwnRefusal | None:
        """The refusal by shapekit that ended the call: the error that was raised, or the 429 in its place."""
        if isinstance(self.failure, RateLimitedError):
            return OwnRefusal(self.failure.code, self.failure.retry_after)
        answer = self.answer
        return None if answer is None else own_refusal(answer.status, answer.headers)

    @property
    def is_exhausted(self) -> bool:
        """Whether the response says that the account has nothing left to spend."""
        answer = self.answer
        return answer is not None and says_exhausted(answer.status, error_of(answer.status, answer.body))


def body_may_tell(admission: Admission, status: int, content_type: str | None) -> bool:
    """Whether the body of an answer may say more than its headers, such as that the account is exhausted.

    shapekit reads no body early: it looks at such a body once the client has read it.
    """
    return (
        status in STATUSES
        and admission.policy.feedback is not None
        and "json" in (content_type or "").lower()
    )


async def observe_body(driver: Driver, admission: Admission, reply: ResponseView) -> None:
    """Hear what a body adds to headers that were observed before."""
    feedback = admission.policy.feedback
    with hearing(admission):
        if feedback is not None and feedback.says_more(
            reply.status, reply.headers, admission.sent_at, reply.body
        ):
            await observe(driver, admission, reply)


class UnsentError(Exception):
    """The base of errors for calls that were not sent: each is a shapekit error and one of a client library.

    Its arguments are those of the shapekit error.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the attributes of the library's error, such as a request whose hooks may not pickle.
        return type(self), self.args


def translated(error: ShapekitError, refusals: Mapping[type[ShapekitError], type[Exception]]) -> Exception:
    """A shapekit error as one that is also the library's: by its nearest class that has such a twin."""
    twin = next((refusals[kind] for kind in type(error).__mro__ if kind in refusals), None)
    if twin is None:
        return error
    refusal = twin(*error.args).with_traceback(error.__traceback__)
    refusal.__cause__ = error.__cause__  # the original error is not shown as its context
    return refusal


def twins_of(*errors: type[Exception]) -> dict[type[ShapekitError], type[Exception]]:
    """The library's errors by the shapekit error that each of them also is, which is its first base."""
    return {error.__bases__[0]: error for error in errors}


def by_timeout(error: ShapekitError, left_s: float | None) -> bool:
    """Whether the rest of the request's timeout, and not `max_wait`, bounded the wait."""
    # The shorter of the two bounds was applied, in whole microseconds.
    return isinstance(error, QueueFullError) and left_s is not None and error.max_wait > left_s - 1e-6


def shaped_already(field: str, given: object, call: str = "request") -> ConfigError:
    """The error for a client that is shaped twice."""
    bound = f"is shaped already: each {call} would wait twice"
    return ConfigError(field, given, bound, "shape it once; give several limits to one policy, or to routes=")


def inner_options(
    options: Mapping[str, Any], kind: Callable[..., object], field: str, given: object
) -> dict[str, Any]:
    """The keywords of a wrapper that are for the object that it sends through: one that is `given` as
    `field`, or one of this kind.
    """
    known = inspect.signature(kind).parameters
    inner = {name: value for name, value in options.items() if name not in Shaping.__annotations__}
    for name in inner:
        if name not in known:
            raise ConfigError(name, UNSHOWN, "is unknown", f"use those of Policy, or {', '.join(known)}")
        if given is not None:
            bound, fix = f"conflicts with the {field} that is given", f"set it on that {field}"
            raise ConfigError(name, UNSHOWN, bound, fix)
    return inner


def refuse_rate(field: str, given: object, wrapper: str) -> None:
    """Raise ConfigError that shows the right call if a limit is passed in place of another first argument."""
    # A URL is none, and may contain a password.
    if isinstance(given, (str, int, float)) and "://" not in str(given):
        fix = f"write {wrapper}(rate={given!r})"
        raise ConfigError(field, given, f"is a rate in the place of the {field}", fix)
    if isinstance(given, Policy):
        fix = f"write {wrapper}(policy=…)"
        raise ConfigError(field, given, f"is a policy in the place of the {field}", fix)
