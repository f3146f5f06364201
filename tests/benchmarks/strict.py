"""Fleets before a server that counts strictly: how often it refuses, and how much of the rate they reach."""

from __future__ import annotations

from ..strict.fleet import Plan, Run, run
from .progress import say
from .tables import Column, Course, Effort, Goal, Group, Line, Table

NAME = "strict"
SECONDS = 30
CLIENTS = {
    "httpx": "httpx.Client",
    "httpx async": "httpx.AsyncClient",
    "httpx2 async": "httpx2.AsyncClient",
    "aiohttp": "aiohttp.ClientSession",
    "requests": "requests.Session",
    "@shaped": "@shaped",
    "Celery": "Celery",
}
"""The name of each in a row."""
RATES = ((49, 50), (98, 100))
CASES = {"": "A cold start", "stopped": "One of three processes is stopped for 300 ms of every 2 s"}
METHOD = f"""
Three processes with ten callers each share a rate on Redis and call without a pause for {SECONDS} s: one run
for each row. Nothing of theirs is warm: the first calls load modules, open connections and send scripts. The
server answers 429 with `Retry-After: 1` to each call that is one too many in any second of arrivals, refused
ones included; then all callers wait for a second. Reached: answered calls a second between the first and the
last, of the stated rate. While one process is stopped, its third of the slots passes unused: 0.95 of the rate
is all that can be reached there.
"""
REFUSED, THERE, HERE, SHARE = "refused", "worst second at the server", "worst second of departures", "reached"
COLUMNS = [Column(REFUSED, "calls", 0), Column(THERE, "", 0), Column(HERE, "", 0), Column(SHARE, "× rate", 3)]
DRAWN = Plan("httpx async", *RATES[0], SECONDS)
STEP_S = 0.1
DRAWN_S = 6.0


def line(done: Run) -> Line:
    """The row of a run."""
    figures = {
        REFUSED: done.refusals,
        THERE: done.worst_second_there,
        HERE: done.worst_second_here,
        SHARE: done.share,
    }
    name = f"{CLIENTS[done.plan.client]}, {done.plan.rate} of {done.plan.limit}"
    return Line("shapekit", name, {column: [float(figure)] for column, figure in figures.items()})


def course(done: Run) -> Course:
    """How many calls of each process have left in each tenth of the first seconds."""
    start = done.departures[0]
    counts = {}
    for number, left in enumerate(done.by_process, 1):
        steps = [0] * round(DRAWN_S / STEP_S)
        for at in left:
            if (step := int((at - start) / STEP_S)) < len(steps):
                steps[step] += 1
        counts[f"process {number}"] = steps
    title = f"{CLIENTS[done.plan.client]}, cold start of three processes at {done.plan.rate}/s"
    return Course(title, STEP_S, done.plan.limit * STEP_S, counts)


def measure(effort: Effort) -> Group:
    """Every client, cold and with a process that is stopped, at both rates."""
    seconds = max(5.0, SECONDS * effort.share)
    runs = {}
    for stall, case in CASES.items():
        for client in CLIENTS:
            for rate, limit in RATES:
                say(f"{client}, {rate} of {limit}: {case}")
                plan = Plan(client, rate, limit, seconds, stall)
                runs[plan] = run(plan)
    tables = [
        Table(case, COLUMNS, [line(done) for plan, done in runs.items() if plan.stall == stall])
        for stall, case in CASES.items()
    ]
    cold, stopped = (
        [done for plan, done in runs.items() if plan.stall == stall and plan.client != "Celery"]
        for stall in CASES
    )
    goals = [
        Goal("refused, in all runs", sum(done.refusals for done in runs.values()), 0),
        Goal("reached after a cold start, the least", min(done.share for done in cold), 0.97, less=False),
        Goal("reached with one stopped, the least", min(done.share for done in stopped)),
    ]
    drawn = next(done for plan, done in runs.items() if plan._replace(seconds=SECONDS) == DRAWN)
    return Group(NAME, "A strict server", METHOD, tables, goals, courses=[course(drawn)])
