"""Asynchronous callers with the same call in a row are one run on Redis, with the answers of single calls."""

import asyncio
from contextlib import aclosing
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, LeakyBucket, MemoryStore, Rate, RedisStore, SlidingWindow, TokenBucket
from shapekit.algorithms.base import CHECK, DEBIT, REFUND
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.ledger import Ledger, ledgered
from shapekit.algorithms.queue.adaptive import AdaptiveQueue
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL, HOLD, LATE, LOOK, MARK, RESERVE, RESUME, SETTLE
from shapekit.rate import parse_rates

from ..algorithms.limits import limits
from ..redis_server import shared_server
from .timelines import Hands

SECOND_US = 1_000_000
START_US = 1_700_000_000_000_000
_fresh = count()


def queue(rates, burst=None, pace="smooth", gates=()):
    return LeakyQueue(parse_rates(rates), burst, pace, gates)


QUEUES = {
    "even": queue("10/s"),
    "an odd T and a burst": queue("7/s", 3),
    "hours": queue("1/h", 2),
    "two rates": queue("5/s; 20/min", 2),
    "in bursts": queue("5/s", pace="burst"),
    "beside a gate": queue("10/s", gates=(GCRA("100/min"),)),
    "adaptive": AdaptiveQueue(Rate.parse("1/s"), Rate.parse("20/s"), 3),
}
GATES = {
    "gcra": ledgered(GCRA("7/s", burst=20)),
    "token bucket": ledgered(TokenBucket("1/h", 5)),
    "leaky bucket": ledgered(LeakyBucket("10/s", 1)),
    "fixed window": ledgered(FixedWindow("9/s")),
    "sliding window": ledgered(SlidingWindow("9/s")),
}


class Keeping(MemoryStore):
    """Drops nothing, as Redis does not within a test: its keys live by real time."""

    def _sweep(self, now, most):
        pass


class Stores:
    """One program on three stores: in memory and on Redis one by one, and on Redis all that come at once."""

    def __init__(self, program, *, apart=False):
        self.program = program
        self.key = tuple(f"key-{name}" for name in program.names) if apart else "key"
        self.clock = Hands(START_US, 0)
        self.memory = Keeping(clock=self.clock)
        self.single, self.shared = [
            RedisStore.from_url(shared_server().url, clock=self.clock, prefix=f"run{next(_fresh)}")
            for _ in range(2)
        ]

    async def answers_to(self, calls):
        """The answers to calls that come at one instant."""
        expected, single, shared = [
            [store.bind("n", self.program, operation)(self.key, *args) for operation, args in calls]
            for store in (self.memory, self.single)
        ] + [
            await asyncio.gather(
                *(
                    self.shared.abind("n", self.program, operation)(self.key, *args)
                    for operation, args in calls
                )
            )
        ]
        assert single == expected
        assert shared == expected
        single, shared = [list(_values(store)) for store in (self.single, self.shared)]
        assert [raw for raw, _ in single] == [raw for raw, _ in shared]
        # A life that is wrong by a slot is wrong by an hour.
        assert all(abs(one - other) < 600 for (_, one), (_, other) in zip(single, shared, strict=True))
        return expected

    async def aclose(self):
        for store in (self.single, self.shared):
            await store.aclose()
        self.memory.close()


def _values(store):
    """The values at the keys of a store, and how many seconds they still live."""
    with shared_server().client() as client:
        for key in sorted(client.keys(f"{store.prefix}:{{*")):
            yield client.get(key), client.ttl(key)


steps = st.sampled_from([0, 0, 1, 1_000, 150_000, SECOND_US, 10 * SECOND_US, 4_000 * SECOND_US, -50_000])
waits = st.sampled_from([None, None, 0, 100_000, 450_000, SECOND_US, 7_200 * SECOND_US])
runs = st.integers(1, 12)
series = st.tuples(runs, st.integers(1, 3), waits)
crowds = st.lists(series, min_size=1, max_size=4)
picks = st.integers(0, 30)
befores = st.lists(
    st.sampled_from(["cancel", "cancel", "settle", "late", "hold", "resume", "mark", "refund", "debit"]),
    max_size=2,
)
stories = st.lists(st.tuples(steps, befores, picks, crowds, st.booleans()), min_size=1, max_size=6)


def follow_ups(kinds, taken, pick):
    """Operations on earlier calls, before a crowd or in the midst of it."""
    for kind in kinds:
        nonce = next(_fresh)
        if kind == "hold":
            yield HOLD, (300_000 * (1 + pick % 3), nonce)
        elif kind == "mark":
            yield MARK, (300_000, nonce)
        elif kind == "resume":
            yield RESUME, (100_000,)
        elif taken:
            grant = taken[pick % len(taken)]
            late = grant.generation, grant.due_us, grant.cost, nonce
            yield {
                "cancel": (CANCEL, (grant,)),
                "settle": (SETTLE, ((grant, pick % 4, nonce),)),
                "late": (LATE, ((late,),)),
            }[kind]


@settings(max_examples=50)
@given(st.sampled_from(sorted(QUEUES)), stories)
def test_each_reserve_in_a_run_gets_the_answer_that_it_would_get_alone(kind, story):
    async def main():
        taken = []
        async with aclosing(Stores(QUEUES[kind])) as stores:
            for step, before, pick, crowd, is_amid in story:
                stores.clock.move(step, 0)
                reserves = [
                    (RESERVE, ((min(cost, stores.program.max_cost), wait, next(_fresh)),))
                    for times, cost, wait in crowd
                    for _ in range(times)
                ]
                others = list(
                    follow_ups([one for one in before if one not in {"refund", "debit"}], taken, pick)
                )
                place = pick % len(reserves) if is_amid else 0
                calls = [*reserves[:place], *others, *reserves[place:]]
                answers = await stores.answers_to(calls)
                taken += [
                    Grant(*answer)
                    for (operation, _), answer in zip(calls, answers, strict=True)
                    if operation is RESERVE and answer[0]
                ]
            await stores.answers_to([(LOOK, ())])

    asyncio.run(main())


@settings(max_examples=50)
@given(st.sampled_from(sorted(GATES)).map(GATES.get) | limits.map(ledgered) | limits, stories, st.booleans())
def test_each_check_in_a_run_gets_the_answer_that_it_would_get_alone(gate, story, is_apart):
    async def main():
        apart = is_apart and isinstance(gate, Composite)
        charged = []
        async with aclosing(Stores(gate, apart=apart)) as stores:
            for step, before, pick, crowd, is_amid in story:
                stores.clock.move(step, 0)
                most = stores.program.max_cost
                checks = [(CHECK, (min(cost, most),)) for times, cost, _ in crowd for _ in range(times)]
                others = [(DEBIT, (1, None)) for one in before if one == "debit"]
                if charged:
                    receipt = charged[pick % len(charged)]
                    others += [(REFUND, (1, receipt)) for one in before if one in {"refund", "cancel"}]
                place = pick % len(checks) if is_amid else 0
                calls = [*checks[:place], *others, *checks[place:]]
                answers = await stores.answers_to(calls)
                charged += [
                    answer.receipt
                    for (operation, _), answer in zip(calls, answers, strict=True)
                    if operation is CHECK and answer.allowed
                ]

    asyncio.run(main())


async def _nothing(answers_to, move):
    """A cold key."""


async def _waiting(answers_to, move):
    await answers_to([(RESERVE, ((1, None, 7),))] * 5)


async def _held(answers_to, move):
    await answers_to([(HOLD, (SECOND_US, 7))])


async def _held_once(answers_to, move):
    await answers_to([(HOLD, (SECOND_US, 7))])
    move(2 * SECOND_US, 0)


async def _marked(answers_to, move):
    await answers_to([(MARK, (SECOND_US, 7))])


async def _given_back_at_the_end(answers_to, move):
    taken = await answers_to([(RESERVE, ((1, None, 7),))] * 5)
    await answers_to([(CANCEL, (Grant(*taken[-1]),))])


async def _given_back_in_the_middle(answers_to, move):
    taken = await answers_to([(RESERVE, ((1, None, 7),))] * 5)
    await answers_to([(CANCEL, (Grant(*taken[2]),))])


PLAYED = [_nothing, _waiting, _held, _held_once, _marked, _given_back_at_the_end]


@pytest.mark.parametrize("before", [*PLAYED, _given_back_in_the_middle])
def test_a_plain_queue_decides_a_run_in_one_step(monkeypatch, before):
    """Also one with a hold; only where a slot in the middle was given back is each call decided by itself."""
    played = _count_played(monkeypatch, LeakyQueue)

    async def main():
        async with aclosing(Stores(QUEUES["even"])) as stores:
            await before(stores.answers_to, stores.clock.move)
            played.clear()
            waited = [answer[1] for answer in await stores.answers_to([(RESERVE, ((1, None, 7),))] * 9)]
            await stores.answers_to([(RESERVE, ((1, waited[-1] + 350_000, 7),))] * 9)
            await stores.answers_to([(RESERVE, ((1, 0, 7),))] * 9)

    asyncio.run(main())
    assert len(played) == (3 if before in PLAYED else 2)


def test_a_plain_gate_decides_a_run_in_one_step_also_when_it_is_full(monkeypatch):
    played = _count_played(monkeypatch, Ledger)

    async def main():
        async with aclosing(Stores(GATES["gcra"])) as stores:
            return [
                answer.allowed for _ in range(3) for answer in await stores.answers_to([(CHECK, (1,))] * 9)
            ]

    assert asyncio.run(main()) == [True] * 20 + [False] * 7
    assert len(played) == 3


def _count_played(monkeypatch, program):
    played, before_run = [], program.before_run

    def counted(self, sent):
        played.append(sent)
        return before_run(self, sent)

    monkeypatch.setattr(program, "before_run", counted)
    return played


def test_calls_of_other_costs_are_runs_of_their_own():
    async def main():
        async with aclosing(Stores(QUEUES["hours"])) as stores:
            costs = [1, 1, 2, 1, 1, 1]
            answers = await stores.answers_to([(RESERVE, ((cost, None, 7),)) for cost in costs])
        return [answer[1] // (3_600 * SECOND_US) for answer in answers]

    assert asyncio.run(main()) == [0, 0, 2, 3, 4, 5]


def test_a_caller_cancelled_during_a_run_gives_back_its_own_slot_alone():
    async def main():
        async with aclosing(Stores(QUEUES["hours"])) as stores:
            reserve = stores.shared.abind("n", stores.program, RESERVE)
            tasks = [asyncio.ensure_future(reserve("key", (1, None, 7))) for _ in range(6)]
            for _ in range(3):
                await asyncio.sleep(0)
            assert [len(line._under_way) for line in stores.shared._loops.here()._lines.values()] == [6]
            tasks[1].cancel()
            tasks[5].cancel()
            stayed = await asyncio.gather(*tasks, return_exceptions=True)
            newcomers = [await reserve("key", (1, None, 8)) for _ in range(2)]
        return stayed, newcomers

    stayed, newcomers = asyncio.run(main())
    gone = [isinstance(answer, asyncio.CancelledError) for answer in stayed]
    assert gone == [False, True, False, False, False, True]
    waits = [answer[1] // (3_600 * SECOND_US) for answer in stayed if isinstance(answer, tuple)]
    assert waits == [0, 1, 2, 3]
    assert [answer[1] // (3_600 * SECOND_US) for answer in newcomers] == [0, 4]
