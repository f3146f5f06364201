"""The wheel, made from the sdist, holds the tree, whole, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from .conftest import PLUGIN, PROBE


def shipped(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def wanted(tree: Path) -> set[str]:
    files = {f"{PLUGIN}.py"}
    for folder, installed_as in (("shapekit", "shapekit"), ("integrations", "shapekit/integrations")):
        for path in (tree / folder).rglob("*"):
            inside = path.relative_to(tree / folder).as_posix()
            if (
                path.is_file()
                and "__pycache__" not in inside
                and f"{folder}/{inside}".split("/")[1] != "integrations"
            ):
                files.add(f"{installed_as}/{inside}")
    return files


def test_the_wheel_has_the_files_of_the_tree(tree: Path, wheel: Path) -> None:
    assert shipped(wheel) == wanted(tree)


def test_the_wheel_has_the_files_that_are_easily_forgotten(wheel: Path) -> None:
    forgettable = {"shapekit/py.typed", f"shapekit/{PROBE}", "shapekit/integrations/__init__.py"}
    assert forgettable <= shipped(wheel)


def test_the_wheel_registers_its_pytest_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [entries] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert f"[pytest11]\nshapekit = {PLUGIN}\n" in archive.read(entries).decode()


def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_integrations_are_a_real_package_once_installed(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    show = "import shapekit, shapekit.integrations as i; print(shapekit.__file__, i.__file__, sep='\\n')"
    run = subprocess.run(
        [sys.executable, "-c", show],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    package = tmp_path / "shapekit"
    assert run.stdout.split() == [str(package / "__init__.py"), str(package / "integrations" / "__init__.py")]
    assert not (package / "integrations").is_symlink()


def test_in_the_checkout_integrations_are_a_link(root: Path) -> None:
    link = root / "shapekit" / "integrations"
    assert link.is_symlink()
    assert os.readlink(link) == "../integrations"
