"""Nothing in the code runs data: no eval, no pickle, no shell; and no SQL or Lua is made of data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = sorted(path for folder in ("shapekit", "integrations") for path in (ROOT / folder).rglob("*.py"))
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
"""Functions that run their argument. A client's `eval` is different: it sends a script to Redis."""
METHODS = {"Unpickler", "system", "popen", "unsafe_load", "full_load", "load_module", "run_path"}
"""Names that run their argument, whatever they are called on."""
MODULES = {
    *("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml", "jsonpickle", "code"),
    *("subprocess", "pty", "os.system", "ctypes", "xmlrpc", "imp", "tempfile.mktemp"),
}
ALLOWED = {
    ("shapekit/cli/demo.py", "subprocess"): "the demo starts its own workers, by a list of words",
}
"""What is allowed, where, and why."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in CODE:
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def suspicious(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines, and what they use that could run data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if top(name.name) in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and top(node.module) in MODULES:
            yield node.lineno, node.module
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in BUILTINS | METHODS:
                yield node.lineno, called.id
            elif isinstance(called, ast.Attribute):
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                if called.attr in METHODS or (owner == "builtins" and called.attr in BUILTINS):
                    yield node.lineno, f"{owner}.{called.attr}"
            for keyword in node.keywords:
                if keyword.arg == "shell":
                    yield node.lineno, "shell="


def top(module: str) -> str:
    return module.partition(".")[0]


def test_all_code_is_searched() -> None:
    assert len(CODE) > 100
    assert {"shapekit/rate.py", "integrations/celery/worker.py"} <= {
        str(path.relative_to(ROOT)) for path in CODE
    }


def test_nothing_runs_data() -> None:
    found = {(path, what) for path, tree in trees() for _, what in suspicious(tree)}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "eval(text)",
        "builtins.exec(text)",
        "import pickle",
        "from pickle import loads",
        "from yaml import load",
        "os.system('ls')",
        "subprocess.run(words, shell=True)",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "def f():\n    import marshal",
    ],
)
def test_code_that_runs_data_would_be_found(source: str) -> None:
    assert list(suspicious(ast.parse(source)))


def test_sql_is_put_together_of_constants_alone() -> None:
    """Statements are texts, or put together of names in capitals: values come as parameters."""
    statement = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA)\b .*")
    seen = 0
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.JoinedStr):
                continue
            text = "".join(part.value for part in node.values if isinstance(part, ast.Constant))
            inserted = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            names = [value.id for value in inserted if isinstance(value, ast.Name)]
            is_sql = statement.match(text) or any(name.strip("_") in ("LIVE", "FIND") for name in names)
            if is_sql:
                seen += 1
                assert all(isinstance(value, ast.Name) and value.id.isupper() for value in inserted), (
                    f"{path}:{node.lineno}"
                )
    assert seen >= 3


def test_lua_loads_no_code() -> None:
    """No script runs text, or calls a command whose name is data."""
    scripts = [*(ROOT / "shapekit").rglob("*.lua")]
    texts = [path.read_text(encoding="utf-8") for path in scripts]
    with_scripts = ("shapekit/stores/redis/protocol.py", "integrations/celery/parking.py")
    texts += [(ROOT / path).read_text(encoding="utf-8") for path in with_scripts]
    assert len(texts) > 20
    for text in texts:
        assert not re.search(r"\b(loadstring|load|dofile|require|setfenv|getfenv|rawset)\s*\(", text)
        assert not re.search(r"redis\.p?call\((?![\"'])", text)
