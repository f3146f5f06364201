"""A budget on every store: the same books, from threads, asyncio and trio."""

import uuid

import anyio
import pytest

from shapekit import (
    LLMBudget,
    ManualClock,
    MemoryStore,
    QueueFullError,
    RedisStore,
    ResilientStore,
    SQLiteStore,
)
from shapekit.testing import FaultyStore

from ..redis_server import shared_server
from .errors import RefusedByServer

OPTIONS = {
    "requests": "1/day burst 4",
    "tokens": "1/day",
    "capacity": 10_000,
    "tokens_per_day": "1M",
    "max_wait": 0,
    "name": "model",
}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def make_store(request, tmp_path):
    if request.param == "memory":
        return MemoryStore
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "limits.db")
    return lambda: RedisStore.from_url(shared_server().url, prefix=f"llm-{uuid.uuid4().hex}")


class ForThreads:
    """A call of the story, by a thread."""

    async def ask(self, call, answer=None, error=None):
        with call:
            if error is not None:
                raise error
            return answer is not None and call.settle(answer)

    async def used(self, one):
        (day,) = one.quotas()
        return day.used


class ForTasks:
    async def ask(self, call, answer=None, error=None):
        async with call:
            if error is not None:
                raise error
            return answer is not None and await call.asettle(answer)

    async def used(self, one):
        (day,) = await one.aquotas()
        return day.used


async def story(store, way):
    one = LLMBudget(**OPTIONS, store=store)
    usage = {"usage": {"input_tokens": 90, "output_tokens": 10}}
    assert await way.ask(one.admit((100, 400)), usage) is True
    assert await way.ask(one.admit(300)) is False
    with pytest.raises(RefusedByServer):
        await way.ask(one.admit(700), error=RefusedByServer(400))
    with pytest.raises(QueueFullError):
        await way.ask(one.admit(9_900))  # there is no room for so many
    assert await way.ask(one.admit(100), 3_000) is True
    with pytest.raises(QueueFullError):
        await way.ask(one.admit(5))  # no slot is left
    assert await way.used(one) == 100 + 300 + 3_000
    tokens_alone = LLMBudget(**{**OPTIONS, "requests": None}, store=store)
    with pytest.raises(QueueFullError):
        await way.ask(tokens_alone.admit(6_602))
    await way.ask(tokens_alone.admit(6_599))
    await store.aclose()


@pytest.mark.parametrize("way", [ForThreads(), ForTasks()])
def test_the_books_are_the_same_on_every_store(make_store, way, anyio_backend):
    anyio.run(story, make_store(), way, backend=anyio_backend)


class Counting(ManualClock):
    """A clock that fails if a call reads it without end."""

    looks = 0

    def now_us(self):
        self.looks += 1
        assert self.looks < 10_000
        return super().now_us()


def test_a_call_that_waits_in_an_outage_does_not_poll_the_store():
    faulty = FaultyStore(MemoryStore(Counting(autojump=True)))
    store = ResilientStore(faulty, on_outage="closed", timeout=60)
    budget = LLMBudget(tokens="600/min", store=store, name="model")
    faulty.down = True
    with pytest.raises(TimeoutError), budget.admit(60, timeout=30):
        pass
    assert faulty.calls < 50
