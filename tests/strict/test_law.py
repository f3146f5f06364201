"""The judge of departures and the server's count of arrivals: each finds fault, and only where some is."""

import urllib.error
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.testing import PaceError

from ..witness import Stall, Stalls
from .law import check_departures
from .server import Log, StrictServer

MILLISECONDS = st.lists(st.integers(0, 2_500), max_size=40)


def breaks(instants_ms, *rates, **stalls):
    try:
        check_departures([instant / 1_000 for instant in instants_ms], *rates, **stalls)
    except PaceError:
        return True
    return False


@given(MILLISECONDS, st.integers(1, 12))
def test_a_window_has_one_more_than_its_limit_and_what_leaves_in_its_last_ten_milliseconds(instants, limit):
    def is_broken(start):
        window = [at for at in instants if start <= at < start + 1_000]
        return len(window) > limit + 1 + sum(at >= start + 990 for at in window)

    # A window that has the most begins with a departure.
    assert breaks(instants, f"{limit}/s") == any(map(is_broken, instants))


def test_an_even_pace_keeps_it_and_so_do_two_that_are_hardly_late():
    # 50 intervals at 49/s take 30.4 ms more than a window without its end.
    pace = [n * 1_000 / 49 for n in range(200)]
    assert not breaks(pace, "49/s")
    assert not breaks([30, 30, *pace[2:]], "49/s")
    assert breaks([31, 31, *pace[2:]], "49/s")


def test_calls_of_a_stopped_process_may_not_leave_beside_those_of_others():
    pace = [n * 20 for n in range(200)]
    stopped = [2_300 if 2_000 <= at < 2_300 and at % 60 == 0 else at for at in pace]
    assert breaks(stopped, "50/s")
    assert breaks(stopped, "3000/min", "50/s")
    assert not breaks(stopped, "3000/min")


def test_a_call_that_stalled_before_it_left_begins_its_window_earlier_by_the_stall_at_most():
    # 51 within 978 ms, because the first has left 16 ms late: 12 ms too little.
    pace = [n * 20.0 for n in range(51)]
    pace = [16.0, *(at - (6 if at > 900 else 0) for at in pace[1:])]

    def seen(since_ms, longest_ms):
        since, longest = since_ms / 1_000, longest_ms / 1_000
        return Stalls([Stall(since, since + 0.01, longest, longest)])

    assert breaks(pace, "49/s")
    assert not breaks(pace, "49/s", stalls=seen(6, 12))
    assert breaks(pace, "49/s", stalls=seen(6, 11)), "a shorter stall does not explain it"
    assert breaks(pace, "49/s", stalls=seen(17, 12)), "it had left by then"
    assert breaks(pace, "49/s", stalls=seen(980, 12)), "a call that leaves late at the end breaks nothing"


def test_a_burst_counts_on_top_of_the_rate():
    instants = [0.0] * 5 + [n * 100 for n in range(1, 20)]
    assert not breaks(instants, "10/s burst 4")
    assert breaks(instants, "10/s burst 3")


@given(MILLISECONDS.map(sorted), st.integers(1, 5))
def test_the_server_refuses_calls_above_the_limit_of_the_last_second_refused_calls_included(instants, limit):
    log = Log(limit)
    for number, at in enumerate(instants):
        second = sum(at - 1_000 < other <= at for other in instants[: number + 1])
        assert log.refuses(at / 1_000) == (second > limit)
    assert [arrival.refused for arrival in log.arrivals].count(False) >= min(limit, len(instants))


def test_a_refusal_has_a_retry_after_and_is_in_the_log():
    with StrictServer(2) as server:
        for _ in range(2):
            with urllib.request.urlopen(server.url) as answer:
                assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url)
        with refused.value as answer:
            assert (answer.code, answer.headers["Retry-After"]) == (429, "1")
        arrivals = server.arrivals()
    assert [arrival.refused for arrival in arrivals] == [False, False, True]
    assert sorted(arrivals) == arrivals
