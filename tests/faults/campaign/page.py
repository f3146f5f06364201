"""The page of what was measured: `python -m tests.faults.campaign.page` writes it anew."""

import json
from pathlib import Path

from .caller import PAUSE_S, WAITERS
from .play import MODES, Cell, Figure
from .verdict import BURST, LIMITS, RATE, SHARE, TIMEOUT_S, WORKERS

MEASURED = Path(__file__).with_name("measured.json")
PAGE = Path(__file__).parents[3] / "docs/internals/faults.md"

BEGIN = """# Faults, measured

[Outages](../explanation/outages.md) says how much each mode of `ResilientStore` admits too many or too few. This page is
what came of trying it. A program writes it from what another has measured; do it again with

```sh
python -m tests.faults.campaign --json tests/faults/campaign/measured.json
python -m tests.faults.campaign.page
```

{workers} processes, two in threads and two on event loops, share a gate of {rate}/s with a burst of
{burst} and a shaper of {rate}/s with {waiters} waiters in all, on one Redis, and call as often as these
admit: up to {offered} times a second if nothing holds them. Each has a `ResilientStore` with
`timeout={timeout:g}`, and with `local` a share of 1/{workers}. Then something happens to Redis, to the wire
or to one of them, for {fault:g} s. Every call goes to a server that writes down when it came; that history
alone is judged, by [`check_pace`](../reference/testing.md).

- **Too many**: by how many calls the worst stretch of the history exceeds rate and burst, and how many are
  allowed. With `open` nothing bounds it.
- **Too few**: how many calls are missing from the rate over the whole time, and how many are allowed: the
  rate, as long as all were without the store, and one for each question that failed, which may have been
  charged.
- **Away**: for how long a worker was without the store at most, in seconds. What is allowed is computed with
  what each of them saw.
- **Late**: by how many milliseconds the latest call of the worst stretch came after it was admitted. Those
  that come late crowd: as many as the rate has in that time come on top of what is allowed.
- **Answer**: the longest that anybody waited for one, in milliseconds.

"""
AFTER = {
    "raise": "The caller is told, and decides.",
    "closed": "Everything is refused until the store is back.",
    "open": "Everything is admitted, which is what arrives.",
    "local": "Each worker goes on at its share.",
}


def measured_cells():
    """The cells of the campaign as it was last recorded."""
    return [_cell(told) for told in json.loads(MEASURED.read_text())["cells"]]


def page():
    """The text, from the last record."""
    cells = measured_cells()
    text = BEGIN.format(
        workers=WORKERS,
        rate=RATE,
        burst=BURST,
        waiters=sum(limit.waiters for limit in LIMITS) * WORKERS,
        offered=f"{WORKERS * (1 + WAITERS) / PAUSE_S:,.0f}",
        timeout=TIMEOUT_S,
        fault=json.loads(MEASURED.read_text())["fault_s"],
    )
    assert SHARE * WORKERS == 1
    for mode in MODES:
        text += f"## {mode}\n\n{AFTER[mode]}\n\n"
        text += _table([cell for cell in cells if cell.mode == mode])
    return text.rstrip() + "\n"


def _cell(told):
    return Cell(**{**told, "figures": {limit: Figure(**figure) for limit, figure in told["figures"].items()}})


def _table(cells):
    kinds = [limit.kind for limit in LIMITS]
    heads = [f"{kind}: too {what}" for what in ("many", "few") for kind in kinds]
    lines = [["fault", *heads, "away", "late", "answer"]]
    lines.append(["---", *["--:"] * (len(heads) + 3)])
    for cell in cells:
        figures = [cell.figures[kind] for kind in kinds]
        lines.append(
            [
                cell.fault,
                *[
                    f"{figure.over} of {'any' if figure.over_bound is None else figure.over_bound}"
                    for figure in figures
                ],
                *[f"{figure.under} of {figure.under_bound}" for figure in figures],
                f"{cell.outage:.1f}",
                f"{max(figure.late for figure in figures) * 1e3:.0f}",
                f"{cell.answer * 1e3:.0f}",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


def main():
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
