"""`import shapekit` loads what it needs and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires

from .conftest import PLUGIN

NEEDED = {"shapekit", "anyio", "typing_extensions", "sniffio"}
"""shapekit, its one dependency, and what that imports, some of it only where it is installed."""

LOADED = """
import json, sys
before = set(sys.modules)
import {module}
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(names)))
"""


def loaded(module: str) -> set[str]:
    """The top-level modules that a fresh interpreter loads for `module`."""
    run = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module)], capture_output=True, text=True, check=True
    )
    return set(json.loads(run.stdout))


def third_parties(module: str) -> set[str]:
    """The modules of it that do not come with Python. (Its table of the build has the platform's name.)"""
    names = loaded(module) - sys.stdlib_module_names
    return {name for name in names if not name.startswith("_sysconfigdata")}


def test_importing_loads_none_of_the_extras() -> None:
    found = third_parties("shapekit")
    assert "shapekit" in found
    assert found <= NEEDED


def test_a_loaded_extra_would_be_found() -> None:
    assert "trio" in third_parties("shapekit, trio") - NEEDED


def test_importing_loads_no_module_that_only_shared_stores_and_permits_need() -> None:
    assert not loaded("shapekit") & {"contextvars", "hashlib", "sqlite3"}


def test_the_pytest_plugin_loads_no_module_of_the_package() -> None:
    # Everything else is loaded in a project that runs pytest.
    assert loaded(f"pytest, {PLUGIN}") - loaded("pytest") == {PLUGIN}


def test_importing_loads_no_event_loop() -> None:
    # Importing it would take longer than all the rest; a program that runs on it has loaded it already.
    assert "asyncio" not in loaded("shapekit")


def test_the_core_depends_on_anyio_alone() -> None:
    core = [line for line in requires("shapekit") or [] if "extra ==" not in line]
    assert [line.partition(">")[0] for line in core] == ["anyio"]
