"""Each dialect, by the answers of its servers; a named dialect reads what automatic detection reads."""

import json
from functools import partial

import pytest

from shapekit.feedback import DIALECTS, Feedback, ServerHint

from .conftest import DATE, NOON

RESET = "1780056600"  # 12:10


def github(remaining, *, resource="search", **more):
    return {
        "X-GitHub-Request-Id": "C0DE:1F2E",
        "X-RateLimit-Limit": "30",
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": RESET,
        "X-RateLimit-Used": str(30 - remaining),
        "X-RateLimit-Resource": resource,
        **more,
    }


def openai(requests, tokens, **more):
    return {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-requests": str(requests),
        "x-ratelimit-remaining-tokens": str(tokens),
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-reset-tokens": "6ms",
        **more,
    }


LARGE = {"x-ratelimit-limit-tokens": "2000000", "x-ratelimit-reset-tokens": "1m0s"}
"""One token is back after less than the least hold."""


def anthropic(requests, tokens, **more):
    return {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": str(requests),
        "anthropic-ratelimit-requests-reset": "2026-05-29T12:00:10Z",
        "anthropic-ratelimit-input-tokens-limit": "40000",
        "anthropic-ratelimit-input-tokens-remaining": str(tokens),
        "anthropic-ratelimit-input-tokens-reset": "2026-05-29T12:00:40Z",
        "request-id": "req_011",
        **more,
    }


def discord(remaining, **more):
    return {
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": "1780056001.25",
        "X-RateLimit-Reset-After": "1.25",
        "X-RateLimit-Bucket": "abcd1234",
        **more,
    }


def ietf(state, policy='"burst";q=100;w=60, "daily";q=1000;w=86400'):
    return {"RateLimit": state, "RateLimit-Policy": policy}


def plain(prefix, limit, remaining, reset):
    return {f"{prefix}-Limit": limit, f"{prefix}-Remaining": remaining, f"{prefix}-Reset": reset}


BOTH = {"Retry-After": "3", "retry-after-ms": "2512"}

CASES = [
    ("github", 200, github(7), ServerHint(0, 7, 30, None, 600, "search")),
    ("github", 200, github(0), ServerHint(600, 0, 30, None, 600, "search")),
    ("github", 403, github(0), ServerHint(600, 0, 30, None, 600, "search")),
    ("github", 429, github(0), ServerHint(600, 0, 30, None, 600, "search")),
    ("github", 403, github(7, **{"Retry-After": "60"}), ServerHint(60, 7, 30, None, 600)),
    ("github", 429, github(7, **{"Retry-After": "90"}), ServerHint(90, 7, 30, None, 600)),
    ("github", 429, github(7), ServerHint(60, 7, 30, None, 600)),
    ("github", 429, {"X-GitHub-Request-Id": "C0DE:1F2E"}, ServerHint(60)),
    ("github", 403, github(7), ServerHint(0, 7, 30, None, 600)),
    ("github", 503, github(7, **{"Retry-After": "5"}), ServerHint(5, 7, 30, None, 600)),
    ("github", 529, github(7, **{"Retry-After": "5"}), ServerHint(5, 7, 30, None, 600)),
    ("openai", 200, openai(499, 29_000), ServerHint(0, 29_000, 30_000, None, 0.006)),
    ("openai", 200, openai(10, 29_000), ServerHint(0, 10, 500, None, 60)),
    ("openai", 200, openai(0, 29_000), ServerHint(0.12, 0, 500, None, 60)),
    ("openai", 200, openai(499, 0, **LARGE), ServerHint(0, 0, 2_000_000, None, 60)),
    ("openai", 429, openai(0, 29_000), ServerHint(60, 0, 500, None, 60)),
    ("openai", 429, openai(0, 29_000, **{"Retry-After": "3"}), ServerHint(3, 0, 500, None, 60)),
    ("openai", 429, openai(0, 1, **BOTH), ServerHint(2.512, 0, 500, None, 60)),
    ("openai", 429, openai(9, 29_000), ServerHint(1, 9, 500, None, 60)),
    ("anthropic", 200, anthropic(49, 1_000), ServerHint(0, 1_000, 40_000, None, 40)),
    ("anthropic", 200, anthropic(0, 40_000), ServerHint(0.2, 0, 50, None, 10)),
    ("anthropic", 429, anthropic(0, 0), ServerHint(40, 0, 40_000, None, 40)),
    ("anthropic", 429, anthropic(0, 0, **{"Retry-After": "12"}), ServerHint(12, 0, 40_000, None, 40)),
    ("anthropic", 429, anthropic(3, 40_000), ServerHint(1, 3, 50, None, 10)),
    ("anthropic", 529, anthropic(3, 40_000), ServerHint(0, 3, 50, None, 10)),
    ("anthropic", 529, anthropic(3, 40_000, **{"Retry-After": "5"}), ServerHint(5, 3, 50, None, 10)),
    ("shopify", 200, {"X-Shopify-Shop-Api-Call-Limit": "32/40"}, ServerHint(0, 8, 40)),
    ("shopify", 429, {"X-Shopify-Shop-Api-Call-Limit": "40/40", "Retry-After": "2.0"}, ServerHint(2, 0, 40)),
    ("shopify", 200, {"X-Shopify-Shop-Api-Call-Limit": "41/40"}, ServerHint(0, 0, 40)),
    ("discord", 200, discord(4), ServerHint(0, 4, 5, None, 1.25, "abcd1234")),
    ("discord", 200, discord(0), ServerHint(1.25, 0, 5, None, 1.25, "abcd1234")),
    ("discord", 429, discord(0, **{"Retry-After": "2"}), ServerHint(2, 0, 5, None, 1.25, "abcd1234")),
    ("discord", 429, discord(0, **{"X-RateLimit-Scope": "global"}), ServerHint(1.25, 0, 5, None, 1.25)),
    ("discord", 429, {"X-RateLimit-Global": "true", "Retry-After": "65"}, ServerHint(65)),
    ("discord", 429, discord(1, **{"X-RateLimit-Global": "true"}), ServerHint(1, 1, 5, None, 1.25)),
    ("ietf", 200, ietf('"burst";r=50;t=30'), ServerHint(0, 50, 100, 60, 30)),
    ("ietf", 200, ietf('"burst";r=50;t=30, "daily";r=10;t=7200'), ServerHint(0, 10, 1000, 86_400, 7200)),
    ("ietf", 200, ietf('"burst";r=0;t=30, "daily";r=0;t=60'), ServerHint(60, 0, 1000, 86_400, 60)),
    ("ietf", 200, ietf('"burst";r=0;t=30, "daily";r=500;t=60'), ServerHint(30, 0, 100, 60, 30)),
    ("ietf", 200, ietf('"burst";r=0;t=30;pk="a", "burst";r=9;t=5;pk="b"'), ServerHint(30, 0, 100, 60, 30)),
    ("ietf", 429, ietf('"burst";r=0;t=30'), ServerHint(30, 0, 100, 60, 30)),
    ("ietf", 200, ietf('"burst";t=5, "daily";r=3;t=7'), ServerHint(0, 3, 1000, 86_400, 7)),
    ("ietf", 200, ietf('"else";r=1;t=2'), ServerHint(0, 1, None, None, 2)),
    ("ietf", 200, ietf("", '"burst";q=100;w=60'), ServerHint(0, None, 100, 60)),
    ("ietf", 200, ietf('"burst";r=0'), ServerHint(0, 0, 100, 60)),
    ("ietf", 200, ietf('"burst";r=-1;t=30.5'), ServerHint(0, None, 100, 60)),
    (
        "ietf",
        200,
        ietf("limit=100, remaining=50, reset=30", "9;w=1, 100;w=60"),
        ServerHint(0, 50, 100, 60, 30),
    ),
    ("ietf", 429, ietf("reset=30,remaining=0,limit=100,x", ""), ServerHint(30, 0, 100, None, 30)),
    ("ietf", 200, ietf("limit=9;x=1, remaining=0, reset=7", '"a";q=9;w=1'), ServerHint(7, 0, 9, None, 7)),
    ("generic", 200, plain("RateLimit", "100", "50", "30"), ServerHint(0, 50, 100, None, 30)),
    ("generic", 200, plain("RateLimit", "9, 9;w=1, 50;w=60", "0", "1"), ServerHint(1, 0, 9, None, 1)),
    ("generic", 200, plain("X-RateLimit", "100", "0", RESET), ServerHint(600, 0, 100, None, 600)),
    ("generic", 200, plain("X-Rate-Limit", "15", "0", "1780056600000"), ServerHint(600, 0, 15, None, 600)),
    ("generic", 429, plain("X-RateLimit", "9", "0", "1780055999"), ServerHint(1, 0, 9, None, 0)),
    ("generic", 429, plain("X-RateLimit", "9", "5", RESET), ServerHint(1, 5, 9, None, 600)),
    (
        "generic",
        200,
        {**plain("RateLimit", "9", "5", "1"), **plain("X-RateLimit", "9", "0", "7")},
        ServerHint(7, 0, 9, None, 7),
    ),
    ("slack", 429, {"Retry-After": "30"}, ServerHint(30)),
    ("notion", 429, {"Retry-After": "1"}, ServerHint(1)),
]


@pytest.mark.parametrize("by_name", [False, True], ids=["auto", "named"])
@pytest.mark.parametrize(("dialect", "status", "headers", "hint"), CASES)
def test_an_answer_is_read(read_first, dialect, status, headers, hint, by_name):
    read = read_first(status, headers, dialect=dialect if by_name else "auto")
    assert read == hint._replace(hold_s=pytest.approx(hint.hold_s))


def test_every_dialect_has_a_case():
    assert {dialect for dialect, *_ in CASES} == set(DIALECTS)


@pytest.mark.parametrize(
    "headers",
    [
        github(0),
        openai(0, 0),
        anthropic(0, 0),
        discord(0),
        ietf('"a";r=0;t=30'),
        {"X-RateLimit-Remaining": "0"},
    ],
)
def test_a_named_dialect_reads_no_other(read_first, headers):
    assert read_first(200, headers, dialect="slack") is None


def test_instants_are_compared_with_the_servers_own_clock(read_first):
    assert read_first(200, github(0), skew=-240.0).hold_s == 600
    assert read_first(429, {"Retry-After": "Fri, 29 May 2026 12:00:30 GMT"}, skew=86_400.0).hold_s == 30
    assert read_first(200, anthropic(0, 40_000), skew=3600.0).reset_s == 10


def test_without_a_date_the_local_clock_is_used(read_first):
    assert read_first(200, {**github(0), "Date": "yesterday"}, skew=60.0).hold_s == 540


def test_a_malformed_structured_field_gives_way_to_the_plain_ones(read_first):
    others = plain("X-RateLimit", "100", "3", "")
    for state in (
        "limit=5, remaining=0",
        "limit=5, remaining=0, reset=soon",
        "limit=5, remaining=0, reset=7,",
    ):
        assert read_first(200, {**ietf(state, '"a";q=5'), **others}) == ServerHint(0, 3, 100)
    assert read_first(200, {**ietf('"a";r=2'), **others}).remaining == 2


SECONDARY = b'{"message": "You have exceeded a secondary rate limit. Please wait a few minutes \xe2\x80\xa6"}'
FORBIDDEN = b'{"message": "Resource not accessible by integration", "status": "403"}'


@pytest.mark.parametrize("dialect", ["auto", "github"])
@pytest.mark.parametrize(
    ("headers", "body", "hint"),
    [
        (github(7), SECONDARY, ServerHint(60, 7, 30, None, 600)),
        ({"X-GitHub-Request-Id": "1"}, SECONDARY, ServerHint(60)),
        (github(7, **{"Retry-After": "90"}), SECONDARY, ServerHint(90, 7, 30, None, 600)),
        (github(0), SECONDARY, ServerHint(600, 0, 30, None, 600, "search")),
        (github(7), FORBIDDEN, ServerHint(0, 7, 30, None, 600)),
        (github(7), b'{"message": 7}', ServerHint(0, 7, 30, None, 600)),
    ],
)
def test_the_body_tells_githubs_secondary_limit_from_missing_rights(dialect, headers, body, hint):
    feedback, headers = Feedback(dialect), {"Date": DATE, **headers}
    assert feedback.read(403, headers, sent_at=NOON, received_at=NOON, body=body) == hint
    bare = {"X-GitHub-Request-Id": "1", "Date": DATE}
    assert feedback.says_more(403, bare, NOON, body) is (body is SECONDARY)


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36.5s"}
HELP = {"@type": "type.googleapis.com/google.rpc.Help", "links": [{"url": "https://ai.google.dev"}]}


def google(*details):
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": list(details)}}


@pytest.mark.parametrize("dialect", [*DIALECTS, "auto", lambda answer: None])
@pytest.mark.parametrize(
    ("headers", "body", "hold_s"),
    [
        ({}, google(HELP, RETRY_INFO), 36.5),
        ({}, [google(RETRY_INFO)], 36.5),
        ({"Age": "30"}, google(RETRY_INFO), 6.5),
        ({"Retry-After": "7"}, google(RETRY_INFO), 7),
        ({"retry-after-ms": "250"}, google(RETRY_INFO), 0.25),
        ({}, google(RETRY_INFO | {"retryDelay": "0s"}), None),
        ({}, google(RETRY_INFO | {"retryDelay": "soon"}), None),
        ({}, google(RETRY_INFO | {"retryDelay": 36.5}), None),
        ({}, google("36.5s", None, HELP), None),
        ({}, {"error": {"details": RETRY_INFO}}, None),
        ({}, [], None),
        ({}, [[google(RETRY_INFO)]], None),
    ],
)
def test_a_429_of_google_says_in_its_body_how_long_to_wait(dialect, headers, body, hold_s):
    feedback, headers = Feedback(dialect), {"Date": DATE, **headers}
    sent = json.dumps(body).encode()
    bare = feedback.read(429, headers, sent_at=NOON, received_at=NOON)
    hint = feedback.read(429, headers, sent_at=NOON, received_at=NOON, body=sent)
    assert hint == (bare if hold_s is None else ServerHint(hold_s))
    assert feedback.says_more(429, headers, NOON, sent) is (hint != bare)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/api/v10/channels/41771983/messages", "/channels/41771983"),
        ("/channels/41771983", "/channels/41771983"),
        ("/api/v10/guilds/7/channels", "/guilds/7"),
        ("/api/v10/webhooks/7/s3cr3t", "/webhooks/7"),
        ("/api/v10/channels/@me/messages", None),
        ("/api/v10/users/7", None),
        ("/api/v10/channels/" + "7" * 21, None),
        ("", None),
    ],
)
def test_discord_counts_a_bucket_for_each_channel_guild_and_webhook(path, part):
    read = partial(Feedback().read, sent_at=0, received_at=0, path=path)
    assert read(200, discord(0)).scope == ("abcd1234" if part is None else f"abcd1234%of={part}")
    assert read(429, discord(0, **{"X-RateLimit-Scope": "global"})).scope is None


@pytest.mark.parametrize("resource", ["", "two words", "sürch", "x" * 101])
def test_a_scope_is_a_word_or_none(read_first, resource):
    assert read_first(200, github(0, resource=resource)).scope is None
