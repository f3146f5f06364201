"""What a decision costs, in one process: `python tests/benchmarks/run.py`, after `pip install -e ".[bench]"`.

Prints ratios first: they say the same on every machine. The nanoseconds below them do not. Every call is
admitted; each figure is the median of interleaved rounds, in processor time (`measure` says why). What the
floor is, `subjects.Floor` says. A goal that is missed is printed like one that is met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

from measure import Row, import_times, measured
from peers import peers
from subjects import floor, gates

VERSIONS = ("shapekit", "anyio", "aiolimiter", "limits", "throttled-py", "pyrate-limiter")
COMPARED = ("limits", "throttled-py", "pyrate-limiter")
IMPORT_MS = 60
VERDICTS = {True: "met", False: "missed", None: ""}


def goals(rows: list[Row], import_ms: float) -> list[dict[str, object]]:
    """Each goal, what was measured, and whether it is met."""
    ns = {(row.group, row.name): row.ns for row in rows}
    base = ns["floor", "lock + clock + dict"]
    gcra = ns["shapekit", "GCRA"]
    ours = {name: time for (group, name), time in ns.items() if group == "shapekit" and name != "GCRA"}
    log = next(name for name in ours if name.startswith("SlidingWindowLog"))
    slowest = max(ours.keys() - {log}, key=lambda name: ours[name])
    composites = {name: time for (group, name), time in ns.items() if group == "composite"}
    folded = max(composites, key=lambda name: composites[name])
    peer = min((row for row in rows if row.group in COMPARED), key=lambda row: row.ns)
    told = [
        ("Gate(GCRA).check / floor", gcra / base, 3.5),
        (f"Gate(GCRA).check / the fastest of three peers ({peer.group} {peer.name})", gcra / peer.ns, 0.6),
        (f"the slowest other strategy ({slowest}) / floor", ours[slowest] / base, 6),
        (f"{log} / floor", ours[log] / base, 12),
        (f"the slowest composite of two ({folded}) / floor", composites[folded] / base, None),
        ("import shapekit, ms", import_ms, IMPORT_MS),
    ]
    return [
        {"what": what, "measured": figure, "goal": goal, "met": None if goal is None else figure <= goal}
        for what, figure, goal in told
    ]


def machine() -> dict[str, str]:
    """What the figures were measured on, and with."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = named[0].partition(":")[2].strip() if named else cpu
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        **{name: version(name) for name in VERSIONS},
    }


def report(rows: list[Row], met: list[dict[str, object]], rounds: int, calls: int) -> str:
    """The figures as Markdown."""
    base = rows[0].ns
    lines = ["| ratio | measured | goal | |", "|---|--:|--:|---|"]
    for goal in met:
        bound = "none set" if goal["goal"] is None else f"≤ {goal['goal']}"
        verdict = VERDICTS[goal["met"]]
        lines.append(f"| {goal['what']} | {goal['measured']:.2f} | {bound} | {verdict} |")
    lines += ["", "| | one admitted call | × floor | ns, median | ns, from – to |", "|---|---|--:|--:|--:|"]
    for row in rows:
        spread = f"{min(row.rounds):,.0f} – {max(row.rounds):,.0f}"
        lines.append(f"| {row.group} | {row.name} | {row.ns / base:.2f} | {row.ns:,.0f} | {spread} |")
    facts = " · ".join(f"{name} {value}" for name, value in machine().items())
    return "\n".join([*lines, "", f"{rounds} interleaved rounds of {calls:,} calls · {facts}"])


def main() -> None:
    """Measure, and print a report or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="at least 5")
    parser.add_argument("--calls", type=int, default=50_000, help="in each round of each row")
    parser.add_argument("--json", action="store_true", help="all figures, for programs")
    asked = parser.parse_args()
    if asked.rounds < 5:
        parser.error("fewer than 5 rounds say nothing")
    rows = measured([floor(), *gates(), *peers()], asked.rounds, asked.calls)
    imports = import_times("shapekit", asked.rounds)
    met = goals(rows, median(imports))
    if asked.json:
        figures = [{**row._asdict(), "ns": row.ns} for row in rows]
        json.dump(
            {"machine": machine(), "goals": met, "rows": figures, "import_ms": imports}, sys.stdout, indent=1
        )
    else:
        print(report(rows, met, asked.rounds, asked.calls))


if __name__ == "__main__":
    main()
