"""Three spiders, each a process and each on another kind of reactor: they keep one rate, and one hold.

`python -m tests.heavy.scrapy.test_processes` measures what the page on Scrapy shows.
"""

import json
import time
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from shapekit import GCRA, Gate

from ...adapters.http.server import Reply, Server
from ...redis_server import RedisServer
from ...together import run_together
from .worker import GONE, REACTORS

PER_S, SECONDS = 20, 6
PATIENCE_S = 90
WORKER = Path(__file__).with_name("worker.py")
BY_DELAY = {"DOWNLOAD_DELAY": 1 / PER_S}
KINDS = {
    "shapekit": {"DOWNLOADER": "shapekit.integrations.scrapy.ShapedDownloader"},
    "DOWNLOAD_DELAY": BY_DELAY,
    "AutoThrottle": {**BY_DELAY, "AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 1 / PER_S},
}


class Seen(NamedTuple):
    log: list[tuple[float, int]]
    """When each request came, and how it was answered."""
    slots: list[float]
    """When the slots came of the events that a listener received."""
    stood_still: list[float]

    @property
    def answered(self):
        return [at for at, status in self.log if status == 200]

    @property
    def refused(self):
        return [at for at, status in self.log if status != 200]


def seen(kind, answer, enough, **shaping):
    """What a server sees of three spiders, each on another kind of reactor, until it has seen enough."""
    server = Server(lambda arrival: Reply(GONE) if enough(server) else answer(arrival))
    with ExitStack() as running:
        server.start()
        running.callback(server.close)
        redis = running.enter_context(RedisServer())
        settings = dict(KINDS[kind])
        if kind == "shapekit":
            settings["SHAPEKIT"] = {"rate": f"{PER_S}/s", "name": "crawl", "store": redis.url, **shaping}
        commands = [(WORKER, reactor, server.url, json.dumps(settings)) for reactor in REACTORS]
        results = [json.loads(line) for line in run_together(commands, PATIENCE_S)]
    slots, stood_still = zip(*results, strict=True)
    log = [(at, status) for at, status in server.log if status != GONE]
    return Seen(log, list(chain.from_iterable(slots)), list(stood_still))


def for_seconds(seconds):
    return lambda server: server.arrivals and time.monotonic() - server.arrivals[0].at > seconds


def counting(burst=PER_S):
    """A server that lets so many calls come at once, and refuses what is above its rate."""
    gate = Gate(GCRA(f"{PER_S}/s", burst=burst))
    return lambda _: Reply(200 if gate.check().allowed else 429)


def most_in_a_second(times):
    return max(sum(begin <= at < begin + 1 for at in times) for begin in times)


def test_three_spiders_keep_one_rate_on_every_reactor():
    result = seen("shapekit", counting(), for_seconds(SECONDS), headroom=0.02)
    assert result.refused == []
    # By their slots: requests that a stalled reactor let go, as when it begins, arrive late and together.
    assert len(result.slots) >= len(result.answered)
    assert most_in_a_second(result.slots) <= PER_S + 1
    span = result.answered[-1] - result.answered[0]
    assert span > 0.8 * SECONDS
    # A process that a busy machine stops misses its slots.
    assert len(result.answered) >= 0.85 * PER_S * span
    # No reactor is blocked by a wait: while three spiders ask for eight slots each, one waits for a second.
    assert max(result.stood_still) < 1


@pytest.mark.parametrize("kind", ["DOWNLOAD_DELAY", "AutoThrottle"])
def test_processes_with_limits_of_their_own_are_refused(kind):
    result = seen(kind, counting(), for_seconds(SECONDS))
    assert len(result.refused) > 0.2 * len(result.answered)


def test_a_429_holds_all_spiders():
    came = []

    def answer(_):
        came.append(time.monotonic())
        return Reply(429, {"Retry-After": "2"}) if len(came) == 30 else Reply()

    seen("shapekit", answer, lambda _: len(came) == 60)
    waited = [at - came[29] for at in came[30:]]
    # Requests that had left when the answer came are still on their way.
    assert [at for at in waited if 0.5 < at < 1.95] == []
    assert waited[-20] >= 1.95


if __name__ == "__main__":
    for kind in KINDS:
        result = seen(kind, counting(burst=5), for_seconds(10))
        print(f"{kind}: {len(result.answered)} answered, {len(result.refused)} refused")
