"""Thousands of workers on one grid, on virtual time: the table of docs/internals/scale.md.

    python tests/benchmarks/scale.py

It takes a minute or two, and prints the same on every machine. What is simulated, and how, stands in
tests/scale/simulation.py; what always holds of it, in the tests beside that.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scale"))

from simulation import Fleet, Network, Run, most_in_window, pace, run

from shapekit.rate import SECOND_US

NEAR = Network(500, 0.5)
FAR = Network(40_000, 0.25)
UPSTREAM = Network(20_000, 0.3)
FLEETS = {
    "1,000 near": Fleet(1_000, "1000/s", NEAR, UPSTREAM, seconds=30),
    "1,000 far": Fleet(1_000, "1000/s", FAR, UPSTREAM, seconds=30),
    "10,000 near": Fleet(10_000, "1000/s", NEAR, UPSTREAM, seconds=30),
    "10,000 far": Fleet(10_000, "1000/s", FAR, UPSTREAM, seconds=30),
    "1,000 near, at 100/s": Fleet(1_000, "100/s", NEAR, UPSTREAM, seconds=30),
    "1,000 far, at 100/s": Fleet(1_000, "100/s", FAR, UPSTREAM, seconds=30),
}
HEADROOM = 0.05
CALLERS = (1, 10, 100, 1_000)


def worst_second(played: Run) -> int:
    """The most calls that came to the upstream in a second."""
    return most_in_window([call.came_us for call in played.calls], SECOND_US)


def fleets() -> None:
    """A row for each fleet."""
    head = (
        *("workers", "calls/s", "Jain", "shares", "worst second", "with headroom"),
        *("trips", "overtaken", "late p50, p99"),
    )
    print("| " + " | ".join(head) + " |")
    print("|---|" + "--:|" * (len(head) - 1))
    for name, fleet in FLEETS.items():
        played = run(fleet)
        below = worst_second(run(fleet._replace(headroom=HEADROOM)))
        late = f"{played.late_us(0.5) / 1_000:.1f} ms, {played.late_us(0.99) / 1_000:.1f} ms"
        row = (
            name,
            f"{played.rate:,.1f}",
            f"{played.fairness():.4f}",
            f"{min(played.shares())} to {max(played.shares())}",
            f"{worst_second(played):,}",
            f"{below:,}",
            f"{played.trips_per_call:.2f}",
            f"{played.overtaken():.0%}",
            late,
        )
        print("| " + " | ".join(row) + " |")


def shared() -> None:
    """How the callers of one process share the second trip."""
    print("\n| callers of a process | at 1000/s | at 100/s |\n|--:|--:|--:|")
    for callers in CALLERS:
        trips = [
            run(Fleet(1_000, rate, NEAR, UPSTREAM, seconds=20, callers=callers)).trips_per_call
            for rate in ("1000/s", "100/s")
        ]
        print(f"| {callers:,} | {trips[0]:.2f} | {trips[1]:.2f} |")


def trouble() -> None:
    """A tenth of the workers dies; a tenth of the slots is given back."""
    dies = run(Fleet(1_000, "100/s", NEAR, UPSTREAM, seconds=60, crash=0.1))
    rate = pace([call.slot_us for call in dies.calls if call.slot_us > max(dies.lost)])
    print(f"\n{len(dies.lost)} die with a slot: {dies.rate:.2f}/s over all, {rate:.2f}/s afterwards,")
    print(f"Jain's index of the survivors {dies.fairness():.4f}")
    leaves = run(Fleet(1_000, "100/s", NEAR, UPSTREAM, seconds=30, give_up=0.1))
    print(f"{leaves.given_back} turns are given back: {leaves.rate:.2f}/s, {leaves.trips_per_call:.2f} trips")


if __name__ == "__main__":
    fleets()
    shared()
    trouble()
