"""Records that tasks of these tests write to the Redis of their workers, for a `Fleet` to read."""

import os
import time
from functools import cache

import redis


def url():
    """The URL of that Redis."""
    return os.environ.get("QUEUES_REDIS", "redis://localhost")


def note(name, number):
    """Record that a task has started, and when."""
    _client(url()).rpush(name, f"{time.time():.6f} {number}")


def note_worker(number):
    """Record that a task called `free` has started, and in which process."""
    _client(url()).sadd("workers", os.getpid())
    note("free", number)


@cache
def _client(where):
    return redis.Redis.from_url(where)
