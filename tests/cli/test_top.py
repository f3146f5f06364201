"""`shapekit top` shows the true state, and disturbs no caller."""

import json
import random
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import pytest
from redis import Connection
from rich.cells import cell_len
from rich.console import Console

from shapekit import (
    GCRA,
    Adaptive,
    FixedWindow,
    Gate,
    ManualClock,
    Policy,
    Quota,
    RedisStore,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    SQLiteStore,
    all_of,
    any_of,
)
from shapekit.cli.output import clock, limit_text, span
from shapekit.cli.top import COLUMNS, Looks, Page, place_of, row_of
from shapekit.stores.sqlite import SqliteSurvey

from ..redis_server import RedisServer
from .screen import complaint, shapekit

MANY = 5_000
BEGINNING = re.compile(rb"^\*\d+\r\n\$\d+\r\n([A-Z]+)", re.MULTILINE)
"""The name of a command on the wire."""


@pytest.fixture
def server():
    """A Redis for this test alone, so that its statistics cover one command."""
    with RedisServer() as server:
        yield server


def commands(client):
    """How often each command was sent to the server. Redis 7 and Valkey count subcommands separately."""
    calls = Counter()
    for name, counted in client.info("commandstats").items():
        calls[name.removeprefix("cmdstat_").partition("|")[0]] += counted["calls"]
    return calls


def read_rows(where, *options):
    result = shapekit("top", "--store", where, "--json", *options)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_top_shows_shapers_and_gates(place):
    store, where = place
    shaper = Shaper("6/h; 100/day", name="stripe", store=store, gates=[Quota("1000/rolling:30d")])
    for _ in range(3):
        assert shaper.reserve("eu")
    assert Gate(GCRA("1/h", burst=2), name="slow", store=store).check("one", cost=2)
    both = all_of(hour=GCRA("1/h"), window=SlidingWindow(10, "1h"))
    assert Gate(both, name="both", store=store).check("x")
    assert Gate(any_of(a=GCRA("1/h"), b=GCRA("2/h")), name="parts", store=store).check({"a": "k", "b": "l"})
    rows = {row["key"]: row for row in read_rows(where)}
    assert rows.keys() == {"stripe:eu", "slow:one", "both:x", "parts:a:k", "parts:b:l"}

    eu = rows["stripe:eu"]
    assert eu["limit"] == "6/h; 100/day; quota 1000/rolling:30d"
    assert 1700 < eu["wait"] <= 1800
    assert (eu["held"], eu["held_until"]) == (0, None)
    assert eu["uses"] == [
        {"limit": "sliding_log 100/day", "used": 3, "most": 100},
        {"limit": "quota 1000/rolling:30d", "used": 3, "most": 1000},
    ]
    slow = rows["slow:one"]
    assert slow["limit"] == "gcra 1/h burst 2"
    assert 3500 < slow["wait"] <= 3600
    assert slow["uses"] == [{"limit": "gcra 1/h burst 2", "used": 2, "most": 2}]
    assert [use["used"] for use in rows["both:x"]["uses"]] == [1, 1]
    assert rows["parts:a:k"]["wait"] > 3500
    assert rows["parts:b:l"]["wait"] == 0


def test_top_shows_holds_and_their_ends(place):
    store, where = place
    shaper = Shaper("1/min", name="stripe", store=store)
    assert shaper.reserve("eu")
    shaper.hold("1h", key="eu")
    (row,) = read_rows(where)
    now = time.time()
    assert 3500 < row["held"] <= 3600
    assert 3500 < row["held_until"] - now <= 3600
    assert 3600 < row["wait"] <= 3660
    assert row["next_at"] - row["held_until"] == pytest.approx(row["wait"] - row["held"], abs=1e-3)
    page = shapekit("top", "--store", where, "--once").stdout
    assert "1 key, 1 with a wait, 1 held" in page
    assert clock(row["held_until"])[:5] in page


def test_a_row_equals_the_shapers_forecast_after_any_number_of_holds(tmp_path):
    clock = ManualClock(10**9)
    store = SQLiteStore(tmp_path / "limits.db", clock=clock)
    gates = [Quota("3/fixed:100s"), GCRA("1 per 50 s", burst=3)]
    shaper = Shaper("1 per 10 s; 5 per 1 min", name="api", store=store, gates=gates)
    for length, passes in ((30, 35), (10, 4), (5, 30), (20, 3)):
        shaper.reserve(max_wait="1h")
        shaper.hold(length)
        clock.advance(passes)
        row = row_of(*store.survey())
        assert row.wait == shaper.forecast(1).first_in
        assert row.held == max(0, length - passes)
        assert row.next_at == pytest.approx(clock.wall_us() / 1e6 + row.wait)
        assert row.held_until == (clock.wall_us() / 1e6 + length - passes if length > passes else None)
    store.close()


def test_uses_of_a_held_queue_stand_still_except_those_that_follow_the_clock(tmp_path):
    clock = ManualClock(10**9)
    store = SQLiteStore(tmp_path / "limits.db", clock=clock)
    gates = [FixedWindow(5, "100s"), SlidingWindowLog(5, "100s")]
    shaper = Shaper("1 per 1 ms", name="api", store=store, gates=gates)
    assert all(shaper.reserve() for _ in range(3))
    clock.advance(0.0015)
    shaper.hold("1h")
    clock.advance(150)
    row = row_of(*store.survey())
    # The window at the end of the hold counts the one call that waits for it.
    assert [use.used for use in row.uses] == [1, 3]
    store.close()


@pytest.mark.parametrize(
    "where",
    ["//tmp/x.db", "/tmp/a#b.db", "/tmp/a?b.db", "a#b.db", "what?.db", "redis:x.db", "//user@host/x.db"],
)
def test_a_file_is_shown_by_its_name(where):
    assert place_of(where) == where.rpartition("/")[2]


# waiting calls, and calls per second


@pytest.fixture
def played(tmp_path):
    """A store of virtual time, and its clock."""
    clock = ManualClock(10**9)
    store = SQLiteStore(tmp_path / "limits.db", clock=clock)
    yield store, clock
    store.close()


@pytest.mark.parametrize("options", [{"rate": "10/s"}, {"rate": "10/s", "burst": 4}, {"adaptive": True}])
def test_waiting_calls_are_counted_after_any_events(played, options):
    store, clock = played
    if "adaptive" in options:
        options = {"adaptive": Adaptive("1/s", "10/s")}
    shaper = Shaper(**options, name="api", store=store)
    taken, rng = [], random.Random(1)
    for step in range(80):
        taken += [shaper.reserve() for _ in range(rng.randrange(4))]
        if step % 7 == 3 and taken and taken[-1].cancel():
            taken.pop()
        if step % 11 == 5 and taken and taken[len(taken) // 2].cancel():
            taken.pop(len(taken) // 2)
        clock.advance(0.001)
        # A call that has left does not wait again because of a later hold.
        taken = [one for one in taken if shaper.remaining(one) > 0]
        if step % 25 == 10:
            shaper.hold(0.7)
        clock.advance(rng.choice((0, 0.05, 0.13)))
        ahead = sum(shaper.remaining(one) > 0 for one in taken)
        assert [row_of(seen).waiting for seen in store.survey()] in ([ahead], [])
    assert ahead


def test_a_call_that_costs_five_waits_as_five(played):
    store, _ = played
    shaper = Shaper("10/s", name="api", store=store)
    assert all(shaper.reserve(cost=5) for _ in range(3))
    assert row_of(*store.survey()).waiting == 14


def test_windows_and_gates_do_not_show_how_many_calls_wait(played):
    store, clock = played
    shaper = Shaper("10/s; 3/min", name="api", store=store)
    assert shaper.reserve()
    assert row_of(*store.survey()).waiting == 0
    assert all(shaper.reserve() for _ in range(3))
    assert row_of(*store.survey()).waiting is None
    clock.advance(61)
    assert row_of(*store.survey()).waiting == 0
    assert Gate(GCRA("1/h"), name="gate", store=store).check()
    assert {row_of(seen).waiting for seen in store.survey("gate")} == {None}


def rates(looks):
    return {row.key: row.per_second for row in looks.rows()}


@pytest.mark.parametrize("options", [{"rate": "1/s"}, {"rate": "1/s; 1000/h"}, {"adaptive": True}])
def test_slots_taken_between_two_looks_are_calls_per_second(played, options):
    store, clock = played
    if "adaptive" in options:
        options = {"adaptive": Adaptive("1/s", "10/s")}
    shaper = Shaper(**options, name="api", store=store)
    assert Gate(GCRA("1/h"), name="gate", store=store).check("a")
    looks = Looks(store.survey)
    assert all(shaper.reserve("a") for _ in range(50))
    assert rates(looks) == {"api:a": None, "gate:a": None}, "the first look"
    assert all(shaper.reserve("a") for _ in range(6))
    assert all(shaper.reserve("new") for _ in range(3))
    clock.advance(2)
    assert rates(looks) == {"api:a": 3, "api:new": 1.5, "gate:a": None}
    clock.advance(0.5)
    assert rates(looks)["api:a"] == 0
    shaper.reset("a")
    assert shaper.reserve("a")
    clock.advance(0.05)
    assert rates(looks)["api:a"] == pytest.approx(20), "a key that began anew"


def test_settlements_are_no_calls(played):
    store, clock = played
    shaper = Shaper("10/min", name="llm", store=store)
    taken = [shaper.reserve(cost=2) for _ in range(70)]
    looks = Looks(store.survey)
    looks.rows()
    taken.append(shaper.reserve(cost=2))
    for one in taken[-5:]:
        shaper.settle(one, 3)
    clock.advance(1)
    assert rates(looks) == {"llm:default": 1}
    for one in taken[:66]:
        shaper.settle(one, 3)
    clock.advance(1)
    assert rates(looks) == {"llm:default": None}, "the queue may have forgotten some"


def test_columns_keep_their_widths(played):
    store, clock = played
    shaper = Shaper("1/s", name="api", store=store)
    assert all(shaper.reserve("a") for _ in range(4_000))
    page = Page()

    def widths(total=200):
        rows = [row_of(seen) for seen in store.survey()]
        return [column.width for column in page.table(rows, total).columns]

    wide = widths()
    assert shaper.reserve("a much longer key")
    shaper.hold("1h", key="a")
    longer = widths()
    assert all(before <= after for before, after in zip(wide, longer, strict=True))
    clock.advance(7_300)
    assert shaper.reserve("b")
    assert widths() == longer
    assert wide[COLUMNS.index("wait")] == len("59 min 59 s")
    assert sum(widths(100)) + 2 * (len(COLUMNS) - 1) <= 100


def test_letters_that_are_two_cells_wide_are_neither_cut_nor_out_of_column(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    shaper = Shaper("1/h", name="api", store=store)
    assert all(shaper.reserve(key) for key in ("日本語のお客様", "acme"))
    console = Console(width=200)
    with console.capture() as live:
        console.print(Page().table([row_of(seen) for seen in store.survey()], console.width))
    for page in (live.get(), shapekit("top", "--once", "--store", str(tmp_path / "limits.db")).stdout):
        lines = [line.partition(" 1/h ")[0] for line in page.splitlines() if " 1/h " in line]
        assert {line.strip() for line in lines} == {"api:日本語のお客様", "api:acme"}
        assert len({cell_len(line) for line in lines}) == 1
    store.close()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (FixedWindow(600, "1m"), "fixed_window 600/min"),
        (SlidingWindow(9, "2h"), "sliding_window 9 per 2 h"),
        (GCRA("5 per 90 s", burst=2), "gcra 5 per 1 min 30 s burst 2"),
        (Quota("1000/month"), "quota 1000/month"),
        (Shaper("10/s; 100/2d").core.queue, "10/s; 100 per 2 d"),
    ],
)
def test_periods_are_written_as_people_do(program, words):
    assert limit_text(program) == words


def test_top_sorts_and_filters(place):
    store, where = place
    for name, calls in (("b", 3), ("a", 5), ("c", 2)):
        shaper = Shaper("6/min", name=name, store=store, gates=[GCRA("1/h", burst=10 * calls)])
        assert all(shaper.reserve("key") for _ in range(calls))
    Shaper("6/min", name="c", store=store).hold("10m", key="key")

    def order(*options):
        return [row["key"][0] for row in read_rows(where, *options)]

    assert order("--sort", "key") == ["a", "b", "c"]
    assert order() == ["c", "a", "b"], "the longest wait first"
    assert order("--sort", "held")[0] == "c"
    assert order("--filter", "b:k") == ["b"]
    assert order("--filter", "nothing") == []


def test_a_long_limit_leaves_the_columns_in_line(tmp_path):
    where = tmp_path / "limits.db"
    store = SQLiteStore(where)
    gates = [GCRA("1000/h", burst=1000), FixedWindow("500/h"), Quota("1_000_000/month")]
    assert Shaper("6/h", name="long", store=store, gates=gates).reserve("key")
    assert Shaper("6/h", name="short", store=store).reserve("key")
    result = shapekit("top", "--once", "--sort", "key", "--store", str(where))
    columns, *lines = result.stdout.splitlines()[2:]
    at = columns.index("waiting")
    assert at > 60, "the limit is a long one"
    assert [line[at - 1 :].split()[0] for line in lines] == ["0", "0"]
    assert all(line[at - 2 : at] == "  " for line in lines)
    store.close()


def test_the_wait_for_a_permit_is_unknown_while_none_is_free(tmp_path):
    where = str(tmp_path / "limits.db")
    store = SQLiteStore(where)
    with Policy(concurrency=1, name="api", store=store).admit():
        (row,) = read_rows(where)
        line = shapekit("top", "--once", "--store", where).stdout.splitlines()[-1]
    assert (row["wait"], row["next_at"]) == (None, None)
    assert line.split("concurrency 1")[1].split() == ["0", "-", "-", "-", "1/1"]
    store.close()


def test_a_damaged_key_is_marked_as_damaged(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    assert Gate(GCRA("1/h"), name="api", store=store).check("a")
    store._file.transact(lambda execute: execute("UPDATE records SET state = '[1'"))
    assert row_of(*store.survey()).limit == "(damaged: shapekit reset repairs it)"
    store._file.transact(lambda execute: execute("UPDATE programs SET description = '[\"newer\"]'"))
    assert row_of(*SqliteSurvey(str(tmp_path / "limits.db")).live_keys("")).limit.startswith("(unknown: ")
    store.close()


def test_without_a_terminal_it_prints_a_line_for_each_key(place):
    store, where = place
    for key in ("short", "long" * 100):
        assert Shaper("6/h", name="api", store=store).reserve(key)
    result = shapekit("top", SHAPEKIT_STORE=where)
    assert result.returncode == 0
    headline, gap, columns, *lines = result.stdout.splitlines()
    assert headline.startswith("2 keys, 2 with a wait, 0 held")
    assert gap == ""
    assert columns.split("  ")[0] == "key"
    assert [line.split()[1] for line in lines] == ["6/h", "6/h"]
    assert "\x1b" not in result.stdout


def test_on_a_terminal_that_cannot_be_redrawn_it_prints_once(place, screens):
    store, where = place
    assert Shaper("6/h", name="api", store=store).reserve("first")
    screen = screens("top", "--store", where, TERM="dumb")
    screen.until("api:first", "1 key,")
    assert screen.end() == 0


def test_on_a_terminal_it_lives_until_q(place, screens):
    store, where = place
    shaper = Shaper("6/h", name="api", store=store)
    assert shaper.reserve("first")
    screen = screens("top", "--store", where)
    screen.until("api:first", "q quits", "1 key,")
    assert shaper.reserve("second")
    screen.until("api:second", "2 keys")
    screen.press("xq")
    assert screen.end() == 0
    assert screen.raw.count("\x1b[?1049h") == screen.raw.count("\x1b[?1049l") == 1, "the screen is given back"


def test_a_terminal_is_as_it_was_after_sigterm(place, screens):
    store, where = place
    assert Shaper("6/h", name="api", store=store).reserve("first")
    screen = screens("top", "--store", where)
    screen.until("api:first", "q quits")
    assert screen.modes() != screen.first_modes
    screen.process.terminate()
    assert screen.end() == 143
    assert screen.raw.count("\x1b[?1049h") == screen.raw.count("\x1b[?1049l") == 1
    assert screen.modes() == screen.first_modes


def test_a_key_does_not_control_the_terminal(place, screens):
    store, where = place
    assert Shaper("6/h", name="api", store=store).reserve("\x1b]0;owned\x07\n\rapi:fine \ud800")
    shown = "api:\\x1b]0;owned\\x07\\n\\rapi:fine \\ud800"
    *_, line = shapekit("top", SHAPEKIT_STORE=where).stdout.splitlines()
    assert line.startswith(f"{shown}  6/h")
    screen = screens("top", "--store", where)
    screen.until("owned", "q quits")
    screen.press("q")
    assert screen.end() == 0
    assert "\x1b]0;" not in screen.raw


def test_a_page_fits_its_terminal(place, screens):
    store, where = place
    gate = Gate(GCRA("1/h"), name="many", store=store)
    assert all(gate.check(f"key-{number:02}" + "x" * 200) for number in range(40))
    screen = screens("top", "--store", where, "--sort", "key", rows=16, columns=80)
    screen.until("40 keys", "key-10")
    screen.press("q")
    assert screen.end() == 0
    assert "key-11" not in screen.text
    assert all(len(line) <= 80 for line in screen.text.splitlines())


def test_a_narrow_terminal_shows_key_and_wait(place, screens):
    store, where = place
    shaper = Shaper("5/s; 1000/h", name="customer-mail", store=store, gates=[Quota("30_000/month")])
    assert all(shaper.reserve(key) for key in ("acme", "b"))
    shaper.hold("1h", key="b")
    screen = screens("top", "--store", where, columns=80)
    screen.until("customer-mail:b ", "59 min 5")
    screen.press("q")
    assert screen.end() == 0
    assert all(len(line) <= 80 for line in screen.text.splitlines())


def test_a_store_that_goes_away_is_reported_and_the_last_rows_stay(server, screens):
    store = RedisStore.from_url(server.url)
    assert Shaper("6/h", name="api", store=store).reserve("first")
    screen = screens("top", "--store", server.url)
    screen.until("api:first")
    server.kill()
    screen.until("Redis does not answer", "this is what was last seen")
    screen.press("q")
    assert screen.end() == 0
    store.close()


# no caller is disturbed


def crowded(store):
    shaper = Shaper("1/h; 100/day", name="shaped", store=store)
    gate = Gate(GCRA("1/h"), name="gated", store=store)
    for number in range(MANY // 2):
        assert shaper.reserve(f"user-{number}")
        assert gate.check(f"user-{number}")


@contextmanager
def trips():
    """The commands that this process sends to a Redis, grouped by trip."""
    sent = []
    send = Connection.send_packed_command

    def counted(connection, command, *rest, **options):
        wire = b"".join(command)
        sent.append([name.decode() for name in BEGINNING.findall(wire)])
        return send(connection, [wire], *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send_packed_command", counted)
        yield sent


def test_five_thousand_keys_take_few_trips_and_change_nothing(server, run):
    store = RedisStore.from_url(server.url)
    crowded(store)
    with server.client() as client:
        keys = client.keys()
        values = dict(zip(keys, map(client.dump, keys), strict=True))
        lives = dict(zip(keys, map(client.pttl, keys), strict=True))
        client.config_resetstat()
        with trips() as sent:
            assert len(json.loads(run("top", "--store", server.url, "--json").stdout)) == MANY
        calls = commands(client)
        assert dict(zip(keys, map(client.dump, keys), strict=True)) == values
        assert all(client.pttl(key) <= lives[key] for key in keys)
    assert set(calls) <= {
        "scan",
        "get",
        "hget",
        "eval",
        "time",
        "client",
        "config",
        "info",
        "select",
        "hello",
    }
    assert calls["scan"] <= 2 * MANY // 1_000
    assert calls["eval"] <= 1 + MANY // 500
    together = [Counter(names) for names in sent if {"GET", "HGET"} & {*names}]
    assert together == [{"GET": 500}, {"HGET": 2}, *[{"GET": 500}] * (MANY // 500 - 1)], (
        "in batches, and each program once"
    )
    store.close()


def test_a_file_is_read_while_a_transaction_holds_the_write_lock(tmp_path):
    where = tmp_path / "limits.db"
    store = SQLiteStore(where)
    crowded(store)
    before = where.read_bytes(), (tmp_path / "limits.db-wal").read_bytes()
    assert store._file.transact(lambda _: len(read_rows(where))) == MANY
    assert (where.read_bytes(), (tmp_path / "limits.db-wal").read_bytes()) == before
    store.close()


def test_workers_keep_their_pace_meanwhile(server):
    store = RedisStore.from_url(server.url)
    crowded(store)
    shaper = Shaper("20/s", name="paced", store=store)
    reservations, over = [], threading.Event()

    def work():
        while not over.is_set():
            reservations.append(shaper.schedule())

    # So many calls that the next slots are taken long before they come.
    workers = [threading.Thread(target=work) for _ in range(10)]
    for worker in workers:
        worker.start()
    for _ in range(2):
        assert len(read_rows(server.url)) >= MANY
    over.set()
    for worker in workers:
        worker.join()
    slots = sorted((reservation.grant.departs_at_us, reservation.delay) for reservation in reservations)
    assert len(slots) > 10
    apart = [(late - early, delay) for (early, _), (late, delay) in pairwise(slots)]
    # Where a stall stops them, a late call moves the line by a slot or more, or finds no call behind it.
    assert all(us >= 50_000 or delay == 0 for us, delay in apart)
    assert median(us for us, _ in apart) == 50_000
    store.close()


# bad input


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("redis://127.0.0.1:1", "Redis does not answer"),
        ("redis://:secret@127.0.0.1:1", "Redis does not answer"),
        ("not-there.db", "is not a file"),
        (__file__, "cannot read"),
        ("http://localhost", "unknown scheme"),
        ("", "no store is given"),
    ],
)
def test_a_store_that_cannot_be_read_is_a_complaint_of_one_line(where, words):
    line = complaint(shapekit("top", "--store", where))
    assert words in line
    assert "secret" not in line


def test_durations_and_instants_stay_readable():
    assert [span(seconds) for seconds in (59.94, 59.96, 61, 3_900, 86_399)] == (
        ["59.9 s", "1 min", "1 min 01 s", "1 h 05 min", "23 h 59 min"]
    )
    assert clock(1e14) == "over a year from now"
    now = time.time()
    assert len(clock(now + 86_000)) == len("23:22:45"), "also where midnight lies between"
    assert len(clock(now + 86_399)) == len("2026-11-26 23:39"), "tomorrow's 12:00:00, at 12:00:01"
