"""What an operator sees of calls in flight; and where a policy with permits has no place."""

import pytest
from click.testing import CliRunner

from shapekit import Concurrency, Policy
from shapekit._adapters.tasks import checked_shape
from shapekit.cli.main import cli
from shapekit.stores.sqlite import SQLiteStore


def shown(*words):
    ran = CliRunner().invoke(cli, [*map(str, words)])
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_top_shows_calls_in_flight(tmp_path):
    file = tmp_path / "limits.db"
    store = SQLiteStore(file)
    policy = Policy(concurrency=20, name="api", store=store)
    with policy.admit("one"), policy.admit("one"), policy.admit("two"):
        lines = shown("top", "--store", file, "--once").splitlines()
    row = next(line for line in lines if line.startswith("api.permits:one"))
    assert "concurrency 20" in row
    assert row.endswith("2/20")
    store.close()


def test_check_shows_how_many_calls_may_be_in_flight(tmp_path):
    (tmp_path / "limits.toml").write_text('[api]\nrate = "10/s"\nconcurrency = 20\n[b]\nconcurrency = 1\n')
    output = shown("check", tmp_path / "limits.toml")
    assert "at most 20 calls in flight at once" in output
    assert "at most 1 call in flight at once" in output


def test_a_celery_task_cannot_hold_a_permit(refused):
    for shape in (
        {"rate": "10/s", "concurrency": 5},
        {"policy": Policy(concurrency=5)},
        Policy(concurrency=Concurrency(5)),
    ):
        error = refused(lambda options=shape: checked_shape(options), "shape['concurrency']")
        assert "client" in error.fix
    with pytest.raises(ValueError, match="unknown"):
        checked_shape({"concurency": 5})
