"""refund_on: the cost of a call that never counted comes back, and that of no other call."""

import pytest

from shapekit import FixedWindow, QueueFullError, shaped


class Unsent(ConnectionError):
    """A call that never left."""


def never_left(error):
    return isinstance(error, OSError) and "refused" in str(error)


def raising(error):
    def body(_):
        raise error

    return body


KINDS = [
    ("class", ConnectionError, Unsent("x"), LookupError("x")),
    ("tuple", (TimeoutError, ConnectionError), Unsent("x"), OSError("x")),
    ("empty-tuple", (), None, OSError("x")),
    ("predicate", never_left, OSError("refused"), OSError("reset")),
    ("base", KeyboardInterrupt, KeyboardInterrupt(), SystemExit()),
]


@pytest.mark.parametrize(
    ("refund_on", "free", "counted"), [case[1:] for case in KINDS], ids=[case[0] for case in KINDS]
)
def test_the_cost_comes_back_after_these_errors_alone(world, policy, fits, refund_on, free, counted):
    one = policy("1000/s", gates=(FixedWindow(10, "1h"),), quota="12/day", refund_on=refund_on, cost=3)
    if free is not None:
        for _ in range(5):
            with pytest.raises(type(free)):
                world.enter(one.admit(), raising(free))
    with pytest.raises(type(counted)):
        world.enter(one.admit(), raising(counted))
    world.enter(one.admit())
    assert fits(one, 1) == 10 - 2 * 3


def test_the_rate_and_every_limit_forget_the_call(world, policy, clock):
    one = policy("1/s burst 2", gates=(FixedWindow(3, "1h"),), quota="4/day", refund_on=Unsent)
    for _ in range(3):
        with pytest.raises(Unsent):
            world.enter(one.admit(cost=2), raising(Unsent()))
    world.enter(one.admit(cost=2))
    assert clock.now() == 0.0
    assert one.forecast().first_in == 1.0


def test_without_refund_on_every_call_counts(world, policy):
    one = policy("1/s")
    with pytest.raises(ConnectionError):
        world.enter(one.admit(), raising(ConnectionError()))
    assert one.forecast().first_in == 1.0


def test_the_predicate_is_called_only_with_errors_of_the_call(world, policy):
    seen = []
    one = policy("1/s", max_wait=0, refund_on=seen.append)
    world.enter(one.admit())
    with pytest.raises(QueueFullError):
        world.enter(one.admit(), pytest.fail)
    assert seen == []
    error = LookupError("of the call")
    with pytest.raises(LookupError):
        world.enter(one.admit("other"), raising(error))
    assert seen == [error]


def test_a_slot_that_later_calls_depend_on_stays_taken(world, policy):
    one = policy("1/s", refund_on=Unsent)
    behind = []

    def fail(_):
        behind.append(one.shaper.reserve().delay)
        raise Unsent

    with pytest.raises(Unsent):
        world.enter(one.admit(), fail)
    # The call behind keeps its promised slot; no call takes the slot before it.
    assert (behind, one.forecast().first_in) == ([1.0], 2.0)


def test_a_call_that_was_settled_gives_back_what_it_was_settled_to(world, policy, fits):
    one = policy("1000/s", gates=(FixedWindow(10, "1h"),), refund_on=Unsent)
    world.enter(one.admit(cost=5))

    def settled_and_lost(admission):
        # On a loop, the synchronous settle works as well: the store is in this process.
        admission.settle(1)
        raise Unsent

    with pytest.raises(Unsent):
        world.enter(one.admit(cost=5), settled_and_lost)
    assert fits(one, 1) == 5


def test_a_shaped_function_takes_the_same(world, clock):
    @shaped("1/s", refund_on=Unsent, clock=clock)
    @world.define
    def call(error):
        if error:
            raise error

    for _ in range(3):
        with pytest.raises(Unsent):
            world.call(call, Unsent())
    with pytest.raises(LookupError):
        world.call(call, LookupError())
    assert call.forecast().first_in == 1.0
    world.call(call, None)
    assert clock.now() == 1.0


def test_an_error_of_the_predicate_is_logged_and_the_error_of_the_call_comes_through(world, policy, caplog):
    def broken(error):
        raise TypeError("of the predicate")

    own = LookupError("of the call")
    with pytest.raises(LookupError) as caught:
        world.enter(policy("1/s", refund_on=broken).admit(), raising(own))
    assert caught.value is own
    (record,) = caplog.records
    assert record.exc_info[0] is TypeError


def test_closing_a_generator_makes_no_call_to_the_store(world, policy):
    """The collector closes generators at any point, also while a lock of the store is held."""
    one = policy("1/s", quota="10/day", refund_on=lambda error: True)
    with pytest.raises(GeneratorExit):
        world.enter(one.admit(), raising(GeneratorExit()))
    (day,) = one.quotas()
    assert day.used == 1
