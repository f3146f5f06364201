"""How many calls are in flight at a key, and crowds of callers."""

import threading

from shapekit._runtime import process
from shapekit.algorithms.queue.wire import LOOK
from shapekit.rate import SECOND_US

PATIENCE_S = 20.0


def standing(policy, key="default"):
    """How many are in flight and how many wait, as the store has it."""
    store, limit = policy.shaper.core.store, policy.permits.limit
    program = limit if store.shared else limit.unending()
    state, now, _ = store.bind(f"{policy.name}.permits", program, LOOK)(key)
    return program.standing(state, now)


def is_forgotten(policy):
    """Whether the process knows of no call any more."""
    return policy.permits.registry._keys == {}


class Inside:
    """Counts the callers inside, and the most there ever were."""

    def __init__(self):
        self._lock = threading.Lock()
        self.now = self.most = self.visits = 0

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.visits += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


def given_back():
    """Wait until what was dropped without a word, up to now, is given back."""
    process.background_ready()
    has_gone_on = threading.Event()
    process.in_background(has_gone_on.set)
    assert has_gone_on.wait(PATIENCE_S)


def seconds(clock, since_us):
    return (clock.now_us() - since_us) / SECOND_US
