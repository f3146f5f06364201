"""Proof of the kit: a store that is wrong in one way does not pass."""

import re
import time
from collections import Counter

import pytest

from shapekit import ConfigError, ManualClock, MemoryStore
from shapekit.algorithms.base import CHECK, REFUND
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.queue.wire import RESERVE
from shapekit.testing import StoreConformance
from shapekit.testing.timelines import GROUPS

START = 10**9


class Wrapped(MemoryStore):
    """MemoryStore with a hook between each call and its answer."""

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)
        return lambda key, *args: self.between(apply, name, program, operation, key, args)

    def between(self, apply, name, program, operation, key, args):
        return apply(key, *args)


class LosesUpdates(Wrapped):
    """Every ninth admitted call is forgotten."""

    calls = 0

    def between(self, apply, name, program, operation, key, args):
        tables = list(self._space(name, program).values())
        befores = [dict(table.states) for table in tables]
        answer = apply(key, *args)
        if operation == CHECK and answer.allowed:
            self.calls += 1
            if self.calls % 9 == 0:
                for table, before in zip(tables, befores, strict=True):
                    table.states.update(dict.fromkeys(table.states) | before)
        return answer


class ForgetsTooEarly(MemoryStore):
    """A state lives half as long as it should."""

    def _runner(self, name, program, operation):
        run = super()._runner(name, program, operation)
        space = self._space(name, program)

        def forgetful(key, now, args):
            answer = run(key, now, args)
            for table in space.values():
                for record, until in table.ends.items():
                    if until > now:
                        table.ends[record] = now + (until - now) // 2
            return answer

        return forgetful

    def bind(self, name, program, operation):
        run = self._runner(name, program, operation)
        space = self._space(name, program)

        def apply(key, *args):
            now = self.clock.now_us()
            for table in space.values():
                for record in [record for record, end in table.ends.items() if end <= now]:
                    table.chill(record)
            return run(key, now, args)

        return apply


class DropsReceipts(Wrapped):
    def between(self, apply, name, program, operation, key, args):
        answer = apply(key, *args)
        return answer._replace(receipt=None) if operation == CHECK else answer


class RefundsWithoutReceipts(Wrapped):
    """Charges are given back as if they had been made just now."""

    def between(self, apply, name, program, operation, key, args):
        if operation == REFUND and isinstance(args[1], int):
            args = (args[0], args[1] + 1)
        return apply(key, *args)


class StripsKeys(Wrapped):
    def between(self, apply, name, program, operation, key, args):
        return apply(key.strip() if isinstance(key, str) else key, *args)


class CutsKeys(Wrapped):
    def between(self, apply, name, program, operation, key, args):
        return apply(key[:300] if isinstance(key, str) else key, *args)


class JoinsNamesAndKeys(Wrapped):
    """`a:b` of `c` is `b` of `c:a`."""

    def bind(self, name, program, operation):
        apply = MemoryStore.bind(self, "", program, operation)
        return lambda key, *args: apply(f"{name}:{key}" if isinstance(key, str) else key, *args)


class ReadsTheClockTwice(Wrapped):
    def between(self, apply, name, program, operation, key, args):
        self.clock.now_us()
        return apply(key, *args)


class ReadsTheClockForEachKey(MemoryStore):
    def bind_many(self, name, program, operation):
        apply = self.bind(name, program, operation)
        return lambda keys, args: [apply(key, *args) for key in keys]


class PersistsDenials(Wrapped):
    """A denied composite leaves its other parts charged."""

    def between(self, apply, name, program, operation, key, args):
        answer = apply(key, *args)
        if operation == CHECK and not answer.allowed and isinstance(key, tuple):
            space = self._space(name, program)
            for part, record in zip(program.parts, zip(program.names, key, strict=True), strict=True):
                table = space[part]
                if record not in table.ends:
                    now = self.clock.now_us()
                    table.states[record] = part.check(None, now, 1).state
                    table.ends[record] = now + 1_000
        return answer


class ChargesDenials(Wrapped):
    def between(self, apply, name, program, operation, key, args):
        answer = apply(key, *args)
        if operation == CHECK and not answer.allowed:
            apply(key, 1)
        return answer


class Hand:
    """A clock that shows another clock's time, but for what a subclass changes."""

    def __init__(self, clock):
        self.clock = clock

    def now_us(self):
        return self.clock.now_us()

    def wall_us(self):
        return self.clock.wall_us()

    def sleep(self, seconds, alarm):
        raise NotImplementedError

    async def asleep(self, seconds, alarm):
        raise NotImplementedError


class Milliseconds(Hand):
    def now_us(self):
        return self.clock.now_us() // 1_000 * 1_000

    def wall_us(self):
        return self.now_us() + self.clock.wall_us() - self.clock.now_us()


class OneHand(Hand):
    def wall_us(self):
        return self.clock.now_us()


class RoundsToMilliseconds(MemoryStore):
    def __init__(self, clock):
        super().__init__(Milliseconds(clock))


class IgnoresSkew(MemoryStore):
    def __init__(self, clock):
        super().__init__(OneHand(clock))


class GoesBack(MemoryStore):
    """A missing state starts at the current time, although it may have been dropped just now."""

    def _miss(self, now):
        self._check_open()
        return now


class NotAtomic(Wrapped):
    """Lets other calls in between reading and writing."""

    def bind(self, name, program, operation):
        run = self._runner(name, program, operation)
        states = self._space(name, program)[program].states

        def apply(key, *args):
            before = states.get(key)
            answer = run(key, self.clock.now_us(), args)
            if operation == CHECK and not isinstance(program, Composite) and answer.allowed:
                after, states[key] = states[key], before
                time.sleep(0.001)
                states[key] = after
            return answer

        return apply

    def _sweep(self, now, most):
        self._line.clear()


class StartsAfresh(MemoryStore):
    """Changed numbers find no state of the old ones."""

    def bind(self, name, program, operation):
        return super().bind(name, program, operation) if self.same(name, program) else self.fresh(program)

    def same(self, name, program):
        return self.__dict__.setdefault("first", {}).setdefault(name, program) == program

    def fresh(self, program):
        return super().bind(f"{program!r}", program, CHECK)


class TakesAnyKind(MemoryStore):
    """Another kind of program under a name begins with an empty state."""

    def _space(self, name, program):
        try:
            return super()._space(name, program)
        except ConfigError:
            del self._spaces[name]
            return super()._space(name, program)


class TakesPatterns(MemoryStore):
    def keys(self, prefix=""):
        pattern = re.compile(re.escape(prefix).replace(r"\*", ".*"))
        return iter([shown for shown in super().keys("") if pattern.match(shown)])


class StaysOpen(MemoryStore):
    def close(self):
        """Forgets everything, and goes on."""


class LetsThemSleep(MemoryStore):
    def wake(self):
        """Waiting calls go on waiting."""


class KeepsWhatWasCancelled(MemoryStore):
    """Asks in between, and keeps the slot of a caller that has gone meanwhile."""

    def abind(self, name, program, operation):
        apply = self.bind(name, program, operation)

        async def aapply(key, *args):
            from anyio.lowlevel import checkpoint  # noqa: PLC0415

            answer = apply(key, *args)
            await checkpoint()
            return answer

        return aapply


class AnswersWithLists(Wrapped):
    """Not a fault: tuples that come back as lists are the same."""

    def between(self, apply, name, program, operation, key, args):
        answer = apply(key, *args)
        if operation == RESERVE:
            return [list(field) if isinstance(field, tuple) and not hasattr(field, "_fields") else field
                    for field in answer]  # fmt: skip
        return answer


class AnswersWithFloats(Wrapped):
    def between(self, apply, name, program, operation, key, args):
        answer = apply(key, *args)
        return answer._replace(reset_at_us=float(answer.reset_at_us)) if operation == CHECK else answer


IDENTICAL = "test_{}_answers_as_the_program".format
CAUGHT = {
    LosesUpdates: IDENTICAL("gcra"),
    ForgetsTooEarly: IDENTICAL("fixed_window"),
    DropsReceipts: IDENTICAL("token_bucket"),
    RefundsWithoutReceipts: IDENTICAL("sliding_log"),
    StripsKeys: "test_no_two_keys_merge",
    CutsKeys: "test_no_two_keys_merge",
    JoinsNamesAndKeys: "test_no_two_names_merge",
    ReadsTheClockTwice: "test_a_call_reads_the_clock_once",
    ReadsTheClockForEachKey: "test_a_call_reads_the_clock_once",
    PersistsDenials: "test_denials_and_looks_persist_nothing",
    ChargesDenials: IDENTICAL("sliding_window"),
    RoundsToMilliseconds: IDENTICAL("leaky_queue"),
    IgnoresSkew: IDENTICAL("quota"),
    GoesBack: "test_going_back_mints_nothing",
    NotAtomic: "test_threads_are_admitted_exactly_to_the_limit",
    StartsAfresh: "test_changed_numbers_continue_where_the_old_ones_stood",
    TakesAnyKind: "test_another_kind_under_a_name_is_refused",
    TakesPatterns: "test_keys_and_reset_all_go_by_prefix",
    StaysOpen: "test_a_closed_store_is_unavailable",
    LetsThemSleep: "test_a_closed_store_is_unavailable",
    KeepsWhatWasCancelled: "test_cancelled_callers_give_their_slots_back",
    AnswersWithFloats: IDENTICAL("leaky_bucket"),
}


def case(store_class):
    class Case(StoreConformance):
        timelines = 200

        def make_store(self, clock):
            return store_class(clock)

    return Case()


@pytest.mark.parametrize("broken", CAUGHT, ids=lambda broken: broken.__name__)
def test_a_broken_store_is_caught(broken, monkeypatch):
    monkeypatch.setattr("shapekit.testing.conformance._PATIENCE_S", 0.2)
    with pytest.raises(AssertionError):
        getattr(case(broken), CAUGHT[broken])()


def test_the_expected_failures_are_tests_of_the_kit():
    tests = {name for name in dir(StoreConformance) if name.startswith("test_")}
    assert set(CAUGHT.values()) <= tests


def test_every_group_of_trials_is_tried_including_the_ledger_of_gates():
    assert "ledger" in GROUPS
    assert all(callable(getattr(StoreConformance, IDENTICAL(kind))) for kind in GROUPS)


def test_a_store_that_is_wrong_about_ledgers_alone_is_caught():
    class ForgetsLedgers(Wrapped):
        def between(self, apply, name, program, operation, key, args):
            if isinstance(program, Ledger):
                self.reset(name, program, key)
            return apply(key, *args)

    with pytest.raises(AssertionError):
        case(ForgetsLedgers).test_ledger_answers_as_the_program()


def test_lists_pass_for_tuples():
    case(AnswersWithLists).test_leaky_queue_answers_as_the_program()


def test_a_failing_timeline_is_shortened_and_shows_the_fields_that_differ():
    with pytest.raises(AssertionError) as caught:
        case(DropsReceipts).test_gcra_answers_as_the_program()
    message = str(caught.value)
    assert "'shapekit-gcra-0-0'" in message
    assert "GCRA(rate=Rate(limit=7" in message
    assert Counter(line.strip()[:1] for line in message.splitlines())["#"] == 1
    assert "left of 10 steps" in message
    assert re.search(r"differs in receipt: \d+ != None", message)
    with pytest.raises(AssertionError) as again:
        case(DropsReceipts).test_gcra_answers_as_the_program()
    assert str(again.value) == message


def test_the_failure_of_a_store_that_breaks_down_shows_its_error():
    class BreaksDown(Wrapped):
        def between(self, apply, name, program, operation, key, args):
            if operation == REFUND:
                raise ZeroDivisionError("somewhere")
            return apply(key, *args)

    with pytest.raises(AssertionError, match=r"refund\(.*ZeroDivisionError\('somewhere'\)"):
        case(BreaksDown).test_all_of_answers_as_the_program()


def test_a_shared_store_needs_a_way_to_open_it_again():
    class Shared(MemoryStore):
        shared = True

    with pytest.raises(NotImplementedError, match="same_store"):
        case(Shared).test_two_objects_see_one_truth()


def test_two_objects_that_do_not_share_are_caught():
    class Shared(MemoryStore):
        shared = True

    class Case(StoreConformance):
        def make_store(self, clock):
            return Shared(clock)

        def same_store(self, store, clock):
            return Shared(clock)

    for test in ("test_two_objects_see_one_truth", "test_threads_share_one_grid",
                 "test_threads_are_admitted_exactly_to_the_limit"):  # fmt: skip
        with pytest.raises(AssertionError):
            getattr(Case(), test)()


def test_a_store_has_to_be_provided():
    with pytest.raises(NotImplementedError, match="make_store"):
        StoreConformance().make_store(ManualClock(START))
