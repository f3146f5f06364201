"""botocore: AWS clients whose calls wait for their slots, and all wait when AWS throttles one of them.

    sqs = shape(boto3.client("sqs"), rate="20/s")
    session = shape(boto3.Session(), adaptive=Adaptive(min="1/s", max="100/s"), store=url, name="aws")

For clients and sessions of boto3, botocore and aiobotocore. Each attempt takes a slot, because AWS
counts each: retries by botocore too. An attempt waits before it is signed, so its signature is fresh when it
leaves, however long it waited.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack, cast
from weakref import WeakSet, ref

from shapekit import errors
from shapekit._adapters.http import (
    Reading,
    RequestShaper,
    ResponseView,
    Shaping,
    UnsentError,
    hearing,
    may_say,
    observe,
    options_now,
    request_options,
    translated,
    twins_of,
)
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit.errors import ConfigError, RateLimitedError
from shapekit.keys import KeyOf, KeySpec, KeyTemplate, Target, key_of
from shapekit.policy import Admission

try:
    from botocore.client import BaseClient  # pyright: ignore[reportMissingImports]
    from botocore.exceptions import BotoCoreError  # pyright: ignore[reportMissingImports]
    from botocore.hooks import BaseEventHooks  # pyright: ignore[reportMissingImports]
    from botocore.retries.standard import (  # pyright: ignore[reportMissingImports]
        RetryEventAdapter,
        ThrottlingErrorDetector,
    )
    from botocore.session import Session  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("shape", "botocore") from error

__all__ = [
    "AccountExhaustedError",
    "Attempt",
    "QueueFullError",
    "QuotaExhaustedError",
    "StoreUnavailableError",
    "request_options",
    "shape",
]

ShapedT = TypeVar("ShapedT")


class _UnsentError(UnsentError, BotoCoreError):
    """An attempt that was not sent."""


class QueueFullError(errors.QueueFullError, _UnsentError):
    """`shapekit.QueueFullError` that is also a `botocore.exceptions.BotoCoreError`."""


class QuotaExhaustedError(errors.QuotaExhaustedError, _UnsentError):
    """`shapekit.QuotaExhaustedError` that is also a `botocore.exceptions.BotoCoreError`."""


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also a `botocore.exceptions.BotoCoreError`."""


class StoreUnavailableError(errors.StoreUnavailableError, _UnsentError):
    """`shapekit.StoreUnavailableError` that is also a `botocore.exceptions.BotoCoreError`."""


_REFUSALS = twins_of(QueueFullError, QuotaExhaustedError, AccountExhaustedError, StoreUnavailableError)
_FIELDS = ("service", "operation", "region")
_DEFAULT_KEY = KeyTemplate("{region}:{service}.{operation}", _FIELDS)
_PLACE = re.compile(r"([a-z0-9-]+)(?:\.([A-Za-z0-9]+))?")
_ADMISSION = "shapekit"
"""The key of the current attempt's admission in the request's context, which all attempts share."""
_SHAPED: WeakSet[Any] = WeakSet()
"""The emitters of shaped clients and sessions."""
_THROTTLED, _RETRY_AFTER_MS = 429, "x-amz-retry-after"


class Attempt(NamedTuple):
    """An attempt that is about to be made: the argument of a callable `key` or `cost`."""

    service: str
    """As in `boto3.client("sqs")`."""
    operation: str
    """As AWS names it: "SendMessage"."""
    region: str | None
    request: Any
    """botocore's `AWSRequest`, which is not signed yet."""


def shape(client: ShapedT, **shaping: Unpack[Shaping]) -> ShapedT:
    """Shape a client, or all clients that a session makes later, in place. Returns the client or session.

    Takes clients and sessions of boto3, botocore and aiobotocore, the keywords of `Policy` or `policy=`, and:

    - `key`: a template over `service`, `operation` and `region`; text for one key for all; or a callable
      that takes an `Attempt`. By default `"{region}:{service}.{operation}"`: AWS counts for each account and
      region, and most services count for each operation. If a service counts all its operations
      together, write `"{region}:{service}"`. botocore does not say which account a client uses: for several
      accounts, put the account into `name` or `key`.
    - `routes`: other rates or policies for a service or one of its operations, as in
      `{"route53": "5/s", "ec2.RunInstances": "2/s"}`.

    All clients of a session share its limit; so do clients that are given the same policy, and processes that
    share a store.

    A throttling error of AWS (botocore knows the codes), a 429, and a 503 that says how long to wait hold the
    key for all workers, or lower an adaptive rate. An attempt that would wait too long raises an error that
    is a BotoCoreError, and botocore does not retry it. With `concurrency`, an attempt is in flight until its
    answer has arrived; the body of a streamed answer is read later, and does not count.

    Set options of a call around it: `with request_options(cost=5, key=…, max_wait=…, skip=True):`.
    """
    events = _events(client)
    if events in _SHAPED:
        fix = "shape it once, and not a client whose session is shaped; give several limits to one policy"
        raise ConfigError("client", client, "is shaped already: each attempt would wait twice", fix)
    request_shaper = RequestShaper("shape", _READING, **shaping)
    bound = "needs an answer, and only AWS gives one that botocore can read"
    request_shaper.refuse_responding(bound, "a BotoCoreError")
    if isinstance(client, BaseClient):
        _shape_client(client, request_shaper)
    else:
        events.register("creating-client-class", _client_classes(request_shaper))
        _SHAPED.add(events)
    return client


def _events(client: Any) -> Any:
    if isinstance(client, BaseClient):
        return client.meta.events
    if isinstance(client, Session):
        return client.get_component("event_emitter")
    events = getattr(client, "events", None)  # a session of boto3, or one like it
    if isinstance(events, BaseEventHooks):
        return events
    fix = 'pass boto3.client("sqs") or boto3.Session(); of a resource, its resource.meta.client'
    raise ConfigError("client", client, "is neither a client nor a session", fix)


def _shape_client(client: Any, request_shaper: RequestShaper) -> None:
    events, model = client.meta.events, client.meta.service_model
    attempts = _Attempts(request_shaper, model.service_name, client.meta.region_name, ref(client))
    is_awaited = any(kind.__module__.startswith("aiobotocore.") for kind in type(client).__mro__)

    def driven(flow: Callable[..., Any]) -> Callable[..., Any]:
        # aiobotocore awaits what its handlers return.
        return partial(flow, TASKS) if is_awaited else partial(run, flow)

    # botocore calls the handlers of an event from the most to the least specific name, and signs in one that
    # is registered for the service.
    service = model.service_id.hyphenize()
    events.register_first(f"request-created.{service}", driven(attempts.wait))
    events.register_first(f"needs-retry.{service}", driven(attempts.hear))
    # botocore emits no event for an attempt that is cancelled or interrupted, or that cannot be signed.
    client._make_request = driven(attempts.make)  # noqa: SLF001 - botocore has no other way to know
    _SHAPED.add(events)


def _client_classes(request_shaper: RequestShaper) -> Callable[..., None]:
    """An event handler that makes a session's client classes shape each new client."""

    class Shaped:
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            _shape_client(self, request_shaper)

    def creating(base_classes: list[type], **_: Any) -> None:
        base_classes.insert(0, Shaped)

    return creating


class _Attempts:
    """The attempts of one client."""

    def __init__(
        self, request_shaper: RequestShaper, service: str, region: str | None, client: ref[Any]
    ) -> None:
        self._request_shaper = request_shaper
        self._service = service
        self._region = region
        self._client = client
        self._detector = ThrottlingErrorDetector(RetryEventAdapter())

    async def wait(self, driver: Driver, /, request: Any, operation_name: str, **_: Any) -> None:
        """Called before an attempt is signed: wait for its slot."""
        attempt = Attempt(self._service, operation_name, self._region, request)
        enter = Twin(self._request_shaper.enter, self._request_shaper.aenter)
        try:
            admission = await driver.ask(enter, attempt, options_now())
        except (RateLimitedError, errors.StoreUnavailableError) as error:
            raise translated(error, _REFUSALS) from error.__cause__
        if admission is not None:
            request.context[_ADMISSION] = admission

    async def hear(
        self, driver: Driver, /, response: Any, request_dict: Any, caught_exception: Any, **retry: Any
    ) -> None:
        """Called after an attempt. Returns None: botocore would take a number for the time until a retry."""
        admission = request_dict["context"].pop(_ADMISSION, None)
        if admission is None:
            return
        try:
            answer = self._answer(admission, response, request_dict, **retry)
            if answer is not None:
                await observe(driver, admission, answer)
        finally:
            error = caught_exception or self._refused(admission, response, request_dict, retry["operation"])
            await driver.ask(Twin(admission.__exit__, admission.__aexit__), None, error, None)

    async def make(self, driver: Driver, operation_model: Any, request_dict: Any, context: Any) -> Any:
        """Make the attempts of a call, and end an attempt that has ended without an event."""
        made: Any = self._client()
        send = type(made)._make_request  # noqa: SLF001 - as above
        try:
            return await driver.ask(Twin(send, send), made, operation_model, request_dict, context)
        except BaseException as error:
            if admission := context.pop(_ADMISSION, None):
                leave = Twin(admission.__exit__, admission.__aexit__)
                await driver.ask(leave, type(error), error, error.__traceback__)
            raise

    def _refused(self, admission: Admission, response: Any, request_dict: Any, operation: Any) -> Any:
        """The error in AWS's answer, as botocore raises it; None if there is none, or without `refund_on`."""
        if admission.policy.refund_on is None or response is None or response[0].status_code < 300:
            return None
        parsed, context, client = response[1], request_dict["context"], cast("Any", self._client())
        with hearing(admission):
            code = context.get("error_code_override") or parsed.get("Error", {}).get("Code")
            return client.exceptions.from_code(code)(parsed, operation.name)
        return None

    def _answer(
        self, admission: Admission, response: Any, request_dict: Any, **retry: Any
    ) -> ResponseView | None:
        """The answer as plain HTTP, with a 429 for throttling; None if it says nothing about limits."""
        if response is None:
            return None
        status, headers = response[0].status_code, response[0].headers
        # Some services throttle with a 400; all of them put a code into the body.
        if self._detector.is_throttling_error(
            response=response, request_dict=request_dict, caught_exception=None, **retry
        ):
            status = _THROTTLED
            if _RETRY_AFTER_MS in headers:
                headers = {**headers, "retry-after-ms": headers[_RETRY_AFTER_MS]}
        if not may_say(admission, status, headers):
            return None
        admission.target = _target_of(self._service, retry["operation"].name)
        return ResponseView(status, headers)


def _default_key(attempt: Attempt) -> str:
    return _DEFAULT_KEY(attempt._asdict())


def _key_of(spec: Any) -> KeyOf:
    if isinstance(spec, str | KeyTemplate):
        template = KeyTemplate(spec if isinstance(spec, str) else spec.text, _FIELDS)
        return lambda _, attempt: template(attempt._asdict())
    if callable(spec):
        return key_of(cast("KeySpec", spec))
    fix = 'write "{region}:{service}", or a callable'
    raise ConfigError("key", spec, "is neither text nor callable", fix)


def _target(attempt: Attempt) -> Target:
    return _target_of(attempt.service, attempt.operation)


def _target_of(service: str, operation: str) -> Target:
    return Target("", "aws", service, None, f"/{operation}")


def _route(place: object) -> Target:
    """The target of a route: a whole service, or one of its operations."""
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if found is None:
        fix = 'write "ec2", or "ec2.RunInstances"'
        raise ConfigError("routes", place, "is neither a service nor an operation", fix)
    return _target_of(found[1], found[2] or "")


_READING = Reading(_default_key, _target, _key_of, _route)
