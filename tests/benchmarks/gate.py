"""The hot paths execute no more than before: `python tests/benchmarks/gate.py`, `--update` if they may.

The gate counts what the hot paths execute, so that a busy machine gives the same figures as an idle one:
bytecodes of shapekit, calls that leave its code, round trips, bytes and commands to Redis, bytes kept for a
key. The hottest paths are timed as well, as a ratio to the least that a limiter can do. Each figure may
exceed its bound in bounds.json by its room. Versions of Python have bytecodes of their own, and so bounds of
their own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Not this folder: its modules are named after what they measure.
sys.path[0] = str(ROOT)

from tests.benchmarks.bounds import BOUNDS, compared  # noqa: E402
from tests.benchmarks.paths import measured  # noqa: E402


def main() -> int:
    """Measure, and compare or write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write what is measured as the new bounds")
    arguments = parser.parse_args()
    version = "{}.{}".format(*sys.version_info)
    bounds = json.loads(BOUNDS.read_text(encoding="utf-8")) if BOUNDS.exists() else {}
    found = measured()
    if arguments.update:
        bounds[version] = found
        text = json.dumps(dict(sorted(bounds.items())), indent=1)
        BOUNDS.write_text(text + "\n", encoding="utf-8")
        print(f"gate: {len(found)} paths written for Python {version}")
        return 0
    if version not in bounds:
        print(f"gate: no bounds for Python {version}; write some with --update")
        return 1
    complaints = compared(found, bounds[version])
    for complaint in complaints:
        print(f"gate: {complaint}")
    if complaints:
        print("gate: make it cheaper, or, if it has to cost that: python tests/benchmarks/gate.py --update")
        return 1
    print(f"gate: {len(found)} paths execute no more than they may on Python {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
