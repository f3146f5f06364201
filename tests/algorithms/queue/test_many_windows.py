"""However many windows, periods or ticks waiting calls fill: when they are cancelled, none is forgotten."""

import random
from collections import Counter

import pytest

from shapekit import FixedWindow, ManualClock, Quota, RedisStore, Shaper, SlidingWindow
from shapekit.algorithms import fixed_window, quota, sliding_window

from ...redis_server import shared_server

START_S = 1_000_000_000
LONG = "3650d"
LIMIT, WINDOW_S = 4, 1
GATES = {
    "fixed window": FixedWindow(LIMIT, WINDOW_S),
    "quota": Quota(f"{LIMIT}/fixed:{WINDOW_S}s"),
    "spread quota": Quota(f"{LIMIT}/fixed:{WINDOW_S}s", spread=True),
    "a quota of days": Quota(f"{LIMIT}/day"),
    "fine ticks": SlidingWindow(LIMIT, WINDOW_S, buckets=40),
    "fine ticks, conservative": SlidingWindow(LIMIT, WINDOW_S, buckets=40, conservative=True),
    "one tick": SlidingWindow(LIMIT, WINDOW_S, buckets=1, conservative=True),
}
CROWDED = {
    "one a window": (FixedWindow(1, WINDOW_S), fixed_window._MAX_WINDOWS),
    "one a period": (Quota(f"1/fixed:{WINDOW_S}s"), quota._MAX_PERIODS),
    "one a period, spread": (Quota(f"1/fixed:{WINDOW_S}s", spread=True), quota._MAX_PERIODS),
    "one a few ticks": (SlidingWindow(1, WINDOW_S, buckets=3, conservative=True), sliding_window._MAX_AHEAD),
}
CEILINGS = [
    (fixed_window, "_MAX_WINDOWS", fixed_window.FixedWindow),
    (quota, "_MAX_PERIODS", quota.PeriodCounter),
    (sliding_window, "_MAX_AHEAD", sliding_window.SlidingWindow),
]
EACH = pytest.mark.parametrize("gate", GATES)
ON = pytest.mark.parametrize("where", ["memory", "Redis"])


OPENED = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPENED:
        OPENED.pop().close()


def shaper_of(where, gate, *rates, gates=(), name="api"):
    clock = ManualClock(START_S)
    rates = rates or ("10/s",)
    store = {"clock": clock}
    if where == "Redis":
        prefix = f"windows {gate} {random.random()}"
        store = {"store": RedisStore.from_url(shared_server().url, clock=clock, prefix=prefix), "name": name}
        OPENED.append(store["store"])
    return Shaper(
        *rates, gates=(GATES[gate] if gate in GATES else CROWDED[gate][0], *gates), **store, max_wait=LONG
    ), clock


def delays(shaper, count):
    return [shaper.reserve().delay for _ in range(count)]


def check_no_window_holds_more(gate, instants):
    """Brute force over calls that stay; a rolling window that weighs its oldest tick may hold one more."""
    ordered = sorted(instants)
    if "tick" in gate:
        spare = 0 if "conservative" in gate or gate == "one tick" else 1
        for first, last in zip(ordered, ordered[LIMIT + spare :], strict=False):
            assert last - first >= WINDOW_S - 1e-6
        return
    length = 86_400 if "days" in gate else WINDOW_S
    counts = Counter(int((START_S + instant + 1e-7) // length) for instant in instants)
    assert max(counts.values()) <= LIMIT


@EACH
@ON
@pytest.mark.parametrize("living", [0, 2])
def test_when_all_are_gone_the_key_is_as_it_was_without_them(gate, where, living):
    (crowd, _), (replay, _) = shaper_of(where, gate), shaper_of("memory", gate)
    for shaper in (crowd, replay):
        delays(shaper, living)
    slots = [crowd.reserve() for _ in range(300 if where == "Redis" else 1_000)]
    random.Random(gate).shuffle(slots)
    assert all(slot.cancel() for slot in slots)
    assert delays(crowd, 30) == delays(replay, 30)


@EACH
@ON
@pytest.mark.parametrize("seed", range(4))
def test_cancelled_calls_of_any_cost_leave_the_waiting_ones_as_they_were(gate, where, seed):
    dice = random.Random(f"{gate} {seed}")
    (crowd, _), (replay, _) = shaper_of(where, gate, "1000/s"), shaper_of("memory", gate, "1000/s")
    costs = [dice.randint(1, LIMIT) for _ in range(60)]
    slots = [crowd.reserve(cost=cost) for cost in costs]
    stays = dice.randint(1, 20)
    for slot in dice.sample(slots[stays:], len(slots) - stays):
        assert slot.cancel()
    for cost in costs[:stays]:
        replay.reserve(cost=cost)
    news = [dice.randint(1, LIMIT) for _ in range(30)]
    assert [crowd.reserve(cost=cost).delay for cost in news] == [
        replay.reserve(cost=cost).delay for cost in news
    ]


@pytest.mark.parametrize("ceiling", [4, 7])
def test_no_unit_of_more_windows_than_are_remembered_is_forgotten(ceiling, monkeypatch):
    monkeypatch.setattr(fixed_window, "_MAX_WINDOWS", ceiling)
    limit, state, costs = FixedWindow(9, 1), None, [1, 3, 2, 9, 4, 6, 5, 8, 7, 1, 9]
    for due_s, cost in enumerate(costs):
        state = limit.charge(state, 0, due_s * 1_000_000, cost)[0]
    assert sum(state[1::2]) == sum(costs)
    assert state[-1] == costs[-1]


@EACH
@ON
def test_when_half_are_gone_no_window_holds_more_than_its_limit(gate, where):
    crowd, _ = shaper_of(where, gate)
    slots = [crowd.reserve() for _ in range(300 if where == "Redis" else 1_000)]
    gone = set(random.Random(gate).sample(slots, len(slots) // 2)) | set(slots[-len(slots) // 4 :])
    alive = [slot.delay for slot in slots if slot not in gone]
    assert all(slot.cancel() for slot in sorted(gone, key=lambda slot: -slot.delay))
    check_no_window_holds_more(gate, alive + delays(crowd, len(gone)))


@EACH
@ON
def test_a_slot_that_is_far_away_forgets_nothing_of_now(gate, where):
    far = (Quota("11/fixed:30d"),)
    (crowd, _), (replay, _) = (shaper_of(kind, gate, gates=far) for kind in (where, "memory"))
    for shaper in (crowd, replay):
        delays(shaper, 11)
    # The twelfth waits for the next thirty days.
    slots = [crowd.reserve() for _ in range(30)]
    assert all(slot.cancel() for slot in slots)
    assert delays(crowd, 12) == delays(replay, 12)


@EACH
@pytest.mark.parametrize("ceiling", [4, 7])
def test_beyond_all_that_is_remembered_nothing_is_minted(gate, ceiling, monkeypatch):
    for module, name, _ in CEILINGS:
        monkeypatch.setattr(module, name, ceiling)
    for seed in range(8):
        dice = random.Random(f"{gate} {seed}")
        crowd, _ = shaper_of("memory", gate)
        slots = [crowd.reserve() for _ in range(dice.randint(60, 120))]
        for _ in range(3):
            gone = set(dice.sample(slots, len(slots) // 2)) | set(slots[-dice.randint(1, len(slots)) :])
            for slot in dice.sample(sorted(gone, key=lambda slot: slot.delay), len(gone)):
                assert slot.cancel()
            slots = [slot for slot in slots if slot not in gone]
            slots += [crowd.reserve() for _ in range(dice.randint(10, 60))]
            slots.sort(key=lambda slot: slot.delay)
            check_no_window_holds_more(gate, [slot.delay for slot in slots])


@pytest.mark.parametrize("gate", CROWDED)
def test_beyond_all_that_is_remembered_redis_answers_as_memory_does(gate):
    answers = []
    for where in ("memory", "Redis"):
        crowd, clock = shaper_of(where, gate)
        slots = [crowd.reserve() for _ in range(CROWDED[gate][1] + 30)]
        order = random.Random(gate).sample(slots[:-60], 60) + slots[-45:]
        assert all(slot.cancel() for slot in order)
        after = delays(crowd, 120)
        clock.advance(7.5)
        answers.append((after, delays(crowd, 5)))
    assert answers[0] == answers[1]


def older_ticks(number):
    return (10**6, 1, 0, *(part for tick in range(number, 0, -1) for part in (tick, 1)))


def test_as_many_older_ticks_as_are_allowed_are_believed():
    SlidingWindow(1, 1, buckets=1).inspect(older_ticks(sliding_window._MAX_AHEAD))


@pytest.mark.parametrize(
    ("limit", "state"),
    [
        (FixedWindow(1, 1), (5, 1, 4, 1)),
        (FixedWindow(1, 1), (5, 1, 4)),
        (FixedWindow(1, 1), (5, "1")),
        (FixedWindow(1, 1), tuple(range(2 * fixed_window._MAX_WINDOWS + 2))),
        (SlidingWindow(1, 1, buckets=1), (9, 1, 0, 8, 1)),
        (SlidingWindow(1, 1, buckets=1), (9, 1, 0, 5, 1, 6, 1)),
        (SlidingWindow(1, 1, buckets=1), (9, 1, 0, 5)),
        (SlidingWindow(1, 1, buckets=1), older_ticks(sliding_window._MAX_AHEAD + 1)),
        (Quota("1/day").counter, (86_400_000_000, 1, 0, 0, 1, 0)),
    ],
)
def test_a_state_that_no_program_has_written_is_refused(limit, state):
    with pytest.raises((ValueError, TypeError)):
        limit.inspect(state)
