"""StoreConformance: the proof that a store is one.

    from shapekit.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

The tests are plain methods that raise AssertionError. They need no real time and no library beside
shapekit's own; pytest collects them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from shapekit.clock import ManualClock
from shapekit.stores.base import Store
from shapekit.testing import contract, crowds
from shapekit.testing import contract as instants
from shapekit.testing.identity import acheck_identity, check_identity
from shapekit.testing.timelines import GROUPS, changes

__all__ = ["StoreConformance"]

_START_S = 10**9


class StoreConformance:
    """Subclass it, say how to make a store, and let pytest collect it.

    The identity tests play generated timelines on the store and compare every field of every answer
    with what the pure program says. `timelines` is how many for each algorithm, `steps` how many
    operations each of them has; the same `seed` gives the same ones, always. The other tests hold a
    store to the rest of its promises: about keys, names, time, threads and tasks, and its end.
    """

    timelines = 200
    """How many timelines are played for each algorithm."""
    steps = 10
    """How many operations each of them has."""
    seed = "shapekit"
    """What the timelines are made from."""

    def make_store(self, clock: ManualClock) -> Store:
        """A fresh, empty store that decides by this clock. Is called often; the tests close it."""
        raise NotImplementedError("say how to make a store: def make_store(self, clock): return …")

    def same_store(self, store: Store, clock: ManualClock) -> Store:
        """Another object on the truth of `store`; asked for where `store.shared` says there can be one."""
        raise NotImplementedError("say how a second process gets at the same states: def same_store(…)")

    # the same answers

    def test_gcra_answers_as_the_program(self) -> None:
        self._identical("gcra")

    def test_token_bucket_answers_as_the_program(self) -> None:
        self._identical("token_bucket")

    def test_leaky_bucket_answers_as_the_program(self) -> None:
        self._identical("leaky_bucket")

    def test_fixed_window_answers_as_the_program(self) -> None:
        self._identical("fixed_window")

    def test_sliding_window_answers_as_the_program(self) -> None:
        self._identical("sliding_window")

    def test_sliding_log_answers_as_the_program(self) -> None:
        self._identical("sliding_log")

    def test_quota_answers_as_the_program(self) -> None:
        self._identical("quota")

    def test_all_of_answers_as_the_program(self) -> None:
        self._identical("all_of")

    def test_any_of_answers_as_the_program(self) -> None:
        self._identical("any_of")

    def test_first_of_answers_as_the_program(self) -> None:
        self._identical("first_of")

    def test_leaky_queue_answers_as_the_program(self) -> None:
        self._identical("leaky_queue")

    def test_adaptive_queue_answers_as_the_program(self) -> None:
        self._identical("adaptive_queue")

    def test_concurrency_answers_as_the_program(self) -> None:
        self._identical("concurrency")

    def test_changed_numbers_continue_where_the_old_ones_stood(self) -> None:
        pairs = changes()
        for number, pair in enumerate(pairs):
            count = -(-self.timelines // len(pairs))
            check_identity(self.make_store, f"{self.seed}-change-{number}", pair, count, self.steps)

    def test_awaited_calls_answer_as_the_program(self) -> None:
        async def work() -> None:
            for kind, trials in GROUPS.items():
                for number, trial in enumerate(trials()[::4]):
                    name = f"{self.seed}-awaited-{kind}-{number}"
                    await acheck_identity(self.make_store, name, (trial,), 3, self.steps)

        crowds.on_each_loop(work)

    def test_many_keys_are_answered_in_turn(self) -> None:
        self._on_a_store(crowds.many_agree)

    def test_awaited_many_keys_are_answered_in_turn(self) -> None:
        self._on_a_store_each_loop(crowds.amany_agree)

    # time

    def test_a_call_reads_the_clock_once(self) -> None:
        instants.one_instant(self.make_store)

    def test_going_back_mints_nothing(self) -> None:
        instants.going_back_mints_nothing(self.make_store, self.seed)

    # keys and names

    def test_no_two_keys_merge(self) -> None:
        self._on_a_store(contract.keys_stay_apart)

    def test_no_two_names_merge(self) -> None:
        self._on_a_store(contract.names_stay_apart)

    def test_no_two_parts_merge(self) -> None:
        self._on_a_store(contract.parts_stay_apart)

    def test_keys_and_reset_all_go_by_prefix(self) -> None:
        self._on_a_store(contract.keys_are_shown)

    def test_a_reset_key_is_cold(self) -> None:
        self._on_a_store(contract.resets_are_complete)

    def test_denials_and_looks_persist_nothing(self) -> None:
        self._on_a_store(contract.denials_persist_nothing)

    def test_another_kind_under_a_name_is_refused(self) -> None:
        self._on_a_store(contract.kinds_are_kept_apart)

    # many at once

    def test_threads_are_admitted_exactly_to_the_limit(self) -> None:
        self._on_two(lambda *stores: crowds.threads_admit_the_limit(stores))

    def test_threads_share_one_grid(self) -> None:
        self._on_two(lambda *stores: crowds.threads_share_a_grid(stores))

    def test_two_objects_see_one_truth(self) -> None:
        self._on_two(crowds.two_see_one_state)

    def test_tasks_are_admitted_exactly_to_the_limit(self) -> None:
        self._on_a_store_each_loop(crowds.tasks_admit_the_limit)

    def test_cancelled_callers_give_their_slots_back(self) -> None:
        self._on_a_store_each_loop(crowds.cancelled_callers_give_back)

    def test_threads_are_never_more_than_the_permits(self) -> None:
        self._on_two(lambda *stores: crowds.threads_share_permits(stores))

    def test_cancelled_callers_give_their_permits_back(self) -> None:
        self._on_a_store_each_loop(crowds.cancelled_callers_leave)

    # the end

    def test_a_closed_store_is_unavailable(self) -> None:
        self._on_a_store(contract.closed_is_closed)

    def test_an_aclosed_store_is_unavailable(self) -> None:
        self._on_a_store_each_loop(crowds.aclosed_is_closed)

    # how

    def _identical(self, kind: str) -> None:
        trials = GROUPS[kind]()
        count = -(-self.timelines // len(trials))
        for number, trial in enumerate(trials):
            check_identity(self.make_store, f"{self.seed}-{kind}-{number}", (trial,), count, self.steps)

    def _on_a_store(self, work: Callable[[Store], None]) -> None:
        store = self.make_store(ManualClock(_START_S))
        try:
            work(store)
        finally:
            store.close()

    def _on_two(self, work: Callable[..., Any]) -> None:
        """Two objects on one truth; where nobody else can see it, the same object twice."""
        clock = ManualClock(_START_S)
        one = self.make_store(clock)
        other = self.same_store(one, clock) if one.shared else one
        try:
            work(one, other)
        finally:
            other.close()
            one.close()

    def _on_a_store_each_loop(self, work: Callable[[Store], Awaitable[None]]) -> None:
        async def once() -> None:
            store = self.make_store(ManualClock(_START_S))
            try:
                await work(store)
            finally:
                await store.aclose()

        crowds.on_each_loop(once)
