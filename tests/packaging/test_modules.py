"""Rules for every module: it has a docstring, and names what is public."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import shapekit

NOT_STARRED = {"RedisStore"}
"""Public, but `import *` must not fail where redis is not installed."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def exported(module: ast.Module) -> list[str] | None:
    """The value of `__all__`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            assert isinstance(names, list)
            return names
    return None


def bound(module: ast.Module) -> set[str]:
    """The names that the top level of a module binds."""
    names: set[str] = set()
    for node in ast.walk(ast.Module([n for n in module.body if not _opens_scope(n)], [])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names | {node.name for node in module.body if _opens_scope(node)}


def _opens_scope(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def in_order(names: list[str]) -> list[str]:
    """CONSTANTS, then Classes, then functions, each by the alphabet: the linter's order."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@pytest.fixture(scope="module")
def public(modules: dict[str, Path]) -> dict[str, list[str]]:
    """`__all__` of every module that has one."""
    found = {name: exported(parsed(path)) for name, path in modules.items()}
    return {name: names for name, names in found.items() if names is not None}


def test_every_module_has_a_docstring(root: Path, modules: dict[str, Path]) -> None:
    paths = [*modules.values(), *(root / "examples").rglob("*.py")]
    assert [str(path) for path in paths if not ast.get_docstring(parsed(path))] == []


def test_all_matches_the_public_names(modules: dict[str, Path], public: dict[str, list[str]]) -> None:
    assert len(public) > 10
    for name, names in public.items():
        assert set(names) <= bound(parsed(modules[name])), name
        assert len(set(names)) == len(names), name
        assert names == in_order(names), name
        assert not [private for private in names if private.startswith("_")], name


def test_the_package_exports_the_imports_of_its_top_module(modules: dict[str, Path]) -> None:
    top = parsed(modules["shapekit"])
    own = {name for name in bound(top) if not name.startswith("_")} - {"TYPE_CHECKING", "Any"}
    assert set(shapekit.__all__) == own - NOT_STARRED
    assert not [name for name in shapekit.__all__ if not hasattr(shapekit, name)]


def test_every_exported_name_is_public_and_documented_in_its_own_module(modules: dict[str, Path]) -> None:
    hidden, undocumented = [], []
    for node in ast.walk(parsed(modules["shapekit"])):
        if not isinstance(node, ast.ImportFrom) or node.module in ("typing", "importlib"):
            continue
        home = import_module(node.module or "")
        names = [alias.name for alias in node.names]
        hidden += [f"{node.module}.{name}" for name in names if name not in getattr(home, "__all__", ())]
        undocumented += [f"{node.module}.{name}" for name in names if not getattr(home, name).__doc__]
    assert undocumented == []
    assert hidden == []


def test_dir_shows_public_names_whether_loaded_or_not():
    assert {*shapekit.__all__, *NOT_STARRED} <= set(dir(shapekit))
    for name in dir(shapekit):
        assert getattr(shapekit, name) is not None or name.startswith("__")
