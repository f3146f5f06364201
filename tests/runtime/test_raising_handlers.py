"""What a signal handler raises reaches the user, wherever it strikes: it is no failure of what it interrupts.

Time limits of Celery and RQ are such, and plain Exceptions.
"""

import signal
from functools import partial

import httpx
import pytest

from shapekit import LLMBudget, MemoryStore, Policy, listen
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.prometheus import ShapekitCollector
from shapekit.testing import FaultyStore


class TimeUp(Exception):
    """A time limit, as task queues raise it."""


class Limits:
    """Handlers that are no functions."""

    def method(self, number, frame):
        raise TimeUp

    def __call__(self, *args):
        raise TimeUp


def function(number, frame):
    raise TimeUp


def variadic(*_):
    raise TimeUp


def restoring(number, frame):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeUp


def naming(number, frame):
    number = signal.Signals(number).name
    raise TimeUp(number)


def with_more(more, *args, **_):
    function(*args)


HANDLERS = {
    "function": function,
    "variadic": variadic,
    "restoring": restoring,
    "naming": naming,
    "partial": partial(with_more, "more", others=None),
    "method": Limits().method,
    "callable": Limits(),
}


@pytest.fixture(params=HANDLERS)
def handler(request):
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


def strike(*_):
    signal.raise_signal(signal.SIGUSR1)


class Struck(FaultyStore):
    """A store that a signal strikes in the midst of its next call."""

    def __init__(self):
        super().__init__(MemoryStore())
        self.is_struck = False

    def _check_up(self):
        if self.is_struck:
            self.is_struck = False
            strike()


def listener(store):
    policy = Policy("1/h")
    with policy.listen(strike):
        policy.shaper.reserve()


def listener_of_all(store):
    with listen(strike):
        Policy("1/h").shaper.reserve()


def refund_on(store):
    with Policy("1/h", refund_on=strike).admit():
        raise ZeroDivisionError


def permit(store):
    with Policy("1/h", concurrency=1, store=store).admit():
        store.is_struck = True


def answer(store):
    def answered(request):
        store.is_struck = True
        return httpx.Response(429, headers={"Retry-After": "1"})

    transport = ShapedTransport(httpx.MockTransport(answered), rate="1/s", store=store)
    with httpx.Client(transport=transport) as client:
        client.get("http://test/")


def usage(store):
    def ask(prompt):
        store.is_struck = True
        return {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    LLMBudget(tokens="10k/min", store=store).wrap(ask)(prompt="Hello")


def failure(store):
    with LLMBudget(tokens="1000/min", store=store).admit(5):
        store.is_struck = True
        raise ConnectionRefusedError


def gauges(store):
    collector = ShapekitCollector(Policy("1/h", store=store))
    store.is_struck = True
    try:
        collector.collect()
    finally:
        collector.close()


PLACES = [listener, listener_of_all, refund_on, permit, answer, usage, failure, gauges]


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_a_handler_reaches_the_user(place):
    with pytest.raises(TimeUp):
        place(Struck())
