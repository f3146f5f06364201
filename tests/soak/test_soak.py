"""The soak's judge sees what grows, and a short run leaves nothing behind; the long ones are run by hand."""

import pytest

from .judge import made, population, speed, trend
from .soak import report, soak


def seen(what, values):
    return trend(what, [{what: value} for value in values])


@pytest.mark.parametrize("slope", [0.0, -0.01, 0.0005])
def test_a_figure_that_stays_about_the_same_does_not_grow(slope):
    assert not seen("RSS, MB", [50.0 * (1 + slope * n) for n in range(30)]).grows


def test_a_figure_that_rises_by_more_than_two_percent_grows():
    rising = seen("RSS, MB", [50.0 * (1 + 0.0015 * n) for n in range(30)])
    assert rising.growth == pytest.approx(0.03, rel=0.05)
    assert rising.grows


def test_a_leak_of_one_at_a_time_is_seen_among_few():
    assert seen("file descriptors", [20 + n // 4 for n in range(60)]).grows
    assert not seen("file descriptors", [20, 22, 21] * 20).grows


def test_a_peak_is_no_growth():
    assert not seen("objects", [*[60_000] * 20, 90_000, *[60_000] * 9]).grows


def test_things_that_come_and_go_may_differ_by_chance_and_with_the_speed():
    def living(first, last, times, calls=0):
        samples = [{"Redis keys": count} for count in [first] * 10 + [last] * 10]
        return population("Redis keys", samples, times, calls)

    assert not living(1_900, 2_000, 1.0).grows
    assert living(1_900, 2_100, 1.0).grows
    assert not living(1_900, 3_800, 2.0).grows
    assert living(1_900, 3_800, 1.5).grows
    assert not living(1_900, 2_300, 1.0, calls=40_000).grows
    assert living(1_900, 2_301, 1.0, calls=40_000).grows


def test_the_speed_is_what_was_done_in_the_time():
    done = [0, 10, 20, 30, 50, 70]
    samples = [{"at": float(n), "done": {"redis": count, "other": 9 * n}} for n, count in enumerate(done)]
    assert speed(samples, ("redis",)) == 2.0
    assert speed(samples, ("other",)) == 1.0
    assert made(samples, ("redis", "other")) == 70 + 45


def test_a_machine_that_is_slow_for_a_while_is_as_quick_as_most_of_the_time():
    rates = [*(10, 10, 10, 10, 10, 4, 4, 4, 4), *[10] * 20]
    done = [sum(rates[:n]) for n in range(len(rates) + 1)]
    assert (
        speed([{"at": float(n), "done": {"redis": count}} for n, count in enumerate(done)], ("redis",)) == 1.0
    )


@pytest.fixture(scope="module")
def run():
    return soak(every=0.2, count=9)


@pytest.mark.long
def test_a_run_makes_calls_of_every_kind(run):
    outputs, stores = run
    for each in outputs.values():
        (done,) = each["done"]
        assert set(done) == {"memory", "sqlite", "redis", "resilient", "visits"}
        assert all(count > 0 for count, _ in done.values()), done
        assert done["memory"][1] == done["sqlite"][1] == 0, done
    assert stores[-1]["Redis keys"] > 0
    assert stores[-1]["SQLite rows"] > 0


@pytest.mark.long
def test_a_run_leaves_nothing_behind(run):
    outputs, _ = run
    for each in outputs.values():
        (before,), (after,) = each["before"], each["after"]
        assert after["tasks"] == 0
        assert after["file descriptors"] <= before["file descriptors"]
    lines, growing = report(*run)
    assert [line for line in growing if "before and after" in line] == []
    assert len(lines) > 10
