"""Parking: messages that wait in Redis for their slots, outside the memory of any worker.

A sorted set holds when each message is due by the server's clock, and a hash the message itself. Both are in
the broker if that is a Redis, else in the Redis of the store.

If the broker is that Redis, one script parks a message and removes it from the broker's unacknowledged
messages, and another one takes due messages and adds them there again. A worker may die between any two
scripts: a message is always in exactly one place, and nothing depends on how the broker's client reads its
lists. If the broker is another server, due messages are claimed, published and dropped: a message may then be
delivered twice but is never lost, and a claim shows whether the message was claimed before.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kombu.exceptions import OperationalError
from kombu.messaging import Producer
from kombu.transport.virtual import QoS
from kombu.utils.json import dumps, loads
from redis.exceptions import RedisError

from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.integrations.celery import AHEAD_HEADER, SLOT_HEADER, store_of
from shapekit.stores.redis import RedisStore
from shapekit.stores.resilient import ResilientStore

__all__ = ["GONE", "Claim", "Park", "Parked", "Parking", "Taken", "Taker", "park_of"]

Evaluate: TypeAlias = Callable[[str, Sequence[str], Sequence[Any]], Any]
"""Runs a script with keys and arguments on the server with the parked messages."""

LEAST_NEWS_S = 0.2
"""How much earlier the end of a hold has to be to count as news: workers ask for it at different instants."""
LEASE_S = 30.0
"""How long a claimed message may take to be published before another worker claims it."""
CHANGED_S = 86_400
"""How long a reported change is remembered: much longer than any worker takes to learn of it."""
STRAY_S = 30.0
"""A message that is overdue for longer is a stray: no polling worker seems to consume its queue."""
MOST_SEEN = 1_000
"""How many due messages one call examines, over all queues; the next call continues after them."""
MOST_PAUSE_S = 1.25
"""The longest pause between two polls: a worker need not know of messages that are due later."""
LATE_S = 0.1
"""A message that is overdue for longer comes after all others. It has missed its slot, and a worker that is
late with many messages would otherwise miss the slots of all.
"""

_NOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""

_READ = """
local missing, unreadable = {}, {}
local function read(name, fields, aside, claims)
  local record = redis.call('HGET', KEYS[2], name)
  local is_read, told = pcall(cjson.decode, record)
  for place = 1, fields do
    is_read = is_read and type(told) == 'table' and type(told[place]) == 'string'
  end
  if is_read then
    return record, told
  end
  if record then
    redis.call('HSET', aside, name, record)
    unreadable[#unreadable + 1] = name
  else
    missing[#missing + 1] = name
  end
  redis.call('ZREM', KEYS[1], name)
  redis.call('HDEL', KEYS[2], name)
  redis.call('HDEL', claims, name)
end
"""
"""Reads the record of a message, whose first `fields` values are texts. A message without a record is
dropped, and an unreadable record is set aside, so that neither blocks other messages.
"""

_PARK = (
    _NOW
    + """
local is_new = redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3])
if is_new == 0 and (redis.call('HDEL', KEYS[3], ARGV[1]) == 1
  or redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[3]) then
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
  is_new = 1
end
if is_new == 1 or not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[2]), ARGV[1])
end
if KEYS[4] then
  redis.call('ZREM', KEYS[4], ARGV[4])
  redis.call('HDEL', KEYS[5], ARGV[4])
end
return is_new
"""
)
"""A worker drops a message after it has published it. Before that, another worker may already have received
the message and parked it again: then the new record replaces the claimed one, and is not dropped. If
the broker's client repeats the request, because no answer came, it finds its own record.
"""

_TAKE = (
    _NOW
    + _READ
    + """
local taken = {}
for _, told in ipairs(redis.call('LRANGE', KEYS[5], 0, -1)) do
  local queue, tag, at = unpack(cjson.decode(told))
  local text = (ARGV[3] == '0' or at == ARGV[4]) and redis.call('HGET', KEYS[4], tag)
  if text and tonumber(redis.call('ZSCORE', KEYS[3], tag) or '-1') == tonumber(at) then
    taken[#taken + 1] = {queue, tag, text}
  end
end
if #taken > 0 then
  return {'0', taken, missing, unreadable, ARGV[7]}
end
redis.call('DEL', KEYS[5])
local ours, strays, late = {}, {}, {}
for place = 10, #ARGV do
  ours[ARGV[place]] = true
end
-- Others may have many, and a whole record takes long to decode.
local function is_anothers(name)
  local known = string.match(redis.call('HGET', KEYS[2], name) or '', '^%["([^"\\\\]*)"')
  return known and not ours[known]
end
local due = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[7], string.format('%.6f', now + ARGV[1]), 'WITHSCORES',
  'LIMIT', 0, ARGV[6])
for place = 1, #due, 2 do
  local name, at = due[place], tonumber(due[place + 1])
  local record, told
  if at < now - ARGV[5] or not is_anothers(name) then
    record, told = read(name, 5, KEYS[6], KEYS[7])
  end
  if record then
    local queue, list, tag, raw, route = unpack(told)
    local is_stray = not ours[queue] and at < now - ARGV[5]
    local is_taken = ours[queue] and #taken + #late < tonumber(ARGV[2])
    if is_stray then
      strays[#strays + 1] = {list, raw}
    elseif is_taken then
      local text = '[' .. raw .. ',' .. route .. ']'
      redis.call('ZADD', KEYS[3], ARGV[4], tag)
      redis.call('HSET', KEYS[4], tag, text)
      redis.call('RPUSH', KEYS[5], cjson.encode({queue, tag, ARGV[4]}))
      local some = at < now - ARGV[8] and late or taken
      some[#some + 1] = {queue, tag, text}
    end
    if is_stray or is_taken then
      redis.call('ZREM', KEYS[1], name)
      redis.call('HDEL', KEYS[2], name)
    end
  end
end
for place = #strays, 1, -1 do
  redis.call('RPUSH', strays[place][1], strays[place][2])
end
for _, message in ipairs(late) do
  taken[#taken + 1] = message
end
redis.call('EXPIRE', KEYS[5], 3600)
if #due == 2 * ARGV[6] and #taken < tonumber(ARGV[2]) then
  return {'0', taken, missing, unreadable, '(' .. due[#due]}
end
local after = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.6f', now + ARGV[1]),
  string.format('%.6f', now + ARGV[1] + ARGV[9]), 'WITHSCORES', 'LIMIT', 0, ARGV[6])
local next_at = ''
if #after == 2 * ARGV[6] then
  -- Behind so many there may be one of ours.
  next_at = string.format('%.6f', after[#after] - now)
end
for place = 1, #after, 2 do
  if not is_anothers(after[place]) then
    local record, told = read(after[place], 5, KEYS[6], KEYS[7])
    if record and ours[told[1]] then
      next_at = string.format('%.6f', after[place + 1] - now)
      break
    end
  end
end
return {next_at, taken, missing, unreadable, '-inf'}
"""
)
"""Repeats an answer that the worker, or the broker's client, did not receive, except for messages that were
handed out again since.
Strays are pushed to the end of their list that is consumed first, in reverse order. If other queues have many
due messages, each call examines those after the ones of the last call, and in the end starts over.
"""

_SHORTEN = (
    _NOW
    + """
local ends = now + ARGV[2]
local ended = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
local by = ended - ends
if tonumber(ARGV[2]) > 0 then
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.6f', ends))
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
if by < tonumber(ARGV[3]) then
  return 0
end
local moved = 0
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(name, 1, #ARGV[1] + 1) == ARGV[1] .. '\\n' then
    redis.call('ZINCRBY', KEYS[1], string.format('%.6f', -by), name)
    moved = moved + 1
  end
end
return moved
"""
)
"""The first worker to report an earlier end moves the messages; for other workers the end is no news then."""

_HASTEN = (
    _NOW
    + """
local told = ARGV[1] .. '\\n'
local known = redis.call('GET', KEYS[2])
if known == ARGV[2] or known == ARGV[2] .. ' again' then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
local moved = 0
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.6f', now), '+inf')) do
  if string.sub(name, 1, #told) == told then
    redis.call('ZADD', KEYS[1], string.format('%.6f', now + moved / 1000000), name)
    moved = moved + 1
  end
end
return moved
"""
)
"""The first worker to report a change brings the messages of the group back, in their order."""

_CLAIM = (
    _NOW
    + _READ
    + """
if ARGV[6] == '0' then
  local known = redis.call('HGETALL', KEYS[3])
  for place = 1, #known, 2 do
    if known[place + 1] == ARGV[5] then
      redis.call('ZADD', KEYS[1], string.format('%.6f', now), known[place])
    end
  end
end
local most, ending = tonumber(ARGV[2]), ARGV[7]
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now + ARGV[1]),
  'WITHSCORES', 'LIMIT', 0, ending == '' and most or ARGV[8])
local claimed, late = {}, {}
for place = 1, #due, 2 do
  local name, at = due[place], tonumber(due[place + 1])
  local is_asked_for = #claimed + #late < most and string.sub(name, #name - #ending + 1) == ending
  local record = is_asked_for and read(name, 2, KEYS[4], KEYS[3])
  if record then
    redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[3]), name)
    local some = at < now - ARGV[4] and late or claimed
    local is_first = redis.call('HSET', KEYS[3], name, ARGV[5])
    some[#some + 1] = {name, record, is_first, string.format('%.6f', at - now)}
  end
end
for _, claim in ipairs(late) do
  claimed[#claimed + 1] = claim
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {first[2] and string.format('%.6f', first[2] - now) or '', claimed, missing, unreadable}
"""
)
"""Messages of a claim whose answer was lost are due again at once: else no worker would publish them before
the lease is over.
"""

_DROP = """
local dropped = 0
for place = 1, #ARGV, 2 do
  local name, token = ARGV[place], ARGV[place + 1]
  if redis.call('HGET', KEYS[3], name) == token then
    redis.call('ZREM', KEYS[1], name)
    redis.call('HDEL', KEYS[3], name)
    dropped = dropped + redis.call('HDEL', KEYS[2], name)
  end
end
return dropped
"""


_SET_ASIDE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
"""


class Claim(NamedTuple):
    """A parked message that the caller is about to publish."""

    name: str
    record: list[str]
    again: bool
    """Whether it was claimed before, and so may have been published."""
    token: str
    """A text that tells this claim from other claims of the same name."""
    ahead_s: float
    """How long before its slot it was claimed."""


class Parked(NamedTuple):
    """The record of a message in a Redis broker."""

    queue: str
    list_: str
    """The broker's list for the queue."""
    tag: str
    """The delivery tag under which the broker will keep the message as unacknowledged."""
    message: str
    route: str
    """The exchange and routing key that the broker keeps with an unacknowledged message."""


class Taken(NamedTuple):
    """A message that was taken."""

    queue: str
    tag: str
    text: str
    """The broker's record of the unacknowledged message."""


class Taker:
    """The identity of a worker that takes messages: a lost or incompletely handled answer is repeated."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.has_heard = True
        """Set once every message of the last answer has been handled."""
        self.delivering: str | None = None
        """The tag of a message whose delivery was interrupted: the broker may have it on its books as
        delivered, so that no answer contains it again.
        """
        self.looks_from = "-inf"
        """The score from which on it looks for due messages."""


class Parking:
    """The parked messages of one kind; `prefix` starts the names of their keys."""

    def __init__(self, evaluate: Evaluate, prefix: str) -> None:
        self._evaluate = evaluate
        self._keys = (f"{prefix}:parked", f"{prefix}:parked:messages")
        self._claims = f"{prefix}:parked:claims"
        self._taken = f"{prefix}:parked:taken"
        self._ends = f"{prefix}:parked:ends"
        self._changed = f"{prefix}:parked:changed"
        self._unreadable = f"{prefix}:parked:unreadable"
        self._unheard: str | None = None
        """The token of the last claim, until its answer has come."""
        self.next_s: float | None = None
        """How long until more messages are due, as of the last call; None if longer than any pause."""

    def park(
        self, name: str, wait_s: float, record: Sequence[str], books: tuple[str, str, str] | None = None
    ) -> bool:
        """Park a message; False if one of that name is parked already, which then stays.

        `books` are the index and the hash of the broker's unacknowledged messages, and the message's tag in
        them: the same script removes it there.
        """
        keys, arguments = [*self._keys, self._claims], [name, f"{wait_s:.6f}", json.dumps(record)]
        if books is not None:
            keys += books[:2]
            arguments.append(books[2])
        return bool(self._evaluate(_PARK, keys, arguments))

    def take(
        self, taker: Taker, books: tuple[str, str], queues: Collection[str], ahead_s: float, most: int
    ) -> list[Taken]:
        """Take messages of these queues that are due within `ahead_s`, and add them to the unacknowledged
        ones.

        Records are a `Parked`. A message of another queue that is long overdue is pushed to its list, for a
        worker that consumes that queue.
        """
        keys = [*self._keys, *books, f"{self._taken}:{taker.name}", self._unreadable, self._claims]
        had_heard, taker.has_heard = taker.has_heard, False
        arguments = [f"{ahead_s:.6f}", most, int(had_heard), repr(time.time()), STRAY_S, MOST_SEEN]
        arguments += [taker.looks_from, LATE_S, MOST_PAUSE_S, *queues]
        *answer, looks_from = self._evaluate(_TAKE, keys, arguments)
        taker.looks_from = _text(looks_from)
        return [Taken(*map(_text, each)) for each in self._messages(answer)]

    def shorten(self, group: str, left_s: float) -> int:
        """Report when the hold of a group ends. If that is earlier than reported before, the group's messages
        become due earlier.

        The messages of a group have names that start with the group's name and a newline. Returns how many
        moved.
        """
        keys = [self._keys[0], self._ends]
        return int(self._evaluate(_SHORTEN, keys, [group, f"{left_s:.6f}", LEAST_NEWS_S]))

    def hasten(self, group: str, version: str) -> int:
        """Make all messages of a group due now, once for each version of its limits, since their slots have
        moved. Returns how many there were.
        """
        keys = [self._keys[0], f"{self._changed}:{group}"]
        return int(self._evaluate(_HASTEN, keys, [group, version, CHANGED_S]))

    def claim(self, ahead_s: float, most: int, lease_s: float = LEASE_S, *, ending: str = "") -> list[Claim]:
        """Claim messages that are due within `ahead_s` and whose names have this ending; the caller publishes
        and then drops each of them.

        A message that is not dropped within `lease_s` may be claimed again.
        """
        had_heard = self._unheard is None
        token = self._unheard = self._unheard or uuid.uuid4().hex
        arguments = [f"{ahead_s:.6f}", most, f"{lease_s:.6f}", LATE_S, token, int(had_heard)]
        arguments += [ending, MOST_SEEN]
        keys = [*self._keys, self._claims, self._unreadable]
        answer = self._evaluate(_CLAIM, keys, arguments)
        self._unheard = None
        claimed = self._messages(answer)
        return [
            Claim(_text(name), json.loads(record), not is_first, token, float(ahead_s))
            for name, record, is_first, ahead_s in claimed
        ]

    def drop(self, claims: Sequence[Claim]) -> int:
        """Remove published messages that were not claimed or parked again meanwhile; returns how many."""
        arguments = [value for claim in claims for value in (claim.name, claim.token)]
        return int(self._evaluate(_DROP, [*self._keys, self._claims], arguments))

    def set_aside(self, name: str, text: str, books: tuple[str, str] | None = None) -> None:
        """Set aside a claimed message that cannot be published, or one in the broker's `books` that cannot be
        delivered, and log it.
        """
        keys = [*(books or self._keys), self._unreadable, self._claims]
        self._evaluate(_SET_ASIDE, keys, [name, text])
        self._say_unreadable(name)

    def _messages(self, answer: Sequence[Any]) -> Any:
        """The messages in an answer; logs those that were missing or unreadable."""
        next_s, found, missing, unreadable = answer
        self.next_s = float(next_s) if next_s else None
        for name in missing:
            log.error("parked message %r is lost: its content is gone from the server", _text(name))
        for name in unreadable:
            self._say_unreadable(_text(name))
        return found

    def _say_unreadable(self, name: str) -> None:
        log.error("parked message %r cannot be read: it is kept in %s", name, self._unreadable)


def _text(sent: str | bytes) -> str:
    return sent.decode() if isinstance(sent, bytes) else sent


log = logging.getLogger("shapekit.celery")

PREFIX = "{shapekit:celery}"

ONCE_MORE = {"max_retries": 1, "interval_start": 0}
"""One retry: a connection that was unused for long may be lost."""

CONFIRMED_S = 5.0
"""How long a broker may take to confirm a message."""

ONCE_ONLY = ("DelaySeconds", "delay_seconds", "MessageDeduplicationId")
"""Properties only for the first sending to SQS: it would delay the message again, or drop the duplicate."""

GONE = (RedisError, OperationalError, StoreUnavailableError, OSError)
"""The errors of a server that cannot be reached."""


class Park(Parking, ABC):
    """The parked messages of a worker's broker."""

    @abstractmethod
    def put(self, name: str, wait_s: float, message: Any) -> bool:
        """Park a message and acknowledge it; False if one of that name was parked already."""

    @property
    def has_room(self) -> bool:
        """Whether the worker can take more messages."""
        return True

    @property
    def unacknowledged(self) -> int:
        """How many messages the worker has, as far as the broker's client counts them."""
        return 0

    @abstractmethod
    def bring_back(self, ahead_s: float, most: int, queued_s: Mapping[str, float]) -> int:
        """Have messages that are due within `ahead_s` delivered again; returns how many.

        If they go to the end of their queue, messages of a queue in `queued_s` come back that much earlier.
        """

    def take_up(self, tags: Sequence[str]) -> None:
        """Have the unacknowledged messages of a lost connection delivered again at once.

        Brokers other than Redis do this themselves.
        """

    def close(self) -> None:
        """Close the connections that the park has opened."""


def park_of(app: Any, consumer: Any, taker: Taker, meanwhile: Callable[[], object] = bool) -> Park:
    """The park of a worker with this consumer of tasks.

    Bringing many messages back takes longer than a slot. Meanwhile, `meanwhile`, which must not raise, is
    called to start messages that are due in the worker. With a Redis broker, each delivery does that.
    """
    _tell_queues(consumer)
    channel = consumer.channel
    if channel.connection.client.transport.driver_type == "redis" and channel.ack_emulation:
        return _BrokerPark(channel, taker)
    store = store_of(app)
    if isinstance(store, ResilientStore):
        store = store.primary
    if isinstance(store, RedisStore):
        return _StorePark(app, store, meanwhile)
    bound = "has no place for messages that wait, and nor has the broker"
    fix = 'use a Redis: app.conf.shapekit_store = "redis://localhost"'
    raise ConfigError("app.conf.shapekit_store", store, bound, fix)


class _BrokerPark(Park):
    """Parks a message in a Redis broker: one script parks and acknowledges, another one takes.

    Due messages bypass the broker's lists: kombu reads those in two steps, and a worker that is killed
    between them loses a message.
    """

    def __init__(self, channel: Any, taker: Taker) -> None:
        _outlive_loss(channel)
        self._channel = channel
        self._taker = taker
        self._prefix: str = channel.global_keyprefix
        super().__init__(self._run_script, self._prefix + PREFIX)

    def put(self, name: str, wait_s: float, message: Any) -> bool:
        tag = message.delivery_tag
        if SLOT_HEADER in message.headers:
            # The slot header has the flag. From here on, the flag in the message says that it was delivered
            # before with this slot.
            message.headers.pop("redelivered", None)
            message.delivery_info.pop("redelivered", None)
        info, sent = message.delivery_info, message._raw  # noqa: SLF001 - kombu keeps it nowhere else
        queue, list_ = self._home_of(info, sent)
        route = f"{dumps(info['exchange'])},{dumps(info['routing_key'])}"
        # Under a new tag: a client that restores long unacknowledged messages may have read the old one.
        fresh = str(uuid.uuid4())
        raw = {**sent, "properties": {**sent["properties"], "delivery_tag": fresh}}
        record = Parked(queue, list_, fresh, dumps(raw), route)
        is_new = self.park(f"{name}@{list_}", wait_s, record, (*self._books, tag))
        # The script has acknowledged it in the broker; the rest is in the worker's own memory.
        QoS.ack(self._channel.qos, tag)
        message._state = "ACK"  # noqa: SLF001 - `ack` would go to the broker again
        return is_new

    @property
    def has_room(self) -> bool:
        return bool(self._channel.qos.can_consume())

    @property
    def unacknowledged(self) -> int:
        qos = self._channel.qos
        return len(qos._delivered) - len(qos._dirty)  # noqa: SLF001 - as its `can_consume` counts

    def bring_back(self, ahead_s: float, most: int, queued_s: Mapping[str, float]) -> int:
        channel = self._channel
        taker = self._taker
        if taker.delivering is not None:
            if taker.delivering not in channel.qos._delivered:  # noqa: SLF001 - else the worker has it
                channel.qos.restore_by_tag(taker.delivering)
            taker.delivering = None
        taken = self.take(taker, self._books, channel.active_queues, ahead_s, most)
        for message in taken:
            if (raw := self._read(message)) is not None:
                taker.delivering = message.tag
                channel.connection._deliver(raw, message.queue)  # noqa: SLF001 - as kombu's own fetching does
        taker.delivering = None
        taker.has_heard = True
        return len(taken)

    def _read(self, message: Taken) -> Any:
        """A message to deliver; None if it is malformed, which sets it aside."""
        try:
            raw = loads(message.text)[0]
            self._channel.message_to_python(raw)
        except Exception:
            # kombu may raise anything here; the message must not block the others.
            self.set_aside(message.tag, message.text, self._books)
            return None
        return raw

    def take_up(self, tags: Sequence[str]) -> None:
        for tag in tags:
            self._channel.qos.restore_by_tag(tag)

    @property
    def _books(self) -> tuple[str, str]:
        qos = self._channel.qos
        return self._prefix + qos.unacked_index_key, self._prefix + qos.unacked_key

    def _home_of(self, info: Any, sent: Any) -> tuple[str, str]:
        """The queue that a message came from, and its list, which only kombu's own methods know."""
        channel = self._channel
        queue = info["queue"]
        priority = channel._get_message_priority(sent, reverse=False)  # noqa: SLF001
        return queue, f"{self._prefix}{channel._q_for_pri(queue, priority)}"  # noqa: SLF001

    def _run_script(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        with self._channel.conn_or_acquire() as client:
            # The raw client: the one with a key prefix knows few commands.
            return client.eval(script, len(keys), *keys, *arguments)


def _tell_queues(consumer: Any) -> None:
    """Record in each message the queue that it came from: several queues may share a routing key."""
    channel = consumer.channel
    transport = channel.connection
    if hasattr(transport, "_deliver"):
        deliver = transport._deliver  # noqa: SLF001 - kombu's one way to a consumer

        def delivering(raw: Any, queue: str) -> None:
            raw["properties"]["delivery_info"]["queue"] = queue
            deliver(raw, queue)

        transport._deliver = delivering  # noqa: SLF001
        return
    read = channel.message_to_python

    def reading(raw: Any) -> Any:
        message = read(raw)
        tag = message.delivery_info.get("consumer_tag")
        for queue, known in consumer._active_tags.items():  # noqa: SLF001 - AMQP gives only the tag
            if known == tag:
                message.delivery_info["queue"] = queue
        return message

    channel.message_to_python = reading


def _outlive_loss(channel: Any) -> None:
    """Keep a worker alive that has lost its broker and still acknowledges or rejects messages.

    kombu 5.7 then raises AttributeError, because its connection is gone.
    """

    def outliving(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def outlived(*args: Any, **kwargs: Any) -> None:
            try:
                method(*args, **kwargs)
            except AttributeError:
                if channel.connection is not None and channel.connection.client is not None:
                    raise
                log.warning("unacknowledged messages are delivered again after the visibility timeout")

        return outlived

    qos = channel.qos
    for name in ("ack", "reject", "restore_unacked_once"):
        setattr(qos, name, outliving(getattr(qos, name)))


class _StorePark(Park):
    """Parks a message in the store: parks it before acknowledging, and drops it once the broker has it again.

    So a message may be delivered twice, but is never lost.
    """

    def __init__(self, app: Any, store: RedisStore, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile
        # Not from a pool: each forked process shuts down the sockets of the pools, also for the worker.
        self._connection = connection = app.connection_for_write()
        # Apps with other brokers may share the store.
        broker = connection.as_uri()
        self._gone = (*GONE, *connection.connection_errors, *connection.channel_errors)
        super().__init__(store.evaluate, f"{store.prefix}:{PREFIX}:{broker}")

    def put(self, name: str, wait_s: float, message: Any) -> bool:
        body = message.body.encode() if isinstance(message.body, str) else message.body
        info, properties = message.delivery_info, dict(message.properties)
        for own in ("delivery_info", "delivery_tag", "body_encoding", "application_headers", *ONCE_ONLY):
            properties.pop(own, None)
        if (milliseconds := properties.get("expiration")) is not None:
            properties["expiration"] = float(milliseconds) / 1000
        # The body is already decompressed.
        headers = {header: value for header, value in message.headers.items() if header != "compression"}
        route = {"exchange": info.get("exchange") or "", "routing_key": info.get("routing_key")}
        if (queue := info.get("queue")) is not None:
            # Its exchange may route it to other queues as well. Each queue has its own copy of a message.
            route = {"exchange": "", "routing_key": queue}
            name = f"{name}@{queue}"
        envelope = {
            **properties,
            **route,
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "headers": headers,
        }
        is_new = self.park(name, wait_s, [dumps(envelope), base64.b64encode(body).decode()])
        message.ack()
        return is_new

    def bring_back(self, ahead_s: float, most: int, queued_s: Mapping[str, float]) -> int:
        claimed = self.claim(ahead_s, most)
        for queue, behind_s in list(queued_s.items()):
            if behind_s > 0 and len(claimed) < most:
                claimed += self.claim(ahead_s + behind_s, most - len(claimed), ending=f"@{queue}")
        if not claimed:
            return 0
        published: list[Claim] = []
        try:
            producer = Producer(self._connection)
            publish = self._connection.ensure(producer, self._publish, **ONCE_MORE)
            publish(producer, claimed, published, set())
        finally:
            self.drop(published)
        return len(claimed)

    def close(self) -> None:
        self._connection.release()

    def _publish(self, producer: Any, claims: Sequence[Claim], done: list[Claim], tried: set[str]) -> None:
        """Publish messages: `done` gets those that the broker has, `tried` the names of all it may have."""
        if not hasattr(producer.channel, "confirm_select"):
            self._send(producer, claims, done, tried)
            return
        with producer.connection.channel() as channel:
            confirmed, sent = _Confirmed(channel), list[Claim]()
            self._send(Producer(channel), claims, sent, tried)
            confirmed.wait(len(sent))
        done += sent

    def _send(self, producer: Any, claims: Sequence[Claim], done: list[Claim], tried: set[str]) -> None:
        for claim in claims:
            if claim in done:
                continue
            self._meanwhile()
            try:
                options, body = loads(claim.record[0]), base64.b64decode(claim.record[1], validate=True)
                if claim.again or claim.name in tried:
                    # A copy may be under way, with the slot.
                    options["headers"].pop(SLOT_HEADER, None)
                options["headers"][AHEAD_HEADER] = claim.ahead_s
                tried.add(claim.name)
                producer.publish(body, **options)
            except self._gone:
                raise
            except Exception:
                # kombu may raise anything here; the message must not block the others.
                self.set_aside(claim.name, json.dumps(claim.record))
            else:
                done.append(claim)


class _Confirmed:
    """Waits until an AMQP broker has confirmed the messages on a channel; it confirms only if asked to.

    It waits once for all: a worker that waited for each message would miss the slots of others meanwhile.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._tags: set[int] = set()
        channel.events["basic_ack"].add(self._confirmed)
        channel.events["basic_nack"].add(self._refused)
        channel.confirm_select()

    def wait(self, count: int) -> None:
        """Wait until this many messages are confirmed."""
        while len(self._tags) < count:
            self._channel.connection.drain_events(timeout=CONFIRMED_S)

    def _confirmed(self, tag: int, multiple: bool) -> None:
        self._tags.update(range(1, tag + 1) if multiple else (tag,))

    def _refused(self, *_: object) -> None:
        raise OperationalError("the broker refuses a parked message")
