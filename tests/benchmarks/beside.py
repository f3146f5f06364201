"""The cost of the same calls at another commit: `python tests/benchmarks/beside.py FOLDER --only redis`.

FOLDER holds the other commit: `git worktree add --detach FOLDER COMMIT`. Both run in turns, each round in a
process of its own. A row begins with the ratio of the best rounds, which a busy machine disturbs least, and
the median of the ratios of all rounds. Seconds are better if less, calls "a second" if more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from operator import truediv
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path[0] = str(ROOT)

from tests.benchmarks import progress  # noqa: E402
from tests.benchmarks.groups import GROUPS  # noqa: E402

ROUND = """
import json, sys
from importlib import import_module
sys.path[0] = "."
from tests.benchmarks.tables import Effort, to_json
group = import_module(f"tests.benchmarks.{sys.argv[1]}").measure(Effort(1, float(sys.argv[2])))
print(json.dumps(to_json([group])))
"""


def figures(folder: Path, group: str, share: float) -> dict[tuple[str, ...], float]:
    """One round of a group, by the code of that folder: each figure by its table, line and column."""
    run = subprocess.run(
        [sys.executable, "-c", ROUND, GROUPS[group], str(share)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        check=True,
    )
    [read] = json.loads(run.stdout)  # plainly: the other commit may have had fewer fields
    return {
        (str(place), f"{line['library']} {line['name']}", column): median(rounds)
        for place, table in enumerate(read["tables"], 1)
        for line in table["lines"]
        for column, rounds in line["rounds"].items()
    }


def main() -> None:
    """Measure in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the other commit")
    parser.add_argument("--only", action="append", choices=GROUPS, required=True, help="a group")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=0.4, help="of the length of a round")
    arguments = parser.parse_args()
    for group in arguments.only:
        rounds = []
        for number in range(arguments.rounds):
            progress.say(f"{group}, round {number + 1} of {arguments.rounds}")
            trees = [arguments.folder.resolve(), ROOT][:: 1 if number % 2 else -1]
            found = {tree: figures(tree, group, arguments.share) for tree in trees}
            rounds.append((found[ROOT], found[arguments.folder.resolve()]))
        progress.end()
        for name in sorted(set.intersection(*(own.keys() & its.keys() for own, its in rounds))):
            own, its = zip(*((own[name], its[name]) for own, its in rounds), strict=True)
            best = max if name[-1].endswith("a second") else min
            middle = median(map(truediv, own, its))
            print(f"{best(own) / best(its):6.3f}  {middle:6.3f}  {' · '.join(name)}")


if __name__ == "__main__":
    main()
