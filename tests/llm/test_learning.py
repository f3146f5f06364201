"""Estimates that learn: their sources, their bounds, the promise that they keep, and their gain."""

import os
import random
import signal
import threading
from contextlib import suppress

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ConfigError, LLMBudget, ManualClock, TokenBucket, TokenUsage
from shapekit._runtime.drivers import AsyncAlarm
from shapekit.llm.usage import ENOUGH, LAST, MOST_KEYS, Learning

PRICES = {"some": {"input": "2.50", "output": "10"}}
ESTIMATE = TokenUsage(1_000, 1_000)


def taught(usages, *, estimate=ESTIMATE, **options):
    learning = Learning(**{"scales_input": True, "lowers": True, **options})
    for usage in usages:
        learning.learn("me", estimate, usage)
    return learning


COUNT = st.integers(0, 10_000)
USAGES = st.lists(st.builds(TokenUsage, COUNT, COUNT, uncounted=COUNT), max_size=50)
ESTIMATES = st.builds(TokenUsage, COUNT, COUNT)


@given(USAGES, ESTIMATES, ESTIMATES, st.booleans(), st.booleans())
def test_a_learned_estimate_has_bounds_both_ways(usages, learned_by, estimate, lowers, scales_input):
    learning = taught(usages, estimate=learned_by, lowers=lowers, scales_input=scales_input)
    given_, answered = learning.scaled("me", estimate)[:2]
    assert estimate.input <= 2 * given_
    assert given_ <= 2 * estimate.input
    assert estimate.output <= 4 * answered
    assert answered <= estimate.output
    if not scales_input:
        assert given_ == estimate.input
    if not lowers or len(usages) < ENOUGH:
        # The promise of the strict mode: no reservation is below the worst case.
        assert given_ >= estimate.input
        assert answered == estimate.output


@given(USAGES.filter(lambda usages: len(usages) >= ENOUGH))
def test_a_learned_estimate_covers_the_last_calls_within_its_bounds(usages):
    given_, answered = taught(usages).scaled("me", ESTIMATE)[:2]
    for usage in usages[-LAST:]:
        assert given_ >= min(usage.input + usage.uncounted, 2_000)
        assert answered >= min(usage.output, 1_000)


def test_old_calls_are_forgotten():
    learning = taught([TokenUsage(2_000, 1_000), *[TokenUsage(500, 250)] * LAST])
    assert learning.scaled("me", ESTIMATE) == TokenUsage(500, 250)
    assert learning.scaled("you", ESTIMATE) == ESTIMATE


def test_learning_keeps_the_keys_and_models_that_were_settled_last():
    learning = Learning(scales_input=True, lowers=True)
    settled = ["kept", *map(str, range(MOST_KEYS - 1)), "kept", "new", "newer"]
    for owner in settled:
        learning.learn(owner, ESTIMATE, TokenUsage(2_000, 0))
    forgotten = [owner for owner in settled if learning.scaled(owner, ESTIMATE) == ESTIMATE]
    assert forgotten == ["0", "1"]


# budgets


def ask(budget, used, times=1, **more):
    """Makes calls with a prompt of a hundred tokens by its bytes; returns what the last one reserved."""
    reserved = None
    for _ in range(times):
        with budget.admit({"model": "some", "prompt": "abc" * 100, "max_tokens": 1_000, **more}) as call:
            reserved = call.reserved
            call.settle(used)
    return reserved


def answer(given_, answered):
    return {"usage": {"prompt_tokens": given_, "completion_tokens": answered}}


WORST, LEARNED = (100, 1_000), (61, 250)


@pytest.mark.parametrize(
    ("options", "reserved"),
    [
        ({"tokens": "90k/min", "capacity": 90_000}, LEARNED),
        ({"tokens": "90k/min burst 90k"}, LEARNED),
        ({"tokens": TokenBucket("90k/min")}, LEARNED),
        ({"input_tokens": "9k/min", "output_tokens": "90k/min", "capacity": 90_000}, LEARNED),
        ({"tokens": "90k/min", "capacity": 90_000, "count": lambda text: len(text) // 3}, (100, 250)),
        ({"tokens": "90k/min"}, WORST),
        ({"tokens": "90k/min", "capacity": 90_000, "learn": False}, WORST),
        ({"tokens": "90k/min", "capacity": 90_000, "tokens_per_day": "5M"}, WORST),
        ({"tokens": "90k/min", "capacity": 90_000, "spend": "50 USD/day", "prices": PRICES}, WORST),
        ({"tokens": "90k/min", "capacity": 90_000, "estimate": (100, 1_000)}, WORST),
        ({"tokens": "90k/min", "capacity": 90_000, "estimate": lambda **_: (100, 1_000)}, WORST),
    ],
)
def test_only_budgets_with_token_buckets_estimate_below_the_worst_case(options, reserved):
    budget = LLMBudget(**options, clock=ManualClock(autojump=True))
    assert ask(budget, answer(60, 100), times=ENOUGH)[:2] == WORST
    assert ask(budget, answer(60, 100))[:2] == reserved


def test_an_input_that_was_counted_too_low_is_raised_at_once():
    budget = LLMBudget(tokens="90k/min", clock=ManualClock(autojump=True))
    ask(budget, answer(130, 10))
    assert ask(budget, answer(130, 10))[:2] == (131, 1_000)  # in parts of 1,024, rounded up


def test_keys_and_models_learn_apart():
    clock = ManualClock(autojump=True)
    budget = LLMBudget(tokens="90k/min", capacity=90_000, key="{user}", clock=clock)
    ask(budget, answer(60, 100), times=ENOUGH, user="a")
    assert ask(budget, answer(60, 100), user="a")[:2] == LEARNED
    assert ask(budget, answer(60, 100), user="b")[:2] == WORST
    assert ask(budget, answer(60, 100), user="a", model="other")[:2] == WORST
    assert ask(budget, answer(60, 100), user="a", model=["odd"])[:2] == WORST


def test_a_learned_estimate_does_not_decide_whether_a_call_can_be_admitted():
    budget = LLMBudget(tokens="1100/min", clock=ManualClock(autojump=True))
    for _ in range(2):
        assert ask(budget, answer(150, 10))[:2] == WORST


def test_bare_numbers_and_aborted_streams_teach_nothing():
    budget = LLMBudget(tokens="90k/min", clock=ManualClock(autojump=True))
    ask(budget, 1_000)

    def create(*, model, prompt, max_tokens):
        yield {"choices": [{"delta": {"content": "one two"}}]}

    stream = budget.wrap(create)(model="some", prompt="abc" * 100, max_tokens=1_000)
    next(stream)
    stream.close()
    assert budget._learning._known == {}


def test_learn_is_a_bool():
    with pytest.raises(ConfigError, match="learn"):
        LLMBudget(tokens="5/s", learn="no")


def test_threads_learn_together():
    learning = taught([])
    barrier = threading.Barrier(4)

    def work(number):
        barrier.wait()
        for count in range(2_000):
            learning.learn(str(count % 5), ESTIMATE, TokenUsage(number, number))
            learning.scaled(str(count % 5), ESTIMATE)

    crew = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert [len(last) for last in learning._known.values()] == [LAST] * 5


def test_a_forked_child_knows_what_its_parent_did():
    learning = taught([TokenUsage(2_000, 0)])
    with learning._lock:
        child = os.fork()
        if not child:
            code = 1
            with suppress(BaseException):
                code = int(learning.scaled("me", ESTIMATE).input != 2_000)
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_an_interrupt_loses_nothing():
    """A signal at any line: what was learned before stays, and another call goes on learning."""
    learning, before = taught([TokenUsage(2_000, 0)]), signal.getsignal(signal.SIGALRM)

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                while True:
                    learning.learn("me", ESTIMATE, TokenUsage(2_000, 0))
            assert learning.scaled("me", ESTIMATE).input == 2_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# the promise, and the gain


class Crowd:
    """Tasks that call one after the other, in virtual time; when each left, and with what usage."""

    def __init__(self, **options):
        self.clock = ManualClock(autojump=True)
        self.budget = LLMBudget(**options, clock=self.clock)
        self.left = []

    async def one(self, prompt, most, used, lasts_s):
        async with self.budget.aadmit({"model": "some", "prompt": prompt, "max_tokens": most}) as call:
            self.left.append((self.clock.now(), sum(used)))
            await self.clock.asleep(lasts_s, AsyncAlarm())
            await call.asettle(TokenUsage(*used))

    def worst_minute(self):
        minutes = [[tokens for at, tokens in self.left if start <= at < start + 60] for start, _ in self.left]
        return max(map(sum, minutes), default=0)


def calls(begins_s, most_share):
    """Calls (instant, prompt, bound, used shares of both, length)."""
    share = st.floats(0, most_share)
    return st.tuples(
        st.floats(begins_s, begins_s + 20),
        st.integers(0, 80),
        st.integers(0, 600),
        share,
        share,
        st.floats(0, 30),
    )


@settings(max_examples=60, deadline=None)
@given(
    taught=st.lists(calls(0, 0.1), min_size=ENOUGH, max_size=20),
    judged=st.lists(
        calls(100, 1) | st.tuples(st.just(100.0), st.just(0), *[st.just(n) for n in (600, 0, 1, 20)]),
        max_size=40,
    ),
)
def test_with_learned_estimates_no_minute_has_more_than_the_limit(taught, judged):
    """The law holds for every usage within the bytes of the prompt and max_tokens, whatever was learned."""
    crowd = Crowd(tokens="3000/min")

    async def later(at_s, given_, most, share, rest, lasts_s):
        await crowd.clock.asleep(at_s, AsyncAlarm())
        await crowd.one("abc" * given_, most, (int(given_ * share), int(most * rest)), lasts_s)

    async def main():
        async with anyio.create_task_group() as tasks:
            for call in taught + judged:
                tasks.start_soon(later, *call)

    anyio.run(main)
    assert len(crowd.left) == len(taught) + len(judged)
    assert crowd.worst_minute() <= 3_000


def share_used(minutes=10, workers=60, **options):
    """The share of the limit that is used by answers of a tenth of `max_tokens` that take 10 to 30 s."""
    crowd, chance = Crowd(tokens="60k/min", **options), random.Random(7)

    async def work():
        while crowd.clock.now() < minutes * 60:
            used = (100, chance.randint(150, 250))
            await crowd.one("abc" * 130, 2_000, used, chance.uniform(10, 30))

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(work)

    anyio.run(main)
    used = sum(tokens for at, tokens in crowd.left if at < minutes * 60)
    return used / (minutes * 60_000), crowd.worst_minute()


@pytest.mark.long
def test_learned_estimates_raise_the_throughput_of_answers_below_their_bound():
    learned, worst = share_used(capacity=20_000)
    plain, worst_plain = share_used(capacity=20_000, learn=False)
    strict, worst_strict = share_used()
    print(f"learned {learned:.3f} of the limit, else {plain:.3f}; strict {strict:.3f}")
    assert learned >= 2.5 * plain
    assert max(worst, worst_plain) <= 60_000 + 20_000
    assert worst_strict <= 60_000
