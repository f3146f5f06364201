"""Type checkers see the package from a project of somebody else, as the README has it installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

USERS = """
import httpx
from shapekit import Policy
from shapekit.integrations.httpx import ShapedTransport

client = httpx.Client(transport=ShapedTransport(rate="10/s"))
policy: Policy = Policy("10/s")
wrong: int = policy
"""


@pytest.mark.parametrize(
    "command", [("mypy", "--strict"), ("pyright", "--pythonpath", sys.executable)], ids=["mypy", "pyright"]
)
def test_the_only_mistake_is_the_users(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "users.py").write_text(USERS, encoding="utf-8")
    checker = [sys.executable, "-m", *command, "users.py"]
    done = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    mistakes = [line for line in done.stdout.splitlines() if ": error" in line or "- error" in line]
    assert len(mistakes) == 1, done.stdout
    assert "users.py:8" in mistakes[0]
