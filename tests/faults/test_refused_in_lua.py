"""The scripts refuse bad arguments themselves, from any client, and then write nothing."""

import json

import pytest
import redis

from shapekit import GCRA, FixedWindow, Quota, Shaper, SlidingWindow, SlidingWindowLog, all_of
from shapekit.algorithms.base import CHECK, DEBIT, FORECAST, REFUND
from shapekit.algorithms.queue.wire import CANCEL, HOLD, LATE, MARK, RESERVE, RESUME, SETTLE
from shapekit.stores.redis.protocol import script_of

from ..redis_server import shared_server

NOW = 1_700_000_000_000_000
STRATEGIES = {
    "gcra": GCRA("10/s"),
    "fixed window": FixedWindow("10/s"),
    "sliding window": SlidingWindow("10/s"),
    "log": SlidingWindowLog("10/s"),
    "quota": Quota(10, "day"),
    "all_of": all_of(a=GCRA("10/s"), b=FixedWindow("100/min")),
    "queue": Shaper("10/s; 100/min").core.queue,
}
GATE_OPERATIONS = (CHECK, FORECAST, REFUND, DEBIT)
NUMBERS_THAT_ARE_NONE = (
    "0",
    "-1",
    "1.5",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e300",
    "true",
    "false",
    '"1"',
    "[]",
)

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
each_gate = pytest.mark.parametrize(
    "strategy", [part for name, part in STRATEGIES.items() if name != "queue"], ids=list(STRATEGIES)[:-1]
)


class Door:
    """Calls scripts as the store does, with any words."""

    def __init__(self, client, key):
        self._client = client
        self._key = key

    def knock(self, strategy, calls, operations, spec=None):
        spec = strategy.twin((NOW,)) if spec is None else spec
        script = script_of(strategy.twin((NOW,)), operations)
        head = json.dumps(["tag", 0, spec])
        return self._client.eval(script.text, 1, self._key, head, calls)

    def check_refused(self, *args, **options):
        with pytest.raises(redis.ResponseError) as caught:
            self.knock(*args, **options)
        assert str(caught.value).startswith("shapekit: ")
        assert not self._client.exists(self._key)


@pytest.fixture
def door(prefix):
    with shared_server().client() as client:
        yield Door(client, f"{prefix}:{{door:default}}")


def op_of(strategy):
    return RESERVE if strategy is STRATEGIES["queue"] else CHECK


def call(operation, now=NOW, skew=0, *words):
    return "[[" + ",".join([f'"{operation}"', str(now), str(skew), *words]) + "]]"


def words_of(operation):
    """Good words behind the instant and the skew."""
    return ("1", "false", "7") if operation == RESERVE else ("1",)


@each_strategy
def test_good_arguments_are_taken(strategy, door):
    operation = op_of(strategy)
    assert door.knock(strategy, call(operation, NOW, 0, *words_of(operation)), (operation,))


@each_gate
@pytest.mark.parametrize("operation", GATE_OPERATIONS)
def test_costs(strategy, operation, door):
    for bad in NUMBERS_THAT_ARE_NONE:
        door.check_refused(strategy, call(operation, NOW, 0, bad), (operation,))
    door.check_refused(strategy, call(operation), (operation,))


@each_gate
@pytest.mark.parametrize("operation", [CHECK, FORECAST])
def test_costs_that_can_never_be_admitted(strategy, operation, door):
    door.check_refused(strategy, call(operation, NOW, 0, str(strategy.max_cost + 1)), (operation,))


def test_wrong_costs_of_slots_are_refused(door):
    for bad in NUMBERS_THAT_ARE_NONE:
        door.check_refused(STRATEGIES["queue"], call(RESERVE, NOW, 0, bad, "false", "7"), (RESERVE,))


@each_strategy
def test_instants(strategy, door):
    operation = op_of(strategy)
    for bad in ("-1", "1.5", "NaN", "Infinity", "1e300", "true", '"soon"', "[]"):
        door.check_refused(strategy, call(operation, bad, 0, *words_of(operation)), (operation,))


@each_strategy
def test_skews(strategy, door):
    operation = op_of(strategy)
    for bad in ("1.5", "NaN", "Infinity", "-1e300", "true", "false", '"far"', "[]"):
        door.check_refused(strategy, call(operation, NOW, bad, *words_of(operation)), (operation,))


@pytest.mark.parametrize("bad", ["1.5", "NaN", "Infinity", "true", '"1"', "[1.5,0]", "[[NaN]]", "[true]"])
def test_wrong_other_arguments_are_refused(bad, door):
    gate, queue = STRATEGIES["gcra"], STRATEGIES["queue"]
    for operation in (REFUND, DEBIT):
        door.check_refused(gate, call(operation, NOW, 0, "1", bad), (operation,))
    door.check_refused(queue, call(RESERVE, NOW, 0, "1", bad, "7"), (RESERVE,))
    door.check_refused(queue, call(RESERVE, NOW, 0, "1", "false", bad), (RESERVE,))
    for lasting in (HOLD, MARK):
        door.check_refused(queue, call(lasting, NOW, 0, bad, "7"), (lasting,))
        door.check_refused(queue, call(lasting, NOW, 0, "1000", bad), (lasting,))
    door.check_refused(queue, call(RESUME, NOW, 0, bad), (RESUME,))
    for words in ((bad, "1", "1", "7"), ("1", bad, "1", "7"), ("1", "1", bad, "7"), ("1", "1", "1", bad)):
        door.check_refused(queue, call(LATE, NOW, 0, f"[[{','.join(words)}]]"), (LATE,))
    door.check_refused(queue, call(LATE, NOW, 0, "7"), (LATE,))
    door.check_refused(queue, call(CANCEL, NOW, 0, bad), (CANCEL,))
    door.check_refused(queue, call(SETTLE, NOW, 0, bad, "1", "7"), (SETTLE,))


def test_operations(door):
    for operation in ("plunder", "new", "__index", "reserve", ""):
        door.check_refused(STRATEGIES["gcra"], call(operation, NOW, 0, "1"), (CHECK,))


@each_strategy
def test_numbers_of_programs(strategy, door):
    operation = op_of(strategy)
    spec = strategy.twin((NOW,))
    if isinstance(spec[1], list) or not isinstance(spec[1], int):
        spec = STRATEGIES["gcra"].twin((NOW,))
        strategy = STRATEGIES["gcra"]
        operation = CHECK
    for bad in (0, -1, 1.5, float("nan"), float("inf"), 1e300, True, "10"):
        broken = [spec[0], bad, *spec[2:]]
        door.check_refused(strategy, call(operation, NOW, 0, *words_of(operation)), (operation,), spec=broken)
    door.check_refused(
        strategy, call(operation, NOW, 0, *words_of(operation)), (operation,), spec=["none", 1]
    )


def test_one_bad_call_of_many_refuses_them_all(door):
    calls = f'[["check",{NOW},0,1],["check",{NOW},0,0]]'
    door.check_refused(STRATEGIES["gcra"], calls, (CHECK,))
