"""Draws six seconds of `shapekit demo`, simulated.

The API, the threads and the rate are the demo's, on virtual time: calls take no time to arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path

from shapekit import ManualClock, Shaper
from shapekit.cli import demo

NAME = "unshaped-and-shaped"
SECONDS = 6
# The picture brings its own ground, as a page may be dark where the system is light. Each text has a contrast
# of at least 4.5 on it.
STYLE = """
text{font:14px system-ui,sans-serif}.bold{font-weight:600}.right{text-anchor:end}.middle{text-anchor:middle}
.ground{fill:#ffffff}.ink{fill:#1f2328}.faint{fill:#57606a}.answered{fill:#0072b2}.refused{fill:#bc4c00}
.grid{stroke:#d8dee4}.limit{stroke:#1f2328;stroke-width:1.5;stroke-dasharray:6 3}
@media(prefers-color-scheme:dark){
.ground{fill:#1e2129}.ink{fill:#e6edf3}.faint{fill:#a8b1bd}.answered{fill:#4aa3df}.refused{fill:#f0883e}
.grid{stroke:#3a404c}.limit{stroke:#e6edf3}
}
"""
WIDTH, HEIGHT, LEFT, COLUMN, CALL, MOST = 760, 436, 64, 11, 4, 30
"""Pixels of the picture, before its time axis, of a tenth of a second and of a call; calls a chart holds."""


def simulate(*, shaped: bool) -> demo.Log:
    """What the demo does, on virtual time."""
    clock, limit, calls = ManualClock(), demo.Limit(), list[demo.Call]()
    shaper = Shaper(demo.RATE, headroom=demo.HEADROOM, clock=clock)
    events: list[tuple[Fraction, int, Fraction | None]] = [
        (Fraction(0), thread, None) for thread in range(demo.WORKERS * demo.THREADS)
    ]
    while events[0][0] < SECONDS:
        now, thread, wanted = heappop(events)
        if wanted is None and shaped:
            clock.set(float(now))
            slot = now + Fraction(round(shaper.reserve().delay * 1_000_000), 1_000_000)
            heappush(events, (slot, thread, now))
            continue
        wanted = now if wanted is None else wanted
        accepted = limit.admits(now)  # type: ignore[arg-type]  # exact, where floats would round
        calls.append(demo.Call(float(now), float(now - wanted), accepted))
        rest = Fraction(str(demo.WORK_S if accepted else demo.PAUSE_S))
        heappush(events, (now + rest, thread, None if accepted else wanted))
    return demo.Log(calls, SECONDS)


def panel(title: str, log: demo.Log, top: int) -> Iterator[str]:
    """One run: its title, its axes, a bar for each tenth of a second, the limit, and where it answers 429."""
    seen, ground = log.figures(), top + 36 + MOST * CALL
    told = (
        f"{seen.answered} calls answered, {seen.refused} refused, {seen.penalties_s:.0f} s lost in penalties"
    )
    yield f'<text class="ink" x="{LEFT}" y="{top + 14}"><tspan class="bold">{title}:</tspan> {told}</text>'
    right = LEFT + SECONDS * 10 * COLUMN
    for calls in range(0, MOST + 1, 10):
        y = ground - calls * CALL
        yield f'<path class="grid" d="M{LEFT - 8} {y}H{right + 8}"/>'
        yield f'<text class="faint right" x="{LEFT - 14}" y="{y + 5}">{calls}</text>'
    for second in range(SECONDS + 1):
        x = LEFT + second * 10 * COLUMN
        yield f'<text class="faint middle" x="{x}" y="{ground + 20}">{second} s</text>'
    yield f'<text class="faint" x="{LEFT}" y="{top + 52}">calls per 0.1 s</text>'
    columns = log.columns()
    bars = {"answered": "", "refused": ""}
    for place, (good, bad) in enumerate(columns):
        x, wide = LEFT + place * COLUMN + 1, COLUMN - 2
        for name, low, calls in (("answered", 0, good), ("refused", good, bad)):
            if calls:
                bars[name] += f"M{x} {ground - low * CALL}v-{calls * CALL}h{wide}v{calls * CALL}z"
    yield from (f'<path class="{name}" d="{shape}"/>' for name, shape in bars.items() if shape)
    for is_refused, group in groupby(range(len(columns)), lambda place: columns[place][1] > 0):
        if is_refused:
            first, *_, last = group
            x, y = LEFT + (first + last + 1) * COLUMN // 2, ground - max(columns[last]) * CALL - 5
            yield f'<text class="refused bold middle" x="{x}" y="{y}">429</text>'
    y = ground - demo.UNIT * CALL
    yield f'<path class="limit" d="M{LEFT - 8} {y}H{right + 8}"/>'


def draw(folder: Path) -> None:
    """Draw both runs into a folder."""
    parts = [f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>']
    for row, title in enumerate(demo.TITLES):
        parts += panel(title, simulate(shaped=bool(row)), 14 + 198 * row)
    y = HEIGHT - 18
    for x, name, told in ((LEFT, "answered", "answered"), (LEFT + 100, "refused", "refused with 429")):
        parts.append(f'<rect class="{name}" x="{x}" y="{y - 11}" width="12" height="12"/>')
        parts.append(f'<text class="ink" x="{x + 18}" y="{y}">{told}</text>')
    parts.append(f'<path class="limit" d="M{LEFT + 254} {y - 5}h30"/>')
    parts.append(f'<text class="ink" x="{LEFT + 292}" y="{y}">the limit: {demo.LIMIT} calls a second</text>')
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
    svg = "\n".join([opened, f"<style>{STYLE}</style>", *parts, "</svg>\n"])
    (folder / f"{NAME}.svg").write_text(svg, encoding="utf-8", newline="\n")
