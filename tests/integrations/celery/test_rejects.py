"""Tasks that would wait too long fail, are rejected, or are retried, as `on_reject` says."""

import pytest
from celery import chord

from shapekit import QueueFullError, QuotaExhaustedError

from .fleet import PATIENCE_S, eventually

FIT = 2


@pytest.fixture(scope="module", autouse=True)
def worker(fleet):
    return fleet.start(pool="threads", concurrency=4)


def outcome(result):
    return result.get(timeout=PATIENCE_S, propagate=False)


def line(task, key):
    """Puts so long a line in front of new calls that none of them may wait."""
    reservation = task.shaped.policy.shaper.reserve(key, cost=1_000, max_wait="1h")
    assert reservation
    return reservation


class TestFail:
    def test_fails_with_the_error_of_the_refusal(self, app, records, account):
        task = app.tasks["short_fail"]
        results = [task.delay(account) for _ in range(FIT)]
        assert [outcome(result) for result in results] == ["ran"] * FIT
        line(task, account)
        for error in [outcome(task.delay(account)) for _ in range(2)]:
            assert isinstance(error, QueueFullError)
            assert error.key == account
            assert error.delay > error.max_wait == 0.7
        records.paced(account, FIT, "2/s")

    def test_its_error_carries_retry_after(self, app, account):
        app.tasks["short_fail"].shaped.policy.shaper.hold("1h", key=account)
        error = outcome(app.tasks["short_fail"].delay(account))
        assert 3000 < error.retry_after <= 3600
        assert "retry after" in str(error)

    def test_a_refusal_consumes_nothing(self, app, account):
        task = app.tasks["short_fail"]
        line(task, account)
        before = task.shaped.policy.shaper.reserve(account, max_wait="1h")
        refused = [task.delay(account) for _ in range(8)]
        assert {type(outcome(result)) for result in refused} == {QueueFullError}
        after = task.shaped.policy.shaper.reserve(account, max_wait="1h")
        assert after.grant.departs_at_us - before.grant.departs_at_us == 500_000

    def test_a_spent_quota_is_the_error_of_the_result(self, app, records, account):
        outcomes = [outcome(app.tasks["monthly"].delay(account)) for _ in range(3)]
        assert outcomes[:2] == ["ran"] * 2
        assert isinstance(outcomes[2], QuotaExhaustedError)
        assert outcomes[2].key == account
        assert len(records.of(account)) == 2

    def test_errbacks_and_chords_see_it(self, app, records, account):
        errback = app.tasks["told_error"].s(account=account + "-told")
        header = [app.tasks["monthly"].si(account) for _ in range(3)]
        body = app.tasks["total"].si([1], account=account + "-body").on_error(errback)
        failure = outcome(chord(header)(body))
        assert "QuotaExhaustedError" in str(failure)
        records.wait(account + "-told", 1)
        assert not records.of(account + "-body")

    def test_the_errback_of_a_task_runs(self, app, records, account):
        errback = app.tasks["told_id"].s(account=account + "-told")
        results = [app.tasks["monthly"].apply_async((account,), link_error=errback) for _ in range(3)]
        outcomes = {result.id: outcome(result) for result in results}
        (start,) = records.wait(account + "-told", 1)
        assert isinstance(outcomes[start["failed"]], QuotaExhaustedError)


class TestReject:
    def test_a_rejected_task_goes_away_without_a_result(self, app, records, account, worker, broker):
        task = app.tasks["short_reject"]
        results = [task.delay(account) for _ in range(FIT)]
        assert [outcome(result) for result in results] == ["ran"] * FIT
        line(task, account)
        rejected = [task.delay(account) for _ in range(2)]
        for result in rejected:
            eventually(lambda result=result: f"task {result.id}:0:0 is rejected" in worker.log)
        with broker.client() as client:
            eventually(lambda: not client.hlen("unacked") and not client.llen("tests"))
        assert [result.state for result in rejected] == ["PENDING"] * 2
        records.paced(account, FIT, "2/s")


class TestRetry:
    def test_all_refused_tasks_run_in_the_end(self, app, records, account):
        results = [app.tasks["short_retry"].delay(account) for _ in range(5)]
        assert [outcome(result) for result in results] == ["ran"] * 5
        records.paced(account, 5, "2/s")

    def test_retries_end_at_max_retries(self, app, records, account):
        often = app.tasks["short_retry_once"]
        often.shaped.policy.shaper.hold("1h", key=account)
        assert isinstance(outcome(often.delay(account)), QueueFullError)
        assert not records.of(account)
