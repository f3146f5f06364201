"""`shapekit hold`, `resume` and `reset`: all who share a key obey."""

import json
import time

import pytest

from shapekit import GCRA, Gate, RedisStore, Shaper, any_of

from ..redis_server import shared_server
from .screen import Screen, complaint, shapekit


@pytest.fixture
def shaper(place):
    """One with a live key that has colons in its name and in its key."""
    shaper = Shaper("1/min; 100/h", name="api:stripe", store=place[0])
    assert shaper.reserve("eu:1")
    return shaper


@pytest.fixture
def screens():
    made = []

    def make(*args):
        made.append(Screen(*args))
        return made[-1]

    yield make
    for screen in made:
        screen.close()


def done(*args):
    result = shapekit(*args)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_hold_moves_whoever_waits(place, shaper):
    waits = shaper.reserve("eu:1")
    assert shaper.remaining(waits) <= 60
    words = done("hold", "api:stripe:eu:1", "5m", "--store", place[1])
    assert words.startswith("api:stripe:eu:1 is held for 5 m 00 s, until ")
    assert 300 < shaper.remaining(waits) <= 360
    assert shaper.reserve("eu:1").delay > 360


def test_a_shorter_hold_says_that_the_longer_one_stays(place, shaper):
    shaper.hold("1h", key="eu:1")
    told = json.loads(done("hold", "api:stripe:eu:1", "5s", "--store", place[1], "--json"))
    assert (told["key"], told["done"]) == ("api:stripe:eu:1", "hold")
    assert 3500 < told["held"] <= 3600
    assert abs(told["until"] - time.time() - told["held"]) < 100
    assert "was held for longer already" in done("hold", "api:stripe:eu:1", "5s", "--store", place[1])


def test_resume_ends_a_hold(place, shaper):
    shaper.hold("1h", key="eu:1")
    waits = shaper.reserve("eu:1")
    assert "leaves again in 1 m 30 s" in done("resume", "api:stripe:eu:1", "--store", place[1])
    assert shaper.remaining(waits) <= 150
    told = json.loads(done("resume", "api:stripe:eu:1", "--store", place[1], "--json"))
    assert told["held"] <= 7.5


def test_resuming_what_is_not_held_changes_nothing(place, shaper):
    before = shaper.reserve("eu:1")
    assert "was not held" in done("resume", "api:stripe:eu:1", "--store", place[1])
    assert before.cancel(), "the line is as it was"


def test_reset_forgets_one_key_and_no_other(place, shaper):
    assert shaper.reserve("eu:2")
    words = done("reset", "api:stripe:eu:1", "--store", place[1])
    assert words == "api:stripe:eu:1 is as good as new (1/min; 100/h)\n"
    assert shaper.reserve("eu:1").delay == 0
    assert shaper.reserve("eu:2").delay > 30


def test_reset_works_on_gates(place):
    store, where = place
    gate = Gate(GCRA("1/h"), name="slow", store=store)
    assert gate.check("a")
    assert not gate.check("a")
    told = json.loads(done("reset", "slow:a", "--store", where, "--json"))
    assert told == {"key": "slow:a", "done": "reset", "limit": "gcra 1/h burst 1"}
    assert gate.check("a")


def test_reset_asks_on_a_terminal(place, shaper, screens):
    screen = screens("reset", "api:stripe:eu:1", "--store", place[1])
    screen.until("Forget api:stripe:eu:1 (1/min; 100/h)", "[y/N]")
    screen.press("n\n")
    assert screen.end() == 130
    assert shaper.reserve("eu:1").delay > 30
    screen = screens("reset", "api:stripe:eu:1", "--store", place[1])
    screen.until("[y/N]")
    screen.press("y\n")
    assert screen.end() == 0
    assert shaper.reserve("eu:1").delay == 0
    screen = screens("reset", "api:stripe:eu:1", "--store", place[1], "--yes")
    assert screen.end() == 0
    assert "[y/N]" not in screen.text


def test_very_long_keys_are_meant_whole(place, shaper):
    long = "é" * 300
    assert shaper.reserve(long)
    shaper_key = f"api:stripe:{long}"
    done("hold", shaper_key, "5m", "--store", place[1])
    assert shaper.reserve(long).delay > 300
    done("reset", shaper_key, "--store", place[1])
    assert shaper.reserve(long).delay == 0


def test_a_key_that_is_shown_cut_is_not_mistaken_for_another():
    where = f"{shared_server().url.rsplit('/', 1)[0]}/9"
    store = RedisStore.from_url(where)
    assert Gate(GCRA("1/h"), name="long", store=store).check("x" * 500)
    (cut,) = store.keys()
    assert "is not there" in complaint(shapekit("reset", cut, "--store", where))
    assert list(store.keys()) == [cut]
    store.reset_all()
    store.close()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("hold", "api:stripe:eu:2", "5s"), "key='api:stripe:eu:2' is not there, or idle"),
        (("hold", "api:stripe:eu", "5s"), "key='api:stripe:eu' is not there"),
        (("resume", "other:eu:1"), "key='other:eu:1' is not there"),
        (("reset", "nothing"), "key='nothing' has no name"),
        (("hold", "api:stripe:eu:1", "soon"), "length='soon' is not a duration"),
        (("hold", "api:stripe:eu:1", "0s"), "length='0s' is no time at all"),
        (("hold", "gate:a", "5s"), "key='gate:a' is a gate (gcra 1/h burst 1)"),
        (("resume", "gate:a"), "key='gate:a' is a gate"),
        (("reset", "parts:a:x"), "key='parts:a:x' is one part of the composite 'parts'"),
    ],
)
def test_what_is_not_there_or_cannot_be_is_one_line(place, shaper, args, words):
    store, where = place
    assert Gate(GCRA("1/h"), name="gate", store=store).check("a")
    parts = Gate(any_of(a=GCRA("1/h"), b=GCRA("1/h")), name="parts", store=store)
    assert parts.check({"a": "x", "b": "y"})
    before = sorted(store.keys())
    assert words in complaint(shapekit(*args, "--store", where))
    assert sorted(store.keys()) == before
    assert shaper.reserve("eu:1").delay <= 60


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    where = tmp_path / "limits.db"
    assert "is not a file" in complaint(shapekit("reset", "a:b", "--store", where))
    assert list(tmp_path.iterdir()) == []
