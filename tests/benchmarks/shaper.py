"""What a reservation costs, and how late a waiter leaves: `python tests/benchmarks/shaper.py`.

Needs what `run.py` needs. Prints ratios and lateness first, with the goals; a goal that is missed is printed
like one that is met. Lateness is measured at 200 calls a second, from the promised departure to the moment
at which the caller goes on, on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import trio
from measure import Row, measured
from peers import aiolimiter
from run import VERDICTS, machine
from subjects import FAR, Subject, floor

from shapekit import GCRA, Shaper, SystemClock
from shapekit.events import Event
from shapekit.switch import SWITCH

RATE = 200
WAITERS = 100
AT_ONCE = f"{FAR}/s burst 1000"
"""A fast machine makes more than one call in a microsecond."""


def subject(
    name: str,
    call: str,
    make: Callable[[], Shaper],
    *,
    waits: bool = False,
    listening: Callable[[Shaper], AbstractContextManager[Any]] = nullcontext,
) -> Subject:
    """A row; `waits` where the answer is a turn far ahead, else it must be one that has come."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        shaper = make()
        with listening(shaper):
            yield {"shaper": shaper, "reserve": shaper.reserve, "areserve": shaper.areserve}
        shaper.close()

    def admitted(turn: Any) -> bool:
        return bool(turn) and (turn.delay > 0) == waits

    return Subject("Shaper", name, call, opened, admitted)


def looking() -> list[Subject]:
    """What a reserve pays for events while nobody listens: one look, and the loop that it is measured in."""

    @contextmanager
    def opened() -> Iterator[dict[str, Any]]:
        yield {"SWITCH": SWITCH}

    return [
        Subject("the loop", "of each row", "None", opened, lambda answer: answer is None),
        Subject("the look", "at who listens", "not SWITCH.is_plain", opened, lambda answer: answer is False),
    ]


def hear(_: Event) -> None:
    """Listen, and do nothing."""


def subjects() -> list[Subject]:
    """The floor, the peer, and what a shaper is asked."""
    gate = GCRA("10/s", burst=FAR)
    return [
        floor(),
        *aiolimiter(),
        subject("reserve", 'reserve("key")', lambda: Shaper(AT_ONCE)),
        subject("reserve, behind others", 'reserve("key")', lambda: Shaper("10/s"), waits=True),
        subject("reserve, odd T, behind others", 'reserve("key")', lambda: Shaper("7/s"), waits=True),
        subject(
            "reserve, max_wait and cost", 'reserve("key", cost=2, max_wait=1.0)', lambda: Shaper(AT_ONCE)
        ),
        subject("reserve, a GCRA beside", 'reserve("key")', lambda: Shaper(AT_ONCE, gates=(gate,))),
        subject("areserve", 'await areserve("key")', lambda: Shaper(AT_ONCE)),
        subject("schedule", 'shaper.schedule("key")', lambda: Shaper(AT_ONCE)),
        subject("aschedule", 'await shaper.aschedule("key")', lambda: Shaper(AT_ONCE)),
        *looking(),
        subject(
            "reserve, somebody listens",
            'reserve("key")',
            lambda: Shaper(AT_ONCE),
            listening=lambda shaper: shaper.listen(hear),
        ),
        subject(
            "reserve, somebody listens to another",
            'reserve("key")',
            lambda: Shaper(AT_ONCE),
            listening=lambda _: Shaper("10/s").listen(hear),
        ),
        subject(
            "schedule, somebody listens",
            'shaper.schedule("key")',
            lambda: Shaper(AT_ONCE),
            listening=lambda shaper: shaper.listen(hear),
        ),
    ]


class Lateness:
    """Waiters of one round, and by how many ms each was late."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._shaper = Shaper(f"{RATE}/s", clock=self._clock)
        self._shaper.reserve()
        self.ms: list[float] = []

    def wait(self) -> None:
        self._note(self._shaper.schedule())

    async def await_(self) -> None:
        self._note(await self._shaper.aschedule())

    def _note(self, turn: Any) -> None:
        self.ms.append((self._clock.now_us() - turn.grant.departs_at_us) / 1_000)


def threads(lateness: Lateness) -> None:
    """A round of threads that all wait at once."""
    crew = [threading.Thread(target=lateness.wait) for _ in range(WAITERS)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


def on_asyncio(lateness: Lateness) -> None:
    """A round of tasks on asyncio."""

    async def main() -> None:
        await asyncio.gather(*(lateness.await_() for _ in range(WAITERS)))

    asyncio.run(main())


def on_trio(lateness: Lateness) -> None:
    """A round of tasks on trio."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(WAITERS):
                nursery.start_soon(lateness.await_)

    trio.run(main)


KINDS = {"asyncio": (on_asyncio, 0.8), "threads": (threads, 0.2), "trio": (on_trio, None)}


def lateness(rounds: int) -> dict[str, list[float]]:
    """The median of each round in ms, by kind; the rounds of all kinds interleave."""
    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, (run, _) in KINDS.items():
            seen = Lateness()
            run(seen)
            medians[kind].append(median(seen.ms))
    return medians


def goals(rows: list[Row], late: dict[str, list[float]]) -> list[dict[str, object]]:
    """Each goal, what was measured, and whether it is met."""
    ns = {row.name: row.ns for row in rows}
    told: list[tuple[str, float, float | None]] = [
        ("Shaper.reserve / aiolimiter.acquire", ns["reserve"] / ns["AsyncLimiter"], 1.5),
        (
            "Shaper.reserve behind others / aiolimiter.acquire",
            ns["reserve, behind others"] / ns["AsyncLimiter"],
            None,
        ),
        (
            "the look at who listens / Shaper.reserve",
            (ns["at who listens"] - ns["of each row"]) / ns["reserve"],
            0.03,
        ),
        (
            "Shaper.reserve, somebody listens / nobody does",
            ns["reserve, somebody listens"] / ns["reserve"],
            None,
        ),
    ]
    told += [
        (f"median lateness at {RATE}/s, {kind}, ms", median(late[kind]), bound)
        for kind, (_, bound) in KINDS.items()
    ]
    return [
        {"what": what, "measured": figure, "goal": goal, "met": None if goal is None else figure <= goal}
        for what, figure, goal in told
    ]


def report(rows: list[Row], late: dict[str, list[float]], met: list[dict[str, object]], calls: int) -> str:
    """The figures as Markdown."""
    lines = ["| figure | measured | goal | |", "|---|--:|--:|---|"]
    for goal in met:
        bound = "none set" if goal["goal"] is None else f"≤ {goal['goal']}"
        lines.append(f"| {goal['what']} | {goal['measured']:.2f} | {bound} | {VERDICTS[goal['met']]} |")
    lines += ["", "| one call | × aiolimiter | ns, median | ns, from – to |", "|---|--:|--:|--:|"]
    peer = next(row.ns for row in rows if row.name == "AsyncLimiter")
    for row in rows:
        spread = f"{min(row.rounds):,.0f} – {max(row.rounds):,.0f}"
        lines.append(f"| {row.group} {row.name} | {row.ns / peer:.2f} | {row.ns:,.0f} | {spread} |")
    lines += ["", f"| ms late at {RATE}/s | median of rounds | from – to |", "|---|--:|--:|"]
    for kind, medians in late.items():
        lines.append(f"| {kind} | {median(medians):.3f} | {min(medians):.3f} – {max(medians):.3f} |")
    facts = " · ".join(f"{name} {value}" for name, value in machine().items())
    rounds = len(rows[0].rounds)
    return "\n".join(
        [*lines, "", f"{rounds} interleaved rounds of {calls:,} calls and of {WAITERS} waiters · {facts}"]
    )


def main() -> None:
    """Measure, and print a report or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="at least 5")
    parser.add_argument("--calls", type=int, default=50_000, help="in each round of each row")
    parser.add_argument("--json", action="store_true", help="all figures, for programs")
    asked = parser.parse_args()
    if asked.rounds < 5:
        parser.error("fewer than 5 rounds say nothing")
    rows = measured(subjects(), asked.rounds, asked.calls)
    late = lateness(asked.rounds)
    met = goals(rows, late)
    if asked.json:
        figures = [{**row._asdict(), "ns": row.ns} for row in rows]
        json.dump(
            {"machine": machine(), "goals": met, "rows": figures, "late_ms": late}, sys.stdout, indent=1
        )
    else:
        print(report(rows, late, met, asked.calls))


if __name__ == "__main__":
    main()
