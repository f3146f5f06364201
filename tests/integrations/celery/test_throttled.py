"""A server that refuses calls: the key is held for all workers, and the task repeats when the hold ends."""

import httpx
import pytest
import requests

from shapekit import MemoryStore, Policy, RateLimitedError
from shapekit.decision import Decision
from shapekit.testing import FaultyStore

from .fleet import PATIENCE_S, eventually

SLOT_S = 0.1
"""The rate resumes where it stood when a hold began: one slot after the call that caused the hold."""


def response_of_requests(seconds):
    response = requests.Response()
    response.status_code = 429
    response.headers["Retry-After"] = str(seconds)
    return response


def response_of_httpx(seconds):
    request = httpx.Request("GET", "http://server.test")
    return httpx.Response(429, headers={"Retry-After": str(seconds)}, request=request)


def error_of_httpx(seconds):
    response = response_of_httpx(seconds)
    return httpx.HTTPStatusError("429", request=response.request, response=response)


def limited(seconds):
    return RateLimitedError(Decision(False, 1, 1, 0, 0, round(seconds * 1_000_000)), "k")


ANSWERS = {
    "httpx": response_of_httpx,
    "requests": response_of_requests,
    "httpx-error": error_of_httpx,
    "requests-error": lambda seconds: requests.HTTPError(response=response_of_requests(seconds)),
    "limited": limited,
}


@pytest.fixture(params=ANSWERS.values(), ids=ANSWERS)
def answer(request):
    return request.param


class TestHolding:
    @pytest.fixture
    def task(self, clock, eager, answer):
        def run(self, account, seconds=0):
            if seconds and not self.request.retries:
                raise self.shaped.throttled(answer(seconds))
            return clock.now()

        return eager.shaped(run, {"key": "{account}"}, bind=True, max_retries=1)

    def test_the_task_repeats_when_the_hold_is_over(self, task):
        assert task.apply(("a", 30)).get() == pytest.approx(30 + SLOT_S)

    def test_a_direct_call_raises_and_only_its_key_is_held(self, task):
        with pytest.raises(RateLimitedError) as caught:
            task("a", 30)
        assert caught.value.retry_after == pytest.approx(30)
        assert task("b") == 0
        assert task("a") == pytest.approx(30 + SLOT_S)

    def test_the_hold_is_bounded(self, task):
        longest_s = task.shaped.policy.feedback.max_hold_s
        with pytest.raises(RateLimitedError):
            task("a", 10 * longest_s)
        assert task("a") == pytest.approx(longest_s + SLOT_S)

    def test_a_store_that_is_gone_by_then_does_not_hide_the_refusal(self, eager, clock, answer, caplog):
        store = FaultyStore(MemoryStore(clock=clock))
        policy = Policy("10/s", name="gone", store=store)

        def run(self):
            store.down = True
            raise self.shaped.throttled(answer(30))

        with pytest.raises(RateLimitedError):
            eager.shaped(run, policy, bind=True)()
        assert "does not hear what its server says: this FaultyStore is down" in caplog.text

    def test_nothing_is_held_where_nothing_is_enforced(self, eager, clock, answer):
        def run(self, seconds=0):
            if seconds:
                raise self.shaped.throttled(answer(seconds))
            return self.shaped.admission.delay

        task = eager.shaped(run, {"enforce": False}, bind=True)
        with pytest.raises(RateLimitedError):
            task(30)
        assert task() == pytest.approx(SLOT_S)


class TestThrottled:
    @pytest.mark.parametrize("argument", [None, 429, ConnectionError("gone"), httpx.ConnectError("gone")])
    def test_an_argument_that_is_no_answer_is_refused(self, eager, argument, refused):
        task = eager.shaped(lambda self: self.shaped.throttled(argument), bind=True)
        refused(task, "answer")

    def test_successful_answers_may_hold_too(self, eager, clock):
        def run(self, response=None, length=0):
            if response is not None:
                self.shaped.observe(response)
            if length:
                assert self.shaped.hold(length) == pytest.approx(length)
            return clock.now()

        task = eager.shaped(run, bind=True)
        assert task(length=3) == 0
        assert task(response_of_httpx(5)) == pytest.approx(3 + SLOT_S)
        assert task() == pytest.approx(8 + 2 * SLOT_S)

    @pytest.mark.parametrize(("seconds", "countdown"), [(30, 30), (3_600, 900)])
    @pytest.mark.parametrize("answer", [response_of_requests, response_of_httpx, error_of_httpx])
    def test_a_429_of_ours_holds_nothing_and_the_task_comes_back(
        self, eager, monkeypatch, answer, seconds, countdown
    ):
        refusal, waits = answer(seconds), []
        getattr(refusal, "response", refusal).headers["Shapekit-Refused"] = "queue_full"
        task = eager.shaped(lambda self: self.shaped.throttled(refusal), bind=True)
        monkeypatch.setattr(task, "retry", lambda **how: waits.append(how["countdown"]) or how["exc"])
        assert task().retry_after == countdown
        assert waits == [countdown]
        assert task.shaped.policy.shaper.held() == 0

    def test_without_feedback_the_task_repeats_in_the_next_slot(self, eager, clock):
        def run(self):
            if not self.request.retries:
                raise self.shaped.throttled(response_of_httpx(30))
            return clock.now()

        task = eager.shaped(run, {"feedback": None}, bind=True)
        assert task.apply().get() == pytest.approx(SLOT_S)


@pytest.mark.parametrize("kind", ["shaped", "foreign"])
class TestAutoretry:
    @pytest.fixture
    def runs(self):
        return []

    @pytest.fixture
    def declared(self, eager, clock, runs, kind):
        def run(fails):
            runs.append(clock.now())
            if len(runs) <= fails:
                raise limited(5)
            return "ran"

        return lambda **options: getattr(eager, kind)(run, **options)

    def test_holds_and_repeats_when_that_is_over(self, declared, runs):
        assert declared(autoretry_for=(RateLimitedError,)).apply((2,)).get() == "ran"
        assert runs == pytest.approx([0, 5 + SLOT_S, 10 + 2 * SLOT_S])

    @pytest.mark.parametrize("bound", [{"max_retries": 1}, {"retry_kwargs": {"max_retries": 1}}])
    def test_autoretry_ends_at_its_bound(self, declared, runs, bound):
        with pytest.raises(RateLimitedError):
            declared(autoretry_for=(RateLimitedError,), **bound).apply((9,)).get()
        assert runs == pytest.approx([0, 5 + SLOT_S])

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"autoretry_for": (ConnectionError,)},
            {"autoretry_for": (Exception,), "dont_autoretry_for": (RateLimitedError,)},
        ],
    )
    def test_without_the_option_the_task_is_not_repeated(self, declared, runs, options):
        with pytest.raises(RateLimitedError):
            declared(**options).apply((1,)).get()
        assert runs == [0]


@pytest.fixture(scope="module")
def workers(fleet):
    launched = [fleet.launch(pool=pool, concurrency=2) for pool in ("threads", "prefork")]
    return [worker.wait_ready() for worker in launched]


@pytest.mark.usefixtures("workers")
class TestWorkers:
    """Two workers: one receives the refusal, and the other obeys it."""

    @pytest.mark.parametrize("kind", ["response", "error", "limited"])
    def test_all_wait_and_nothing_is_lost(self, app, records, account, kind):
        hold_s = 0.6 if kind == "limited" else 1.0
        first = app.tasks["after_429"].delay(account, kind)
        records.wait(account, 1)
        eventually(lambda: app.tasks["after_429"].shaped.policy.shaper.held(key=account))
        others = [app.tasks["after_429"].delay(account, "fine") for _ in range(3)]
        assert first.get(timeout=PATIENCE_S) == 1
        assert [other.get(timeout=PATIENCE_S) for other in others] == [0] * 3
        refused, *later = records.paced(account, 5, "10/s")
        assert all(start["at"] - refused["at"] >= hold_s for start in later)

    def test_it_counts_as_a_retry(self, app, records, account):
        with pytest.raises(RateLimitedError):
            app.tasks["after_429_once"].delay(account, "response").get(timeout=PATIENCE_S)
        assert len(records.of(account)) == 1

    def test_autoretry_holds_the_key_and_ends_at_its_bound(self, app, records, account):
        assert app.tasks["auto_limited"].delay(account).get(timeout=PATIENCE_S) == 1
        first, second = records.of(account)
        assert second["at"] - first["at"] > 0.5
        with pytest.raises(RateLimitedError):
            app.tasks["auto_limited"].delay(account, 9).get(timeout=PATIENCE_S)
        assert [start["retries"] for start in records.of(account)] == [0, 1, 0, 1]
