"""The page of what was measured: `python -m tests.faults.campaign.page` writes it anew."""

import json
from pathlib import Path

from .caller import PAUSE_S, WAITERS
from .play import MODES, Cell, Figure
from .verdict import BURST, LIMITS, RATE, SHARE, TIMEOUT_S, WORKERS

MEASURED = Path(__file__).with_name("measured.json")
PAGE = Path(__file__).parents[3] / "docs/internals/faults.md"

BEGIN = """# Faults

[Outages](../explanation/outages.md) derives how far each mode of `ResilientStore` may miss the limit. This
page shows how far it did when Redis, the network or a worker failed. Measure it again with

```sh
python -m tests.faults.campaign --json tests/faults/campaign/measured.json
python -m tests.faults.campaign.page
```

{workers} processes, two with threads and two with event loops, share a gate of {rate}/s with a burst of
{burst} and a shaper of {rate}/s with {waiters} waiters in all, on one Redis. They try up to {offered} calls a
second. Each has a `ResilientStore` with `timeout={timeout:g}`, and with `local` a share of 1/{workers}. A
fault lasts {fault:g} s. The calls go to a server that logs when each arrives, and
[`check_pace`](../reference/testing.md) judges that log alone.

Each cell of the first four columns has the calls counted / the calls allowed:

- **Too many**: the excess of the worst stretch over rate and burst (∞: no bound).
- **Too few**: the calls missing from the rate over the whole run. Allowed is the rate while all workers were
  without the store, and one for each failed question, which may have been charged.

The others are maxima:

- **Away**: seconds that a worker was without the store. The allowed calls follow from what each worker saw.
- **Late**: milliseconds from admission to arrival in the worst stretch. As many calls as the rate has in
  that time come on top of what is allowed.
- **Answer**: milliseconds until a caller had its answer.

"""
AFTER = {
    "raise": "A call raises `StoreUnavailableError`.",
    "closed": "Each call is refused until the store is back.",
    "open": "Each call is admitted.",
    "local": "Each worker limits itself to its share.",
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
    for cell in cells:
        figures = [cell.figures[kind] for kind in kinds]
        lines.append(
            [
                cell.fault,
                *[
                    f"{figure.over}/{'∞' if figure.over_bound is None else figure.over_bound}"
                    for figure in figures
                ],
                *[f"{figure.under}/{figure.under_bound}" for figure in figures],
                f"{cell.outage:.1f}",
                f"{max(figure.late for figure in figures) * 1e3:.0f}",
                f"{cell.answer * 1e3:.0f}",
            ]
        )
    head, *rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---|" + "--:|" * (len(heads) + 3), *rows]) + "\n\n"


def main():
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
