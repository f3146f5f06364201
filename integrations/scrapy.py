"""Scrapy: a downloader whose requests wait for their slots; spiders in other processes can share the rate.

    # settings.py
    DOWNLOADER = "shapekit.integrations.scrapy.ShapedDownloader"
    SHAPEKIT = {"rate": "10/s", "name": "crawl", "store": "redis://localhost"}

A request waits where Scrapy's own delays make it wait, in the queue of its host, so that it does not keep
other hosts waiting. Each request that is sent counts, as it does for the server: retries,
redirects, robots.txt.
"""

# The package is not always installed.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from anyio import CancelScope

from shapekit import errors
from shapekit._adapters.http import Reading, RequestShaper, ResponseView, may_say, observe
from shapekit._runtime.drivers import TASKS
from shapekit.errors import ConfigError, QueueFullError
from shapekit.keys import Target
from shapekit.policy import Admission
from shapekit.rate import whole
from shapekit.stores import open_store
from shapekit.stores.base import Store

try:
    from scrapy import signals  # pyright: ignore[reportMissingImports]
    from scrapy.core.downloader import Downloader  # pyright: ignore[reportMissingImports]
    from scrapy.exceptions import IgnoreRequest  # pyright: ignore[reportMissingImports]
    from scrapy.utils.asyncio import is_asyncio_available  # pyright: ignore[reportMissingImports]
    from scrapy.utils.httpobj import urlparse_cached  # pyright: ignore[reportMissingImports]
    from scrapy.utils.misc import load_object  # pyright: ignore[reportMissingImports]
    from twisted.internet.defer import Deferred  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("ShapedDownloader", "scrapy") from error

__all__ = ["ShapedDownloader"]


class ShapedDownloader(Downloader):
    """A downloader that shapes requests: the value of the setting `DOWNLOADER`.

    The setting `SHAPEKIT` holds the keywords of `Policy`, or `policy`, the import path of an existing one:
    "crawler.limits.api". Scrapy copies settings, so a store is given by its URL or path. Beside these:

    - `key`: "host" (the default), "host+method", "origin", a template such as `"{host}/{path[0]}"`, or a
      callable that takes the `scrapy.Request`.
    - `routes`: other rates for a URL and everything below it, as in
      `{"https://api.example.com/search": "30/min"}`.

    Set options of a request by `meta={"shapekit": {"cost": 5, "key": …, "max_wait": …, "skip": True}}`.

    Requests with the same host and key wait in one queue, a slot of the downloader; those with the same
    `download_slot` in their `meta` do as well. In a queue, at most `CONCURRENT_REQUESTS_PER_DOMAIN` requests
    have reserved their slots. Waiting requests do not count towards `CONCURRENT_REQUESTS`, up to
    `SHAPEKIT_MOST_WAITING` (100) of them: the others stay with the scheduler.

    A request that would wait too long calls its errback with a `QueueFullError`. When the spider closes,
    waiting requests return to the scheduler, and what they had reserved is given back. A request that did not
    come from the scheduler, such as one of a media pipeline, leaves if it need not wait, and otherwise fails
    with `IgnoreRequest`.
    """

    def __init__(self, crawler: Any) -> None:
        # What may fail comes first: Scrapy does not close what it has opened for a downloader that fails.
        self._request_shaper, self._store = _request_shaper(crawler.settings)
        most = crawler.settings.getint("SHAPEKIT_MOST_WAITING", 100)
        self._most_waiting = whole("SHAPEKIT_MOST_WAITING", most, least=0)
        super().__init__(crawler)
        self._waiting: Counter[Any] = Counter()
        """How many requests of a slot wait outside of its queue."""
        self._scopes: set[CancelScope] = set()
        """The cancel scopes of waiting requests; used only on the loop that they wait on."""
        self._own_loop: _OwnLoop | None = None
        self._is_closing = False
        self._scheduled: WeakSet[Any] = WeakSet()
        """Requests that came from the scheduler."""
        handlers: Any = self.handlers
        self._send = handlers.download_request_async
        handlers.download_request_async = self._send_in_turn
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._stopped, signals.engine_stopped)

    def needs_backout(self) -> bool:
        """Whether to take no more requests from the scheduler for now."""
        waiting = sum(count + len(slot.queue) for slot, count in self._waiting.items())
        return bool(0 < self.total_concurrency <= len(self.active) - min(waiting, self._most_waiting))

    def get_slot_key(self, request: Any) -> str:
        """The name of the queue that a request waits in."""
        name: str | None = request.meta.get(self.DOWNLOAD_SLOT)
        if name is not None and name != request.meta.get(_QUEUE):
            return name
        # A redirect, or a request with the `meta` of a response, brings the queue of the request before it.
        request.meta.pop(self.DOWNLOAD_SLOT, None)
        request.meta[_QUEUE] = queue = self._queue_of(request)
        return queue

    def _queue_of(self, request: Any) -> str:
        slot: str = super().get_slot_key(request)
        if not _host(request):
            return slot
        try:
            admission = self._request_shaper.admission(request, request.meta.get(_META))
        except Exception:
            # Raised here, it would stop the start of the crawl. The request's errback gets it later.
            return slot
        if admission is None or admission.unentered().key == _host(request):
            return slot
        # In one queue, a key would keep other keys of its host waiting.
        return f"{slot} {admission.key}"

    async def _enqueue_request(self, request: Any) -> Any:
        self._say_room()
        try:
            return await super()._enqueue_request(request)
        except _SpiderClosesError as error:
            if request not in self._scheduled:
                # Other code waits for the response, as for robots.txt.
                raise IgnoreRequest(str(error)) from None
            # The engine schedules a request that comes in place of a response; with JOBDIR, for another run.
            return request.replace(dont_filter=True)

    async def _send_in_turn(self, request: Any) -> Any:
        if not _host(request):
            return await self._send(request)
        slot = self.slots[request.meta[self.DOWNLOAD_SLOT]]
        self._waiting[slot] += 1
        self._say_room()
        try:
            admission = await self._on_loop(self._enter, request)
        finally:
            self._waiting[slot] -= 1
            if not self._waiting[slot]:
                del self._waiting[slot]
        if admission is None:
            return await self._send(request)
        try:
            response = await self._send(request)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                await self._on_loop(admission.__aexit__, type(error), error, error.__traceback__)
            raise
        if admission.holds_permit:
            await self._on_loop(admission.aleave)
        headers = [(name, value) for name, values in response.headers.items() for value in values]
        if may_say(admission, response.status, headers):
            admission.target = _target(request)
            answer = ResponseView(response.status, headers, response.body)
            await self._on_loop(observe, TASKS, admission, answer)
        return response

    async def _enter(self, request: Any) -> Admission | None:
        enter, options = self._request_shaper.aenter, request.meta.get(_META)
        with CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self._is_closing:
                    return await enter(request, options)
                if request not in self._scheduled:
                    # Other code waits for the response, as an item for its files, and closing waits for it.
                    with suppress(QueueFullError):
                        return await enter(request, options, fits_s=0)
            finally:
                self._scopes.discard(scope)
        raise _SpiderClosesError("the spider closes, and the request was not sent")

    def _on_loop(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Run a coroutine function on Scrapy's asyncio loop, or on our own without one; to be awaited."""
        if is_asyncio_available():
            return function(*args)
        if self._own_loop is None:
            self._own_loop = _OwnLoop()
        return self._own_loop.run(function, *args)

    def _say_room(self) -> None:
        # By itself, the engine checks for room only when a request ends, and every five seconds.
        engine: Any = self.crawler.engine
        engine._slot.nextcall.schedule()  # noqa: SLF001 - Scrapy has no other way to say it

    def _opened(self) -> None:
        engine: Any = self.crawler.engine
        close, next_request = engine.close_spider_async, engine.scheduler.next_request

        def close_spider_async(**options: Any) -> Any:
            # No signal is sent when a spider begins to close, which waits until its requests have ended.
            self._is_closing = True
            if self._own_loop is not None:
                self._own_loop.call(self._stop_waiting)
            else:
                self._stop_waiting()
            return close(**options)

        def noted() -> Any:
            request = next_request()
            if request is not None:
                self._scheduled.add(request)
            return request

        engine.close_spider_async, engine.scheduler.next_request = close_spider_async, noted

    async def _stopped(self) -> None:
        if self._store is not None:
            await self._on_loop(self._store.aclose)
        if self._own_loop is not None:
            self._own_loop.stop()

    def _stop_waiting(self) -> None:
        for scope in self._scopes:
            scope.cancel()


class _SpiderClosesError(Exception):
    """A request that waited when its spider closed, and was not sent."""


class _OwnLoop:
    """An asyncio loop in a thread, for a reactor that is not asyncio's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._futures: set[Future[Any]] = set()
        """Those of the tasks that have not ended: the loop itself does not keep its tasks."""
        # A daemon, so that a process that ends at once does not wait for it.
        threading.Thread(target=self._work, name="shapekit-scrapy", daemon=True).start()

    def run(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Run it as a task; returns a Deferred of its result."""
        from twisted.internet import reactor  # pyright: ignore[reportMissingImports] # noqa: PLC0415 - installed by now

        deferred: Any = Deferred()

        def tell(future: Future[Any]) -> None:
            self._futures.discard(future)
            error = future.exception()
            if error is None:
                deferred.callback(future.result())
            else:
                deferred.errback(error)

        future = asyncio.run_coroutine_threadsafe(function(*args), self._loop)
        self._futures.add(future)
        future.add_done_callback(partial(reactor.callFromThread, tell))
        return deferred

    def call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        self.call(self._loop.stop)

    def _work(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


_META = "shapekit"
"""The key of a request's `meta` that holds its options."""
_QUEUE = "shapekit_queue"
"""The key that holds the name of the queue, unless the spider gave one."""


def _request_shaper(settings: Any) -> tuple[RequestShaper, Store | None]:
    """The request shaper of the setting, and the store to close at the end, if it was made here."""
    try:
        shaping = settings.getdict("SHAPEKIT")
    except (TypeError, ValueError):
        fix = 'write SHAPEKIT = {"rate": "10/s"}'
        raise ConfigError("SHAPEKIT", settings.get("SHAPEKIT"), "is not a table", fix) from None
    if isinstance(shaping.get("policy"), str):
        shaping["policy"] = load_object(shaping["policy"])
    store, is_ours = None, False
    if shaping.get("store") is not None:
        store, is_ours = open_store(shaping["store"])
        shaping["store"] = store
    request_shaper = RequestShaper("SHAPEKIT = dict", _READING, **shaping)
    if request_shaper.responds:
        fix = 'leave on_reject="raise": the errback is called with an error whose retry_after says when'
        raise ConfigError("SHAPEKIT['on_reject']", "respond", "would have Scrapy send the request again", fix)
    return request_shaper, store if is_ours else None


def _host(request: Any) -> str:
    return urlparse_cached(request).hostname or ""


def _target(request: Any) -> Target:
    parts = urlparse_cached(request)
    return Target(request.method, parts.scheme, _host(request), parts.port, parts.path)


_READING = Reading(_host, _target)
