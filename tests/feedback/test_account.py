"""An exhausted account is distinguished from a rate that is too high, by the servers' answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.feedback import (
    CODES,
    DIALECTS,
    MOST_BYTES,
    STATUSES,
    Feedback,
    ServerHint,
    error_of,
    says_exhausted,
)

AT = 1_780_056_000.0
QUOTA = {"message": "You exceeded your current quota, please check your plan.", "type": "insufficient_quota"}
LOW = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."

EXHAUSTED = {
    "OpenAI": (429, {"error": {**QUOTA, "param": None, "code": "insufficient_quota"}}),
    "OpenAI, the type alone": (429, {"error": {**QUOTA, "code": None}}),
    "OpenAI, a project": (429, {"error": {"type": "limit", "code": "project_spend_limit_exceeded"}}),
    "OpenAI, as its SDK has it": (429, {**QUOTA, "code": "credit_balance_exhausted"}),
    "OpenAI, images": (400, {"error": {"code": "billing_hard_limit_reached", "message": "", "type": "x"}}),
    "Anthropic": (402, {"type": "error", "error": {"type": "billing_error", "message": "pay"}}),
    "Anthropic, permission": (403, {"type": "error", "error": {"type": "billing_error", "message": "pay"}}),
    "Anthropic, credit": (400, {"type": "error", "error": {"type": "invalid_request_error", "message": LOW}}),
    "DeepSeek": (402, {"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}}),
    "OpenRouter": (402, {"error": {"code": 402, "message": "Insufficient credits. Add more using …"}}),
}
RATES = {
    "OpenAI": (429, {"error": {"type": "requests", "code": "rate_limit_exceeded", "message": "Slow down"}}),
    "Anthropic": (429, {"type": "error", "error": {"type": "rate_limit_error", "message": "too fast"}}),
    # Its message is OpenAI's for an exhausted account, but this passes in a minute.
    "Gemini": (429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": QUOTA["message"]}}),
    "text": (429, "insufficient_quota"),
    "no object": (429, ["insufficient_quota"]),
    "no error": (429, {"error": "insufficient_quota"}),
    "nothing": (429, None),
}
OTHERS = {
    "a declined card": (
        402,
        {"error": {"type": "card_error", "code": "card_declined", "message": "Declined"}},
    ),
    "a card without funds": (402, {"error": {"code": "card_declined", "message": "Insufficient funds."}}),
    "a payment that failed": (402, {"title": "Payment failed"}),
    "a 402 without a body": (402, None),
    "a transfer": (400, {"error": {"code": "invalid_transfer", "message": "Insufficient balance"}}),
    "a mistake": (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "no model"}}),
    "no right": (403, {"error": {"code": "model_not_found", "type": "invalid_request_error", "message": ""}}),
    "no key": (401, {"error": {"code": "insufficient_quota"}}),
    "a success": (200, {"error": {"code": "insufficient_quota"}}),
    "a broken server": (500, {"error": {"type": "billing_error"}}),
}


def read(feedback, status, body=None, headers=(), *, sent_at=AT, after=0.0):
    text = None if body is None else json.dumps(body).encode()
    return feedback.read(status, headers, sent_at=sent_at, received_at=sent_at + after, body=text)


@pytest.mark.parametrize("dialect", ["auto", *DIALECTS])
@pytest.mark.parametrize(("status", "body"), EXHAUSTED.values(), ids=EXHAUSTED)
def test_an_exhausted_account_is_held_for_a_minute(dialect, status, body):
    assert read(Feedback(dialect), status, body) == ServerHint(hold_s=60.0, exhausted=True)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_402_without_a_body_means_an_exhausted_account_only_at_model_providers(dialect):
    assert read(Feedback(dialect), 402) == ServerHint(hold_s=60.0, exhausted=True)
    # Perhaps the body was not read yet.
    assert read(Feedback(dialect), 402, headers={"Content-Type": "application/json"}) is None
    for status, body in OTHERS.values():
        if body is not None:
            assert read(Feedback(dialect), status, body) is None


@pytest.mark.parametrize(
    "dialect", ["auto", *sorted(DIALECTS.keys() - {"openai", "anthropic"}), lambda _: None]
)
def test_elsewhere_a_402_alone_holds_nothing(dialect):
    for status, body in OTHERS.values():
        assert read(Feedback(dialect), status, body) in (None, ServerHint())


@pytest.mark.parametrize(("status", "body"), RATES.values(), ids=RATES)
def test_a_rate_limit_is_no_exhausted_account(status, body):
    assert read(Feedback("openai"), status, body) == ServerHint(hold_s=1.0)


@pytest.mark.parametrize(("status", "body"), OTHERS.values(), ids=OTHERS)
def test_other_answers_give_no_hint(status, body):
    assert read(Feedback(), status, body) is None


def test_a_body_may_be_parsed_already():
    hint = Feedback().read(429, {}, sent_at=AT, received_at=AT, body={"error": QUOTA})
    assert hint == ServerHint(hold_s=60.0, exhausted=True)


def test_the_other_fields_of_an_answer_are_kept_except_its_times():
    headers = {"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "0", "Retry-After": "2"}
    hint = read(Feedback(), 429, {"error": QUOTA}, headers)
    assert hint == ServerHint(hold_s=60.0, remaining=0, limit=500, exhausted=True)


def test_a_402_with_a_retry_after_is_obeyed():
    assert read(Feedback(), 402, headers={"Retry-After": "7"}) == ServerHint(hold_s=7.0)
    hint = read(Feedback(), 402, {"error": {"type": "billing_error"}}, {"Retry-After": "7"})
    assert hint == ServerHint(hold_s=60.0, exhausted=True)


@pytest.mark.parametrize("name", ["WWW-Authenticate", "Payment-Required"])
@pytest.mark.parametrize("encoded", [False, True])
def test_a_402_that_asks_for_one_payment_holds_nothing(name, encoded):
    line = (name.encode(), b"x") if encoded else (name, "x")
    assert read(Feedback("openai"), 402, headers=[line]) is None


def test_the_hold_doubles_up_to_an_hour_whatever_the_longest_hold_is():
    feedback, at, holds = Feedback(max_hold="5s"), AT, []
    for _ in range(8):
        holds.append(read(feedback, 429, {"error": QUOTA}, sent_at=at).hold_s)
        at += holds[-1]
    assert holds == [60, 120, 240, 480, 960, 1_920, 3_600, 3_600]


def test_answers_to_calls_in_flight_are_one_step():
    feedback = Feedback("openai")
    assert read(feedback, 429, {"error": QUOTA}).hold_s == 60
    assert read(feedback, 402, sent_at=AT + 0.5, after=9.5).hold_s == 50
    assert read(feedback, 402, sent_at=AT + 59, after=0.9999).hold_s == 0
    assert read(feedback, 402, sent_at=AT + 59, after=9) == ServerHint(exhausted=True)
    assert read(feedback, 402, sent_at=AT + 60).hold_s == 120


def test_a_success_begins_anew_and_a_rate_limit_does_not():
    feedback = Feedback("openai")
    read(feedback, 402)
    assert read(feedback, 429, sent_at=AT + 60).hold_s == 1
    assert read(feedback, 402, sent_at=AT + 61).hold_s == 120
    assert read(feedback, 200, sent_at=AT + 100) is None  # it left before the hold
    assert read(feedback, 200, sent_at=AT + 181) is None
    assert read(feedback, 402, sent_at=AT + 182).hold_s == 60


def test_an_exhausted_account_is_no_step_of_a_rate_limit():
    feedback = Feedback("openai")
    assert read(feedback, 402).hold_s == 60
    assert read(feedback, 429, sent_at=AT + 60).hold_s == 1
    assert read(feedback, 429, sent_at=AT + 61).hold_s == 2


def test_a_custom_parser_sees_the_error_and_may_report_an_exhausted_account():
    def own(answer):
        return ServerHint(exhausted=answer.error is not None and answer.error.get("code") == "no_money")

    feedback = Feedback(own)
    assert read(feedback, 403, {"error": {"code": "no_money"}}) == ServerHint(hold_s=60.0, exhausted=True)
    assert read(feedback, 403, {"error": {"code": "no_right"}}) is None


@pytest.mark.parametrize(
    ("body", "adds"),
    [({"retry_after": 3}, True), ({"error": {"retry_after": 3}}, True), ({"error": {"code": 1}}, False)],
)
def test_a_body_adds_something_if_a_parser_reads_it(body, adds):
    def own(answer):
        return ServerHint(hold_s=(answer.error or {}).get("retry_after", 0))

    assert Feedback(own).says_more(429, {}, AT, body) is adds
    assert not Feedback().says_more(429, {}, AT, body)


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_a_first_look_skips_no_exhausted_account(status):
    assert not Feedback().hears_nothing(status, {"date": "x"})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe\x00", b"[" * MOST_BYTES, b'{"error":' * 1_800, b"NaN", b'{"error": {"code": []}}'],
)
def test_hostile_bodies_give_no_hint(body):
    assert not says_exhausted(429, error_of(429, body))


def test_a_long_body_is_not_parsed():
    text = json.dumps({"error": QUOTA}).encode()
    assert says_exhausted(429, error_of(429, text.ljust(MOST_BYTES)))
    assert not says_exhausted(429, error_of(429, text.ljust(MOST_BYTES + 1)))


texts = st.text(max_size=8) | st.sampled_from([*CODES, LOW])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["error", "code", "type", "message"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.sampled_from([200, 400, 401, 402, 403, 429, 503]), values)
def test_any_body_is_read_alike_as_text_and_parsed(status, body):
    error = error_of(status, json.dumps(body).encode())
    assert error == error_of(status, body)
    assert says_exhausted(status, error) in (True, False)
