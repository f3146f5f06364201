"""What settling gains, and what strangers cost: seeded simulations in virtual time."""

import random

import anyio
import pytest

from shapekit import LLMBudget, ManualClock, TokenUsage
from shapekit._runtime.drivers import AsyncAlarm

from .errors import RefusedByServer, Response

pytestmark = pytest.mark.long

MINUTE_S = 60
PER_MINUTE = 60_000
MOST = 1_000


class Server:
    """A bucket of tokens as the providers describe theirs; a call pays for its longest answer up front."""

    def __init__(self, clock, per_minute=PER_MINUTE):
        self.clock = clock
        self.per_minute = per_minute
        self.left = float(per_minute)
        self.since = clock.now()
        self.answered = self.refused = self.used = self.of_strangers = 0

    def flow(self):
        now = self.clock.now()
        self.left = min(self.per_minute, self.left + (now - self.since) * self.per_minute / MINUTE_S)
        self.since = now

    def headers(self):
        reset = (self.per_minute - self.left) * MINUTE_S / self.per_minute
        fields = {"limit": self.per_minute, "remaining": int(self.left), "reset": f"{reset:.6f}s"}
        return {f"x-ratelimit-{name}-tokens": str(value) for name, value in fields.items()}

    def take(self, most):
        self.flow()
        if most > self.left:
            self.refused += 1
            raise RefusedByServer(429, self.headers())
        self.left -= most

    async def answer(self, most, used, length):
        self.take(most)
        headers = self.headers()
        await self.clock.asleep(length, AsyncAlarm())
        self.flow()
        self.left = min(self.per_minute, self.left + most - used)
        self.answered += 1
        self.used += used
        return Response(200, headers), TokenUsage(0, used)


def crowd(seed, minutes, *, settles=True, observes=True, strangers=0, workers=24, **options):
    """Workers that call without a pause; returns what the server saw of them."""
    clock = ManualClock(autojump=True)
    server = Server(clock)
    budget = LLMBudget(tokens="60k/min", clock=clock, **options)
    chance = random.Random(seed)
    ends = minutes * MINUTE_S

    async def work():
        while clock.now() < ends:
            used, length = chance.randint(100, 500), chance.uniform(0.5, 3.0)
            try:
                async with budget.aadmit(MOST) as call:
                    response, usage = await server.answer(MOST, used, length)
                    if observes:
                        await call.aobserve(response)
                    if settles:
                        await call.asettle(usage)
            except RefusedByServer:
                pass

    async def strange():
        """Other users of the same account, who take all that they find."""
        while clock.now() < ends:
            await clock.asleep(MOST / strangers, AsyncAlarm())
            server.flow()
            taken = min(MOST, server.left)
            server.left -= taken
            server.of_strangers += taken

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(work)
            if strangers:
                tasks.start_soon(strange)

    anyio.run(main)
    return server


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_settling_uses_the_servers_limit_and_estimates_alone_a_third_of_it(seed):
    settled, estimated = crowd(seed, 6), crowd(seed, 6, settles=False)
    assert settled.refused == estimated.refused == 0
    assert settled.used >= 0.95 * 6 * PER_MINUTE
    assert estimated.used <= 0.36 * 6 * PER_MINUTE


@pytest.mark.parametrize("seed", [1, 2])
def test_headers_reveal_strangers_on_the_same_limit(seed):
    """They take half of the limit, unknown to the budget; the headers show how much of the rest is left."""
    seen, unseen = (
        crowd(seed, 3, strangers=PER_MINUTE / 2 / MINUTE_S, workers=8, observes=observes)
        for observes in (True, False)
    )
    there_was = PER_MINUTE * (1 + seen.clock.now() / MINUTE_S)
    assert seen.used >= 0.95 * (there_was - seen.of_strangers)
    assert seen.refused <= 0.07 * seen.answered
    assert unseen.refused > 0
    assert unseen.used < seen.used
