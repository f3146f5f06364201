"""Where bounds can be given, options that contradict each other, and what an operator sees of bounds."""

import pytest

from shapekit import (
    GCRA,
    Adaptive,
    ConfigError,
    ManualClock,
    MemoryStore,
    Policy,
    Shaper,
    shaped,
)
from shapekit._adapters.http import RequestShaper
from shapekit._adapters.transport import READING
from shapekit.cli.check import meaning
from shapekit.cli.top import row_of
from shapekit.stores.encoding import LiveKey

BETWEEN = Adaptive(min="1/s", max="50/s")


def test_bounds_are_accepted_wherever_a_rate_is():
    assert Policy.from_dict({"adaptive": {"min": "1/s", "max": 50}}).shaper.core.queue == (
        Shaper(adaptive=BETWEEN).core.queue
    )
    assert shaped(adaptive=BETWEEN)(lambda: 1).policy.shaper.core.queue.adapts
    assert RequestShaper("ShapedTransport", READING, adaptive=BETWEEN)._main.policy.shaper.core.queue.adapts
    assert repr(BETWEEN) == "Adaptive(min='1/s', max='50/s')"
    assert eval(repr(BETWEEN)) == BETWEEN
    assert not Shaper("1/s").core.queue.adapts


@pytest.mark.parametrize(
    ("beside", "field"),
    [
        ({"rate": "10/s"}, "rate"),
        ({"gates": [GCRA("10/s")]}, "gates"),
        ({"pace": "burst"}, "pace"),
        ({"headroom": 0.02}, "headroom"),
        ({"prefetch": "1s"}, "prefetch"),
        ({"adaptive": "10/s"}, "adaptive"),
    ],
)
def test_contradicting_options_are_refused(refused, beside, field):
    refused(lambda: Shaper(**{"adaptive": BETWEEN, **beside}), field)


def test_errors_name_the_wrong_option(refused, clock):
    refused(lambda: Adaptive(min="5/s", max="5/s"), "min")
    refused(lambda: Adaptive(min="1/week", max="1000/s"), "min")
    refused(lambda: Adaptive(min="1/s", max="5/s burst 3"), "max")
    refused(lambda: Policy(adaptive=BETWEEN, feedback=None), "feedback")
    refused(lambda: Policy(adaptive=BETWEEN, quota="5/day"), "gates")
    refused(lambda: Policy.from_dict({"adaptive": {"min": "1/s"}}), "adaptive")
    refused(lambda: Policy.from_dict({"adaptive": {"min": "x", "max": 5}}), "adaptive min")
    plain, shaper = Shaper("1/s", clock=clock), Shaper(adaptive=BETWEEN, clock=ManualClock())
    refused(lambda: plain.adaptive.throttled(age=1), "adaptive")
    refused(lambda: plain.adaptive.succeeded(age=0), "adaptive")
    refused(lambda: shaper.adaptive.succeeded(age=-1), "age")
    refused(lambda: shaper.adaptive.throttled(age="soon"), "age")
    refused(lambda: shaper.adaptive.stated(0, "1m", age=0), "limit")


def test_an_operator_sees_the_bounds_and_the_rate(clock):
    store = MemoryStore(clock)
    policy = Policy(adaptive=Adaptive(min="2/s", max="50/s"), store=store, name="api", burst=3)
    state, now, skew = policy.shaper.core.look.call("default")
    seen = LiveKey("api", "", "default", policy.shaper.core.queue, state, now, skew)
    assert row_of(seen).limit == "adaptive 2/s to 50/s burst 3"
    policy.shaper.adaptive.stated(60, "1m", age=0)
    policy.shaper.hold(5)
    seen = seen._replace(state=policy.shaper.core.look.call("default")[0])
    assert row_of(seen).limit == "adaptive 2/s to 50/s burst 3, now 1/s"
    assert row_of(seen).held == 5
    assert meaning(policy, None)[0] == "as fast as the server bears, from 2 per second to 50 per second"


def test_a_name_with_a_given_rate_refuses_an_adaptive_one():
    store = MemoryStore(ManualClock())
    Shaper("1/s", store=store, name="api").reserve()
    with pytest.raises(ConfigError):
        Shaper(adaptive=BETWEEN, store=store, name="api")


def test_other_bounds_continue_from_the_rate_that_was_found(clock):
    store = MemoryStore(clock)
    shaper = Shaper(adaptive=BETWEEN, store=store, name="api")
    for _ in range(20):
        clock.advance(0.2)
        shaper.adaptive.succeeded(age=0.1)
    found = shaper.adaptive.rate()
    wider = Shaper(adaptive=Adaptive(min="1/min", max="200/s"), store=store, name="api")
    assert wider.adaptive.rate() == pytest.approx(found, rel=1e-3)


def test_a_reservation_has_the_decision_of_one_at_that_rate(clock):
    adaptive, plain = Shaper(adaptive=BETWEEN, clock=clock), Shaper("1/s", clock=clock)
    for step_s in (0, 0, 0, 1.5, 0.25, 7):
        clock.advance(step_s)
        decision, expected = (shaper.reserve().decision for shaper in (adaptive, plain))
        assert decision._replace(receipt=None) == expected._replace(receipt=None)
        assert decision.current >= 1
