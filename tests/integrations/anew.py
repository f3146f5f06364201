"""Imports integrations again as if their package were not installed."""

import builtins
import importlib.util
from pathlib import Path

import shapekit


def import_without(package, integration, monkeypatch):
    """Import an integration as it is where a package is missing."""
    imported = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    path = Path(shapekit.__file__).parents[1] / "integrations" / f"{integration}.py"
    spec = importlib.util.spec_from_file_location(f"without_{package}", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
