"""Laws of every limit, alone and combined: what a denial is, and when it ends.

The stories include debts, refunds, slots still to come, and time that went back.
"""

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, Quota, all_of, any_of, first_of

from .limits import cold_units, limits
from .stories import Event, Story, slot, starts, stories, without_receipt

DAY = 86_400_000_000


@given(stories(limits))
def test_a_denial_consumes_and_persists_nothing(story):
    moment = story.played()
    outcome = moment.check()
    if outcome.decision.allowed:
        assert outcome.persist
        assert outcome.state != moment.state
        assert outcome.decision.retry_after_us == 0
    else:
        assert not outcome.persist
        assert outcome.state is moment.state
        assert outcome.ttl_us == 0
        assert outcome.decision.retry_after_us > 0


@given(stories(limits), st.integers(0, 1_000))
@example(Story(GCRA("3/s"), 0, (Event("check", 0, 3),), 1, 2), 999)
def test_a_denied_call_is_admitted_at_retry_after_and_not_before(story, thousandths):
    moment = story.played()
    wait = moment.check().decision.retry_after_us
    if wait:
        assert moment.check(moment.now + wait).decision.allowed
        assert not moment.check(moment.now + wait - 1).decision.allowed
        assert not moment.check(moment.now + wait * thousandths // 1_001).decision.allowed


@given(stories(limits))
def test_check_admits_at_earliest_and_not_a_microsecond_sooner(story):
    moment = story.played()
    earliest = moment.earliest()
    assert earliest >= moment.now
    assert moment.check(earliest).decision.allowed
    assert moment.earliest(earliest) == earliest
    if earliest > moment.now:
        assert not moment.check(earliest - 1).decision.allowed


@given(stories(limits), st.integers(0, 10**12))
def test_a_call_stays_admitted_while_no_other_comes(story, later_us):
    moment = story.played()
    assert moment.check(moment.earliest() + later_us).decision.allowed


@given(stories(limits))
def test_check_has_the_wait_until_earliest(story):
    moment = story.played()
    assert moment.check().decision.retry_after_us == moment.earliest() - moment.now


@given(stories(limits))
def test_peek_answers_as_check_would(story):
    moment = story.played()
    peeked, checked = moment.peek(), moment.check(cost=1).decision
    assert peeked.allowed == checked.allowed
    assert peeked.retry_after_us == checked.retry_after_us
    assert peeked.receipt is None
    if not checked.allowed:
        assert peeked == checked


@given(stories(limits))
def test_numbers_are_whole_and_remaining_is_never_negative(story):
    moment = story.played()
    for decision in (moment.peek(), moment.check().decision, moment.check(moment.earliest()).decision):
        assert all(type(number) is int for number in decision[1:6])
        assert type(decision.allowed) is bool
        assert decision.remaining >= 0
        assert decision.current >= 0
        assert decision.retry_after_us >= 0


@given(stories(limits))
def test_everything_is_free_again_at_reset_at_or_later_than_now(story):
    moment = story.played()
    decision = moment.peek()
    assert decision.reset_at_us >= moment.now + decision.retry_after_us


@given(limits, starts, st.data())
@example(all_of(a=GCRA("3/s"), b=FixedWindow("5/s")), 0, None)
@example(any_of(a=GCRA("3/s"), b=first_of(c=Quota(2, "day"), d=FixedWindow("5/s"))), 10**15 + 1, None)
def test_a_cold_key_admits_exactly_its_burst_at_one_instant(limit, now, data):
    # A skew means nothing to a cold key but for the calendar.
    skew = data.draw(st.integers(-DAY, DAY)) if data else 0
    state, admitted = None, 0
    while (outcome := limit.check(state, now, 1, skew)).decision.allowed:
        state, admitted = outcome.state, admitted + 1
    assert admitted == cold_units(limit)


@given(limits, starts)
def test_a_cold_key_admits_the_largest_cost(limit, now):
    assert limit.check(None, now, limit.max_cost).decision.allowed
    assert limit.earliest(None, now, limit.max_cost) == now


@given(stories(limits))
def test_a_slot_is_charged_at_earliest(story):
    moment = story.played()
    limit, state, now, cost, skew, _ = moment
    due, outcome = slot(limit, state, now, cost, skew)
    assert outcome.decision.allowed
    assert outcome.persist
    assert outcome.decision.receipt is not None
    if due == now:
        assert without_receipt(limit.check(outcome.state, now, cost, skew).decision) == without_receipt(
            limit.check(moment.check().state, now, cost, skew).decision
        )
    else:
        assert moment._replace(state=outcome.state).earliest() >= due
