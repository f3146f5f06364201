"""The cost of a decision, in one process."""

from __future__ import annotations

from .library import offering
from .measure import NS, measured
from .subjects import floor
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "decisions"
METHOD = """
One admitted call on one key, far below its limit. The floor is bare Python: a lock, the clock and a dict.
aiolimiter and asynciolimiter serve one event loop and take no lock.
"""
COMPARED = ("limits", "throttled-py", "pyrate-limiter")
BASE = ("shapekit", "GCRA")


def measure(effort: Effort) -> Group:
    """Every strategy of every library."""
    able, unable = offering("decisions")
    subjects = [floor()]
    for _, module in able:
        subjects += module.decisions()
    lines = measured(subjects, effort.rounds, effort.of(50_000))
    table = Table(
        "A decision in one process", [Column(NS, "ns", 0, compared=True)], [*lines, *unable], BASE, NS
    )
    return Group(NAME, "Decisions in one process", METHOD, [table], goals(lines))


def goals(lines: list[Line]) -> list[Goal]:
    """Each goal, and what was measured."""
    ns = {(line.library, line.name): line.median(NS) for line in lines if not line.failed}
    base, gcra = ns["floor", "lock + clock + dict"], ns[BASE]
    ours = {name: time for (library, name), time in ns.items() if library == "shapekit" and name != "GCRA"}
    composites = {name: ours.pop(name) for name in list(ours) if "_of(" in name}
    log = next(name for name in ours if name.startswith("SlidingWindowLog"))
    slowest = max(ours.keys() - {log}, key=lambda name: ours[name])
    folded = max(composites, key=lambda name: composites[name])
    found = [
        Goal("Gate(GCRA).check / floor", gcra / base, 3.5),
        Goal(f"the slowest other strategy ({slowest}) / floor", ours[slowest] / base, 6),
        Goal(f"{log} / floor", ours[log] / base, 12),
        Goal(f"the slowest composite of two ({folded}) / floor", composites[folded] / base),
    ]
    peers = {peer: time for peer, time in ns.items() if peer[0] in COMPARED}
    if peers:
        fastest = min(peers, key=lambda peer: peers[peer])
        what = f"Gate(GCRA).check / the fastest of {', '.join(COMPARED)} ({' '.join(fastest)})"
        found.insert(1, Goal(what, gcra / peers[fastest], 0.6))
    return found
