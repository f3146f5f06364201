"""Draws what tests/scale/simulation.py plays: what comes to an upstream, and what sharing saves."""

from __future__ import annotations

import importlib.util
import io
import sys
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from shapekit.cli.simulate import COLOURS, compact
from shapekit.rate import SECOND_US

_STEP_US = 100_000
_SECONDS = 12


def seconds(simulation: ModuleType) -> Figure:
    """How many calls the last second had, at the store, and at the upstream with and without headroom."""
    store, upstream = simulation.Network(40_000, 0.25), simulation.Network(20_000, 0.3)
    fleet = simulation.Fleet(1_000, "100/s", store, upstream, seconds=_SECONDS)
    plain, below = simulation.run(fleet), simulation.run(fleet._replace(headroom=0.05))
    drawn = Figure(figsize=(9, 3.6), layout="constrained")
    axes = drawn.subplots()
    lines = (
        ("slots at the store: the limit", [call.slot_us for call in plain.calls], "-"),
        ("at the upstream", [call.came_us for call in plain.calls], "--"),
        ("at the upstream, headroom=0.05", [call.came_us for call in below.calls], "-."),
    )
    for (name, instants, style), colour in zip(lines, COLOURS, strict=False):
        instants.sort()
        ends = range(2 * SECOND_US, _SECONDS * SECOND_US, _STEP_US)
        counts = [bisect_left(instants, end) - bisect_left(instants, end - SECOND_US) for end in ends]
        axes.plot(
            [end / SECOND_US for end in ends], counts, color=colour, linestyle=style, linewidth=2, label=name
        )
    axes.set_ylim(90, 108)
    axes.set_xlim(2, _SECONDS)
    axes.set_xlabel("time since the start (s)")
    axes.set_ylabel("calls in the last second")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    axes.grid(axis="y", alpha=0.3)
    drawn.suptitle("1,000 workers, 100/s, the store 40 ms away")
    return drawn


def trips(simulation: ModuleType) -> Figure:
    """Round trips for each call, by how many callers a process has."""
    drawn = Figure(figsize=(9, 3.2), layout="constrained")
    axes = drawn.subplots()
    near = simulation.Network(500, 0.5)
    callers = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
    for rate, colour, style in zip(("1000/s", "100/s", "20/s"), COLOURS, ("-", "--", "-."), strict=False):
        fleet = simulation.Fleet(1_000, rate, near, near, seconds=3)
        made = [simulation.run(fleet._replace(callers=each)).trips_per_call for each in callers]
        axes.plot(
            callers, made, color=colour, linestyle=style, linewidth=2, marker="o", markersize=3, label=rate
        )
    axes.set_xscale("log")
    axes.set_xticks(callers, [f"{each:,}" for each in callers])
    axes.minorticks_off()
    axes.set_ylim(1, 2.05)
    axes.set_xlabel("callers of a process, of 1,000 in all")
    axes.set_ylabel("round trips per call")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    axes.grid(axis="y", alpha=0.3)
    drawn.suptitle("Calls that wait ask twice; callers of one process ask together")
    return drawn


FIGURES: dict[str, Callable[[ModuleType], Figure]] = {"scale-seconds": seconds, "scale-trips": trips}
"""What draws each, by the name of its file."""


def draw(folder: Path) -> None:
    """Draw all of them into a folder."""
    simulation = _simulation()
    # As shapekit.cli.simulate does it: letters stay letters, and the same figure gives the same bytes.
    style: Any = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "shapekit"}
    for name, figure in FIGURES.items():
        with mpl.rc_context(style), io.StringIO() as drawn:
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure(simulation).savefig(drawn, format="svg", metadata=nothing)
            (folder / f"{name}.svg").write_text(compact(drawn.getvalue()), encoding="utf-8", newline="\n")


def _simulation() -> ModuleType:
    """The module, which is a test's and is not installed."""
    path = Path(__file__).parents[2] / "tests" / "scale" / "simulation.py"
    spec = importlib.util.spec_from_file_location("simulation", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not there")
    module = sys.modules["simulation"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
