"""The cost of shapekit, beside other libraries: `python tests/benchmarks/run.py`.

One run on one machine: every group in a process of its own, every figure the median of interleaved rounds.
Ratios stand first: they are the same on every machine. A missed goal is printed like one that is met, and a
row that loses like one that wins. It needs `pip install -e ".[bench,all,dev]"`, an hour, and the machine for
itself.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Not this folder: its modules are named after what they measure.
sys.path[0] = str(ROOT)

from tests.benchmarks import progress, report  # noqa: E402
from tests.benchmarks.groups import GROUPS  # noqa: E402
from tests.benchmarks.tables import QUICK, Effort, Group, from_json, to_json  # noqa: E402

PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures" / "benchmarks"
FIGURES = PICTURES / "figures.json"


def measured(name: str, topic: str, effort: Effort) -> Group:
    """A group, in a fresh process."""
    progress.begin(topic)
    module = import_module(f"tests.benchmarks.{GROUPS[name]}")
    group: Group = module.measure(effort)
    return group


def run(names: list[str], effort: Effort) -> list[Group]:
    """The groups one after the other. A group that fails is reported as failed."""
    groups = []
    for number, name in enumerate(names):
        topic = f"{name}, {number + 1} of {len(names)}"
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            try:
                groups.append(alone.submit(measured, name, topic, effort).result())
            except Exception as error:
                groups.append(Group(name, name, "", failed=f"{type(error).__name__}: {error}"))
    progress.end()
    return groups


def results_of(names: list[str], effort: Effort) -> dict[str, object]:
    """All results of a run, in their JSON form."""
    from tests.benchmarks.machine import machine  # noqa: PLC0415 - it asks for a Redis

    date = time.strftime("%Y-%m-%d", time.gmtime())
    groups = to_json(run(names, effort))
    return {
        "date": date,
        "quick": effort == QUICK,
        "rounds": effort.rounds,
        "machine": machine(),
        "groups": groups,
    }


def printed(figures: dict[str, object]) -> str:
    """The tables, and what they were measured on."""
    parts = []
    for group in from_json(figures["groups"]):
        parts += [f"## {group.title}", report.group(group)]
    kind = "a trial, too short to be quoted" if figures["quick"] else f"at least {figures['rounds']} rounds"
    return "\n\n".join([*parts, f"{figures['date']} · {kind} · {report.facts(figures['machine'])}"])


def main() -> None:
    """Measure and print, and write the files that the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=GROUPS, help="a group; may be said again")
    parser.add_argument("--quick", action="store_true", help="to try it: two short rounds")
    parser.add_argument("--rounds", type=int, default=Effort().rounds, help="at least 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write pictures; needs shapekit[plot]")
    parser.add_argument(
        "--page", action="store_true", help="write the page of the docs, its figures and pictures"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="figures written before: no run"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 5:
        parser.error("fewer than 5 rounds say nothing; to try it, there is --quick")
    if arguments.page and arguments.only:
        parser.error("the page is of one run of all groups; leave --only out")
    if arguments.source:
        figures = json.loads(arguments.source.read_text(encoding="utf-8"))
    else:
        figures = results_of(
            arguments.only or list(GROUPS), QUICK if arguments.quick else Effort(arguments.rounds)
        )
        # Through JSON, so that the printed and drawn figures are those of the file.
        figures = json.loads(written(rounded(figures)))
        print(printed(figures))
    if arguments.page:
        arguments.json, arguments.plot = FIGURES, PICTURES
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(written(figures), encoding="utf-8")
    if arguments.plot:
        from tests.benchmarks.pictures import draw  # noqa: PLC0415 - an extra

        draw(figures, arguments.plot)
    if arguments.page:
        from tests.benchmarks.page import page  # noqa: PLC0415 - beside its use

        PAGE.write_text(page(figures), encoding="utf-8")


def written(figures: object) -> str:
    """As JSON, the rounds of a figure on one line."""
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    return re.sub(r"\[([^][{}\"]*)\]", lambda rounds: f"[{' '.join(rounds[1].split())}]", text) + "\n"


def rounded(content: object) -> object:
    """The same, with the significant digits."""
    if isinstance(content, float):
        return float(f"{content:.4g}") if abs(content) < 1e4 else float(round(content))
    if isinstance(content, dict):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return content


if __name__ == "__main__":
    main()
