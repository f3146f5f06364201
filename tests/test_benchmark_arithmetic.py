"""The computations of the benchmarks and the gate."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.rate import whole

from .benchmarks import library, rounds
from .benchmarks.bounds import BOUNDS, ROOM, compared, most
from .benchmarks.counting import Counter, Work, work_of
from .benchmarks.departures import inversions, lateness, most_within, percentile, rate_reached
from .benchmarks.report import absent, goals, group, table
from .benchmarks.tables import Column, Goal, Group, Line, Table, from_json, to_json
from .benchmarks.wire import Traffic, Wire

# Eighths, so that sums and differences of them are exact.
INSTANTS = st.lists(st.integers(0, 400).map(lambda n: n / 8), min_size=1, max_size=40)


# departures


@given(st.permutations(range(9)))
def test_inversions_are_the_pairs_that_swapped(left: list[int]) -> None:
    pairs = [(i, j) for i in range(len(left)) for j in range(i + 1, len(left))]
    assert inversions(left) == sum(left[i] > left[j] for i, j in pairs)


def test_calls_that_left_in_order_have_no_inversions() -> None:
    assert inversions(range(100)) == 0
    assert inversions(range(99, -1, -1)) == 100 * 99 // 2


@given(INSTANTS, st.sampled_from([0.5, 1.0, 3.0]))
def test_the_worst_window_is_half_open_and_may_begin_anywhere(instants: list[float], seconds: float) -> None:
    # Among all windows, one that begins with a departure is as bad as any.
    starts = [n / 8 for n in range(401)]
    assert most_within(instants, seconds) == max(
        sum(start <= instant < start + seconds for instant in instants) for start in starts
    )


def test_the_worst_second_of_an_even_grid_is_its_rate() -> None:
    assert most_within([n / 4 for n in range(40)]) == 4
    assert most_within([]) == 0


def test_the_rate_is_that_between_the_first_and_the_last() -> None:
    assert rate_reached([3.0, 1.0, 2.0]) == 1.0
    assert rate_reached([n / 8 for n in range(17)]) == 8.0
    assert rate_reached([1.0, 1.0]) == math.inf
    with pytest.raises(ValueError, match="two departures"):
        rate_reached([1.0])


def test_lateness_is_counted_from_the_grid_of_the_first_departure() -> None:
    assert lateness([1.0, 1.5, 1.5, 3.0], rate=2.0) == [0.0, 0.0, -0.5, 0.5]


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_least_value_that_covers_its_share(values: list[int], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    below = [value for value in values if value < found]
    assert len(below) < share * len(values)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="a share"):
        percentile([1.0], share)


# tables


def test_measurements_survive_json() -> None:
    lines = [Line("shapekit", "a", {"ns": [3.0, 1.0, 2.0]}), Line("other", "b", failed="is gone")]
    written = Table("T", [Column("ns", "ns", 0, compared=True)], lines, ("shapekit", "a"), "ns")
    groups = [Group("g", "G", "how", [written], [Goal("x", 1.0, 2.0)]), Group("h", "H", "", failed="broke")]
    assert from_json(json.loads(json.dumps(to_json(groups)))) == groups


def test_a_losing_row_and_a_failed_one_are_printed_like_a_winning_one() -> None:
    lines = [
        Line("shapekit", "ours", {"ns": [100.0, 120.0, 110.0]}),
        Line("quick", "theirs", {"ns": [55.0, 55.0, 55.0]}),
        Line("slow", "theirs", {"ns": [220.0, 220.0, 220.0]}),
        Line("gone", "–", failed="ModuleNotFoundError: No module named 'gone'"),
    ]
    written = Table("T", [Column("ns", "ns", 0, compared=True)], lines, ("shapekit", "ours"))
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(written).splitlines()]
    assert rows[0] == ["", "× ours", "ns, ns"]
    assert rows[2:] == [
        ["shapekit: ours", "1.00", "110 (100–120)"],
        ["quick: theirs", "0.50", "55 (55–55)"],
        ["slow: theirs", "2.00", "220 (220–220)"],
    ]
    assert absent(written) == "`gone` (ModuleNotFoundError: No module named 'gone')"


def test_missing_lines_of_consecutive_tables_are_listed_once_by_reason() -> None:
    lines = [
        Line("shapekit", "ours", {"ns": [1.0]}),
        Line("one", "–", failed="no wheel"),
        Line("other", "way", failed="no wheel"),
    ]
    tables = [Table(title, [Column("ns")], lines) for title in ("first", "second")]
    page = group(Group("g", "G", "", [*tables, Table("third", [Column("ns")], lines[:1])]))
    assert page.count("Not in the table") == 1
    assert page.index("**second**") < page.index("`one`, `other way` (no wheel)") < page.index("**third**")


@pytest.mark.parametrize(
    ("goal", "is_met"),
    [
        (Goal("a", 1.0, 1.0), True),
        (Goal("a", 1.1, 1.0), False),
        (Goal("a", 1.1, 1.0, less=False), True),
        (Goal("a", 0.9, 1.0, less=False), False),
        (Goal("a", 0.9), None),
    ],
)
def test_a_goal_is_met_on_its_own_side(goal: Goal, is_met: bool | None) -> None:
    assert goal.is_met is is_met
    assert ("missed" in goals([goal])) == (is_met is False)


# libraries


def test_a_library_that_cannot_be_imported_keeps_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MODULES", {"shapekit": "ours", "gone": "not_there"})
    able, unable = library.offering("waits")
    assert [each.name for each, _ in able] == ["shapekit"]
    [line] = unable
    assert (line.library, line.rounds) == ("gone", {})
    assert line.failed.startswith("ModuleNotFoundError: No module named")


def test_a_library_that_fails_in_a_round_keeps_its_line_without_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [(library.Library(name, None), name) for name in ("steady", "broken")]
    gone = [Line("absent", "–", failed="is absent")]
    monkeypatch.setattr(rounds, "offering", lambda _: (there, gone))
    modules: list[str] = []

    def offered(module: str) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
        def run() -> dict[str, float]:
            modules.append(module)
            if module == "broken" and modules.count("broken") == 2:
                raise library.Cannot("broke in the second round")
            return {"figure": float(len(modules))}

        yield "way", run

    assert rounds.in_turns("waits", 3, offered) == [
        Line("steady", "way", {"figure": [1.0, 3.0, 5.0]}),
        Line("broken", "way", failed="broke in the second round"),
        Line("absent", "–", failed="is absent"),
    ]
    assert modules == ["steady", "broken", "steady", "broken", "steady"]


def test_ours_must_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "offering", lambda _: ([(library.Library("shapekit", None), None)], []))

    def offered(_: None) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
        def run() -> dict[str, float]:
            raise ZeroDivisionError

        yield "way", run

    with pytest.raises(ZeroDivisionError):
        rounds.in_turns("waits", 1, offered)


# the wire


@contextmanager
def echo(port_of: socket.socket) -> Iterator[int]:
    """Answers each line with itself, on one connection."""

    def serve() -> None:
        end, _ = port_of.accept()
        with end, end.makefile("rwb") as file:
            for line in file:
                file.write(line)
                file.flush()

    thread = threading.Thread(target=serve)
    thread.start()
    yield int(port_of.getsockname()[1])
    thread.join()


def test_the_wire_counts_round_trips() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        echo(listener) as port,
        Wire(port) as wire,
        socket.create_connection(("127.0.0.1", wire.port)) as client,
        client.makefile("rb") as answers,
    ):
        for text, lines in ((b"one\n", 1), (b"two\nthree\n", 2)):
            before = wire.traffic
            client.sendall(text)
            for _ in range(lines):
                answers.readline()
            assert wire.traffic.since(before) == Traffic(1, len(text), len(text))
        before = wire.traffic
        client.sendall(b"in pie")
        while wire.traffic.since(before).sent < len(b"in pie"):
            threading.Event().wait(0.001)
        client.sendall(b"ces\n")
        answers.readline()
        assert wire.traffic.since(before) == Traffic(1, 10, 10)


# the gate


def test_counting_is_repeatable_and_covers_only_our_code() -> None:
    def once() -> None:
        whole("limit", 3)

    def twice() -> None:
        whole("limit", 3)
        whole("limit", 3)

    one, two = work_of(once), work_of(twice)
    assert one == work_of(once)
    assert one.bytecodes > 0
    assert two == Work(2 * one.bytecodes, 2 * one.calls)
    with Counter() as counter:
        json.dumps({"nothing": "of ours"})
    assert counter.work == Work(0, 0)


def test_a_quarter_more_of_any_count_is_caught() -> None:
    for version, bounds in json.loads(BOUNDS.read_text(encoding="utf-8")).items():
        assert compared(bounds, bounds) == []
        for path, figures in bounds.items():
            for what, figure in figures.items():
                assert figure > 0, (version, path, what)
                grown = math.ceil((1.5 if what.startswith("%") else 1.25) * figure)
                more = {**bounds, path: {**figures, what: grown}}
                assert [line for line in compared(more, bounds) if line.startswith(f"{path}: ")], (path, what)


def test_every_version_of_python_has_bounds_of_the_same_paths() -> None:
    by_version = json.loads(BOUNDS.read_text(encoding="utf-8"))
    assert {"3.11", "3.12", "3.13"} <= by_version.keys()
    paths = [{path: sorted(figures) for path, figures in bounds.items()} for bounds in by_version.values()]
    assert all(each == paths[0] for each in paths)


def test_room_is_a_share_and_a_figure_without_room_may_not_grow() -> None:
    assert ROOM["bytecodes"] == 0.05
    assert (most("bytecodes", 200), most("bytecodes", 19), most("trips", 100)) == (210, 19, 100)
    assert compared({"a": {"bytecodes": 210}}, {"a": {"bytecodes": 200}}) == []
    assert compared({"a": {"bytecodes": 211}}, {"a": {"bytecodes": 200}}) != []
    assert compared({"a": {"bytecodes": 220}}, {"a": {"bytecodes": 200}}) == [
        "a: 220 bytecodes, bound 200 (+10%)"
    ]


def test_a_path_or_figure_on_one_side_only_is_reported() -> None:
    assert compared({}, {"a": {"trips": 1}}) == ["a: has bounds and is not measured"]
    assert compared({"a": {"trips": 1}}, {}) == ["a: trips has no bound"]
