"""Type checkers see the package from another project, in which it is installed as the README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

USERS = """
import httpx
from shapekit import Policy, shaped
from shapekit.integrations.httpx import ShapedTransport

client = httpx.Client(transport=ShapedTransport(rate="10/s"))
policy: Policy = Policy("10/s")
wrong: int = policy
Policy("10/s", brust=5)
Policy("10/s", burst="5")
shaped("10/s", lease="1s")
ShapedTransport(rate="10/s", pace=5)
"""
WRONG = range(8, 13)
"""The lines of mistakes."""


@pytest.mark.parametrize(
    "command", [("mypy", "--strict"), ("pyright", "--pythonpath", sys.executable)], ids=["mypy", "pyright"]
)
def test_the_type_checkers_find_only_the_users_mistakes(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "users.py").write_text(USERS, encoding="utf-8")
    checker = [sys.executable, "-m", *command, "users.py"]
    done = subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    mistakes = [line for line in done.stdout.splitlines() if ": error" in line or "- error" in line]
    assert [int(mistake.split(":")[1]) for mistake in mistakes] == [*WRONG], done.stdout
