"""`--store`: a URL or a file, and the messages about values that are neither."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from shapekit import SQLiteStore, StoreUnavailableError
from shapekit.cli.main import CommandError
from shapekit.cli.output import open_store, store_option
from shapekit.stores.redis import RedisStore

from ..redis_server import shared_server


def test_a_file_is_a_sqlite_store(tmp_path):
    SQLiteStore(tmp_path / "limits.db").close()
    store = open_store(str(tmp_path / "limits.db"))
    assert isinstance(store, SQLiteStore)
    assert list(store.keys()) == []
    store.close()


def test_a_file_with_a_colon_in_its_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SQLiteStore("limits:old.db").close()
    store = open_store("limits:old.db")
    assert isinstance(store, SQLiteStore)
    store.close()


def test_a_missing_file_is_not_created(tmp_path):
    path = tmp_path / "typo.db"
    with pytest.raises(
        CommandError, match="is not a file; give --store redis://HOST or --store FILE, or set"
    ):
        open_store(str(path))
    assert not path.exists()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at as one\n" * 50, encoding="utf-8")
    with pytest.raises(StoreUnavailableError):
        open_store(str(path))


def test_a_url_is_redis():
    store = open_store(f"redis://127.0.0.1:{shared_server().port}")
    assert isinstance(store, RedisStore)
    assert list(store.keys("no-such-name")) == []
    store.close()


@pytest.mark.parametrize("where", ["http://localhost", "postgres://x/y"])
def test_another_kind_of_url_is_refused(where):
    with pytest.raises(CommandError, match="has an unknown scheme"):
        open_store(where)


@pytest.mark.parametrize("where", [None, ""])
def test_a_missing_store_is_refused(where):
    with pytest.raises(CommandError, match="no store is given; give --store"):
        open_store(where)


@pytest.mark.parametrize(
    ("args", "environment", "expected"),
    [
        ([], {}, None),
        ([], {"SHAPEKIT_STORE": "a.db"}, "a.db"),
        (["--store", "b.db"], {"SHAPEKIT_STORE": "a.db"}, "b.db"),
    ],
)
def test_the_option_overrides_the_environment(args, environment, expected, monkeypatch):
    monkeypatch.delenv("SHAPEKIT_STORE", raising=False)

    @click.command
    @store_option
    def look(store):
        click.echo(repr(store))

    assert CliRunner().invoke(look, args, env=environment).stdout == f"{expected!r}\n"
