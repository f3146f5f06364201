"""One cell of the campaign: a fault, an outage mode, four processes that call, and what comes of it."""

import time
from contextlib import ExitStack, closing
from math import ceil
from typing import NamedTuple

from ...witness import watched
from .caller import Caller
from .receiver import Receiver
from .scenes import LAG_S, TROUBLES, Scene
from .verdict import (
    BURST,
    LIMITS,
    RATE,
    SHARE,
    TIMEOUT_S,
    WORKERS,
    Facts,
    over,
    over_bound,
    under,
    under_bound,
)

MODES = ("raise", "open", "closed", "local")
BEFORE_S, AFTER_S = 0.7, 0.7
FAULT_S = 1.5


class Figure(NamedTuple):
    """The measured figures of one limit, and the documented bounds; None where there is no bound."""

    over: int
    over_bound: int | None
    late: float
    """By how many seconds the latest call came late where most came at once."""
    under: int
    under_bound: int


class Cell(NamedTuple):
    """The result of one fault in one mode."""

    fault: str
    mode: str
    figures: dict
    """The figures of each limit."""
    calls: int
    outage: float
    """For how many seconds a worker was without the store, at most."""
    answer: float
    """The longest that a caller has waited for an answer, but for what a witness has seen stalled."""
    stalled: float
    """For how many seconds in all a witness has seen a process stalled."""
    longest: float = 0.0
    """The longest single stall; a call that a switch delays does not know when it was due, and is as late."""

    def breaches(self):
        """The figures that exceed their bounds by more than a crowd of late calls explains."""
        for limit, figure in self.figures.items():
            crowd = ceil(RATE * max(figure.late, self.longest))
            if figure.over_bound is not None and figure.over > figure.over_bound + crowd:
                yield f"{limit}: {figure.over} too many, bound {figure.over_bound}, {crowd} crowded"
            stalled = ceil(RATE * self.stalled)
            if figure.under > figure.under_bound + 1 + stalled:
                yield f"{limit}: {figure.under} too few, bound {figure.under_bound}, {stalled} stalled"

    def __str__(self):
        figures = "; ".join(
            f"{limit}: {figure.over} over ({'-' if figure.over_bound is None else figure.over_bound}, "
            f"{figure.late * 1e3:.0f} ms late), {figure.under} under ({figure.under_bound})"
            for limit, figure in self.figures.items()
        )
        return (
            f"{self.fault}, {self.mode}: {figures}; {self.calls} calls, out for {self.outage:.2f} s, "
            f"longest answer {self.answer:.3f} s, stalled for {self.stalled:.2f} s"
        )


def play(fault, mode, fault_s=FAULT_S):
    """The results of a fault in a mode."""
    with ExitStack() as stack:
        scene = stack.enter_context(closing(Scene(TROUBLES[fault], WORKERS)))
        receiver = stack.enter_context(closing(Receiver()))
        for number in range(WORKERS):
            caller = Caller(
                number,
                scene.url(number),
                port=receiver.port,
                prefix="campaign",
                mode=mode,
                rate=RATE,
                burst=BURST,
                share=SHARE,
                timeout=TIMEOUT_S,
            )
            scene.callers.append(stack.enter_context(closing(caller)))
        for caller in scene.callers:
            caller.begin()
        pids = [thing.pid for thing in (receiver, *scene.servers, *scene.callers)]
        with watched(*pids) as witness:
            time.sleep(BEFORE_S)
            begin = time.monotonic()
            with TROUBLES[fault].happen(scene):
                time.sleep(fault_s)
            for caller in scene.callers:
                caller.wait(lambda caller=caller: caller.killed_at or not caller.is_lost)
            time.sleep(AFTER_S)
            end = time.monotonic()
        for caller in scene.callers:
            caller.end()
        return _judged(fault, mode, scene, receiver.history(), begin, end, witness.stalls)


def _judged(fault, mode, scene, history, begin, end, stalls):
    callers = scene.callers
    facts = Facts(
        mode=mode,
        begin=begin,
        end=end,
        outages=[
            [(lost, min(back or end, end)) for lost, back in each.outages if lost < end] for each in callers
        ],
        in_vain=sum(each.in_vain for each in callers),
        forgotten=scene.forgotten,
        lag=LAG_S if TROUBLES[fault].failover else 0.0,
        killed=sum(each.killed_at is not None for each in callers),
    )
    figures = {}
    for limit in LIMITS:
        arrivals = [arrival for arrival in history if arrival.kind == limit.kind and arrival.at < end]
        many, late = over(arrivals, limit.burst)
        figures[limit.kind] = Figure(
            many, over_bound(limit, facts), late, under(arrivals, facts), under_bound(limit, facts)
        )
    since, until = max((each.longest for each in callers), key=lambda each: each[1] - each[0])
    return Cell(
        fault=fault,
        mode=mode,
        figures=figures,
        calls=len(history),
        outage=max((back - lost for each in facts.outages for lost, back in each), default=0.0),
        answer=stalls.undone(min(since + TIMEOUT_S, until), until) - since,
        stalled=stalls.within(begin, end),
        longest=stalls.longest(begin, end),
    )
