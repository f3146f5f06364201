"""Parking: messages that wait in Redis for their turn, outside the memory of any worker.

A sorted set holds when each is due by the server's clock, a hash the message itself. Where that server is
the broker, one script parks a message and takes it off the broker's books, and one gives what is due to
whoever takes it and enters it in the books again. They may die between any two of them: a message is always
in exactly one place, and nothing depends on how the broker's client fetches from its lists. Where the
broker is another server, what is due is claimed, published and dropped: it may come twice then, but is
never lost, and whoever claims it is told whether somebody has before.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Claim", "Parked", "Parking", "Taker"]

Evaluate: TypeAlias = Callable[[str, Sequence[str], Sequence[Any]], Any]
"""Runs a script with keys and arguments, on the server where the messages wait."""

LEAST_NEWS_S = 0.2
"""By how much an end has to be earlier than was said before: who asks, asks at another instant."""
LEASE_S = 30.0
"""How long whoever has claimed a message may take to publish it before another one does."""
STRAY_S = 30.0
"""How long a message is overdue before it is a stray: nobody who takes messages consumes its queue."""
MOST_SEEN = 1_000
"""How many who are due are looked at, of whatever queue."""

_NOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""

_PARK = (
    _NOW
    + """
local is_new = redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[3])
if is_new == 1 then
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[2]), ARGV[1])
end
if KEYS[3] then
  redis.call('ZREM', KEYS[3], ARGV[4])
  redis.call('HDEL', KEYS[4], ARGV[4])
end
return is_new
"""
)

_TAKE = (
    _NOW
    + """
local taken = {}
if ARGV[3] == '0' then
  for _, told in ipairs(redis.call('LRANGE', KEYS[5], 0, -1)) do
    local queue, tag, at = unpack(cjson.decode(told))
    if tonumber(redis.call('ZSCORE', KEYS[3], tag) or '-1') == tonumber(at) then
      taken[#taken + 1] = {queue, redis.call('HGET', KEYS[4], tag)}
    end
  end
  if #taken > 0 then
    return taken
  end
end
redis.call('DEL', KEYS[5])
local ours, strays = {}, {}
for place = 7, #ARGV do
  ours[ARGV[place]] = true
end
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now + ARGV[1]), 'WITHSCORES',
  'LIMIT', 0, ARGV[6])
for place = 1, #due, 2 do
  local name = due[place]
  local queue, list, tag, raw, route = unpack(cjson.decode(redis.call('HGET', KEYS[2], name)))
  local has_left = false
  if not ours[queue] then
    if tonumber(due[place + 1]) < now - ARGV[5] then
      strays[#strays + 1] = {list, raw}
      has_left = true
    end
  elseif #taken < tonumber(ARGV[2]) then
    local text = '[' .. raw .. ',' .. route .. ']'
    redis.call('ZADD', KEYS[3], ARGV[4], tag)
    redis.call('HSET', KEYS[4], tag, text)
    redis.call('RPUSH', KEYS[5], cjson.encode({queue, tag, ARGV[4]}))
    taken[#taken + 1] = {queue, text}
    has_left = true
  end
  if has_left then
    redis.call('ZREM', KEYS[1], name)
    redis.call('HDEL', KEYS[2], name)
  end
end
for place = #strays, 1, -1 do
  redis.call('RPUSH', strays[place][1], strays[place][2])
end
redis.call('EXPIRE', KEYS[5], 3600)
return taken
"""
)
"""An answer that was not heard is given again, as far as nobody has had what it told of since then. Strays
are pushed to the end of their list that is consumed from, the first of them last."""

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
"""Whoever says it first moves them; to the others the end is then no news."""

_CLAIM = (
    _NOW
    + """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now + ARGV[1]),
  'LIMIT', 0, ARGV[2])
local claimed = {}
for place, name in ipairs(due) do
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[3]), name)
  local times = redis.call('HINCRBY', KEYS[3], name, 1)
  claimed[place] = {name, redis.call('HGET', KEYS[2], name), times}
end
return claimed
"""
)

_DROP = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return redis.call('HDEL', KEYS[2], ARGV[1])
"""


class Claim(NamedTuple):
    """A parked message that somebody is about to publish."""

    name: str
    record: list[str]
    again: bool
    """Whether another has claimed it before, and may have published it."""


class Parked(NamedTuple):
    """The record of a message that is to be taken."""

    queue: str
    list_: str
    """What the broker keeps the queue in."""
    tag: str
    """What it is known by in the broker's books."""
    message: str
    route: str
    """What the books say of a message after itself."""


class Taker:
    """Whoever takes messages: an answer that never arrived, or was not dealt with to the end, comes again."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.has_heard = True
        """To be set when everything that was taken is in good hands."""


class Parking:
    """The place for messages of one kind; `prefix` begins the names of its keys."""

    def __init__(self, evaluate: Evaluate, prefix: str) -> None:
        self._evaluate = evaluate
        self._keys = (f"{prefix}:parked", f"{prefix}:parked:messages")
        self._claims = f"{prefix}:parked:claims"
        self._taken = f"{prefix}:parked:taken"
        self._ends = f"{prefix}:parked:ends"

    def park(
        self, name: str, wait_s: float, record: Sequence[str], books: tuple[str, str, str] | None = None
    ) -> bool:
        """Park a message; False if one of that name is there already, which stays.

        `books`: the index and hash in which the broker keeps what was not acknowledged, and the message's
        tag there: it is struck out in the same step.
        """
        keys, arguments = [*self._keys], [name, f"{wait_s:.6f}", json.dumps(record)]
        if books is not None:
            keys += books[:2]
            arguments.append(books[2])
        return bool(self._evaluate(_PARK, keys, arguments))

    def take(
        self, taker: Taker, books: tuple[str, str], queues: Collection[str], ahead_s: float, most: int
    ) -> list[tuple[str, str]]:
        """What is due within `ahead_s` in one of the queues, and from now on in the broker's books.

        Each as its queue and what the books say of it. Records are a `Parked`. What is long overdue in
        another queue is pushed to its list, for whoever consumes that.
        """
        keys = [*self._keys, *books, f"{self._taken}:{taker.name}"]
        had_heard, taker.has_heard = taker.has_heard, False
        arguments = [f"{ahead_s:.6f}", most, int(had_heard), repr(time.time()), STRAY_S, MOST_SEEN, *queues]
        return [(_text(queue), _text(text)) for queue, text in self._evaluate(_TAKE, keys, arguments)]

    def shorten(self, group: str, left_s: float) -> int:
        """Say when what a group waits for ends; if that is earlier than was said before, so are they.

        Of the group are those whose name begins with the group's, as a line of its own. Returns how many
        were moved.
        """
        keys = [self._keys[0], self._ends]
        return int(self._evaluate(_SHORTEN, keys, [group, f"{left_s:.6f}", LEAST_NEWS_S]))

    def claim(self, ahead_s: float, most: int, lease_s: float = LEASE_S) -> list[Claim]:
        """What is due within `ahead_s`, for the caller to publish and then `drop`.

        What is not dropped within `lease_s` may be claimed by another.
        """
        arguments = [f"{ahead_s:.6f}", most, f"{lease_s:.6f}"]
        claimed = self._evaluate(_CLAIM, [*self._keys, self._claims], arguments)
        return [Claim(_text(name), json.loads(record), times > 1) for name, record, times in claimed]

    def drop(self, name: str) -> bool:
        """Forget a message that was published."""
        return bool(self._evaluate(_DROP, [*self._keys, self._claims], [name]))


def _text(sent: str | bytes) -> str:
    return sent.decode() if isinstance(sent, bytes) else sent
