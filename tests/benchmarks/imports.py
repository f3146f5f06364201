"""How long an import takes, in a fresh interpreter whose bytecode is cached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .rounds import Figures, in_turns
from .tables import Column, Effort, Goal, Group, Table

NAME = "imports"
METHOD = """
`import` of each library with its dependencies, in a fresh interpreter with cached bytecode, in processor
time.
"""
MOST_MS = 60
TAKEN = "import"
IMPORT = "import time; a = time.thread_time_ns(); import {module}; print(time.thread_time_ns() - a)"


def import_ms(module: str) -> float:
    """ms that a fresh interpreter takes."""
    # The first import writes the bytecode, also where the environment would forbid it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", IMPORT.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return int(done.stdout) / 1e6


def measure(effort: Effort) -> Group:
    """All libraries."""
    cached = set()

    def offered(module: Any) -> Iterator[tuple[str, Callable[[], Figures]]]:
        def run() -> Figures:
            if module.MODULE not in cached:
                cached.add(module.MODULE)
                import_ms(module.MODULE)
            return {TAKEN: import_ms(module.MODULE)}

        yield f"import {module.MODULE}", run

    lines = in_turns("MODULE", effort.rounds, offered)
    own = lines[0].median(TAKEN)
    table = Table(
        "Import", [Column(TAKEN, "ms", 1, compared=True)], lines, ("shapekit", "import shapekit"), TAKEN
    )
    return Group(NAME, "Import", METHOD, [table], [Goal("import shapekit, ms", own or 0.0, MOST_MS)])
