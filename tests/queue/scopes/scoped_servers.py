"""Servers that count by parts of their own, and name the part in each answer: stubs, in virtual time."""

from __future__ import annotations

from typing import NamedTuple

from shapekit._adapters.http import Reading, RequestShaper, ShapingInfo, Target, observe
from shapekit._runtime.drivers import TASKS, AsyncAlarm, run


class Response(NamedTuple):
    """The part of a response that feedback reads."""

    status: int
    headers: dict[str, str]


class Seen(NamedTuple):
    at: float
    method: str
    path: str
    scope: str
    status: int


class GitHub:
    """Resources with a fixed window each; a refusal is a 403."""

    WINDOW_S = 6

    def __init__(self, clock, **limits):
        self.clock = clock
        self.limits = {"core": 5_000, "search": 3, **limits}
        self.used = {}
        self.seen = []

    def scope(self, method, path):
        return "search" if path.startswith("/search") else "core"

    def __call__(self, method, path):
        now, scope = self.clock.now(), self.scope(method, path)
        window = int(now // self.WINDOW_S)
        used = self.used[scope, window] = self.used.get((scope, window), 0) + 1
        left = self.limits[scope] - used
        status = 200 if left >= 0 else 403
        self.seen.append(Seen(now, method, path, scope, status))
        return Response(
            status,
            {
                "X-RateLimit-Limit": str(self.limits[scope]),
                "X-RateLimit-Remaining": str(max(0, left)),
                "X-RateLimit-Reset": str((window + 1) * self.WINDOW_S),
                "X-RateLimit-Resource": scope,
                "X-GitHub-Request-Id": "1",
            },
        )


class Discord:
    """Buckets for each channel that refill some seconds after their first use; routes may share one."""

    LIMIT = 2
    REFILL_US = 5_000_000

    def __init__(self, clock):
        self.clock = clock
        self.buckets = {}
        self.seen = []

    def scope(self, method, path):
        *_, last = path.split("/")
        return {"messages": f"{method.lower()}-messages", "pins": "pins", "typing": "pins"}.get(last, "other")

    def __call__(self, method, path):
        now, scope = self.clock.now_us(), self.scope(method, path)
        bucket = scope, path.rpartition("/")[0]
        full_at, used = self.buckets.get(bucket, (0, 0))
        if now >= full_at:
            full_at, used = now + self.REFILL_US, 0
        used += 1
        self.buckets[bucket] = full_at, used
        status = 200 if used <= self.LIMIT else 429
        self.seen.append(Seen(self.clock.now(), method, path, scope, status))
        headers = {
            "X-RateLimit-Limit": str(self.LIMIT),
            "X-RateLimit-Remaining": str(max(0, self.LIMIT - used)),
            "X-RateLimit-Reset-After": f"{(full_at - now) / 1e6:.6f}",
            "X-RateLimit-Bucket": scope,
        }
        if status == 429:
            headers["Retry-After"] = f"{(full_at - now) / 1e6:.6f}"
        return Response(status, headers)


HOST = "api.x"
FAST = {"rate": "1_000_000/s", "burst": 10_000}
"""A pace that delays no call: a late call is late because of a hold."""


TARGETS = Reading(lambda request: request.host, lambda request: request)
"""Requests that consist of their targets alone."""


def request_of(path, method="GET"):
    return Target(method, "https", HOST, None, path)


class Client:
    """The work of a client's wrapper, without the client."""

    def __init__(self, server, **shaping):
        self.server = server
        self.request_shaper = RequestShaper("Wrapper", TARGETS, **{**FAST, **shaping})
        self.sent = []

    def admission(self, path, method="GET", fits_s=None, **options):
        return self.request_shaper.admission(request_of(path, method), options, fits_s=fits_s)

    def send(self, path, method="GET", **options):
        with self.admission(path, method, **options) as admission:
            self.sent.append((method, path, self.server.clock.now()))
            admission.target = request_of(path, method)
            run(observe, admission, self.server(method, path))
        return ShapingInfo.of(admission)

    async def asend(self, path, method="GET", **options):
        async with self.admission(path, method, **options) as admission:
            self.sent.append((method, path, self.server.clock.now()))
            admission.target = request_of(path, method)
            await observe(TASKS, admission, self.server(method, path))
        return ShapingInfo.of(admission)


async def until(clock, seconds):
    await clock.asleep(max(0.0, seconds - clock.now()), AsyncAlarm())
