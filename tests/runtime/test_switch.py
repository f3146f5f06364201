"""off(): inside, everything leaves at once and nothing is counted; gates still answer."""

import os
import subprocess
import sys
import threading

import anyio
import pytest

from shapekit import GCRA, ConfigError, Gate, RateLimitedError, Shaper, off, shaped


def test_an_admission_passes_at_once_and_is_not_counted(world, policy, clock):
    one = policy("1/h", quota="1/day", max_wait=0)
    for _ in range(3):
        with off():
            admission = one.admit(max_wait=0, timeout="1s")
            world.enter(admission)
        assert (admission.delay, admission.decision.allowed) == (0.0, True)
    assert clock.now() == 0.0
    assert one.forecast().first_in == 0.0
    world.enter(one.admit())
    with pytest.raises(RateLimitedError):
        world.enter(one.admit())


@pytest.mark.parametrize("key", [None, "{number}"])
def test_a_shaped_function_passes_at_once_and_is_shaped_afterwards(world, clock, key):
    call = shaped("1/s", key=key, clock=clock)(world.define(lambda number=0: clock.now()))
    with off():
        assert [world.call(call) for _ in range(3)] == [0.0] * 3
    assert [world.call(call) for _ in range(2)] == [0.0, 1.0]


def test_generators_pass_at_once(clock):
    call = shaped("1/s", clock=clock)(lambda: (yield clock.now()))
    with off():
        assert [list(call()) for _ in range(3)] == [[0.0]] * 3


def test_a_shaper_passes_at_once(clock):
    shaper = Shaper("1/h", clock=clock)
    clock.advance(5)
    with off():
        reservations = [shaper.reserve() for _ in range(3)]
        assert [(taken.accepted, taken.departs_at) for taken in reservations] == [(True, 5.0)] * 3
        with shaper:
            shaper.schedule()
        assert reservations[0].cancel() is False
    assert clock.now() == 5.0


def test_a_call_that_passed_is_not_settled(world, policy):
    one = policy("1/s")
    with off():
        admission = one.admit(cost=5)
        world.enter(admission)
    assert world.settle(admission, 100) is False
    assert world.settle(admission, 0) is False
    assert one.forecast().first_in == 0.0


def test_a_call_that_was_not_charged_is_not_refunded(world, policy, fits):
    one = policy("1/s burst 5", refund_on=LookupError)
    world.enter(one.admit(cost=3))

    def fail(_):
        raise LookupError

    with off(), pytest.raises(LookupError):
        world.enter(one.admit(cost=3), fail)
    assert fits(one) == 2


def test_wrong_arguments_stay_wrong(refused, world, policy):
    one = policy("1/s", gates=(GCRA("5/s"),))
    with off():
        for arguments, field in (({"cost": 0}, "cost"), ({"key": 5}, "key")):
            refused(lambda: world.enter(one.admit(**arguments)), field)  # noqa: B023 - called at once
        refused(shaped, "rate")


def test_nested_it_stays_off_until_the_last_is_left(clock):
    shaper = Shaper("1/h", clock=clock)
    with off():
        with off():
            shaper.reserve()
        assert shaper.reserve().delay == 0.0
        assert shaper.reserve().delay == 0.0
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 3_600.0]


def test_an_error_inside_switches_on_again(clock):
    shaper = Shaper("1/h", clock=clock)
    with pytest.raises(LookupError), off():
        raise LookupError
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 3_600.0]


def test_off_serves_as_a_decorator(clock):
    shaper = Shaper("1/h", clock=clock)

    @off()
    def unshaped():
        return [shaper.reserve().delay for _ in range(2)]

    assert unshaped() == unshaped() == [0.0, 0.0]
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 3_600.0]


def test_off_holds_in_all_threads_until_the_last_has_left(clock):
    shaper = Shaper("1/h", clock=clock)
    entered, leave = threading.Event(), threading.Event()
    delays = []

    def other():
        with off():
            delays.append([shaper.reserve().delay for _ in range(2)])
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with off():
        thread.start()
        assert entered.wait(10)
    # One thread has left, the other has not: off() counts the threads inside, and not the last entry.
    delays.append([shaper.reserve().delay for _ in range(2)])
    leave.set()
    thread.join(10)
    assert delays == [[0.0, 0.0]] * 2
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 3_600.0]


def test_many_threads_leave_the_switch_as_they_found_it(clock):
    def in_and_out():
        for _ in range(300):
            with off():
                pass

    threads = [threading.Thread(target=in_and_out) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    shaper = Shaper("1/h", clock=clock)
    assert [shaper.reserve().delay for _ in range(2)] == [0.0, 3_600.0]


@pytest.mark.anyio
async def test_off_holds_in_all_tasks(clock):
    shaper = Shaper("1/h", clock=clock)
    delays = []

    async def ask():
        delays.append((await shaper.aschedule()).delay)

    with off():
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
    assert delays == [0.0] * 3
    assert clock.now() == 0.0


def test_a_gate_still_answers(clock):
    gate = Gate(GCRA("1/s", burst=1), clock=clock)
    with off():
        assert [bool(gate.check()) for _ in range(2)] == [True, False]


PROGRAM = """
import shapekit
from shapekit import GCRA, Gate, Policy, shaped

@shaped("1/h", max_wait=0)
def call():
    return 1

policy = Policy("1/h", max_wait=0)
gate = Gate(GCRA("1/h", burst=1))
for _ in range(3):
    call()
    with policy.admit() as admission:
        assert admission.delay == 0
with shapekit.off():
    call()
call()
print("passed", [bool(gate.check()) for _ in range(2)])
"""


def run(value):
    environment = {**os.environ, "SHAPEKIT_OFF": value}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("value", ["1", " True ", "yes", "ON"])
def test_the_environment_switches_a_whole_process_off_and_logs_it_once(value):
    done = run(value)
    assert done.stdout == "passed [True, False]\n"
    assert done.stderr.count("SHAPEKIT_OFF") == 1
    assert "not shaped" in done.stderr


@pytest.mark.parametrize("value", ["0", "", " ", "false", "No", " OFF "])
def test_a_value_that_means_no_switches_nothing_off(value):
    done = run(value)
    assert done.returncode == 1
    assert "QueueFullError" in done.stderr
    assert "SHAPEKIT_OFF" not in done.stderr


@pytest.mark.parametrize("value", ["production", "2", "'1'"])
def test_an_unknown_value_switches_nothing_off_and_is_logged_once(value):
    done = run(value)
    assert done.returncode == 1
    assert "QueueFullError" in done.stderr
    assert done.stderr.count("SHAPEKIT_OFF") == 1
    assert f"{value!r} is neither yes nor no, so calls are shaped" in done.stderr


def test_config_errors_of_off_are_not_swallowed():
    with pytest.raises(ConfigError), off():
        Shaper("10")
