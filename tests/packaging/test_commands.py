"""The README's two commands come first, and CI runs the second one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest


def shell_lines(markdown: str) -> list[str]:
    """The lines of all shell blocks, in order."""
    blocks = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_the_first_two_shell_lines_do_everything_from_a_clone(root: Path) -> None:
    first, second = shell_lines((root / "README.md").read_text(encoding="utf-8"))[:2]
    for line in (first, second):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install ")
        assert "\\" not in line
    assert first.endswith('pip install -q -e ".[cli]" && .venv/bin/shapekit demo')
    assert "&& .venv/bin/pytest" in second


@pytest.mark.long
def test_the_first_command_shows_the_demo(root: Path, tree: Path, tmp_path: Path) -> None:
    first, _ = shell_lines((root / "README.md").read_text(encoding="utf-8"))[:2]
    clone = shutil.copytree(tree, tmp_path / "clone", symlinks=True)
    quiet = {**os.environ, "PIP_QUIET": "2"}
    run = subprocess.run(
        ["bash", "-c", first], cwd=clone, env=quiet, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "calls wasted on a 429" in run.stdout


def test_code_comes_before_the_commands(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    language, code = blocks[0]
    assert language == "python"
    assert len([line for line in code.splitlines() if line.strip()]) <= 5


def test_ci_takes_its_test_command_from_the_readme(root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    [taken] = re.findall(r"^test_command=.*$", script, re.MULTILINE)
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'{taken}\nprintf %s "$test_command"'],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    )
    assert run.stdout == shell_lines((root / "README.md").read_text(encoding="utf-8"))[1]
    assert script.rstrip().splitlines()[-1] == 'eval "$test_command"'


def test_ci_checks_format_and_lint_and_types_first(root: Path) -> None:
    script = (root / ".ci" / "run").read_text(encoding="utf-8")
    steps = [
        "ruff format --check",
        "ruff check",
        "mypy",
        "pyright",
        "gate.py",
        "-m long",
        'eval "$test_command"',
    ]
    at = [script.index(step) for step in steps]
    assert at == sorted(at)
    assert "set -euo pipefail" in script
