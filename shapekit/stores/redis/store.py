"""RedisStore: states on a Redis server, shared by workers on any number of hosts.

RedisSurvey: reads all states on a server in batches, without changing anything. A batch is one SCAN, one trip
for the values, and one for a script without keys, in which the twins decode them. The description of a
program is read once. No TTL is prolonged, and no command takes the server longer than a batch does.

Lines: concurrent asynchronous callers of one key share one trip.

While a trip for a key is under way, further calls line up, and the whole line leaves as one script call when
the trip is back; equal calls in a row are one run (`Run`). A caller that finds the line empty leaves at once.
If a caller is cancelled while the trip is under way, the others go on, and what was taken for it is given
back before any other call takes something.

`Loop`, `Loops`: the client of each event loop, because connections belong to their loop, and the lines of the
calls there.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakMethod

from redis import ConnectionPool, Redis, RedisCluster, RedisError
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio import SSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError
from redis.retry import Retry

from shapekit._runtime import process
from shapekit._runtime.drivers import (
    TASKS,
    Driver,
    hidden_task,
    own_copy,
    run,
    running_loop,
    shielded,
)
from shapekit.algorithms.base import Undo
from shapekit.algorithms.compose import of_one_kind
from shapekit.clock import Clock, RealClock
from shapekit.errors import UNSHOWN, ConfigError, ShapekitError, StoreUnavailableError
from shapekit.rate import SECOND_US, duration_us
from shapekit.stores.base import (
    Apply,
    ApplyMany,
    Key,
    Operation,
    Program,
    Settings,
    Store,
    Stored,
    check_prefix,
    of_two_kinds,
    settings_name,
)
from shapekit.stores.encoding import MISFITS, Described, LiveKey, known_programs, plain_text, revived, sound
from shapekit.stores.redis.connections import (
    AsyncOwnConnections,
    Link,
    OwnConnections,
    PromptSSLConnection,
    closed,
    unavailable,
)
from shapekit.stores.redis.protocol import (
    Call,
    Conversation,
    Keyspace,
    RedisProgram,
    server_us,
    stored,
    survey_script,
    talk,
)

__all__ = ["RedisStore"]


TIMEOUT_S = 1.0
MOST_CONNECTIONS = 64
_SCANNED_AT_ONCE = 1_000


class RedisStore(Store):
    """Shares limits between all workers that reach the same Redis, Valkey, Sentinel or Redis Cluster.

        store = RedisStore.from_url("redis://localhost")
        shaper = Shaper("10/s", name="stripe", store=store)

    Each decision is one script call, timed by the server's clock, so that hosts whose clocks differ agree.
    (With `clock=` the callers' clock decides, which is meant for tests.) Concurrent asynchronous callers of
    one key share a trip. A call whose reply is lost raises StoreUnavailableError and is never repeated: it
    may have been charged, once.

    Pass your own clients, which the store does not close, or use `from_url`, which makes both kinds. With
    only a `client`, asynchronous callers use a worker thread, as they do on trio.
    """

    shared = True

    def __init__(
        self, client: Any = None, *, aclient: Any = None, clock: Clock | None = None, prefix: str = "shapekit"
    ) -> None:
        if client is None and aclient is None:
            fix = 'pass one, or write RedisStore.from_url("redis://localhost")'
            raise ConfigError("client", client, "is missing", fix)
        if isinstance(client, (str, bytes)):
            raise ConfigError("client", "a text", "is not a client", "write RedisStore.from_url(…)")
        _check_client("client", client, (AsyncRedis, AsyncRedisCluster), "is asynchronous", "aclient")
        _check_client("aclient", aclient, (Redis, RedisCluster), "is synchronous", "client")
        if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError("prefix", prefix, "is not a text without braces", 'pass one such as "shapekit"')
        self.clock: Clock = RealClock() if clock is None else clock
        self.clock_decides = clock is not None
        self.prefix = prefix
        """The beginning of all keys on the server."""
        self._keyspace = Keyspace(prefix)
        self._client = client
        self._link = None if client is None else Link(client)
        self._has_nodes = hasattr(aclient if client is None else client, "get_node_from_key")
        self.sharded = self._has_nodes and client is not None
        self.awaited_only = client is None
        self._loops = None if aclient is None else Loops(lambda: Link(aclient), many=False)
        self._programs: dict[str, dict[Program, RedisProgram]] = {}
        self._writers: dict[int, Program] = {}
        self._lock = process.lock()
        self._kept: OwnConnections | None = None
        self._survey: RedisSurvey | None = None
        self._closed = False
        self._server: object = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, prefix: str = "shapekit") -> Self:
        """Make a store with its own clients. The URL is `redis://…`, `rediss://…` or `unix://…`.

        Connecting and answering may each take up to a second, unless the URL says otherwise
        (`?socket_timeout=0.2`).
        """
        bounds: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        pool = _pool_of(url, bounds)
        for option in bounds:
            duration_us(option, pool.connection_kwargs[option])
        key = pool.connection_kwargs.get("ssl_keyfile")
        if key and not pool.connection_kwargs.get("ssl_certfile"):
            raise ConfigError("ssl_keyfile", key, "has no certificate", "name its ssl_certfile, too")
        store = cls(Redis(connection_pool=pool), clock=clock, prefix=prefix)
        store._server = tuple(pool.connection_kwargs.get(part) for part in ("host", "port", "path"))
        store._kept = OwnConnections(pool, sum(map(pool.connection_kwargs.__getitem__, bounds)))
        store._link = Link(store._client, store._kept)
        store._loops = Loops(partial(_connected, url, bounds), many=True)
        return store

    @property
    def server(self) -> object:
        return self._server or self

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        remote = self._remote(name, program)
        remote.link(operation)
        say = self._say if self._link is None else self._link.say

        # Straight to the server. The default keeps the store alive, whose end closes its connections.
        def apply(key: Key, *args: Any, kept: object = self) -> Any:
            return talk(remote.ask(key, operation, args), say)

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        remote = self._remote(name, program)
        remote.link(operation, each=True)

        def apply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            answers: list[Any] = []
            for trip in remote.trips_for(keys, operation, args):
                answers += talk(trip, self._say)
            return answers

        return apply_many

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        remote = self._remote(name, program)
        remote.link(operation.run or operation)
        otherwise = super().abind(name, program, operation)

        def call(key: Key, *args: Any) -> Awaitable[Any]:
            here = self._here()
            return otherwise(key, *args) if here is None else here.line(remote, key).ask(operation, args)

        return call

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        remote = self._remote(name, program)
        otherwise = super().abind_many(name, program, operation)

        def call(keys: Sequence[Key], args: tuple[Any, ...]) -> Awaitable[list[Any]]:
            here = self._here()
            return otherwise(keys, args) if here is None else here.ask_each(remote, operation, keys, args)

        return call

    def shard(self, name: str, program: Program, key: Key) -> Hashable:
        place = self._remote(name, program).keys_of(key)[0]
        return None if self._link is None else self._link.server_of(place)

    def wall_us(self) -> int:
        if self.clock_decides:
            return self.clock.wall_us()
        now_us: int = talk(server_us(self._keyspace.of_settings("")), self._say)
        return now_us

    def read_overrides(self, name: str) -> Stored:
        overrides: Stored = talk(RedisProgram.read_overrides(*self._setting(name)), self._say)
        return overrides

    async def aread_overrides(self, name: str) -> Stored:
        # By the synchronous client, if there is one: so a rare call opens no connection of this event loop.
        if (here := self._here()) is None or self._link is not None:
            return await super().aread_overrides(name)
        overrides: Stored = await here.talk(RedisProgram.read_overrides(*self._setting(name)))
        return overrides

    def write_overrides(self, name: str, text: str, known: Stored) -> bool:
        is_known: bool = talk(RedisProgram.write_overrides(*self._setting(name), text, known), self._say)
        return is_known

    async def awrite_overrides(self, name: str, text: str, known: Stored) -> bool:
        if (here := self._here()) is None or self._link is not None:
            return await super().awrite_overrides(name, text, known)
        is_known: bool = await here.talk(RedisProgram.write_overrides(*self._setting(name), text, known))
        return is_known

    def _setting(self, name: str) -> tuple[Keyspace, Settings, Clock | None]:
        """Where the overrides of a name are, what is known of them, and the clock by which they end."""
        return self._keyspace, self.settings(name), self.clock if self.clock_decides else None

    def all_overrides(self) -> dict[str, Stored]:
        found = {}
        for place in set(self._every(self._keyspace.setting_pattern)):
            version, text = self._tell("HMGET", place, "version", "overrides")
            name = self._keyspace.set_name(place)
            found[name] = stored(version, text)
        return found

    def reset(self, name: str, program: Program, key: Key) -> None:
        talk(self._remote(name, program).forget(key), self._say)

    async def areset(self, name: str, program: Program, key: Key) -> None:
        here = self._here()
        if here is None:
            await super().areset(name, program, key)
        else:
            await here.talk(self._remote(name, program).forget(key))

    def reset_all(self, prefix: str = "") -> int:
        count = 0
        for key in list(self._found(prefix)):
            count += self._tell("DEL", key)
        return count

    def remove(self, seen: LiveKey) -> None:
        """Reset this key, whose program need not be known, and no other."""
        for key in list(self._found(seen.shown)):
            if self._keyspace.place(key) == seen[:3]:
                self._tell("DEL", key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return iter([self._keyspace.shown(key) for key in self._found(prefix)])

    def survey(self, prefix: str = "") -> Iterator[LiveKey]:
        """The live keys with their programs and states; nothing is written, no TTL is prolonged."""
        client = self._client_to_look(prefix)
        if self._survey is None:
            self._survey = RedisSurvey(client, self._keyspace, self.clock, injected=self.clock_decides)
        return self._survey.live_keys(self._found(prefix))

    def programs(self, name: str) -> list[Described]:
        """The programs that have written under a name; they are known even when all its keys are idle."""
        texts = [plain_text(text) for text in self._tell("HVALS", self._keyspace.of_programs(name))]
        return known_programs(texts)

    def close(self) -> None:
        run(self._close)

    async def aclose(self) -> None:
        """`close`, awaitable; only this closes the connections of the running loop at once."""
        await self._close(TASKS)

    async def _close(self, driver: Driver) -> None:
        self._closed = True
        if self._link is not None:
            self._link.close()
        self.wake()
        if self._kept is not None and self._loops is not None:
            await self._loops.close(driver)

    def __repr__(self) -> str:
        return f"RedisStore(prefix={self.prefix!r})"

    # inside

    def evaluate(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run your own script on the server with the states; if its reply is lost, it is not repeated."""
        return self._tell("EVAL", script, len(keys), *keys, *arguments)

    def _remote(self, name: str, program: Program) -> RedisProgram:
        with self._lock:
            known = self._programs.setdefault(name, {})
            for other in list(known):
                if not of_one_kind(other.kind, program.kind):
                    raise of_two_kinds(name, other.kind, program)
            if program not in known:
                known[program] = RedisProgram(
                    self._keyspace,
                    name,
                    program,
                    self.clock,
                    self._writers,
                    self.settings(settings_name(name, program)),
                    WeakMethod(self._remote),
                    WeakMethod(self.read_overrides),
                    injected=self.clock_decides,
                    is_cluster=self._has_nodes,
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
            raise closed()

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
        check_prefix(prefix)
        self._check_open()
        if self._client is None:
            raise _no_client()
        return self._client

    def _scanned(self, match: bytes, count: int) -> Iterator[bytes]:
        cursor: Any = 0
        while True:
            cursor, keys = self._tell("SCAN", cursor, "MATCH", match, "COUNT", count)
            yield from keys
            if int(cursor) == 0:
                return

    def _found(self, prefix: str) -> Iterator[bytes]:
        """The keys of states whose `name:key` begins with the prefix, each once, in no order."""
        check_prefix(prefix)
        met: set[bytes] = set()
        for key in self._every(self._keyspace.pattern):
            if (
                key not in met
                and self._keyspace.is_state(key)
                and self._keyspace.shown(key).startswith(prefix)
            ):
                met.add(key)
                yield key

    def _every(self, pattern: bytes) -> Iterator[bytes]:
        """The keys that match, some of them perhaps twice."""
        client = self._client_to_look("")
        # A client of redis-py that is interrupted may read the reply of another command later. NEVER_DECODE,
        # because a key may contain bytes that are not valid in the client's encoding.
        is_own = self._kept is not None
        scan = self._scanned if is_own else partial(client.scan_iter, **{NEVER_DECODE: True})
        try:
            for found in scan(match=pattern, count=_SCANNED_AT_ONCE):
                yield found if isinstance(found, bytes) else found.encode()
        except RedisError as error:
            raise unavailable(error) from error


def _check_client(option: str, client: Any, others: tuple[type, ...], kind: str, other: str) -> None:
    # The repr of a client, or of its pool, may show its password.
    if client is not None and (isinstance(client, type) or not hasattr(client, "execute_command")):
        fix = "pass a Redis or a RedisCluster of redis-py"
        raise ConfigError(
            option, client if isinstance(client, type) else type(client), "is not a client", fix
        )
    if hasattr(client, "master_for"):
        raise ConfigError(option, type(client), "is a Sentinel", "pass what its master_for(…) returns")
    if type(client).__module__.startswith("valkey."):
        fix = "pass a Redis or a RedisCluster of redis-py, which Valkey answers, too"
        raise ConfigError(option, type(client), "is a client of valkey-py", fix)
    if isinstance(client, others):
        raise ConfigError(option, type(client), kind, f"pass it as {other}=")


def _pool_of(url: str, bounds: dict[str, Any]) -> ConnectionPool:
    """The connection pool for a URL. An error does not show the URL, which may contain a password."""
    with suppress(ValueError, AttributeError, TypeError, RedisError):
        parts = urlsplit(url)
        # An unescaped mark in a password tears the URL apart: the rest of it ends up here.
        is_torn = parts.fragment or (parts.scheme != "unix" and parts.path.strip("/").strip("0123456789"))
        pool = ConnectionPool.from_url(
            url, max_connections=MOST_CONNECTIONS, retry=Retry(NoBackoff(), 0), **bounds
        )
        # A key may contain bytes that are valid in no encoding.
        pool.connection_kwargs["decode_responses"] = False
        # Options that one of the clients does not know are refused now, not at the first call.
        for one in (pool, AsyncConnectionPool.from_url(url, **bounds)):
            one.connection_class(**one.connection_kwargs)
        if not is_torn:
            return pool
    fix = 'write one such as "redis://localhost:6379/0"'
    raise ConfigError("url", UNSHOWN, "is not a Redis URL", fix)


def _connected(url: str, bounds: dict[str, Any]) -> Link:
    """A link with its own client, for one event loop."""
    client = AsyncRedis.from_url(
        url, max_connections=MOST_CONNECTIONS, retry=AsyncRetry(NoBackoff(), 0), **bounds
    )
    pool, options = client.connection_pool, client.connection_pool.connection_kwargs
    if pool.connection_class is SSLConnection:
        pool.connection_class = PromptSSLConnection
    timeout_s = options["socket_timeout"] or TIMEOUT_S
    kept = AsyncOwnConnections(pool, timeout_s)
    options["socket_timeout"], options["decode_responses"] = None, False
    if (options["socket_connect_timeout"] or timeout_s) >= timeout_s:
        # Our own deadline includes connecting, and a blocked event loop does not use it up.
        options["socket_connect_timeout"] = None
    return Link(client, kept)


def _no_client() -> ConfigError:
    bound = "is needed for synchronous calls, on trio, and on a second event loop"
    return ConfigError("client", None, bound, "pass RedisStore(client, aclient=…)")


AT_ONCE = 500
"""How many states one trip reads: the server does nothing else meanwhile."""
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4}
"""How MessagePack writes a number that is not tiny: a mark, followed by so many bytes."""
_OF_ANOTHER_TYPE = "WRONGTYPE"
"""In Redis' error for a value that is not a string."""

Writer: TypeAlias = tuple[str, int]
"""The name and the tag of a program."""


class RedisSurvey:
    """Reads the live keys; it can be used repeatedly, and caches descriptions, which never change."""

    def __init__(self, client: Any, keyspace: Keyspace, clock: Clock, *, injected: bool) -> None:
        self._client = client
        self._keyspace = keyspace
        self._clock = clock
        self._injected = injected
        self._programs: dict[Writer, Described] = {}

    def live_keys(self, keys: Iterator[bytes]) -> Iterator[LiveKey]:
        """The states at these keys, without keys that have ended."""
        try:
            while batch := list(islice(keys, AT_ONCE)):
                yield from self._seen(batch)
        except RedisError as error:
            raise unavailable(error) from error

    def _seen(self, keys: Sequence[bytes]) -> Iterator[LiveKey]:
        places = [self._keyspace.place(key) for key in keys]
        raws = self._replies([("GET", key) for key in keys])
        tags = [tag_of(raw) for raw in raws]
        self._learn((place[0], tag) for place, tag in zip(places, tags, strict=True) if tag is not None)
        found = [
            (place, None if tag is None else self._programs.get((place[0], tag)), raw)
            for place, tag, raw in zip(places, tags, raws, strict=True)
            if isinstance(raw, bytes) or is_of_another_type(raw)
        ]
        server_now, states = self._thawed([(program, raw) for _, program, raw in found if program])
        now = self._clock.now_us() if self._injected else server_now
        skew = self._clock.wall_us() - now if self._injected else 0
        for place, program, raw in found:
            sent = next(states) if program else None
            state = None
            if sent is not None and program is not None:
                with suppress(*MISFITS, StoreUnavailableError):
                    state = sound(program, program.state_received(sent), now, skew)
            # A value with an unknown tag may be sound: a later version of shapekit may have written it.
            is_damaged = state is None and (program is not None or tag_of(raw) is None)
            yield LiveKey(*place, None if state is None else program, state, now, skew, is_damaged)

    def _learn(self, writers: Iterable[Writer]) -> None:
        """Read the descriptions of programs that are not known yet."""
        unknown = list({*writers} - self._programs.keys())
        commands = [("HGET", self._keyspace.of_programs(name), str(tag)) for name, tag in unknown]
        for writer, text in zip(unknown, self._replies(commands), strict=True):
            if isinstance(text, bytes):
                try:
                    self._programs[writer] = revived(text.decode())
                except (ConfigError, UnicodeDecodeError):
                    """Written by a later version of shapekit: shown as unknown."""

    def _replies(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies to the commands of one trip, as bytes; an error if a value is of another type."""
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command, **{NEVER_DECODE: True})
        replies = list(pipeline.execute(raise_on_error=False))
        for reply in replies:
            if isinstance(reply, Exception) and not is_of_another_type(reply):
                raise unavailable(reply) from reply
        return replies

    def _thawed(self, values: Sequence[tuple[Described, bytes]]) -> tuple[int, Iterator[Any]]:
        """The server's time, and the state in each value."""
        wall = self._clock.wall_us()
        numbers: dict[Described, int] = {}
        arguments: list[Any] = []
        for program, raw in values:
            arguments += numbers.setdefault(program, len(numbers) + 1), raw
        specs = [program.twin((wall,)) for program in numbers]
        script = survey_script(specs)
        (seconds, microseconds), *states = self._client.eval(script, 0, json.dumps(specs), *arguments)
        return int(seconds) * SECOND_US + int(microseconds), iter(states)


def is_of_another_type(reply: Any) -> bool:
    """Whether a reply says that a value is not a string, so that another program has written it."""
    return isinstance(reply, ResponseError) and _OF_ANOTHER_TYPE in str(reply)


def tag_of(raw: Any) -> int | None:
    """The number that a value begins with: the tag of its program; None if it does not begin with one.

    >>> tag_of(bytes([0xCE, 0, 1, 0, 0, 7])), tag_of(b"plain text"), tag_of(b"")
    (65536, None, None)
    """
    if not isinstance(raw, bytes) or not raw:
        return None
    width = _WIDTHS.get(raw[0])
    return None if width is None else int.from_bytes(raw[1 : 1 + width])


MOST_AT_ONCE = 256
"""How many callers share one trip: a longer script would make all other callers wait."""


Waiting: TypeAlias = "tuple[Call, asyncio.Future[Any] | None]"
"""One call, and the future of the task that waits for its answer; None if the call only gives back."""


class _Finishing(asyncio.Future[None]):
    """Represents a task in `asyncio.all_tasks`; when it is cancelled, the task still runs to its end.

    Even if the callers have gone, what the task has taken for them is given back before the event loop ends,
    since `asyncio.run` cancels all tasks and waits for them. The task itself is not in `all_tasks`, so that
    only the timeout in `cancel` ends it.
    """

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop=loop)
        self._work = hidden_task(loop, work)
        self._work.add_done_callback(lambda _: self.set_result(None))
        modules: Any = asyncio
        modules._register_task(self)  # noqa: SLF001 - documented in "Extending" of asyncio

    def cancel(self, msg: Any = None) -> bool:
        """Go on, but not for ever: a client may have no timeout."""
        self.get_loop().call_later(process.LAST_S, self._work.cancel)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)  # such as the name and the stack of a task


class Line:
    """The callers of one key on one event loop."""

    def __init__(
        self,
        moment: Callable[[], str],
        trip: Callable[[list[Call]], Awaitable[list[Any]]],
        leave: Callable[[], object],
    ) -> None:
        self._moment = moment
        self._trip = trip
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._under_way: list[Waiting] = []
        self._task: _Finishing | None = None

    async def ask(self, operation: Operation, args: tuple[Any, ...]) -> Any:
        """The answer to one call; calls that come while a trip is under way share the next."""
        waiter = self._loop.create_future()
        self._waiting.append(((operation, args, self._moment()), waiter))
        self._go()
        try:
            return await waiter
        except asyncio.CancelledError:
            # The answer may have come just when the caller was cancelled.
            if not waiter.cancelled() and waiter.exception() is None:
                undos, future = operation.undone(args, waiter.result()), self._loop.create_future()
                if undos:
                    self._give_back(undos, future)
                    with suppress(ShapekitError):
                        await shielded(lambda: future)
            raise

    def _go(self) -> None:
        if self._task is None:
            self._task = _Finishing(self._run, self._loop)

    def _give_back(self, undos: tuple[Undo, ...], waiter: asyncio.Future[Any] | None = None) -> None:
        if undos:
            # Ahead of waiting calls, which may take the place; and the latest first, since the tail retracts.
            *first, last = [(*undo, self._moment()) for undo in undos]
            self._waiting.appendleft((last, waiter))
            self._waiting.extendleft((call, None) for call in reversed(first))
            self._go()

    async def _run(self) -> None:
        try:
            while self._waiting:
                first = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
                self._under_way = [one for one in first if one[1] is None or not one[1].done()]
                if self._under_way:
                    await self._serve(self._under_way)
                self._under_way = []
        except GeneratorExit:
            raise  # the loop is closed, and the waiting tasks with it
        except BaseException:
            # For example KeyboardInterrupt.
            for _, waiter in (*self._under_way, *self._waiting):
                if waiter is not None:
                    waiter.cancel()
            raise
        finally:
            self._task = None
            self._leave()

    async def _serve(self, batch: list[Waiting]) -> None:
        try:
            answers = await self._trip([call for call, _ in batch])
        except Exception as error:
            for _, waiter in batch:
                if waiter is not None:
                    _tell_error(waiter, own_copy(error))
            return
        for ((operation, args, _), waiter), answer in zip(batch, answers, strict=True):
            if waiter is None:
                continue
            if isinstance(answer, Exception):
                if not waiter.done():
                    waiter.set_exception(answer)
            elif waiter.done():
                self._give_back(operation.undone(args, answer))
            else:
                waiter.set_result(answer)


def _tell_error(waiter: asyncio.Future[Any], error: Exception) -> None:
    """Pass an error to a waiting task, unless its event loop is closed: a dying connection may raise then."""
    if not waiter.done() and not waiter.get_loop().is_closed():
        waiter.set_exception(error)


class Loop:
    """One event loop's client and lines."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._lines: dict[tuple[RedisProgram, Key], Line] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    def line(self, remote: RedisProgram, key: Key) -> Line:
        """The line of the callers of a key."""
        place = (remote, key)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line(
                remote.moment,
                lambda calls: self.talk(remote.share(key, calls)),
                lambda: self._lines.pop(place, None),
            )
        return line

    async def ask_each(
        self, remote: RedisProgram, operation: Operation, keys: Sequence[Key], args: tuple[Any, ...]
    ) -> list[Any]:
        """The answers for each of several keys; if the caller is cancelled, what was taken is given back."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        async def serve() -> None:
            answers: list[Any] = []
            try:
                for trip in remote.trips_for(keys, operation, args):
                    answers += await self.talk(trip)
            except Exception as error:
                _tell_error(future, error)
                return
            if future.done():
                await give_back(answers)
            else:
                future.set_result(answers)

        async def give_back(answers: list[Any]) -> None:
            with suppress(ShapekitError):
                for key, answer in zip(keys, answers, strict=True):
                    for undo, undo_args in operation.undone(args, answer):
                        await self.line(remote, key).ask(undo, undo_args)

        task = _Finishing(serve, loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return list(await future)
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                await shielded(partial(give_back, future.result()))
            raise

    def close(self) -> None:
        """Close the client; called on the loop itself, which closes it as soon as it can.

        Not twice: a loop that has closed its client may be ending, and would never run another task.
        """
        if self.link.is_closed:
            return
        task = asyncio.get_running_loop().create_task(self.link.aclose())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def talk(self, conversation: Conversation) -> Any:
        """Run a conversation and return its result."""
        try:
            command = next(conversation)
            while True:
                command = conversation.send(await self.link.asay(command))
        except StopIteration as end:
            return end.value


class Loops:
    """A `Loop` for each event loop; if the caller gave one client, only for the loop that first used it."""

    def __init__(self, connect: Callable[[], Link], *, many: bool) -> None:
        self._connect = connect
        self._many = many
        self._loops: WeakKeyDictionary[Any, Loop] = WeakKeyDictionary()
        self._lock = process.lock()

    def here(self) -> Loop | None:
        """The `Loop` of the running asyncio loop; None on trio, and for loops that cannot have one."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        with self._lock:
            found = self._loops.get(running)
            if found is None and (self._many or not self._loops):
                # A connection refers to its loop: neither would ever be collected.
                for ended in [loop for loop in self._loops if loop.is_closed()]:
                    del self._loops[ended]
                found = self._loops[running] = Loop(self._connect())
            return found

    async def close(self, driver: Driver) -> None:
        """Close the client of the running loop, if this is awaited; loops on other threads close theirs."""
        with self._lock:
            loops = dict(self._loops)
        own = loops.pop(running_loop(), None)
        for loop, other in loops.items():
            if loop.is_running():
                with suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(other.close)
        if own is not None and driver.loop() is not None:
            await own.link.aclose()
