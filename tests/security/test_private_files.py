"""The files of a SQLiteStore belong to their owner alone, unless their modes were set otherwise."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shapekit import GCRA, Gate, SQLiteStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes are those of POSIX")

COMPANIONS = ("", "-lock", "-wal", "-shm")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(path: Path) -> dict[str, str]:
    """The mode of each file in the folder."""
    return {
        name: oct(stat.S_IMODE(os.stat(f"{path}{name}").st_mode))
        for name in COMPANIONS
        if os.path.exists(f"{path}{name}")
    }


def used(path: Path) -> dict[str, str]:
    """The modes while a store is in use."""
    with closing(SQLiteStore(path)) as store:
        assert Gate(GCRA("9/day"), name="gate", store=store).check("somebody@example.org")
        return modes(path)


def test_files_are_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "limits.db"
    assert used(path) == dict.fromkeys(COMPANIONS, "0o600")
    assert used(path) == dict.fromkeys(COMPANIONS, "0o600"), "opened again"


def test_files_are_private_from_their_creation_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    seen = []
    opened = os.open

    def watched(path: str, flags: int, mode: int = 0o777, **rest: int | None) -> int:
        descriptor = opened(path, flags, mode, **rest)
        seen.append(oct(stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    try:
        SQLiteStore(tmp_path / "limits.db").close()
    finally:
        os.umask(before)
    assert seen == ["0o600", "0o600"], "the lock, and the file"


@pytest.mark.parametrize("mode", [0o640, 0o660, 0o666])
def test_an_existing_file_keeps_its_mode_and_its_companions_get_it(
    tmp_path: Path, umask: int, mode: int
) -> None:
    path = tmp_path / "limits.db"
    path.touch()
    path.chmod(mode)
    assert used(path) == dict.fromkeys(COMPANIONS, oct(mode))


def test_an_existing_lock_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    used(path)
    os.chmod(f"{path}-lock", 0o640)
    assert used(path) == {**dict.fromkeys(COMPANIONS, "0o600"), "-lock": "0o640"}


def test_a_dangling_link_leads_to_a_private_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        link, path = tmp_path / "link.db", tmp_path / "limits.db"
        link.symlink_to(path)
        used(link)
        assert modes(path)[""] == "0o600"
    finally:
        os.umask(before)
