"""The log: DEBUG is about calls, INFO about keys; and it is cheap where no program reads it."""

import logging
import subprocess
import sys

import pytest

from shapekit import Policy, QueueFullError, off

SHAPER = "shapekit.shaper"


@pytest.fixture
def logged(caplog):
    """The messages of a program that reads all levels: level and text, by logger."""
    caplog.set_level(logging.DEBUG, "shapekit")

    def lines(name=SHAPER):
        return [(one.levelname, one.getMessage()) for one in caplog.records if one.name == name]

    return lines


@pytest.mark.parametrize("way", ["schedule", "admit", "scoped", "prepared", "templated"])
def test_a_call_that_waits_and_none_that_leaves_at_once(world, policy, way, logged):
    for _ in range(2):
        world.run(policy, way, "alice")
    assert logged() == [("DEBUG", "stripe: key 'alice' waits 100 ms")]


@pytest.mark.parametrize("way", ["schedule", "admit", "scoped", "prepared", "templated"])
def test_a_call_that_is_refused(world, clock, way, logged):
    policy = Policy("10/s", name="stripe", max_wait=0, clock=clock)
    policy.shaper.reserve("alice")
    with pytest.raises(QueueFullError):
        world.run(policy, way, "alice")
    ((level, message),) = logged()
    assert level == "DEBUG"
    assert message.startswith(
        "stripe: key 'alice' does not leave: QueueFullError: "
        "policy 'stripe', key 'alice': a wait of 100 ms exceeds"
    )


def test_a_call_that_gives_up(world, policy, logged):
    policy.shaper.reserve("alice", cost=10)
    with pytest.raises(TimeoutError):
        world.run(policy, "admit", "alice", timeout=0.25)
    assert logged() == [
        ("DEBUG", "stripe: key 'alice' waits 1 s"),
        (
            "DEBUG",
            (
                "stripe: key 'alice' does not leave: TimeoutError: "
                "policy 'stripe', key 'alice': gave up waiting after 250 ms"
            ),
        ),
    ]


def test_holds_are_logged(world, policy, clock, logged):
    hold, resume, reset = policy.shaper.hold, policy.shaper.resume, policy.shaper.reset
    world.do(hold, "30s", key="alice")
    world.do(hold, "1s", key="alice")
    clock.advance(1)
    world.do(hold, "30s", key="alice")
    world.do(resume, key="alice")
    world.do(resume, key="alice")
    world.do(reset, "alice")
    assert logged() == [
        ("INFO", "stripe: key 'alice' is held for 30 s"),
        ("DEBUG", "stripe: key 'alice' is held for 30 s"),
        ("INFO", "stripe: the hold of key 'alice' ends in 250 ms"),
        ("INFO", "stripe: key 'alice' was reset"),
    ]


def test_measured_waits_and_refusals_are_logged(world, clock, logged):
    policy = Policy("10/s", name="stripe", max_wait=0.1, enforce=False, clock=clock)
    for _ in range(3):
        world.run(policy, "admit", "alice")
    assert logged("shapekit.policy") == [
        ("INFO", "stripe: key 'alice' would have waited 100 ms"),
        ("INFO", "stripe: key 'alice' would have been refused"),
    ]
    assert logged() == []


def test_while_shaping_is_off_calls_are_not_logged(world, policy, logged):
    with off():
        for _ in range(2):
            world.run(policy, "admit", "alice")
    assert logged() == []


def test_expected_waits_and_refusals_are_not_logged_as_warnings(world, policy, caplog):
    for _ in range(2):
        world.run(policy, "admit", "alice")
    policy.shaper.hold("30s", key="alice")
    with pytest.raises(QueueFullError):
        world.run(policy, "admit", "alice", max_wait=0)
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


PROGRAM = """
import sys
from shapekit import Policy, ManualClock, events, listen
policy = Policy("10/s", clock=ManualClock(autojump=True))
with listen(lambda _: None):
    for _ in range(2):
        policy.shaper.schedule()
policy.shaper.schedule()
policy.shaper.hold("1s")
policy.shaper.resume()
policy.shaper.reset()
assert not policy.shaper.reserve(max_wait=0) or True
print("logging" in sys.modules)
"""


def test_logging_is_not_loaded_where_no_program_reads_it():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
