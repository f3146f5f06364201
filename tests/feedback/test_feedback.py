"""Feedback: the rules from an answer to a hold, and the forms in which clients pass headers."""

import pickle
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.feedback import DIALECTS, Feedback, ServerHint

AT = 1_780_056_000.0
SPENT = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "7"}


@pytest.fixture
def feedback():
    return Feedback()


def read(feedback, status, headers=(), *, sent_at=AT, received_at=None, key="default"):
    received_at = sent_at if received_at is None else received_at
    return feedback.read(status, headers, sent_at=sent_at, received_at=received_at, key=key)


@pytest.mark.parametrize("status", [200, 201, 301, 404, 500, 502, 503, 529])
def test_an_answer_without_fields_gives_no_hint(feedback, status):
    assert read(feedback, status, {"Date": "Fri, 29 May 2026 12:00:00 GMT", "Content-Length": "0"}) is None
    assert read(feedback, status) is None


@pytest.mark.parametrize(
    ("status", "hold_s"),
    [(429, 2), (503, 2), (529, 2), (200, 0), (202, 0), (301, 0), (403, 0), (500, 0), (502, 0), (530, 0)],
)
def test_retry_after_holds_only_where_it_means_slow_down(feedback, status, hold_s):
    hint = read(feedback, status, {"Retry-After": "2"})
    assert (hint.hold_s if hint else 0) == hold_s


@pytest.mark.parametrize("status", [200, 204, 404, 429, 500, 503, 529])
def test_nothing_left_holds_until_the_reset_before_a_refusal_comes(feedback, status):
    assert read(feedback, status, SPENT) == ServerHint(7, 0, None, None, 7)


def test_nothing_left_without_a_reset_holds_nothing(feedback):
    assert read(feedback, 200, {"X-RateLimit-Remaining": "0"}) == ServerHint(0, 0)


@pytest.mark.parametrize("left", [{}, {"X-RateLimit-Remaining": "-1"}, {"X-RateLimit-Remaining": "none"}])
def test_a_refusal_that_counts_nothing_holds_until_the_reset_too(feedback, left):
    fields = {"X-RateLimit-Limit": "100", "X-RateLimit-Reset": "30", **left}
    assert read(feedback, 429, fields) == ServerHint(30, None, 100, None, 30)
    assert read(feedback, 429, {**fields, "Retry-After": "3"}).hold_s == 3
    assert read(feedback, 429, {**fields, "X-RateLimit-Reset": "0"}, sent_at=AT + 30).hold_s == 1
    assert read(feedback, 200, fields).hold_s == 0


def test_retry_after_goes_before_the_reset(feedback):
    assert read(feedback, 429, {**SPENT, "Retry-After": "3"}).hold_s == 3


OURS = {"Retry-After": "7", "Shapekit-Refused": "queue_full"}


@pytest.mark.parametrize("dialect", ["auto", *DIALECTS, lambda answer: ServerHint(hold_s=5.0)])
def test_a_429_of_ours_gives_no_hint_about_the_server(dialect):
    feedback = Feedback(dialect)
    assert read(feedback, 429, {**OURS, **SPENT}) is None
    assert read(feedback, 429, iter(OURS.items())) is None
    assert (
        read(feedback, 429, [(name.lower().encode(), value.encode()) for name, value in OURS.items()]) is None
    )
    assert not feedback._incidents.known
    # It is only ever a 429.
    assert read(feedback, 503, OURS).hold_s > 0


@given(
    st.sampled_from(["Retry-After", "retry-after-ms", "x-ratelimit-reset-requests"]),
    st.integers(1, 10**40),
    st.integers(1, 10**40),
)
def test_a_longer_wait_never_becomes_a_shorter_one_however_many_digits_it_has(field, one, other):
    form = "{}ms" if field == "x-ratelimit-reset-requests" else "{}"
    spent = {"x-ratelimit-remaining-requests": "0"}
    holds = [
        read(Feedback("openai"), 429, {**spent, field: form.format(wait)}).hold_s
        for wait in sorted((one, other))
    ]
    # A wait below a millisecond is no hint, and holds for 1 s as without one.
    assert holds[0] <= max(1, holds[1])


@pytest.mark.parametrize("zero", ["0", "0.0", "0.0004", "-5", "", "soon", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_zero_counts_as_a_missing_value(feedback, zero):
    assert read(feedback, 429, {"Retry-After": zero}).hold_s == 1
    assert read(feedback, 429, {"Retry-After": zero}, sent_at=AT + 1).hold_s == 2
    assert read(feedback, 503, {"Retry-After": zero}) is None
    assert read(feedback, 529, {"Retry-After": zero}) is None


def test_the_hold_of_a_refusal_without_fields_doubles_until_a_success(feedback):
    assert [read(feedback, 429, sent_at=AT + start).hold_s for start in (0, 1, 3, 7)] == [1, 2, 4, 8]
    assert read(feedback, 200, sent_at=AT + 15) is None
    assert read(feedback, 429, sent_at=AT + 16).hold_s == 1


@pytest.mark.parametrize("status", [400, 404, 500, 503, 529])
def test_a_failure_is_no_success(feedback, status):
    read(feedback, 429)
    read(feedback, status, sent_at=AT + 2)
    assert read(feedback, 429, sent_at=AT + 3).hold_s == 2


def test_a_success_with_fields_ends_an_incident_too(feedback):
    read(feedback, 429)
    read(feedback, 200, {"X-RateLimit-Remaining": "5"}, sent_at=AT + 2)
    assert read(feedback, 429, sent_at=AT + 3).hold_s == 1


def test_a_success_in_a_scope_ends_the_incident_of_everything(feedback):
    request_id = {"X-GitHub-Request-Id": "C0DE:1F2E"}
    core = {**request_id, "X-RateLimit-Resource": "core", "X-RateLimit-Remaining": "9"}
    assert read(feedback, 429, request_id).hold_s == 60
    assert read(feedback, 429, request_id, sent_at=AT + 60).hold_s == 120
    read(feedback, 200, core, sent_at=AT + 180)
    assert read(feedback, 429, request_id, sent_at=AT + 181).hold_s == 60


def test_keys_have_their_own_incidents(feedback):
    read(feedback, 429, key="a")
    assert read(feedback, 429, sent_at=AT + 1, key="b").hold_s == 1
    assert read(feedback, 429, sent_at=AT + 1, key="a").hold_s == 2


def bucket(name):
    return {"X-RateLimit-Bucket": name}


def test_scopes_have_their_own_incidents(feedback):
    assert read(feedback, 429, bucket("a")) == ServerHint(1, scope="a")
    assert read(feedback, 429, bucket("b"), sent_at=AT + 1) == ServerHint(1, scope="b")
    assert read(feedback, 429, bucket("a"), sent_at=AT + 1) == ServerHint(2, scope="a")


def test_a_success_ends_the_incident_of_its_scope_alone(feedback):
    read(feedback, 429, bucket("a"))
    read(feedback, 429, bucket("b"))
    read(feedback, 200, bucket("a"), sent_at=AT + 1)
    assert read(feedback, 429, bucket("a"), sent_at=AT + 2).hold_s == 1
    assert read(feedback, 429, bucket("b"), sent_at=AT + 2).hold_s == 2


def test_a_refusal_without_fields_is_covered_by_an_earlier_one_with_fields(feedback):
    read(feedback, 429, {"Retry-After": "30"})
    assert read(feedback, 429, sent_at=AT - 1, received_at=AT + 1).hold_s == 29
    assert read(feedback, 429, sent_at=AT + 30).hold_s == 1


def test_a_dialect_that_is_named_needs_no_signs(feedback):
    plain = {"X-RateLimit-Remaining": "3", "Retry-After": "5"}
    assert read(feedback, 403, plain).hold_s == 0
    assert read(Feedback("github"), 403, plain).hold_s == 5
    assert read(Feedback("github"), 429).hold_s == 60


def test_twenty_in_flight_make_one_hold(feedback):
    ends = []
    for number in range(20):
        arrives = AT + 0.01 * number
        ends.append(arrives + read(feedback, 429, sent_at=AT - 0.5, received_at=arrives).hold_s)
    assert ends == pytest.approx([AT + 1] * 20)


def test_the_rest_of_a_hold_may_be_too_short_to_place(feedback):
    read(feedback, 429)
    assert read(feedback, 429, sent_at=AT, received_at=AT + 0.9995).hold_s == 0


def test_a_meaningless_retry_after_gives_way_to_the_reset(feedback):
    assert read(feedback, 429, {**SPENT, "retry-after-ms": "0.5", "Retry-After": "3"}).hold_s == 7
    assert read(feedback, 429, {**SPENT, "retry-after-ms": "0", "Retry-After": "3"}).hold_s == 3


def test_the_servers_wait_is_obeyed_even_if_it_arrives_late(feedback):
    read(feedback, 429, {"Retry-After": "2"})
    assert read(feedback, 429, {"Retry-After": "2"}, sent_at=AT - 1, received_at=AT + 1).hold_s == 2


@pytest.mark.parametrize("status", [200, 403, 404])
@pytest.mark.parametrize("dialect", ["auto", "generic"])
def test_an_answer_from_a_cache_says_nothing_about_the_limit_now(status, dialect):
    feedback = Feedback(dialect)
    assert read(feedback, status, {**SPENT, "Age": "0"}).hold_s == 7
    assert read(feedback, status, {**SPENT, "Age": "5"}) is None


def test_an_answer_from_a_cache_ends_no_incident(feedback):
    read(feedback, 429)
    read(feedback, 200, {"Date": "Fri, 29 May 2026 12:00:00 GMT", "Age": "5"}, sent_at=AT + 1)
    assert read(feedback, 429, sent_at=AT + 2).hold_s == 2


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("retry", ["60", "Fri, 29 May 2026 12:01:00 GMT"])
def test_a_cached_refusal_holds_for_what_is_left_of_its_retry_after(feedback, retry, status):
    cached = {"Date": "Fri, 29 May 2026 12:00:00 GMT", "Retry-After": retry}
    assert read(feedback, status, {**cached, "Age": "45"}, sent_at=AT + 45).hold_s == 15
    assert read(feedback, status, {**cached, "Age": "60"}, sent_at=AT + 60) is None


@pytest.mark.parametrize("hint", [ServerHint(remaining=3), ServerHint(limit=9, exhausted=True)])
def test_a_cached_refusal_holds_nothing_that_a_custom_parser_does_not_name(hint):
    feedback = Feedback(lambda answer: hint)
    assert read(feedback, 429, {"Age": "5"}) == hint
    assert not feedback._incidents.known
    assert read(feedback, 429).hold_s >= 1


def test_a_cached_refusal_for_an_exhausted_account_holds_nothing(feedback):
    refused = partial(
        feedback.read,
        429,
        sent_at=AT,
        received_at=AT,
        body=b'{"error": {"code": "insufficient_quota"}}',
    )
    assert refused(headers={"Age": "5"}) is None
    assert refused(headers={}).hold_s == 60


def test_no_hold_is_longer_than_the_bound():
    feedback = Feedback(max_hold="90s")
    assert read(feedback, 429, {"Retry-After": "86400"}).hold_s == 90
    assert read(feedback, 200, {**SPENT, "X-RateLimit-Reset": "3600"}) == ServerHint(90, 0, None, None, 3600)


@pytest.mark.parametrize(
    ("hold_s", "bounded"), [(1e9, 900), (float("inf"), 900), (float("nan"), 0), (-1, 0), (1e-9, 0), (2, 2)]
)
def test_foreign_hints_are_bounded(feedback, hold_s, bounded):
    assert feedback.bounded(ServerHint(hold_s)).hold_s == bounded


class Multi:
    """Headers that are not a mapping but have items."""

    def items(self):
        return iter([("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "7")])


@pytest.mark.parametrize(
    "headers",
    [
        SPENT,
        Multi(),
        list(SPENT.items()),
        tuple(SPENT.items()),
        iter(SPENT.items()),
        [list(pair) for pair in SPENT.items()],
        [(name.encode(), value.encode()) for name, value in SPENT.items()],
        {name.upper(): value for name, value in SPENT.items()},
        {name: [value] for name, value in SPENT.items()},
        {name: int(value) for name, value in SPENT.items()},
        [*SPENT.items(), *SPENT.items()],
        {name: f"{value}, {value}" for name, value in SPENT.items()},
        [(b"Server", b"\xff\xfe"), (b"X-RateLimit-Remaining", b"0"), (b"X-RATELIMIT-RESET", b" 7 ")],
    ],
)
def test_headers_in_any_shape(feedback, headers):
    assert read(feedback, 200, headers) == ServerHint(7, 0, None, None, 7)


@pytest.mark.parametrize("order", [1, -1])
def test_lists_may_come_in_several_lines(feedback, order):
    lines = [("RateLimit", '"a";r=9;t=1'), ("ratelimit", '"b";r=0;t=5'), ("RateLimit-Policy", '"b";q=3;w=4')]
    assert read(feedback, 200, lines[::order]) == ServerHint(5, 0, 3, 4, 5)


def test_a_custom_parser_is_used():
    def mine(answer):
        assert answer.now == AT
        return ServerHint(
            remaining=answer.whole("x-left"), reset_s=answer.number("vary"), scope=answer.label("x-pool")
        )

    feedback = Feedback(mine)
    fields = {"X-Left": "0", "Vary": "2.5", "X-Pool": "blue"}
    assert read(feedback, 200, fields) == ServerHint(2.5, 0, None, None, 2.5, "blue")
    assert read(feedback, 429, {**fields, "Retry-After": "4"}).hold_s == 4
    assert read(feedback, 429, {**fields, "X-Left": "1"}, sent_at=AT + 9, received_at=AT).hold_s == 1
    assert read(Feedback(lambda answer: None), 200, fields) is None


@pytest.mark.parametrize(
    "hint",
    [{"hold_s": 3}, (3.0,), True, ServerHint("3"), ServerHint(timedelta(seconds=3)), ServerHint(3, scope=7)],
)
def test_what_a_custom_parser_must_not_return_is_refused(hint, refused):
    refused(lambda: read(Feedback(lambda answer: hint), 429), "feedback")


def test_a_custom_parser_sees_every_answer():
    seen = []
    feedback = Feedback(lambda answer: seen.append(dict(answer.fields)))
    read(feedback, 200, {"Vary": "*"})
    read(feedback, 200, {})
    assert seen == [{"vary": "*"}, {}]


@pytest.mark.parametrize(
    ("retry", "seen"),
    [("3", 3.0), ("0", None), ("-3", None), ("later", None), ("Thu, 01 Jan 1970 00:00:00 GMT", None)],
)
def test_a_custom_parser_receives_the_wait_if_there_is_one(retry, seen):
    waits = []
    read(Feedback(lambda answer: waits.append(answer.retry_s)), 403, {"Retry-After": retry})
    assert waits == [seen]


def test_a_custom_parser_may_name_the_wait():
    feedback = Feedback(lambda answer: ServerHint(hold_s=1e9))
    assert read(feedback, 200).hold_s == 900


@pytest.mark.parametrize("dialect", ["GitHub", "", None, 3, "auto "])
def test_an_unknown_dialect_is_refused(refused, dialect):
    assert "github" in str(refused(lambda: Feedback(dialect), "dialect"))


@pytest.mark.parametrize("headers", [None, 5, object()])
@pytest.mark.parametrize("status", [200, 402, 429])
def test_an_argument_that_is_no_headers_is_refused(feedback, refused, status, headers):
    refused(lambda: read(feedback, status, headers), "headers")


@pytest.mark.parametrize("max_hold", [0, -1, 0.0009, "15", "soon", None, float("nan")])
def test_a_bound_has_to_be_a_duration(refused, max_hold):
    refused(lambda: Feedback(max_hold=max_hold), "max_hold")


@pytest.mark.parametrize("dialect", ["auto", *DIALECTS])
def test_a_copy_reads_the_same(dialect):
    copy = pickle.loads(pickle.dumps(Feedback(dialect, max_hold=5)))
    assert repr(copy) == f"Feedback({dialect!r}, max_hold=5)"
    assert read(copy, 429, {"Retry-After": "9"}).hold_s == 5


NAMES = st.sampled_from(
    ["Date", "Content-Length", "Retry-After", "X-RateLimit-Remaining", "RateLimit", "ETag"]
)
HEADERS = st.lists(st.tuples(NAMES, st.sampled_from(["0", "7", "default;r=0;t=9"])), max_size=4)
STATUSES = st.sampled_from([200, 404, 429, 503])


@given(STATUSES, HEADERS, st.booleans(), st.sampled_from(["auto", "github", lambda _: None]))
def test_an_answer_that_a_first_look_skips_gives_no_hint_and_changes_nothing(
    status, headers, refused, dialect
):
    feedback = Feedback(dialect)
    if refused:
        read(feedback, 429)
    known = dict(feedback._incidents.known)
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    looks = {feedback.hears_nothing(status, form) for form in (headers, encoded, dict(headers))}
    if looks == {True}:
        assert read(feedback, status, headers, sent_at=AT + 60) is None
        assert feedback._incidents.known == known
    else:
        assert looks == {False}


def test_a_first_look_skips_most_answers(feedback):
    plain = {"Date": "Fri, 29 May 2026 12:00:00 GMT", "Content-Length": "0"}
    assert feedback.hears_nothing(200, plain)
    assert not feedback.hears_nothing(429, plain)
    assert not feedback.hears_nothing(200, {**plain, "retry-after": "1"})
