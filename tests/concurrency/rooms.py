"""How things stand at a key, and crowds of callers."""

import threading

from shapekit import afterwards
from shapekit.rate import SECOND_US

PATIENCE_S = 20.0


def standing(policy, key="default"):
    """How many are in flight and how many wait, as the store has it."""
    store, limit = policy.shaper._store, policy.seats.limit
    program = limit if store.shared else limit.unending()
    state, now, _ = store.bind(f"{policy.name}.seats", program, "look")(key)
    return program.standing(state, now)


def is_forgotten(policy):
    """Whether the process knows of no call any more."""
    return policy.seats._rooms.places() == []


class Inside:
    """Counts who is inside, and the most there ever were."""

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


def in_threads(jobs):
    """Run each in a thread of its own; raises what the first of them raised."""
    errors = []

    def run(job):
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def given_back():
    """Wait until what was dropped without a word, up to now, is given back."""
    afterwards.ready()
    has_gone_on = threading.Event()
    afterwards.do(has_gone_on.set)
    assert has_gone_on.wait(PATIENCE_S)


def seconds(clock, since_us):
    return (clock.now_us() - since_us) / SECOND_US
