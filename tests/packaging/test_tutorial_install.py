"""The first lines of the tutorial install what it needs, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long


def test_the_first_lines_of_the_tutorial_install_it(root: Path, wheel: Path, tmp_path: Path) -> None:
    page = (root / "docs" / "tutorial" / "index.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert 'pip install "shapekit[' in lines
    # The wheel of this tree is installed, whatever has that name elsewhere.
    here = tmp_path / "constraints.txt"
    here.write_text(f"shapekit=={wheel.name.split('-')[1]}\n", encoding="utf-8")
    use = 'python -c "import celery, httpx, redis, shapekit; print(shapekit.__file__)" && shapekit --help'
    run = subprocess.run(
        ["bash", "-ec", f"{lines}{use}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PIP_CONSTRAINT": str(here),
            "PIP_FIND_LINKS": str(wheel.parent),
            "PIP_QUIET": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith(str(tmp_path / ".venv"))
    assert "shapekit" in run.stdout.splitlines()[1]
