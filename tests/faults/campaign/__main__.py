"""The whole campaign, each fault in each mode: `python -m tests.faults.campaign [--json FILE] [FAULT …]`."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from .play import FAULT_S, MODES, play
from .scenes import TROUBLES


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("faults", nargs="*", help="parts of the names of those to try; all, if none")
    parser.add_argument("--mode", action="append", choices=MODES, help="the modes to try; all, if none is")
    parser.add_argument("--seconds", type=float, default=FAULT_S, help="how long a fault lasts")
    parser.add_argument("--json", metavar="FILE", help="a record; cells that are not tried stay")
    options = parser.parse_args()
    # A campaign that is terminated ends its servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    names = [name for name in TROUBLES if not options.faults or any(part in name for part in options.faults)]
    cells = [(name, mode) for name in names for mode in options.mode or MODES]
    record = Record(options.json, options.seconds)
    breaches = 0
    start = time.monotonic()
    for number, (name, mode) in enumerate(cells, 1):
        cell = play(name, mode, options.seconds)
        record.add(cell)
        print(f"[{number}/{len(cells)}, {time.monotonic() - start:.0f} s] {cell}", flush=True)
        for breach in cell.breaches():
            breaches += 1
            print(f"    BREACH {breach}", flush=True)
    return 1 if breaches else 0


class Record:
    """What is kept of the campaign, in a file if there is a name for one."""

    def __init__(self, name, fault_s):
        self._file = None if name is None else Path(name)
        self._fault_s = fault_s
        self._cells = {}
        if self._file is not None and self._file.exists():
            recorded = json.loads(self._file.read_text())
            if recorded["fault_s"] == fault_s:
                self._cells = {(cell["fault"], cell["mode"]): cell for cell in recorded["cells"]}

    def add(self, cell):
        """Write it down, instead of what was there of the same fault and mode."""
        figures = {limit: figure._asdict() for limit, figure in cell.figures.items()}
        self._cells[cell.fault, cell.mode] = {**cell._asdict(), "figures": figures}
        if self._file is not None:
            order = [(fault, mode) for fault in TROUBLES for mode in MODES]
            cells = [self._cells[place] for place in order if place in self._cells]
            self._file.write_text(json.dumps({"fault_s": self._fault_s, "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
