"""What users see of a rate that is found: the shaper, the policy, the events."""

import anyio
import pytest

from shapekit import Adaptive, ManualClock, MemoryStore, Policy, QueueFullError, Shaper
from shapekit.algorithms.queue.adaptive import SUCCEEDED, THROTTLED
from shapekit.events import Held, RateChanged
from shapekit.feedback import Feedback
from shapekit.keys import Target

BETWEEN = Adaptive(min="1/s", max="50/s")


class Answer:
    def __init__(self, status=200, **headers):
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def raised(shaper, clock, *, seconds=4):
    """Successes of calls that waited, five a second."""
    for _ in range(5 * seconds):
        clock.advance(0.2)
        shaper.adaptive.succeeded(age=0.1)
    return shaper.adaptive.rate()


# outcomes reported by hand


def test_an_adaptive_shaper_begins_at_the_lowest_rate_and_paces_by_it(clock):
    shaper = Shaper(adaptive=Adaptive(min="2/s", max="50/s"), clock=clock)
    assert shaper.adaptive.rate() == pytest.approx(2)
    assert [shaper.reserve().delay for _ in range(4)] == pytest.approx([0, 0.5, 1, 1.5], abs=1e-5)
    assert shaper.forecast(4).last_in == pytest.approx(3.5, abs=1e-5)


def test_success_raises_the_rate_and_a_refusal_lowers_it_once(clock):
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    before = raised(shaper, clock)
    assert before > 2
    assert shaper.adaptive.throttled(age=0.1, hold=2) == 2.0
    lowered = shaper.adaptive.rate()
    assert lowered < before
    assert [shaper.adaptive.throttled(age=0.1, hold=2) for _ in range(4)] == [2.0] * 4
    assert shaper.adaptive.rate() == lowered
    assert shaper.held() == 2.0
    assert shaper.resume() == 0.25


def test_successes_are_reported_ahead_of_a_refusal(clock):
    """Otherwise the second refusal would count as the same incident."""
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    raised(shaper, clock)
    shaper.adaptive.throttled(age=0.1)
    once = shaper.adaptive.rate()
    clock.advance(0.3)
    shaper.adaptive.succeeded(age=0.1)
    assert shaper.adaptive.rate() == once
    shaper.adaptive.throttled(age=0.1)
    assert shaper.adaptive.rate() < once


def test_successes_reported_together_count_only_if_all_of_their_calls_left_after_the_cut(clock):
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    raised(shaper, clock)
    clock.advance(2)
    shaper.adaptive.throttled(age=0.1)
    lowered = shaper.adaptive.rate()
    for ages, raises in (((0.05, 5, 0.05, 0.05, 0.05, 0.05), False), ((0.05,) * 6, True)):
        for age in ages:
            clock.advance(0.25)
            shaper.adaptive.succeeded(age=age)
        assert (shaper.adaptive.rate() > lowered) is raises


def test_calls_that_did_not_wait_raise_nothing(clock):
    """No call used the rate up, so their success does not show that the server bears it."""
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    for _ in range(50):
        clock.advance(0.2)
        shaper.adaptive.succeeded(age=0.1, waited=False)
    assert shaper.adaptive.rate() == pytest.approx(1)


def test_successes_are_sent_once_a_second_and_refusals_at_once(clock):
    class Counting(MemoryStore):
        def __init__(self, clock):
            super().__init__(clock)
            self.operations = []

        def bind(self, name, program, operation):
            apply = super().bind(name, program, operation)

            def counted(key, *args):
                self.operations.append(operation)
                return apply(key, *args)

            return counted

    store = Counting(clock)
    shaper = Shaper(adaptive=BETWEEN, store=store, name="api")
    for _ in range(200):
        clock.advance(0.05)
        shaper.adaptive.succeeded(age=0.01)
    assert store.operations.count(SUCCEEDED) in (9, 10)
    clock.advance(0.01)
    shaper.adaptive.throttled(age=0)
    shaper.adaptive.throttled(age=0)
    assert store.operations[-3:] in ([SUCCEEDED, THROTTLED, THROTTLED], [SUCCEEDED] + [THROTTLED] * 2)


def test_the_server_states_a_cap_and_raises_it_again(clock):
    shaper = Shaper(adaptive=Adaptive(min="10/s", max="50/s"), clock=clock)
    shaper.adaptive.stated(300, "1m", age=0.1)
    assert shaper.adaptive.rate() == pytest.approx(5)
    shaper.adaptive.stated(3_000, "1m", age=5)
    assert shaper.adaptive.rate() == pytest.approx(5), "a statement that is older, and arrives later"
    clock.advance(1)
    shaper.adaptive.stated(1_200, "1m", age=0.1)
    assert shaper.adaptive.rate() == pytest.approx(10), "it may be faster now, and is as fast as was found"


def test_waiting_calls_move_when_the_rate_is_raised(clock):
    """A call that waits 20 s for a slot at 1/s leaves at the new rate, at most 100 ms late, in order."""
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    left, rates = [], [(0.0, shaper.adaptive.rate())]
    listening = shaper.listen(lambda event: rates.append((clock.now(), getattr(event, "rate", rates[-1][1]))))

    async def call(number):
        await shaper.aschedule()
        left.append((number, clock.now()))

    async def raising():
        for _ in range(20):
            await clock.asleep(0.2, anyio.Event())
            await shaper.adaptive.asucceeded(age=0.1)

    async def main():
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(call, number)
            tasks.start_soon(raising)

    with listening:
        anyio.run(main)
    assert [number for number, _ in left] == list(range(30))
    assert len(rates) > 3
    rate = shaper.adaptive.rate()
    assert left[-1][1] - left[0][1] < 15
    gaps = [later - sooner for (_, sooner), (_, later) in zip(left[-10:], left[-9:], strict=False)]
    assert min(gaps) == pytest.approx(1 / rate, rel=0.01)
    # In any span as many as the rate lets leave in a span that began 120 ms before, and the first of them.
    for first, (_, start) in enumerate(left):
        for last in range(first + 1, len(left)):
            end = left[last][1]
            room = sum(
                per_second * max(0, min(end, until) - max(start - 0.12, since))
                for (since, per_second), (until, _) in zip(rates, [*rates[1:], (end, 0)], strict=True)
            )
            assert last - first <= room + 0.01


def test_a_wait_that_grows_too_long_is_refused(clock):
    shaper = Shaper(adaptive=BETWEEN, clock=clock, max_wait=3)
    raised(shaper, clock)
    reservations = [shaper.reserve() for _ in range(40)]
    accepted = [reservation for reservation in reservations if reservation]
    assert accepted
    assert not reservations[-1]
    shaper.adaptive.throttled(age=0.1, hold=10)
    with pytest.raises(QueueFullError):
        shaper.schedule()
    assert shaper.remaining(accepted[-1]) > 10


def test_listeners_get_every_change_of_the_rate(clock):
    shaper = Shaper(adaptive=BETWEEN, clock=clock, name="api")
    events = []
    with shaper.listen(events.append):
        raised(shaper, clock, seconds=2)
        shaper.adaptive.throttled(age=0.1, hold=1)
        shaper.adaptive.throttled(age=0.1)
    *rises, fall, held = events
    assert [type(event) for event in events] == [RateChanged] * (len(rises) + 1) + [Held]
    assert all(event.rate > event.before for event in rises)
    assert fall.before == pytest.approx(rises[-1].rate, rel=0.5)
    assert (fall.policy, fall.key, fall.rate) == ("api", "default", pytest.approx(fall.before * 0.75))
    assert held.length == 1.0


def test_a_reset_key_begins_anew(clock):
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    raised(shaper, clock)
    shaper.reset()
    assert shaper.adaptive.rate() == pytest.approx(1)


def test_keys_have_rates_of_their_own(clock):
    shaper = Shaper(adaptive=BETWEEN, clock=clock)
    raised(shaper, clock)
    assert shaper.adaptive.rate(key="other") == pytest.approx(1)


def test_the_awaitable_forms_do_the_same():
    def story(call):
        clock = ManualClock(1_000.0)
        shaper = Shaper(adaptive=BETWEEN, clock=clock)
        answers = []
        for _ in range(12):
            clock.advance(0.3)
            answers.append(call(shaper.adaptive, "succeeded", age=0.1))
        answers.append(call(shaper.adaptive, "throttled", age=0.1, hold="2s"))
        answers.append(call(shaper.adaptive, "stated", 60, "1m", age=0.1))
        answers.append(call(shaper.adaptive, "rate"))
        return answers

    async def awaited(method, *args, **named):
        return await method(*args, **named)

    def awaitable(shaper, name, *args, **named):
        return anyio.run(lambda: awaited(getattr(shaper, f"a{name}"), *args, **named))

    assert story(lambda shaper, name, *args, **named: getattr(shaper, name)(*args, **named)) == story(
        awaitable
    )


# outcomes read in answers


def test_observed_answers_change_the_rate(clock):
    policy = Policy(adaptive=BETWEEN, clock=clock)
    for _ in range(12):
        with policy.admit() as admission:
            clock.advance(0.05)
        admission.observe(Answer(200))
    before = policy.shaper.adaptive.rate()
    assert before > 1.9
    with policy.admit() as admission:
        clock.advance(0.05)
    hint = admission.observe(Answer(429, Retry_After="3"))
    assert hint.hold_s == 3
    assert policy.shaper.adaptive.rate() < before
    assert policy.shaper.held() == 3


LAST = {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "2"}
"""Of the last call that a server allows until the reset."""


@pytest.mark.parametrize(
    ("answer", "dialect", "lowers"),
    [
        (Answer(429), "auto", True),
        (Answer(503, Retry_After="2"), "auto", True),
        (Answer(403, Retry_After="60"), "github", True),
        (Answer(403), "github", False),
        (Answer(404), "auto", False),
        (Answer(503), "auto", False),
        (Answer(500), "auto", False),
        *((Answer(status, **LAST), "auto", False) for status in (200, 401, 404, 409, 422, 500)),
        *((Answer(status, **LAST), "auto", True) for status in (402, 403, 429, 503, 529)),
    ],
)
def test_only_answers_that_mean_too_fast_lower_the_rate(clock, answer, dialect, lowers):
    policy = Policy(adaptive=BETWEEN, clock=clock, feedback=Feedback(dialect))
    before = raised(policy.shaper, clock)
    with policy.admit() as admission:
        pass
    clock.advance(0.1)
    admission.observe(answer)
    assert (policy.shaper.adaptive.rate() < before) is lowers


def test_a_refusal_about_a_part_of_the_server_lowers_nothing(clock):
    policy = Policy(adaptive=BETWEEN, clock=clock, feedback=Feedback("discord"))
    before = raised(policy.shaper, clock)
    with policy.admit() as admission:
        pass
    clock.advance(0.1)
    admission.target = Target("GET", "https", "api.example.com", 443, "/channels/1")
    hint = admission.observe(Answer(429, X_RateLimit_Bucket="abc", Retry_After="2"))
    assert (hint.scope, hint.hold_s) == ("abc%of=/channels/1", 2)
    assert policy.shaper.adaptive.rate() == before
    assert policy.shaper.held() == 0


def test_answers_to_calls_that_did_not_wait_raise_nothing(clock):
    policy = Policy(adaptive=BETWEEN, clock=clock)
    for _ in range(20):
        clock.advance(2)
        with policy.admit() as admission:
            clock.advance(0.05)
        admission.observe(Answer(200))
    assert policy.shaper.adaptive.rate() == pytest.approx(1)


@pytest.mark.parametrize(
    ("dialect", "window_s", "rate"),
    [("ietf", 60, 2), ("ietf", 108_000, 1 / 900), ("ietf", 108_001, 10), ("auto", 60, 10)],
)
def test_a_named_dialect_is_believed_within_bounds_and_a_guessed_one_is_not(clock, dialect, window_s, rate):
    policy = Policy(adaptive=Adaptive(min="10/s", max="50/s"), clock=clock, feedback=Feedback(dialect))
    with policy.admit() as admission:
        pass
    headers = {"RateLimit": '"default";r=50;t=30', "RateLimit-Policy": f'"default";q=120;w={window_s}'}
    admission.observe(Answer(200, **headers))
    assert policy.shaper.adaptive.rate() == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("step", [-3600, 3600])
@pytest.mark.parametrize("left_before", [True, False])
def test_a_step_of_the_date_makes_no_call_older_or_younger(step, left_before):
    """The answer comes right after the step, to a call from before or after the refusal."""
    rates = set()
    for seconds in (0, step):
        clock = ManualClock(1e9, autojump=True)
        policy = Policy(adaptive=BETWEEN, clock=clock)
        for _ in range(200):
            with policy.admit() as call:
                clock.advance(0.01)
                call.observe(Answer())
        first, late = policy.admit().__enter__(), policy.admit().__enter__()
        first.observe(Answer(429))
        for _ in range(30):
            with policy.admit() as call:
                clock.advance(0.05)
                call.observe(Answer())
        if not left_before:
            late = policy.admit().__enter__()
        before = policy.shaper.adaptive.rate()
        clock.step_wall(seconds)
        late.observe(Answer(429))
        after = policy.shaper.adaptive.rate()
        assert (after < before) is not left_before
        rates.add((before, after))
    assert len(rates) == 1


def test_awaited_observing_changes_the_rate_too(clock):
    policy = Policy(adaptive=BETWEEN, clock=clock)

    async def main():
        for _ in range(12):
            async with policy.aadmit() as admission:
                clock.advance(0.05)
            await admission.aobserve(Answer(200))
        before = await policy.shaper.adaptive.arate()
        async with policy.aadmit() as admission:
            clock.advance(0.05)
        await admission.aobserve(Answer(429, Retry_After="3"))
        return before, await policy.shaper.adaptive.arate()

    before, after = anyio.run(main)
    assert before > 1.9
    assert after < before


def test_without_enforcement_the_rate_learns_nothing(clock):
    policy = Policy(adaptive=BETWEEN, clock=clock, enforce=False)
    with policy.admit() as admission:
        pass
    admission.observe(Answer(429))
    assert policy.shaper.adaptive.rate() == pytest.approx(1)
    assert policy.shaper.held() == 0
