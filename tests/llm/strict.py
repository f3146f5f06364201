"""Three processes with one budget, by any framework, before a server that counts strictly."""

import anyio
import pytest

from shapekit import MemoryStore

from .fleet import WORKERS, run_fleet, run_on_a_clock, used
from .provider import RETRY_AFTER_S, Provider

CALM_S = 9
"""Until then only the limits refuse calls."""
SECONDS = CALM_S + RETRY_AFTER_S + 1
UNDER_WAY_S = 0.3
"""Requests that had left before the refusal arrived may still arrive during this time."""


class StrictFleet:
    """The tests of a framework; `worker` names the module whose calls use it."""

    worker = ""

    @pytest.fixture(scope="class")
    @classmethod
    def seen(cls):
        with Provider() as provider:
            provider.refuses_after_s = CALM_S
            fleet = run_fleet(cls.worker, "shaped", provider, SECONDS)
        return provider, fleet

    def test_no_call_is_refused_for_its_requests_or_tokens(self, seen):
        provider, fleet = seen
        assert len(provider.refusals) == fleet.failed == 1  # the one that the test makes the server refuse
        assert fleet.answered == len(provider.arrivals) - 1

    def test_most_of_the_limit_is_used(self, seen):
        provider, _ = seen
        # On a busy machine calls leave late, and then all later ones leave late, too.
        assert 0.7 <= provider.share(1, CALM_S) <= 1

    def test_a_refusal_of_one_process_stops_all_until_the_servers_hold_ends(self, seen):
        provider, fleet = seen
        [refusal] = provider.refusals
        later = [arrival.at - refusal.at for arrival in provider.arrivals if arrival.at > refusal.at]
        # A framework handles an error for a while before any code of shapekit sees it.
        stopped_s = fleet.failed_at - refusal.at + UNDER_WAY_S
        assert stopped_s < RETRY_AFTER_S
        assert [at for at in later if stopped_s < at < RETRY_AFTER_S] == []
        assert len([at for at in later if at >= RETRY_AFTER_S]) > 10

    def test_in_real_time_nearly_all_of_the_limit_is_used_and_never_more(self, clock):
        store = MemoryStore(clock=clock)
        left = anyio.run(run_on_a_clock, [self.asker(store, clock) for _ in range(WORKERS)], clock, 20)
        share, fullest = used(left, 20)
        assert share >= 0.95
        assert fullest <= 1

    def asker(self, store, clock):
        """The coroutine function of a worker, with the budget on this store: `await ask(question, most)`.

        It returns when the question left, unless that is when it returns.
        """
        raise NotImplementedError
