"""`shapekit hold`, `resume` and `reset`: every process that shares a key obeys."""

import json
import sqlite3
import time
from contextlib import closing
from subprocess import CompletedProcess

import pytest
from click.testing import CliRunner

from shapekit import GCRA, Adaptive, Gate, RedisStore, Shaper, SQLiteStore, any_of
from shapekit.cli.main import cli
from shapekit.errors import StoreUnavailableError

from ..redis_server import shared_server
from .screen import Screen, complaint
from .screen import shapekit as process


@pytest.fixture
def shaper(place):
    """A store with one live key that has colons in its name and in its key."""
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


def shapekit(*args):
    """Run the command in this process."""
    result = CliRunner().invoke(cli, [*map(str, args)])
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return CompletedProcess(args, result.exit_code, result.stdout, result.stderr)


def done(*args):
    result = shapekit(*args)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_hold_moves_waiting_calls(place, shaper):
    waits = shaper.reserve("eu:1")
    assert shaper.remaining(waits) <= 60
    held = process("hold", "api:stripe:eu:1", "5m", "--store", place[1])
    assert (held.returncode, held.stderr) == (0, "")
    assert held.stdout.startswith("api:stripe:eu:1 is held for 5 min, until ")
    assert 300 < shaper.remaining(waits) <= 360
    assert shaper.reserve("eu:1").delay > 360


@pytest.mark.parametrize(
    ("time", "seconds"), [("90", 90), ("120.5", 120.5), ("0.5m", 30), ("1h30m", 5400), ("250 ms", 0.25)]
)
def test_a_plain_number_is_seconds(shaper, place, time, seconds):
    report = json.loads(done("hold", "api:stripe:eu:1", time, "--store", place[1], "--json"))
    assert report["held"] == seconds


@pytest.mark.parametrize("key", ["new", "eu:2"])
def test_a_key_that_was_never_used_is_held_by_the_limit_of_its_name(place, shaper, key):
    words = done("hold", f"api:stripe:{key}", "5m", "--store", place[1])
    assert words.startswith(f"api:stripe:{key} was not in use, and is held for 5 min, until ")
    assert 299 < shaper.reserve(key).delay <= 300
    assert 359 < shaper.reserve(key).delay <= 360
    assert shaper.reserve("another").delay == 0
    report = json.loads(done("hold", f"api:stripe:{key}", "1s", "--store", place[1], "--json"))
    assert report["in_use"]


def test_an_idle_key_is_held_when_all_of_its_name_are_idle(place):
    store, where = place
    shaper = Shaper("1/min", name="resting", store=store)
    assert shaper.reserve("a")
    shaper.reset("a")
    report = json.loads(done("hold", "resting:a", "300", "--store", where, "--json"))
    assert (report["held"], report["in_use"]) == (300, False)
    assert 299 < shaper.reserve("a").delay <= 300


def test_earlier_rates_of_a_name_do_not_lengthen_the_hold_of_an_idle_key(place):
    store, where = place
    for key, rate in (("a", "1/h burst 20"), ("b", "10/s burst 5"), ("c", "1/min burst 9")):
        shaper = Shaper(rate, name="api", store=store)
        assert shaper.reserve(key)
        shaper.reset(key)
    done("hold", "api:idle", "1h", "--store", where)
    shaper = Shaper("20/s", name="api", store=store)
    assert 3590 < shaper.reserve("idle").delay <= 3600.5


def test_an_adaptive_key_is_held_when_it_is_idle(place):
    store, where = place
    shaper = Shaper(adaptive=Adaptive("1/min", "10/s"), name="found", store=store)
    assert shaper.reserve("a")
    done("hold", "found:b", "1h", "--store", where)
    assert 3590 < shaper.reserve("b").delay <= 3600


def test_an_idle_scope_of_a_server_is_held_and_named_with_its_host(place, shaper):
    done("hold", "api:stripe:eu:1%scope=search", "5m", "--store", place[1])
    assert shaper.held(key="eu:1%scope=search") > 299
    assert shaper.core.look.call("eu:1")[0][6][2], "the key is marked"


def test_all_keys_of_a_name_are_held_and_resumed(place, shaper):
    store, where = place
    assert shaper.reserve("eu:2")
    other = Shaper("1/min", name="api", store=store)
    assert other.reserve("stripe:eu:3")
    first, second, total = done("hold", "api:stripe:*", "1h", "--store", where).splitlines()
    assert first.startswith("api:stripe:eu:1 is held for 1 h, until ")
    assert second.startswith("api:stripe:eu:2 is held for 1 h, until ")
    assert total == "2 keys held"
    assert min(shaper.reserve(key).delay for key in ("eu:1", "eu:2")) > 3590
    assert shaper.reserve("later").delay == 0
    assert other.reserve("stripe:eu:3").delay <= 60
    *lines, total = done("resume", "api:stripe:*", "--store", where).splitlines()
    assert lines == [
        "api:stripe:eu:1: calls leave again in 1 min 30 s",
        "api:stripe:eu:2: calls leave again in 1 min 30 s",
        "api:stripe:later was not held",
    ]
    assert total == "2 of 3 keys had been held"


def test_all_keys_of_a_name_are_a_list_for_machines(place, shaper):
    report = json.loads(done("hold", "api:stripe:*", "60", "--store", place[1], "--json"))
    assert [(one["key"], one["held"]) for one in report] == [("api:stripe:eu:1", 60)]
    report = json.loads(done("resume", "api:stripe:*", "--store", place[1], "--json"))
    assert [(one["key"], one["done"]) for one in report] == [("api:stripe:eu:1", "resume")]


def test_a_key_too_long_to_name_is_reported_and_the_others_are_held():
    where = f"{shared_server().url.rsplit('/', 1)[0]}/9"
    store = RedisStore.from_url(where)
    shaper = Shaper("1/min", name="long", store=store)
    assert all(shaper.reserve(key) for key in ("x" * 500, "short"))
    result = shapekit("hold", "long:*", "1h", "--store", where)
    assert result.returncode == 2
    assert result.stdout.startswith("long:short is held for 1 h")
    assert "1 key not reached, shortened, damaged or by an unknown program (long:xxx" in result.stderr
    assert shaper.reserve("x" * 500).delay <= 60
    store.reset_all()
    store.close()


def test_a_shorter_hold_says_that_the_longer_one_stays(place, shaper):
    shaper.hold("1h", key="eu:1")
    report = json.loads(done("hold", "api:stripe:eu:1", "5s", "--store", place[1], "--json"))
    assert (report["key"], report["done"]) == ("api:stripe:eu:1", "hold")
    assert 3500 < report["held"] <= 3600
    assert abs(report["until"] - time.time() - report["held"]) < 100
    assert "was held for longer already" in done("hold", "api:stripe:eu:1", "5s", "--store", place[1])


def test_resume_ends_a_hold(place, shaper):
    shaper.hold("1h", key="eu:1")
    waits = shaper.reserve("eu:1")
    words = done("resume", "api:stripe:eu:1", "--store", place[1])
    assert words == "api:stripe:eu:1: calls leave again in 1 min 30 s\n"
    assert shaper.remaining(waits) <= 150
    report = json.loads(done("resume", "api:stripe:eu:1", "--store", place[1], "--json"))
    assert report["held"] <= 7.5


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
    report = json.loads(done("reset", "slow:a", "--store", where, "--json"))
    assert report == {"key": "slow:a", "done": "reset", "limit": "gcra 1/h burst 1"}
    assert gate.check("a")


def test_reset_needs_a_confirmation_on_a_terminal(place, shaper, screens):
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


def test_a_question_about_a_key_does_not_control_the_terminal(place, screens):
    assert Shaper("1/h", name="odd", store=place[0]).reserve("\x1b[2J")
    screen = screens("reset", "odd:\x1b[2J", "--store", place[1])
    screen.until("[y/N]")
    assert r"odd:\x1b[2J" in screen.raw
    screen.press("n\n")
    assert screen.end() == 130


HURTS_IN_REDIS = {
    "cut": lambda client, key: client.set(key, client.get(key)[:-3], px=600_000),
    "garbage": lambda client, key: client.set(key, "garbage"),
    "empty": lambda client, key: client.set(key, ""),
    "another type": lambda client, key: (client.delete(key), client.lpush(key, "x")),
}
HURTS_IN_A_FILE = {"cut": "[1", "garbage": "garbage", "empty": "", "another type": '{"a":1}'}


def hurt(place, shaper, key, how):
    """Damage the state of a key."""
    store, where = place
    if isinstance(store, SQLiteStore):
        with closing(sqlite3.connect(where)) as file, file:
            number = "SELECT id FROM names WHERE name = ?"
            rows = file.execute(
                f"UPDATE records SET state = ? WHERE key = ? AND name = ({number})",
                (HURTS_IN_A_FILE[how], key.encode(), shaper.name.encode()),
            )
            assert rows.rowcount == 1
        return
    name = shaper.name.replace(":", "%3A")
    with shared_server().client(db=7) as client:
        place_of_key = f"shapekit:{{{name}:{key}}}"
        assert client.exists(place_of_key)
        HURTS_IN_REDIS[how](client, place_of_key)


@pytest.mark.parametrize("how", list(HURTS_IN_A_FILE))
def test_reset_mends_a_damaged_key_and_no_other(place, shaper, how):
    assert shaper.reserve("eu:1x")
    hurt(place, shaper, "eu:1", how)
    hurt(place, shaper, "eu:1x", how)
    with pytest.raises(StoreUnavailableError):
        shaper.reserve("eu:1")
    words = done("reset", "api:stripe:eu:1", "--yes", "--store", place[1])
    assert words == "api:stripe:eu:1 is as good as new (was damaged)\n"
    assert shaper.reserve("eu:1").delay == 0
    with pytest.raises(StoreUnavailableError):
        shaper.reserve("eu:1x")
    report = json.loads(done("reset", "api:stripe:eu:1x", "--yes", "--store", place[1], "--json"))
    assert report == {"key": "api:stripe:eu:1x", "done": "reset", "limit": None}
    assert shaper.reserve("eu:1x").delay == 0


def test_a_damaged_key_of_several_names_is_not_reset(place, shaper):
    other = Shaper("1/min", name="api", store=place[0])
    assert other.reserve("stripe:eu:1")
    hurt(place, shaper, "eu:1", "garbage")
    words = complaint(shapekit("reset", "api:stripe:eu:1", "--yes", "--store", place[1]))
    assert "is a key of several names" in words
    assert other.reserve("stripe:eu:1").delay > 30


@pytest.mark.parametrize("command", [("hold", "5m"), ("resume",)])
def test_a_damaged_key_cannot_be_held_and_says_what_helps(place, shaper, command):
    hurt(place, shaper, "eu:1", "cut")
    name, *rest = command
    words = complaint(shapekit(name, "api:stripe:eu:1", *rest, "--store", place[1]))
    assert words == "shapekit: key='api:stripe:eu:1' is damaged; `shapekit reset` repairs it"
    assert "1 key not reached" in shapekit(name, "api:stripe:*", *rest, "--store", place[1]).stderr


def test_a_key_of_an_unknown_program_is_reset():
    where = f"{shared_server().url.rsplit('/', 1)[0]}/9"
    store = RedisStore.from_url(where)
    assert Gate(GCRA("1/h"), name="newer", store=store).check("a")
    with shared_server().client(db=9) as client:
        client.delete("shapekit:program:newer")
    words = done("reset", "newer:a", "--yes", "--store", where)
    assert words == "newer:a is as good as new (was of an unknown program)\n"
    assert list(store.keys()) == []
    store.close()


def test_a_very_long_key_is_taken_whole(place, shaper):
    long = "é" * 300
    assert shaper.reserve(long)
    shaper_key = f"api:stripe:{long}"
    done("hold", shaper_key, "5m", "--store", place[1])
    assert shaper.reserve(long).delay > 299
    done("reset", shaper_key, "--store", place[1])
    assert shaper.reserve(long).delay == 0


def test_a_key_that_is_shown_cut_is_not_mistaken_for_another():
    where = f"{shared_server().url.rsplit('/', 1)[0]}/9"
    store = RedisStore.from_url(where)
    assert Gate(GCRA("1/h"), name="long", store=store).check("x" * 500)
    (cut,) = store.keys()
    for command in (("reset", cut), ("hold", cut, "5m")):
        assert "is shortened; write the whole key" in complaint(shapekit(*command, "--store", where))
    assert list(store.keys()) == [cut]
    store.reset_all()
    store.close()


NOT_DURATIONS = ("soon", "0", "0s", "5x", "1month", "0,5", "100000d")


def wrong(time):
    problem = f"time={time!r} is not a duration above 0 and below 71 years"
    return f"{problem}; write seconds, such as 30 or 0.5, or units: 250ms, 5m, 1h30m"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("hold", "other:eu", "5s"), "key='other:eu' is of no name in the store, so its limit is not known"),
        (("hold", "stripe:eu:1", "5s"), "check the spelling, or hold it from Python: shaper.hold(…)"),
        (("hold", "api:stripe:eu*", "5s"), "all keys of a name are written name:*"),
        (("hold", "other:*", "5s"), "no key of 'other' is in use"),
        (("resume", "other:*"), "no key of 'other' is in use"),
        (("resume", "other:eu:1"), "key='other:eu:1' is not in use"),
        (("resume", "api:stripe:eu:2"), "key='api:stripe:eu:2' is not in use"),
        (("reset", "nothing"), "key='nothing' has no name"),
        (("hold", "nothing", "5s"), "key='nothing' has no name"),
        *((("hold", "api:stripe:eu:1", time), wrong(time)) for time in NOT_DURATIONS),
        (("hold", "gate:b", "5s"), "key='gate:b' is a gate (gcra 1/h burst 1)"),
        (("hold", "gate:*", "5s"), "key='gate:a' is a gate (gcra 1/h burst 1)"),
        (("hold", "gate:a", "5s"), "key='gate:a' is a gate (gcra 1/h burst 1)"),
        (("resume", "gate:a"), "key='gate:a' is a gate"),
        (("reset", "parts:a:x"), "key='parts:a:x' is one part of the composite 'parts'"),
    ],
)
def test_a_missing_or_impossible_key_is_a_complaint_of_one_line(place, shaper, args, words):
    store, where = place
    assert Gate(GCRA("1/h"), name="gate", store=store).check("a")
    parts = Gate(any_of(a=GCRA("1/h"), b=GCRA("1/h")), name="parts", store=store)
    assert parts.check({"a": "x", "b": "y"})
    before = sorted(store.keys())
    assert words in complaint(shapekit(*args, "--store", where))
    assert sorted(store.keys()) == before
    assert shaper.reserve("eu:1").delay <= 60


def test_a_missing_store_is_not_created(tmp_path):
    where = tmp_path / "limits.db"
    assert "is not a file" in complaint(shapekit("reset", "a:b", "--store", where))
    assert list(tmp_path.iterdir()) == []


def test_the_result_for_any_key_is_one_line(place):
    shaper = Shaper("1/min", name="api", store=place[0])
    assert shaper.reserve("\x1b[2J\nother")
    first, last = done("hold", "api:*", "5m", "--store", place[1]).splitlines()
    assert first.startswith(r"api:\x1b[2J\nother is held for 5 min, until ")
    assert last == "1 key held"
