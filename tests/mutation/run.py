"""Do the tests notice when the mathematics is wrong? `python -m tests.mutation.run` breaks it and looks.

Each mutant is a copy of the tree in which one operator, number, comparison or statement of one module is
another. It is killed if the tests that concern the module fail. All of them take a day: `--sample` draws that
many, the same ones for the same `--seed`, each with equal probability.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from difflib import unified_diff
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, Popen, TimeoutExpired

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB

ROOT = Path(__file__).parents[2]
TREE = ("shapekit", "integrations", "tests", "docs", "examples", "pyproject.toml", "README.md")
LUA = "tests/stores/test_redis_conformance.py"
PLACES = ("tests/stores/test_redis_places.py", "tests/stores/test_redis_crowded_queue.py")
SPREAD = "tests/stores/test_redis_spread.py"
RUNS = "tests/stores/test_redis_runs.py"
DEFAULTS = "tests/algorithms/test_defaults.py"


def files(folder):
    """The tests of a folder, without those of the folders in it."""
    return tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("test_*.py")))


LAWS = files("tests/algorithms")
POLICY = ("tests/policy",)
QUEUE = ("tests/algorithms/queue", "tests/shaper", *files("tests/queue"), *POLICY)
ADAPTIVE = tuple(
    f"tests/algorithms/queue/test_{name}.py" for name in ("adaptive_queue", "aimd", "late", "tempo")
)
CALENDAR = "tests/algorithms/quota"
FORECASTS = ("tests/algorithms/queue/test_outlook.py", "tests/shaper/test_forecast.py")
OUTAGES = ("tests/stores/test_resilient_many.py", "tests/stores/test_resilient_sides.py")
UNDER_A_QUEUE = tuple(
    f"tests/algorithms/queue/test_{name}.py"
    for name in ("constraints", "given_back", "held_windows", "lives", "many_windows", "mass_cancel")
)
STRATEGIES = (LUA, "tests/gate/test_gate.py", *LAWS, CALENDAR, *FORECASTS, RUNS, *UNDER_A_QUEUE)
OVERRIDES = (*files("tests/overrides"), "tests/cli/test_settings.py")
TESTS = {
    ("algorithms/queue/adaptive",): (DEFAULTS, *ADAPTIVE, "tests/queue/adaptive", LUA),
    ("algorithms/inflight",): (DEFAULTS, LUA, "tests/algorithms/test_inflight.py", "tests/queue/inflight"),
    ("algorithms/prospects",): FORECASTS,
    ("algorithms/overrides",): (*OVERRIDES, LUA, *QUEUE),
    ("algorithms/rows",): (
        *(f"tests/algorithms/queue/test_{name}.py" for name in ("gaps", "rows")),
        *STRATEGIES,
    ),
    ("algorithms/queue/slots",): (DEFAULTS, LUA, *PLACES, *QUEUE, "tests/queue/prefetch", *OVERRIDES),
    ("algorithms/queue/wire",): (DEFAULTS, LUA, *PLACES, *QUEUE, "tests/queue/prefetch", RUNS, *OUTAGES),
    ("algorithms/queue/",): (DEFAULTS, LUA, *PLACES, *QUEUE, "tests/queue/prefetch", RUNS, *OVERRIDES),
    ("algorithms/quota",): (
        CALENDAR,
        LUA,
        SPREAD,
        *LAWS,
        *FORECASTS,
        *POLICY,
        "tests/processes/test_spread.py",
    ),
    ("algorithms/periods",): (CALENDAR, LUA, *LAWS, *FORECASTS),
    ("algorithms/base",): (*STRATEGIES, "tests/stores/test_resilient_modes.py", *OUTAGES),
    ("algorithms/compose",): (*STRATEGIES, *POLICY),
    ("stores/encoding",): ("tests/stores/test_encoding.py", "tests/security", "tests/fuzz", *STRATEGIES),
    ("shaper",): (*QUEUE, "tests/events"),
    ("feedback/",): ("tests/feedback",),
    ("algorithms/",): STRATEGIES,
}
"""The tests that concern a module: those of the first row that matches its name; the quickest first."""
SLACK = 4
"""A mutant that takes so many times as long as the tests do, and half a minute, never ends."""
KILLED, SURVIVED, NEVER_ENDS = "killed", "survived", "never ends"
NONE_HERE = 5
"""The exit code of pytest where a path only has tests that are run separately."""


def modules():
    """The modules to break: the mathematics, its form at rest, the shaper, and the parsers of answers."""
    package = ROOT / "shapekit"
    algorithms = [path for path in (package / "algorithms").rglob("*.py") if path.name != "__init__.py"]
    found = [*sorted(algorithms), package / "shaper.py", package / "stores" / "encoding.py"]
    found += sorted((package / "feedback").glob("*.py"))
    return [path.relative_to(ROOT) for path in found]


def tests_of(module):
    name = module.relative_to("shapekit").as_posix()
    return next(tests for prefixes, tests in TESTS.items() if name.startswith(prefixes))


def mutants(module):
    """All mutants of a module, but for those of annotations, which are never evaluated."""
    with tempfile.TemporaryDirectory() as folder:
        database = WorkDB(str(Path(folder) / "mutants.sqlite"), WorkDB.Mode.create)
        init([ROOT / module], database, {})
        found = [item.mutations[0] for item in database.work_items]
    unseen = list(annotated((ROOT / module).read_text("utf-8")))
    return [mutant for mutant in found if not any(a <= mutant.start_pos < b for a, b in unseen)]


def annotated(source):
    """The ranges of annotations."""
    for node in ast.walk(ast.parse(source)):
        for field in ("annotation", "returns"):
            note = getattr(node, field, None)
            if note is not None:
                yield (note.lineno, note.col_offset), (note.end_lineno, note.end_col_offset)


class Bench:
    """A copy of the tree, in which one mutant after the other is tried."""

    def __init__(self, folder):
        self.folder = Path(folder)
        for name in TREE:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.folder / name)

    def outcome(self, mutant, patience_s):
        """The outcome of a mutant, and how it differs."""
        path = self.folder / mutant.module_path.relative_to(ROOT)
        whole = path.read_text("utf-8")
        operator = get_operator(mutant.operator_name)(**mutant.operator_args)
        broken = mutate_code(whole, operator, mutant.occurrence)
        path.write_text(broken, "utf-8")
        try:
            tests = tests_of(mutant.module_path.relative_to(ROOT))
            return self.judged(tests, patience_s), difference(whole, broken)
        finally:
            path.write_text(whole, "utf-8")

    def judged(self, tests, patience_s=None, output=DEVNULL):
        """The outcome of these tests on the copy as it is now."""
        options = ("-x", "-q", "-p", "no:cacheprovider", "--tb=short", "--no-header")
        command = [sys.executable, "-m", "pytest", *options, *tests]
        # A file that changes twice in a second must not be taken for its bytecode.
        env = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with Popen(
            command, cwd=self.folder, env=env, stdout=output, stderr=DEVNULL, start_new_session=True
        ) as running:
            try:
                code = running.wait(patience_s)
            except TimeoutExpired:
                return NEVER_ENDS
            finally:
                # Its servers go with it.
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
        return SURVIVED if code in (0, NONE_HERE) else KILLED


def difference(before, after):
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-@" and not line.startswith(("+++", "---"))]


def tried(chosen, jobs, report):
    """The outcome of each, several at a time; reports each as soon as it is known."""
    with ExitStack() as stack:
        benches = SimpleQueue()
        for _ in range(jobs):
            benches.put(Bench(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants"))))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))

        def on_a_bench(work, *args):
            bench = benches.get()
            try:
                return work(bench, *args)
            finally:
                benches.put(bench)

        def whole(bench, path):
            start = time.monotonic()
            with tempfile.TemporaryFile("w+") as output:
                if bench.judged((path,), output=output) != SURVIVED:
                    output.seek(0)
                    sys.exit(f"{output.read()}\n{path} fails before anything is broken")
            return time.monotonic() - start

        # Each by itself: most modules share most of their tests.
        broken_ones = {mutant.module_path.relative_to(ROOT) for mutant in chosen}
        concerned = sorted({path for module in broken_ones for path in tests_of(module)})
        took = dict(zip(concerned, pool.map(partial(on_a_bench, whole), concerned), strict=True))

        def broken(bench, mutant):
            module = mutant.module_path.relative_to(ROOT)
            outcome, how = bench.outcome(mutant, SLACK * sum(map(took.get, tests_of(module))) + 30)
            report(module, mutant, outcome, how)
            return {"module": str(module), "at": mutant.start_pos, "outcome": outcome, "how": how}

        return list(pool.map(partial(on_a_bench, broken), chosen))


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=__doc__)
    parser.add_argument("--sample", type=int, help="how many to draw; all of them if left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the modules' paths")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="where to write what became of each")
    options = parser.parse_args()
    every = [mutant for module in modules() if options.only in str(module) for mutant in mutants(module)]
    chosen = every
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    print(f"{len(chosen)} of {len(every)} mutants", flush=True)

    outcomes = Counter()

    def report(module, mutant, outcome, how):
        outcomes[outcome] += 1
        if outcome == SURVIVED:
            print(f"survived, {module}:{mutant.start_pos[0]}", *how, sep="\n  ", flush=True)
        tried_so_far = outcomes.total()
        if tried_so_far % 10 == 0:
            print(
                f"{tried_so_far} of {len(chosen)}, {outcomes[SURVIVED]} survived", file=sys.stderr, flush=True
            )

    results = tried(chosen, options.jobs, report)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    for module in sorted({result["module"] for result in results}):
        counts = Counter(result["outcome"] for result in results if result["module"] == module)
        print(f"{module}: {dict(counts)}")
    survivors = sum(result["outcome"] == SURVIVED for result in results)
    print(f"{len(results) - survivors} of {len(results)} killed: {1 - survivors / len(results):.1%}")


if __name__ == "__main__":
    main()
