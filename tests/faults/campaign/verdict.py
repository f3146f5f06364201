"""What a cell has measured, and what the documented bounds allow there.

A history obeys its limit if the history checker finds no breach. How many calls too many it holds is the
least by which the burst would have to be raised for that; how many too few, what is missing from the rate
over the whole cell. Of what comes late at the receiving server, the calls crowd: by their latest's lateness.
"""

from math import ceil
from typing import NamedTuple

from shapekit.testing import PaceError, check_pace

from .caller import GATE, SHAPER, WAITERS

WORKERS = 4
RATE = 40
BURST = 10
SHARE = 1 / 4
TIMEOUT_S = 0.3


class Limit(NamedTuple):
    """One of the two limits that the callers share."""

    kind: str
    burst: int
    waiters: int
    """Calls that have a slot at a switch, in each process: they come on top."""


LIMITS = (Limit(GATE, BURST, 0), Limit(SHAPER, 1, WAITERS))


class Facts(NamedTuple):
    """What happened in a cell."""

    mode: str
    begin: float
    """From here on all callers called as often as they could, and the first burst was spent."""
    end: float
    outages: list
    """For each caller, when it lost its store and when that was back."""
    in_vain: int
    """Questions that may have been charged without an answer."""
    forgotten: int
    lag: float
    """Seconds of which a replica did not know that has taken the master's place."""
    killed: int
    """Callers that were killed."""


def over(arrivals, burst):
    """By how many calls a history exceeds rate and burst; and how late the latest call is that shows it."""
    shown = _breach(arrivals, burst)
    if shown is None:
        return 0, 0.0
    least, most = burst + 1, burst + len(arrivals)
    while least < most:
        tried = (least + most) // 2
        breach = _breach(arrivals, tried)
        if breach is None:
            most = tried
        else:
            least, shown = tried + 1, breach
    crowd = arrivals[shown.first : shown.last + 1]
    return least - burst, max(arrival.at - arrival.due for arrival in crowd)


def _breach(arrivals, burst):
    try:
        check_pace([arrival.at for arrival in arrivals], f"{RATE}/s", burst)
    except PaceError as breach:
        return breach
    return None


def under(arrivals, facts):
    """How many calls are missing from the rate, between the begin and the end of a cell."""
    count = sum(facts.begin <= arrival.at < facts.end for arrival in arrivals)
    return max(0, ceil(RATE * (facts.end - facts.begin)) - count)


def over_bound(limit, facts):
    """How many calls too many the documentation allows; None where it sets no bound."""
    if facts.mode == "open" and any(facts.outages):
        return None
    # Calls that the store forgets may leave once more, and those that had a slot keep it.
    forgiven = facts.forgotten * (limit.burst + WORKERS * limit.waiters)
    if facts.lag:
        forgiven += RATE * facts.lag + 1
    if facts.mode != "local":
        return ceil(forgiven)
    part = max(1, int(SHARE * limit.burst)) + limit.waiters
    local = sum(part + SHARE * RATE * (back - lost) for each in facts.outages for lost, back in each)
    dead = common(facts.outages)
    # Both bounds hold. The store keeps its limit over the whole time. And while no worker asks it, it admits
    # nothing but the slots that it has granted, and a burst when it is back.
    afresh = len(dead) * (limit.burst + WORKERS * limit.waiters) - RATE * sum(b - a for a, b in dead)
    return ceil(forgiven + local + min(0, afresh))


def under_bound(limit, facts):
    """How many missing calls the documentation allows."""
    in_vain = facts.in_vain + facts.killed * (1 + limit.waiters)
    if facts.mode in ("raise", "closed"):
        # A worker that is about to lose its store waits for that as long as its patience lasts.
        hung = [[(lost - TIMEOUT_S, back) for lost, back in each] for each in facts.outages]
        return ceil(RATE * sum(back - lost for lost, back in common(hung))) + in_vain
    times = sum(map(len, facts.outages))
    return ceil(times * (SHARE * RATE * TIMEOUT_S + 1)) + in_vain


def common(outages):
    """The spans in which all callers were without the store at once."""
    found = [(float("-inf"), float("inf"))]
    for each in outages:
        found = [
            (max(one, lost), min(other, back))
            for one, other in found
            for lost, back in _joined(each)
            if max(one, lost) < min(other, back)
        ]
    return found


def _joined(outages):
    joined = []
    for lost, back in sorted(outages):
        if joined and lost <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(back, joined[-1][1]))
        else:
            joined.append((lost, back))
    return joined
