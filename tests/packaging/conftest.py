"""The source tree, as the packaging tests see it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package goes by the name of its folder."""
    found: dict[str, Path] = {}
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
