"""The source tree, as the packaging tests see it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "_shapekit_pytest"
"""pytest's plugin, beside the package."""
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", f"{PLUGIN}.py", "shapekit", "integrations")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")
PROBE = "algorithms/probe.lua"
"""An invented twin, which shows the test that twins are shipped."""


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, Path]:
    """Every module that is shipped, by its dotted name; a package goes by the name of its folder."""
    found = {PLUGIN: ROOT / f"{PLUGIN}.py"}
    for folder, package in (
        (ROOT / "shapekit", "shapekit"),
        (ROOT / "integrations", "shapekit.integrations"),
    ):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder)
            if folder.name == "shapekit" and inside.parts[0] == "integrations":
                continue  # the link: its files are found where they are
            parts = [*package.split("."), *inside.with_suffix("").parts]
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


@pytest.fixture(scope="session")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build from: building leaves traces, and traces of an earlier build would be shipped."""
    copy = tmp_path_factory.mktemp("tree")
    for name in BUILT_FROM:
        if (root / name).is_dir():
            shutil.copytree(root / name, copy / name, symlinks=True, ignore=LEFT_OUT)
        else:
            shutil.copy(root / name, copy / name)
    (copy / "shapekit" / PROBE).write_text("-- a twin\n")
    return copy


@pytest.fixture(scope="session")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # As `python -m build` does it: an sdist of the tree, and a wheel of nothing but the sdist.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert len(list(out.glob("*.tar.gz"))) == 1
    [path] = out.glob("*.whl")
    return path
