"""Where a Celery worker parks messages: on the broker if that is a Redis, else in the Redis of the store."""

from __future__ import annotations

import base64
import functools
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kombu.exceptions import OperationalError
from kombu.transport.virtual import QoS
from kombu.utils.json import dumps, loads
from redis.exceptions import RedisError

from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.integrations.celery_shape import SLIP, store_of
from shapekit.stores.parking import Parked, Parking, Taker
from shapekit.stores.redis import RedisStore
from shapekit.stores.resilient import ResilientStore

__all__ = ["GONE", "Park", "park_of"]

log = logging.getLogger("shapekit.celery")

PREFIX = "{shapekit:celery}"

ONCE_MORE = {"max_retries": 1, "interval_start": 0}
"""A connection that nobody used for long may have been lost."""

GONE = (RedisError, OperationalError, StoreUnavailableError, OSError)
"""What says that a server cannot be reached."""


class Park(Protocol):
    """A place for messages whose turn is far away."""

    def put(self, name: str, wait_s: float, message: Any) -> bool:
        """Park a message and acknowledge it; False if one of that name was parked already."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the worker could do with more messages."""
        ...

    def bring_back(self, ahead_s: float, most: int) -> int:
        """Have what is due within `ahead_s` delivered again; returns how many."""
        ...

    def shorten(self, group: str, left_s: float) -> None:
        """Bring back earlier all of a group, whose names begin with its own, if what holds them ends so."""
        ...

    def take_up(self, tags: Sequence[str]) -> None:
        """Have delivered again, at once, what was delivered by a connection that was lost."""
        ...


def park_of(app: Any, channel: Any, taker: Taker) -> Park:
    """The park of a worker that consumes by this channel."""
    if channel.connection.client.transport.driver_type == "redis" and channel.ack_emulation:
        return _BrokerPark(channel, taker)
    store = store_of(app)
    if isinstance(store, ResilientStore):
        store = store.primary
    if isinstance(store, RedisStore):
        return _StorePark(app, store)
    raise ConfigError(
        "app.conf.shapekit_store",
        store,
        "has no place for messages that wait, and nor has the broker",
        'use a Redis: app.conf.shapekit_store = "redis://localhost"',
    )


class _BrokerPark:
    """Parks and acknowledges in one step, and takes in one.

    What is due does not go back through the broker's lists: kombu fetches from those in two steps, and
    whoever is killed between them loses a message.
    """

    def __init__(self, channel: Any, taker: Taker) -> None:
        _outlive_loss(channel)
        self._channel = channel
        self._taker = taker
        self._prefix: str = channel.global_keyprefix
        self._parking = Parking(self._evaluate, self._prefix + PREFIX)

    def put(self, name: str, wait_s: float, message: Any) -> bool:
        tag = message.delivery_tag
        if SLIP in message.headers:
            # The slip knows it. What is told from here on is that it was delivered with this turn before.
            message.headers.pop("redelivered", None)
            message.delivery_info.pop("redelivered", None)
        info, (queue, list_) = message.delivery_info, self._home_of(message)
        route = f"{dumps(info['exchange'])},{dumps(info['routing_key'])}"
        # Under another tag: who is restoring what has long not been acknowledged may have read this one.
        fresh = str(uuid.uuid4())
        raw = {**message._raw, "properties": {**message._raw["properties"], "delivery_tag": fresh}}
        record = Parked(queue, list_, fresh, dumps(raw), route)
        is_new = self._parking.park(f"{name}@{list_}", wait_s, record, (*self._books, tag))
        # The broker's side is done: what is left of an acknowledgement is the worker's own memory.
        QoS.ack(self._channel.qos, tag)
        message._state = "ACK"
        return is_new

    @property
    def has_room(self) -> bool:
        return bool(self._channel.qos.can_consume())

    def bring_back(self, ahead_s: float, most: int) -> int:
        channel = self._channel
        taken = self._parking.take(self._taker, self._books, channel.active_queues, ahead_s, most)
        for queue, text in taken:
            channel.connection._deliver(loads(text)[0], queue)
        self._taker.has_heard = True
        return len(taken)

    def shorten(self, group: str, left_s: float) -> None:
        self._parking.shorten(group, left_s)

    def take_up(self, tags: Sequence[str]) -> None:
        for tag in tags:
            self._channel.qos.restore_by_tag(tag)

    @property
    def _books(self) -> tuple[str, str]:
        qos = self._channel.qos
        return self._prefix + qos.unacked_index_key, self._prefix + qos.unacked_key

    def _home_of(self, message: Any) -> tuple[str, str]:
        """The queue that a message came from, and its list."""
        channel, info = self._channel, message.delivery_info
        queues = channel._lookup(info["exchange"], info["routing_key"])
        consumed = [queue for queue in queues if queue in channel.active_queues]
        queue = (consumed or queues)[0]
        priority = channel._get_message_priority(message._raw, reverse=False)
        return queue, f"{self._prefix}{channel._q_for_pri(queue, priority)}"

    def _evaluate(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        with self._channel.conn_or_acquire() as client:
            # Below what puts a prefix in front of keys, which knows few commands.
            return client.eval(script, len(keys), *keys, *arguments)


def _outlive_loss(channel: Any) -> None:
    """Let a worker live that has lost its broker, and has still something to say to it of a message.

    kombu 5.7 fails then by asking a connection that it has let go of.
    """

    def outliving(say: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(say)
        def said(*args: Any, **kwargs: Any) -> None:
            try:
                say(*args, **kwargs)
            except AttributeError:
                if channel.connection is not None and channel.connection.client is not None:
                    raise
                log.warning("what was not acknowledged comes again when the visibility timeout is over")

        return said

    qos = channel.qos
    for name in ("ack", "reject", "restore_unacked_once"):
        setattr(qos, name, outliving(getattr(qos, name)))


class _StorePark:
    """Parks before it acknowledges, and publishes before it forgets: a message may come twice, never less."""

    def __init__(self, app: Any, store: RedisStore) -> None:
        self._app = app
        with app.connection_for_write() as connection:
            # Apps with other brokers may share the store.
            broker = connection.as_uri()
        self._parking = Parking(store.evaluate, f"{store.prefix}:{PREFIX}:{broker}")

    def put(self, name: str, wait_s: float, message: Any) -> bool:
        body = message.body.encode() if isinstance(message.body, str) else message.body
        info, properties = message.delivery_info, dict(message.properties)
        for own in ("delivery_info", "delivery_tag", "body_encoding"):
            properties.pop(own, None)
        if (milliseconds := properties.get("expiration")) is not None:
            properties["expiration"] = float(milliseconds) / 1000
        # Unpacked when it was delivered.
        headers = {header: told for header, told in message.headers.items() if header != "compression"}
        told = {
            **properties,
            "exchange": info.get("exchange") or "",
            "routing_key": info.get("routing_key"),
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "headers": headers,
        }
        is_new = self._parking.park(name, wait_s, [dumps(told), base64.b64encode(body).decode()])
        message.ack()
        return is_new

    has_room = True

    def bring_back(self, ahead_s: float, most: int) -> int:
        claimed = self._parking.claim(ahead_s, most)
        if not claimed:
            return 0
        with self._app.amqp.producer_pool.acquire(block=True) as producer:
            for name, (told, body), again in claimed:
                options = loads(told)
                if again:
                    # A copy may be on its way, and has the turn.
                    options["headers"].pop(SLIP, None)
                producer.publish(base64.b64decode(body), retry=True, retry_policy=ONCE_MORE, **options)
                self._parking.drop(name)
        return len(claimed)

    def shorten(self, group: str, left_s: float) -> None:
        self._parking.shorten(group, left_s)

    def take_up(self, tags: Sequence[str]) -> None:
        """Other brokers do by themselves."""
