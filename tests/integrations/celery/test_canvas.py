"""Chains, groups, chords, callbacks, retries, expiry and revoking work as without shaping, only later."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from .far_sighted import BLOCK_BELOW_S
from .fleet import PATIENCE_S, eventually

AHEAD_S = BLOCK_BELOW_S + 3.0
LISTENING = 2
"""The worker of all these tests, and the one that is far-sighted."""
"""A slot this far ahead is parked; 3 s later it is near for the far-sighted worker, and for no other."""


@pytest.fixture(scope="module", autouse=True)
def worker(fleet):
    return fleet.start(pool="threads", concurrency=4, options=["-Q", "tests"])


def got(result, **options):
    return result.get(timeout=PATIENCE_S, interval=0.05, **options)


class TestChain:
    def test_each_task_of_a_chain_gets_the_result_of_the_one_before(self, app, records, account):
        add = app.tasks["add"]
        steps = chain(add.s(1, 2, account=account), *(add.s(n, account=account) for n in (3, 4, 5, 6)))
        assert got(steps()) == 21
        records.paced(account, 5, "10/s")

    def test_a_failure_ends_the_chain(self, app, records, account):
        failing = app.tasks["fail"].si(7, account=account)
        result = chain(failing, app.tasks["add"].si(1, account=account + "-after"))()
        with pytest.raises(ValueError, match="7"):
            got(result.parent)
        assert not records.of(account + "-after")


class TestGroup:
    def test_all_tasks_of_a_group_run_once_and_their_results_are_in_order(self, app, records, account):
        work = group(app.tasks["add"].s(n, 100, account=account) for n in range(8))
        assert got(work()) == [100 + n for n in range(8)]
        starts = records.paced(account, 8, "10/s")
        assert sorted(start["x"] for start in starts) == list(range(8))


class TestChord:
    def test_the_body_gets_all_results(self, app, records, account):
        header = [app.tasks["add"].s(n, account=account) for n in range(7)]
        assert got(chord(header)(app.tasks["total"].s(account=account + "-body"))) == 21
        records.paced(account, 7, "10/s")
        assert len(records.of(account + "-body")) == 1

    def test_a_failing_member_fails_the_body(self, app, records, account):
        header = [
            *(app.tasks["add"].s(n, account=account) for n in range(3)),
            app.tasks["fail"].s(account=account),
        ]
        errback = app.tasks["told_error"].s(account=account + "-told")
        body = app.tasks["total"].s(account=account + "-body").on_error(errback)
        assert isinstance(got(chord(header)(body), propagate=False), ChordError)
        assert records.wait(account + "-told", 1)[0]["error"] == "ChordError"
        assert not records.of(account + "-body")


class TestCallbacks:
    def test_link_follows_each_success(self, app, records, account):
        add = app.tasks["add"]
        follow = add.s(10, account=account + "-linked")
        for n in range(6):
            add.apply_async((n,), {"account": account}, link=follow)
        followed = records.wait(account + "-linked", 6)
        assert sorted(start["x"] for start in followed) == list(range(6))
        records.paced(account + "-linked", 6, "10/s")

    @pytest.mark.parametrize("name", ["told_id", "told_error"])
    def test_link_error_follows_each_failure(self, app, records, account, name):
        errback = app.tasks[name].s(account=account + "-told")
        failing = [
            app.tasks["fail"].apply_async((n,), {"account": account}, link_error=errback) for n in range(6)
        ]
        failures = records.wait(account + "-told", 6)
        assert {start["failed"] for start in failures} == {result.id for result in failing}
        records.paced(account, 6, "10/s")
        records.paced(account + "-told", 6, "10/s")


class TestRetries:
    @pytest.mark.parametrize("name", ["flaky", "auto"])
    def test_each_attempt_takes_its_own_slot_and_waiting_is_no_retry(self, app, records, account, name):
        results = [app.tasks[name].delay(account, fails) for fails in (2, 0, 1, 0, 0, 0)]
        assert [got(result) for result in results] == [2, 0, 1, 0, 0, 0]
        starts = records.paced(account, 9, "10/s")
        runs = [[s["retries"] for s in starts if s["id"] == result.id] for result in results]
        assert runs == [[0, 1, 2], [0], [0, 1], [0], [0], [0]]

    @pytest.mark.parametrize("name", ["flaky", "auto"])
    def test_retries_end_at_max_retries(self, app, records, account, name):
        for _ in range(4):
            app.tasks["add"].delay(1, account=account + "-others")
        with pytest.raises(ConnectionError):
            got(app.tasks[name].delay(account, 99))
        assert [start["retries"] for start in records.paced(account, 4, "10/s")] == [0, 1, 2, 3]

    def test_attempts_with_an_error_in_refund_on_give_their_cost_back(self, app, records, account):
        result = app.tasks["refunding"].delay(account, 3)
        assert got(result) == 3
        assert len(records.of(account)) == 4


@pytest.fixture
def far_sighted(app, fleet):
    """Fetches messages long enough before their slots to give a slot back, however busy the machine is."""
    worker = fleet.start("tests.integrations.celery.far_sighted", options=["-Q", "tests"])
    # A worker that is ready may not yet listen to broadcasts.
    eventually(lambda: len(app.control.ping(limit=LISTENING)) == LISTENING)
    yield
    worker.stop()


class TestExpiry:
    def test_an_expired_task_is_revoked_and_gives_its_slot_back(self, app, records, account, far_sighted):
        rare = app.tasks["rare"]
        got(rare.delay(account))
        rare.shaped.policy.shaper.hold(AHEAD_S, key=account)
        expires = datetime.now(UTC) + timedelta(seconds=0.4)
        late = rare.apply_async((account,), expires=expires)
        with pytest.raises(TaskRevokedError):
            got(late)
        rare.shaped.policy.shaper.resume(key=account)
        for _ in range(2):
            got(rare.delay(account))
        assert [start["id"] == late.id for start in records.of(account)] == [False] * 3


class TestRevoking:
    @pytest.mark.parametrize("by", ["id", "stamp"])
    def test_a_parked_task_is_revoked_and_gives_its_slot_back(
        self, app, records, account, broker, far_sighted, by
    ):
        rare = app.tasks["rare"]
        rare.shaped.policy.shaper.hold(AHEAD_S, key=account)
        signature = rare.s(account)
        signature.stamp(asked_by=[account, "others"])
        revoked = signature.apply_async()
        with broker.client() as client:
            eventually(lambda: client.zcard("{shapekit:celery}:parked") >= 1)
        options = {"reply": True, "limit": LISTENING, "timeout": PATIENCE_S}
        if by == "id":
            assert app.control.revoke(revoked.id, **options)
        else:
            assert app.control.revoke_by_stamped_headers({"asked_by": [account]}, **options)
        with pytest.raises(TaskRevokedError):
            got(revoked)
        rare.shaped.policy.shaper.resume(key=account)
        for _ in range(3):
            got(rare.delay(account))
        assert [start["id"] == revoked.id for start in records.of(account)] == [False] * 3


class TestOwnTime:
    @pytest.mark.parametrize("ahead_s", [0.15, 0.8])
    @pytest.mark.parametrize("how", ["countdown", "eta"])
    def test_a_task_never_runs_before(self, app, records, account, ahead_s, how):
        earliest = datetime.now(UTC) + timedelta(seconds=ahead_s)
        options = {"eta": earliest} if how == "eta" else {"countdown": ahead_s}
        results = [app.tasks["add"].apply_async((n,), {"account": account}, **options) for n in range(3)]
        assert [got(result) for result in results] == [0, 1, 2]
        starts = records.paced(account, 3, "10/s")
        assert starts[0]["at"] >= earliest.timestamp()
        assert starts[0]["slot"] >= earliest.timestamp() - 0.001

    def test_its_slot_is_taken_only_when_it_is_due(self, app, records, account):
        add = app.tasks["add"]
        later = add.apply_async((1,), {"account": account}, countdown=0.8)
        at_once = add.delay(2, account=account)
        assert got(at_once) == 2
        assert got(later) == 1
        assert [start["x"] for start in records.paced(account, 2, "10/s")] == [2, 1]


class TestTheHop:
    """A parked task equals the task that was sent."""

    def test_its_request_equals_that_of_a_plain_task(self, app, records, account):
        options = {
            "priority": 3,
            "time_limit": 90,
            "soft_time_limit": 80,
            "headers": {"x-own": {"deep": [1]}},
            "expires": datetime(2100, 1, 1, tzinfo=UTC),
            "reply_to": "somebody",
        }
        seen = app.tasks["seen"]
        seen.shaped.policy.shaper.hold("0.6s", key=account)
        parked = seen.apply_async((account,), task_id=f"parked-{account}", **options)
        plain = app.tasks["plainly_seen"].apply_async(
            (account + "-plain",), task_id=f"plain-{account}", **options
        )
        assert (got(parked), got(plain)) == ("seen", "seen")
        (hop,), (straight,) = records.of(account), records.of(account + "-plain")
        hop, straight = (
            json.loads(json.dumps([run["request"], run["headers"]]).replace(result.id, "ID"))
            for run, result in ((hop, parked), (straight, plain))
        )
        assert hop == straight
        assert (hop[0]["delivery_info"]["priority"], hop[0]["timelimit"]) == (3, [90, 80])
        assert hop[1] == {"x-own": {"deep": [1]}}

    @pytest.mark.parametrize("ignore", [False, True])
    def test_the_result_backend_sees_nothing_of_it(self, app, records, account, broker, ignore):
        seen, states = app.tasks["seen"], {}
        seen.shaped.policy.shaper.hold("0.6s", key=account)
        for task, name in ((seen, account), (app.tasks["plainly_seen"], account + "-plain")):
            kept = f"celery-task-meta-{name}"
            with broker.client() as client, client.pubsub() as backend:
                backend.subscribe(kept)
                task.apply_async((name,), task_id=name, ignore_result=ignore)
                records.wait(name, 1)
                if not ignore:
                    got(app.AsyncResult(name))
                assert client.exists(kept) == (not ignore)
                messages = iter(lambda: backend.get_message(timeout=0.1), None)
                states[task.name] = [
                    json.loads(each["data"])["status"] for each in messages if each["type"] == "message"
                ]
        assert states["seen"] == states["plainly_seen"] == ([] if ignore else ["STARTED", "SUCCESS"])
