"""Tasks whose slot passes while the pool is busy take another slot, and are parked if it is far away."""

import time

import pytest
from celery import chord

from .fleet import PATIENCE_S, eventually
from .records import CLOCKS_S

GRACE_S = 0.1
"""One slot, at 10/s."""


@pytest.fixture(scope="module")
def worker(fleet):
    return fleet.start(pool="threads", concurrency=1, options=["--prefetch-multiplier", "5"])


@pytest.fixture
def behind(app, records, account, worker):
    """Publishes while the only thread is busy, and frees the thread when the slots have passed."""

    def publish(publishing, ids, meanwhile):
        app.tasks["busy"].delay(account + "-busy")
        records.wait(account + "-busy", 1)
        result = publishing()
        for task_id in ids:
            eventually(lambda task_id=task_id: f"[{task_id}] received" in worker.log)
        time.sleep(2 * GRACE_S)
        meanwhile()
        freed_at = time.time()
        records.client.rpush(f"go:{account}-busy", "go")
        return result, freed_at

    return publish


@pytest.mark.parametrize("held_s", [0, 0.8])
def test_another_slot_is_taken(app, records, account, behind, held_s):
    add = app.tasks["seen"]
    shaper = add.shaped.policy.shaper
    result, freed_at = behind(
        lambda: add.apply_async((account,), task_id=account, headers={"x-own": 1}, time_limit=90),
        [account],
        lambda: held_s and shaper.hold(held_s, key=account),
    )
    assert result.get(timeout=PATIENCE_S) == "seen"
    (start,) = records.paced(account, 1, "10/s")
    assert start["slot"] >= freed_at - CLOCKS_S
    assert (start["id"], start["retries"], start["headers"]) == (account, 0, {"x-own": 1})
    assert start["request"]["timelimit"] == [90, None]


def test_a_task_that_comes_back_is_serialized_and_shown_as_before(app, records, account, behind):
    add, options = app.tasks["seen"], {"serializer": "spelled", "compression": "zlib", "argsrepr": "(***)"}
    result, _ = behind(
        lambda: add.apply_async((account, {1, 2}), task_id=account, **options),
        [account],
        lambda: add.shaped.policy.shaper.hold(0.8, key=account),
    )
    assert result.get(timeout=PATIENCE_S) == "seen"
    (start,) = records.paced(account, 1, "10/s")
    assert (start["shown"], start["headers"]) == ("(***)", {})


def test_a_quota_gets_the_missed_slot_back(app, account, behind):
    rare = app.tasks["rare"]
    result, _ = behind(lambda: rare.apply_async((account,), task_id=account), [account], lambda: None)
    assert result.get(timeout=PATIENCE_S) is None
    assert [quota.used for quota in rare.shaped.policy.quotas(account)] == [1]


def test_the_members_of_a_chord_stay_members(app, records, account, behind):
    header = [app.tasks["add"].s(n, account=account).set(task_id=f"{account}-{n}") for n in range(3)]
    shaper = app.tasks["add"].shaped.policy.shaper
    result, _ = behind(
        lambda: chord(header)(app.tasks["total"].s(account=account + "-body")),
        [f"{account}-{n}" for n in range(3)],
        lambda: shaper.hold("0.8s", key=account),
    )
    assert result.get(timeout=PATIENCE_S) == 3
    starts = records.paced(account, 3, "10/s")
    assert {start["id"] for start in starts} == {f"{account}-{n}" for n in range(3)}
    assert all(start["retries"] == 0 for start in starts)
