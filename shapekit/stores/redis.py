"""RedisStore: one truth for all workers on all hosts."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

from shapekit.clock import Clock, SystemClock
from shapekit.errors import ConfigError, StoreUnavailableError, missing
from shapekit.stores.base import Apply, ApplyMany, Key, Operation, Program, Store
from shapekit.stores.errand import Errand
from shapekit.stores.undo import undos_of

try:
    from redis import ConnectionPool, Redis, RedisError
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError:
    raise missing("RedisStore", "redis") from None

from shapekit.stores.redis_connections import AsyncKept, Kept
from shapekit.stores.redis_keys import Keyspace
from shapekit.stores.redis_link import AsyncLink, Link, unavailable
from shapekit.stores.redis_loops import Loop, Loops
from shapekit.stores.redis_program import Conversation, RedisProgram
from shapekit.stores.redis_survey import RedisSurvey
from shapekit.stores.sighting import Sighting

__all__ = ["RedisStore"]

TIMEOUT_S = 1.0
MOST_CONNECTIONS = 64
_SCANNED_AT_ONCE = 1_000


class RedisStore(Store):
    """One truth for all workers that reach the same Redis, Valkey, Sentinel or Redis Cluster.

        store = RedisStore.from_url("redis://localhost")
        shaper = Shaper("10/s", name="stripe", store=store)

    Each decision is one script call, made by the server's clock, so that hosts whose clocks differ agree.
    (With `clock=` the callers' clock decides, which is meant for tests.) Concurrent asynchronous callers
    of one key share a trip. A call whose reply is lost raises StoreUnavailableError and is never
    repeated: it may have been charged, once.

    Pass clients of your own, which stay yours to close, or use `from_url`, which makes both kinds. With
    `client` alone, asynchronous callers go through a worker thread, as they do on trio.
    """

    shared = True

    def __init__(
        self, client: Any = None, *, aclient: Any = None, clock: Clock | None = None, prefix: str = "shapekit"
    ) -> None:
        if client is None and aclient is None:
            raise ConfigError(
                "client", client, "is missing", 'pass one, or write RedisStore.from_url("redis://localhost")'
            )
        if isinstance(client, str):
            raise ConfigError("client", "a text", "is not a client", "write RedisStore.from_url(…)")
        if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError("prefix", prefix, "is not a text without braces", 'pass one such as "shapekit"')
        self.clock: Clock = SystemClock() if clock is None else clock
        self.clock_decides = clock is not None
        self.prefix = prefix
        self._keyspace = Keyspace(prefix)
        self._client = client
        self._link = None if client is None else Link(client)
        self.sharded = self._is_cluster and self._link is not None
        self.awaited_only = client is None
        self._loops = None if aclient is None else Loops(lambda: AsyncLink(aclient), many=False)
        self._programs: dict[str, dict[Program, RedisProgram]] = {}
        self._lock = threading.Lock()
        self._kept: Kept | None = None
        self._survey: RedisSurvey | None = None
        self._closed = False

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, prefix: str = "shapekit") -> Self:
        """A store with clients of its own: `redis://`, `rediss://` or `unix://`, with a password or without.

        Connecting and answering may take a second each, unless the URL says otherwise
        (`?socket_timeout=0.2`).
        """
        bounds: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        pool = _pool_of(url, bounds)
        store = cls(Redis(connection_pool=pool), clock=clock, prefix=prefix)
        store._kept = Kept(pool, TIMEOUT_S)
        store._link = Link(store._client, store._kept)
        store._loops = Loops(partial(_connected, url, bounds), many=True)
        return store

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        remote = self._remote(name, program)

        def apply(key: Key, *args: Any) -> Any:
            calls = f"[{remote.call(operation, args)}]"
            conversation = remote.converse(remote.keys_of(key), (operation,), calls)
            return remote.answer(operation, self._talk(conversation)[0])

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        remote = self._remote(name, program)

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            answers: list[Any] = []
            for trip in remote.trips_for(keys, operation, args, apart=self._is_cluster):
                answers += self._talk(trip)
            return [remote.answer(operation, sent) for sent in answers]

        return apply_many

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        remote = self._remote(name, program)
        apply = self.bind(name, program, operation)

        def aapply(key: Key, *args: Any) -> Awaitable[Any]:
            here = self._here()
            if here is not None:
                return here.line(remote, key).ask(operation, args)
            return Errand(
                partial(apply, key, *args),
                lambda answer: self._give_back(name, program, [key], operation, args, [answer]),
            ).run()

        return aapply

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        remote = self._remote(name, program)
        apply_many = self.bind_many(name, program, operation)

        async def aapply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            here = self._here()
            if here is not None:
                return await here.ask_each(remote, list(keys), operation, args, apart=self._is_cluster)
            return await Errand(
                partial(apply_many, keys, args),
                lambda answers: self._give_back(name, program, keys, operation, args, answers),
            ).run()

        return aapply_many

    def _give_back(
        self,
        name: str,
        program: Program,
        keys: Sequence[Key],
        operation: Operation,
        args: tuple[Any, ...],
        answers: list[Any],
    ) -> None:
        for key, answer in zip(keys, answers, strict=True):
            for undo, undo_args in undos_of(operation, args, answer):
                self.bind(name, program, undo)(key, *undo_args)

    def shard(self, name: str, program: Program, key: Key) -> Hashable:
        place = self._remote(name, program).keys_of(key)[0]
        return None if self._link is None else self._link.server_of(place)

    def reset(self, name: str, program: Program, key: Key) -> None:
        self._talk(self._remote(name, program).forget(key))

    async def areset(self, name: str, program: Program, key: Key) -> None:
        here = self._here()
        if here is not None:
            await here.talk(self._remote(name, program).forget(key))
        else:
            await Errand(partial(self.reset, name, program, key), lambda _: None).run()

    def reset_all(self, prefix: str = "") -> int:
        count = 0
        for key in self._found(prefix):
            count += self._tell("DEL", key)
        return count

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter([self._keyspace.shown(key) for key in self._found(prefix)])

    def survey(self, prefix: str = "") -> Iterator[Sighting]:
        """The live keys with their programs and states, to look at; nothing is written or prolonged."""
        client = self._client_to_look(prefix)
        if self._survey is None:
            self._survey = RedisSurvey(client, self._keyspace, self.clock, injected=self.clock_decides)
        return self._survey.sightings(prefix)

    def close(self) -> None:
        self._closed = True
        if self._kept is not None:
            self._kept.close()

    async def aclose(self) -> None:
        self.close()
        if self._kept is not None and self._loops is not None:
            await self._loops.aclose()

    def __repr__(self) -> str:
        return f"RedisStore(prefix={self.prefix!r})"

    # inside

    def evaluate(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script of one's own where the states are; a reply that is lost is not asked for again."""
        return self._tell("EVAL", script, len(keys), *keys, *arguments)

    @property
    def _is_cluster(self) -> bool:
        return self._link is None or self._link.is_cluster

    def _remote(self, name: str, program: Program) -> RedisProgram:
        with self._lock:
            known = self._programs.setdefault(name, {})
            for other in known:
                if other.kind != program.kind:
                    raise ConfigError(
                        "name",
                        name,
                        f"already holds a {other.kind}, and this is a {program.kind}",
                        "use another name",
                    )
            if program not in known:
                known[program] = RedisProgram(
                    self._keyspace, name, program, self.clock, injected=self.clock_decides
                )
            return known[program]

    def _here(self) -> Loop | None:
        self._check_open()
        here = None if self._loops is None else self._loops.here()
        if here is None and self._link is None:
            raise _no_client()
        return here

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this RedisStore is closed; make a new one")

    def _talk(self, conversation: Conversation) -> Any:
        try:
            command = next(conversation)
            while True:
                command = conversation.send(self._say(command))
        except StopIteration as end:
            return end.value

    def _say(self, command: tuple[Any, ...]) -> Any:
        self._check_open()
        if self._link is None:
            raise _no_client()
        return self._link.say(command)

    def _tell(self, *command: Any) -> Any:
        reply = self._say(command)
        if isinstance(reply, Exception):
            raise unavailable(reply) from reply
        return reply

    def _client_to_look(self, prefix: object) -> Any:
        if not isinstance(prefix, str):
            raise ConfigError("prefix", prefix, "is not text", 'pass a str such as "api:"')
        self._check_open()
        if self._client is None:
            raise _no_client()
        return self._client

    def _found(self, prefix: str) -> set[bytes]:
        """The keys of states whose `name:key` begins with the prefix."""
        client = self._client_to_look(prefix)
        try:
            found = {
                key if isinstance(key, bytes) else key.encode()
                for key in client.scan_iter(match=self._keyspace.pattern, count=_SCANNED_AT_ONCE)
            }
        except RedisError as error:
            raise unavailable(error) from error
        return {key for key in found if self._keyspace.shown(key).startswith(prefix)}


def _pool_of(url: str, bounds: dict[str, Any]) -> ConnectionPool:
    """The pool that a URL asks for. What is wrong with one may stand beside a password, and is not shown."""
    with suppress(ValueError, AttributeError, TypeError, RedisError):
        parts = urlsplit(url)
        # A password with a mark that should have been escaped ends up here.
        is_torn = parts.fragment or (parts.scheme != "unix" and parts.path.strip("/").strip("0123456789"))
        pool = ConnectionPool.from_url(
            url, max_connections=MOST_CONNECTIONS, retry=Retry(NoBackoff(), 0), **bounds
        )
        # Options that nobody knows are refused now, not at the first call.
        pool.connection_class(**pool.connection_kwargs)
        if not is_torn:
            return pool
    raise ConfigError(
        "url", "(not shown)", "is not a Redis URL", 'write one such as "redis://localhost:6379/0"'
    )


def _connected(url: str, bounds: dict[str, Any]) -> AsyncLink:
    """A link of ours for one event loop."""
    client = AsyncRedis.from_url(url, retry=AsyncRetry(NoBackoff(), 0), **bounds)
    options = client.connection_pool.connection_kwargs
    kept = AsyncKept(client.connection_pool, MOST_CONNECTIONS, options["socket_timeout"] or TIMEOUT_S)
    options["socket_timeout"] = None
    return AsyncLink(client, kept)


def _no_client() -> ConfigError:
    return ConfigError(
        "client",
        None,
        "is needed for synchronous calls, on trio, and on a second event loop",
        "pass RedisStore(client, aclient=…)",
    )
