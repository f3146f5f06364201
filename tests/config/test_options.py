"""Everything that takes a policy's keywords takes every option of a policy, and passes it on."""

from __future__ import annotations

from typing import Any

import pytest

from shapekit import GCRA, Adaptive, Concurrency, ManualClock, MemoryStore, Policy, Quota, shaped
from shapekit._adapters.http import RequestShaper, Shaping
from shapekit._adapters.tasks import checked_shape
from shapekit._adapters.transport import READING
from shapekit.config import FIELDS, PolicyOptions
from shapekit.feedback import Feedback
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.requests import ShapedAdapter

CLOCK, STORE, READS = ManualClock(), MemoryStore(), Feedback("github")
OSERROR = OSError()

OPTIONS: dict[str, tuple[Any, Any]] = {
    "name": ("mine", lambda policy: policy.name == "mine"),
    "burst": (2, lambda policy: policy.shaper.core.queue.burst == 2),
    "pace": ("burst", lambda policy: policy.shaper.core.queue.pace == "burst"),
    "quota": ("5/day", lambda policy: policy.shaper.core.queue.gates == (Quota("5/day"),)),
    "spread": (True, lambda policy: policy.shaper.core.queue.gates == (Quota("5/day", spread=True),)),
    "gates": ((GCRA("5/s"),), lambda policy: policy.shaper.core.queue.gates == (GCRA("5/s"),)),
    "concurrency": (3, lambda policy: policy.permits.limit == Concurrency(3)),
    "key": ("default", lambda policy: policy.key == "default"),  # which all of them have
    "cost": (2, lambda policy: policy.cost == 2),
    "max_wait": ("2s", lambda policy: policy.shaper.core.max_wait_us == 2_000_000),
    "headroom": (0.5, lambda policy: policy.shaper.core.queue != Policy("1/s").shaper.core.queue),
    "prefetch": ("1s", lambda policy: policy.shaper.core.prefetch is None),  # memory has no trips to save
    "adaptive": (Adaptive("1/s", "5/s"), lambda policy: policy.shaper.core.queue.adapts),
    "enforce": (False, lambda policy: policy.enforce is False),
    "refund_on": (OSError, lambda policy: policy.refund_on(OSERROR)),
    "feedback": (READS, lambda policy: policy.feedback.dialect == "github"),
    "store": (STORE, lambda policy: policy.shaper.core.store is STORE),
    "clock": (CLOCK, lambda policy: policy.shaper.core.clock is CLOCK),
}


def of_fields(**passed: Any) -> Policy:
    """A store comes beside the fields, and brings its clock."""
    beside = {"store": passed.pop("store")} if "store" in passed else {}
    if "clock" in passed:
        beside["store"] = MemoryStore(passed.pop("clock"))
    return Policy.from_dict(passed, **beside)


MAKERS: dict[str, Any] = {
    "Policy": Policy,
    "shaped": lambda **passed: shaped(**passed)(lambda: None).policy,
    "from_dict": of_fields,
    "wrapper": lambda **passed: RequestShaper("Wrapper", READING, **passed)._main.policy,
}
TAKERS: dict[str, Any] = {
    "httpx": ShapedTransport,
    "aiohttp": shaped_middleware,
    "requests": ShapedAdapter,
    "celery": lambda **passed: checked_shape(passed),
}


def keywords(option: str) -> dict[str, Any]:
    """The option, and the arguments that it needs beside it."""
    beside = {"adaptive": {}, "spread": {"rate": "1/s", "quota": "5/day"}}.get(option, {"rate": "1/s"})
    return {**beside, option: OPTIONS[option][0]}


def test_every_option_is_tried() -> None:
    assert set(OPTIONS) == set(PolicyOptions.__annotations__)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("maker", MAKERS)
def test_the_option_arrives(maker: str, option: str) -> None:
    assert OPTIONS[option][1](MAKERS[maker](**keywords(option)))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("taker", TAKERS)
def test_the_option_is_accepted(refused: Any, taker: str, option: str) -> None:
    if (taker, option) == ("celery", "concurrency"):
        refused(lambda: TAKERS[taker](**keywords(option)), "shape['concurrency']")  # and gives the reason
    else:
        assert TAKERS[taker](**keywords(option))


@pytest.mark.parametrize("make", [Policy, shaped], ids=lambda make: make.__name__)
@pytest.mark.parametrize("wrong", ["rat", "longest_sleep", "lease"])
def test_an_unknown_option_is_a_type_error(make: Any, wrong: str) -> None:
    with pytest.raises(
        TypeError, match=rf"^{make.__name__}\(\) got an unexpected keyword argument '{wrong}'"
    ):
        make("1/s", **{wrong: 1})


def test_wrappers_and_files_take_no_other_options() -> None:
    options = set(PolicyOptions.__annotations__)
    assert set(Shaping.__annotations__) - options == {"rate", "policy", "routes", "on_reject"}
    assert {"rate", *options} - set(FIELDS) == {"store", "clock"}
