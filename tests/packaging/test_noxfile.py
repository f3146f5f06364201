"""The noxfile loads, its sessions name what is there, and the first of them is what CI does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Session:
    """Records what a session would do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.posargs: list[str] = []
        self.installed: list[str] = []
        self.ran: list[tuple[str, ...]] = []

    def install(self, *words: str) -> None:
        self.installed += words

    def run(self, *words: str, **options: Any) -> str:
        assert set(options) <= {"env", "external", "silent"}
        self.ran.append(words)
        return "redis-server"

    def create_tmp(self) -> str:
        return str(self._folder)


class Nox(ModuleType):
    """As much of nox as the noxfile uses: nox itself is no requirement for development."""

    Session = Session

    def __init__(self) -> None:
        super().__init__("nox")
        self.sessions: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {}
        self.options = ModuleType("options")

    def session(self, job: Callable[..., None] | None = None, **options: Any) -> Any:
        def made(job: Callable[..., None]) -> Callable[..., None]:
            self.sessions[job.__name__] = (job, options)
            return job

        return made if job is None else made(job)

    def parametrize(self, name: str, values: list[str]) -> Callable[[Callable[..., None]], Any]:
        def each(job: Callable[..., None]) -> Callable[..., None]:
            def all_of_them(session: Session) -> None:
                for value in values:
                    job(session, **{name: value})

            all_of_them.__name__ = job.__name__
            return all_of_them

        return each


@pytest.fixture
def nox(root: Path, monkeypatch: pytest.MonkeyPatch) -> Nox:
    """The attributes of nox after it has read the file."""
    nox = Nox()
    monkeypatch.setitem(sys.modules, "nox", nox)
    spec = importlib.util.spec_from_file_location("noxfile", root / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    nox.file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nox.file)
    return nox


def played(nox: Nox, name: str, folder: Path) -> Session:
    session = Session(folder)
    nox.sessions[name][0](session)
    return session


def test_nox_without_arguments_does_what_ci_does(nox: Nox, tmp_path: Path) -> None:
    assert nox.options.sessions == ["ci"]
    assert played(nox, "ci", tmp_path).ran == [("bash", ".ci/run")]
    assert nox.sessions["ci"][1] == {"venv_backend": "none"}, "the script makes its own environment"


def test_every_interpreter_that_is_promised_is_tried(nox: Nox, root: Path) -> None:
    promised = re.findall(r"Python :: (3\.\d+)", (root / "pyproject.toml").read_text("utf-8"))
    assert list(nox.sessions["tests"][1]["python"]) == promised


def test_sessions_name_existing_files(nox: Nox, root: Path, tmp_path: Path) -> None:
    assert {"ci", "tests", "lint", "types", "docs", "audit", "bench", "fuzz"} <= set(nox.sessions)
    for name in nox.sessions:
        session = played(nox, name, tmp_path)
        assert session.ran, name
        for words in session.ran:
            for word in words:
                if word.startswith(("tests/", "docs/", ".ci/")):
                    assert (root / word).exists(), f"{name}: {word}"
                if re.fullmatch(r"tests(\.\w+)+", word):
                    assert (root / f"{word.replace('.', '/')}.py").exists(), f"{name}: {word}"
        assert nox.sessions[name][0].__name__ == name
    profiles = (root / "tests" / "conftest.py").read_text("utf-8")
    assert 'register_profile("fuzz"' in profiles


def test_the_oldest_releases_are_those_of_the_project(nox: Nox, root: Path) -> None:
    oldest = nox.file.oldest()
    assert len(oldest) >= 10
    text = (root / "pyproject.toml").read_text("utf-8")
    for line in oldest:
        name, _, version = line.removesuffix(".*").partition("==")
        assert f'"{name}>={version}"' in text


def test_ci_needs_no_nox_and_no_database_of_holes(root: Path) -> None:
    dev = subprocess.run(["grep", "-nE", "nox|pip-audit", ".ci/run", "pyproject.toml"], cwd=root, check=False)
    assert dev.returncode == 1, "nothing found"
