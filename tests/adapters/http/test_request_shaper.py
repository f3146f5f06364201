"""The shaper that all wrappers share: how a request leads to its policy, key, cost and waits."""

import json
import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import ManualClock, MemoryStore, Policy, QueueFullError, Quota, SQLiteStore
from shapekit._adapters.http import (
    Reading,
    RequestShaper,
    ShapingInfo,
    Target,
    observe,
    too_many,
)
from shapekit._runtime.drivers import TASKS, run
from shapekit.keys import Routes, segments

READING = Reading(lambda request: request.target.host, lambda request: request.target)


class Sent(NamedTuple):
    """A request with more attributes than its target."""

    target: Target
    body: Any = None

    def to(self, **fields):
        return self._replace(target=self.target._replace(**fields))


SEARCH = Sent(Target("GET", "https", "api.x", None, "/search/a%2Fb"))
ROUTES = {"https://api.x/search": "1/s"}


def request_shaper(rate="10/s", **shaping):
    return RequestShaper("Wrapper", READING, rate=rate, **shaping)


def key(request=SEARCH, **shaping):
    return request_shaper(**shaping).enter(request).key


# keys


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, "api.x"),
        ({"key": "host"}, "api.x"),
        ({"key": "host+method"}, "api.x GET"),
        ({"key": "origin"}, "https://api.x:443"),
        ({"key": "default"}, "default"),
        ({"key": "{host}/{path[0]}"}, "api.x/search"),
        ({"key": "{host}/{path[1]}"}, "api.x/a%2Fb"),
        ({"key": "{host}/{path[2]}"}, "api.x/%None"),
        ({"key": "{method} {scheme} {port} {path}"}, "GET https 443 /search/a%252Fb"),
        ({"key": lambda request: request.body["tenant"]}, "t1"),
        ({"rate": None, "policy": Policy(1)}, "default"),
        ({"rate": None, "policy": Policy(1, key="stripe")}, "stripe"),
        ({"rate": None, "policy": Policy(1, key="{method}")}, "GET"),
        ({"rate": None, "policy": Policy(1, key=lambda request: request.body["tenant"])}, "t1"),
        ({"rate": None, "policy": Policy(1, key="stripe"), "key": "host"}, "api.x"),
    ],
)
def test_the_key_of_a_request(spec, expected):
    assert key(SEARCH._replace(body={"tenant": "t1"}), **spec) == expected


def test_an_origin_contains_its_port_also_if_it_is_the_default():
    assert SEARCH.target.origin == SEARCH.to(port=443).target.origin
    assert Target("GET", "http", "::1", 8080, "/").origin == "http://[::1]:8080"


@pytest.mark.parametrize(
    "spec", ["hots", "{hots}", "{host", "{host}{path}", "{path[x]}", "{host} {path[0a][1]}", 3, ""]
)
def test_a_key_that_cannot_be_read_is_refused_when_it_is_declared(spec, refused):
    refused(lambda: request_shaper(key=spec), "key")


def test_a_callable_that_gives_no_text_is_refused(refused):
    refused(lambda: key(key=lambda _: None), "key")


# routes

names = st.sampled_from(["a", "b", "ab", "%61", "a%2Fb", ""])
paths = st.lists(names, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(st.sets(paths, max_size=6), paths)
def test_the_longest_route_wins_by_whole_segments(prefixes, path):
    unique = {segments(prefix): prefix for prefix in prefixes}
    routes = Routes({f"https://api.x{prefix}": prefix for prefix in unique.values()})
    fits = [parts for parts in unique if segments(path)[: len(parts)] == parts]
    expected = unique[max(fits, key=len)] if fits else None
    assert routes.find(Target("GET", "https", "api.x", 443, path)) == expected


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (SEARCH, True),
        (SEARCH.to(port=443), True),
        (SEARCH.to(path="/search"), True),
        (SEARCH.to(path="/s%65arch/"), True),
        (SEARCH.to(path="/searching"), False),
        (SEARCH.to(path="/"), False),
        (SEARCH.to(scheme="http"), False),
        (SEARCH.to(host="api.y"), False),
        (SEARCH.to(port=8443), False),
    ],
)
def test_a_route_is_matched_on_scheme_host_port_and_path(sent, found):
    assert (Routes(ROUTES).find(sent.target) is not None) is found


def test_a_route_may_contain_what_a_pattern_is_made_of():
    assert Routes({"https://api.x/%2A/search": 1}).find(SEARCH.to(path="/*/search").target) == 1
    assert Routes({"https://api.x/v1/m:run": 1}).find(SEARCH.to(path="/v1/m:run").target) == 1
    assert Routes({"https://[::1]:8/a": 1}).find(Target("GET", "https", "::1", 8, "/a")) == 1


def test_a_route_may_be_written_in_another_case():
    assert Routes({"https://BÜCHER.x/": 1}).find(SEARCH.to(host="xn--bcher-kva.x").target) == 1


def test_a_route_has_its_own_rate_and_otherwise_the_common_options():
    both = request_shaper("10/s", routes=ROUTES, max_wait=0.5, clock=ManualClock(autojump=True))
    with both.admission(SEARCH) as first, both.admission(SEARCH.to(path="/")) as other:
        assert first.delay == other.delay == 0
    with both.admission(SEARCH.to(path="/")) as second:
        assert second.delay == 0.1
    with pytest.raises(QueueFullError) as caught, both.admission(SEARCH):
        pass
    assert caught.value.delay == 0.9
    assert caught.value.max_wait == 0.5


def test_a_route_may_have_a_policy_and_the_rest_no_limit():
    policy = Policy("1/s", key="search")
    routed = request_shaper(None, routes={"https://api.x/search": policy})
    assert routed.enter(SEARCH).key == "search"
    assert routed.admission(SEARCH.to(host="api.y")) is None


def test_routes_on_a_shared_store_are_counted_apart(tmp_path):
    store = SQLiteStore(tmp_path / "limits.db")
    both = request_shaper("1/s", routes=ROUTES, name="x", store=store, max_wait=0)
    for path in ("/", "/search"):
        with both.admission(SEARCH.to(path=path)) as admission:
            assert admission.delay == 0
    store.close()


@pytest.mark.parametrize(
    "routes",
    [
        ["https://api.x"],
        {3: "1/s"},
        {"api.x/search": "1/s"},
        {"https://": "1/s"},
        {"https://api.x?q=1": "1/s"},
        {"https://api.x#a": "1/s"},
        {"https://me@api.x": "1/s"},
        {"https://api.x:99999": "1/s"},
        {"https://*.api.x": "1/s"},
        {"https://straße.x": "1/s"},
        {"https://api.x/users/*": "1/s"},
        {"https://api.x/users/{id}": "1/s"},
        {"https://api.x/users/<id>": "1/s"},
        {"https://api.x/users/[id]": "1/s"},
        {"https://api.x/users/:id": "1/s"},
        {"https://api.x/users ": "1/s"},
        {"https://api.x /users": "1/s"},
        {"https://api.x/a": "1/s", "https://api.x:443/%61/": "2/s"},
    ],
)
def test_routes_that_cannot_be_read_are_refused(routes, refused):
    refused(lambda: request_shaper(routes=routes), "routes")


@pytest.mark.parametrize(
    "beside",
    [
        {"rate": "10/s", "quota": "1000/month"},
        {"rate": "10/s", "gates": (Quota("1000/month"),)},
        {"rate": None, "policy": Policy(1)},
    ],
)
def test_a_bare_rate_for_a_route_beside_other_limits_is_refused(beside, refused):
    refused(lambda: request_shaper(**beside, routes=ROUTES), "routes['https://api.x/search']")


def test_the_error_about_an_invalid_rate_names_its_route(refused):
    refused(lambda: request_shaper(routes={"https://api.x": "1/parsec"}), "routes['https://api.x'] rate")


# options of all requests


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"rate": None}, "rate"),
        ({"rate": "10"}, "rate"),
        ({"burts": 3}, "burts"),
        ({"on_reject": "ignore"}, "on_reject"),
        ({"rate": None, "policy": "10/s"}, "policy"),
        ({"policy": Policy(1)}, "rate"),
        ({"rate": None, "policy": Policy(1), "max_wait": 3}, "max_wait"),
        ({"cost": 0}, "cost"),
    ],
)
def test_invalid_options_are_refused(spec, field, refused):
    refused(lambda: request_shaper(**spec), field)


def test_a_shared_store_needs_a_name(tmp_path, refused):
    store = SQLiteStore(tmp_path / "limits.db")
    refused(lambda: request_shaper(store=store), "name")
    store.close()


def test_a_quota_is_enough():
    with request_shaper(None, quota="2/month").admission(SEARCH) as admission:
        assert admission.decision.allowed


def test_errors_show_the_right_call(refused):
    assert 'write "10/s"' in str(refused(lambda: request_shaper("10"), "rate"))
    assert 'Wrapper(rate="10/s")' in str(refused(lambda: request_shaper(None), "rate"))


# options of one request


def test_options_of_a_request():
    plain = request_shaper("10/s", cost=2, clock=ManualClock())
    assert plain.admission(SEARCH).unentered().cost == 2
    wished = plain.admission(SEARCH, {"cost": 5, "key": "tenant-1"}).unentered()
    assert (wished.cost, wished.key) == (5, "tenant-1")
    assert plain.admission(SEARCH, {"skip": True}) is None
    assert plain.admission(SEARCH, {"skip": False}).unentered().key == "api.x"
    with plain.admission(SEARCH), pytest.raises(QueueFullError) as caught:
        plain.admission(SEARCH, {"max_wait": "100ms"}).__enter__()
    assert caught.value.max_wait == 0.1


def test_a_callable_cost_is_given_the_request(refused):
    priced = request_shaper(cost=lambda request: request.body)
    assert priced.enter(SEARCH._replace(body=3)).cost == 3
    assert priced.admission(SEARCH._replace(body=3), {"cost": 4}).unentered().cost == 4
    refused(lambda: priced.admission(SEARCH._replace(body=2.5)), "cost")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ([("cost", 1)], "shapekit"),
        ("skip", "shapekit"),
        ({"cots": 1}, "shapekit.cots"),
        ({1: 2}, "shapekit.1"),
        ({"cost": 0}, "shapekit.cost"),
        ({"cost": True}, "shapekit.cost"),
        ({"cost": 1.5}, "shapekit.cost"),
        ({"key": 3}, "shapekit.key"),
        ({"max_wait": -1}, "shapekit.max_wait"),
        ({"max_wait": "soon"}, "shapekit.max_wait"),
        ({"skip": 1}, "shapekit.skip"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(options, field, refused):
    refused(lambda: request_shaper().admission(SEARCH, options), field)


@pytest.mark.parametrize(
    ("own", "max_wait", "fits_s", "bound"),
    [
        (None, None, 3.0, 3.0),
        (1, None, 3.0, 1.0),
        (5, None, 3.0, 3.0),
        (5, 1, 3.0, 1.0),
        (1, 5, 3.0, 3.0),
        (None, None, -0.5, 0.0),
    ],
)
def test_a_wait_beyond_its_bounds_is_refused_at_once(own, max_wait, fits_s, bound):
    slow = request_shaper("1/h", max_wait=own, clock=ManualClock())
    options = None if max_wait is None else {"max_wait": max_wait}
    with slow.admission(SEARCH), pytest.raises(QueueFullError) as caught:
        slow.enter(SEARCH, options, fits_s=fits_s)
    assert caught.value.max_wait == bound


# outcomes


def test_the_info_of_a_passage_has_key_delay_and_decision():
    paced = request_shaper("10/s", clock=ManualClock(autojump=True))
    for delay in (0.0, 0.1):
        with paced.admission(SEARCH) as admission:
            info = ShapingInfo.of(admission)
        assert (info.key, info.delay, info.decision.delay) == ("api.x", delay, delay)


@given(st.integers(1, 10**6))
def test_a_429_of_ours_has_a_retry_after(milliseconds):
    paced = request_shaper(f"1 per {milliseconds}ms", max_wait=0, clock=ManualClock())
    with paced.admission(SEARCH), pytest.raises(QueueFullError) as caught:
        paced.admission(SEARCH).__enter__()
    answer = too_many(caught.value)
    content = json.loads(answer.body)
    assert answer.status == 429
    assert answer.headers["Retry-After"] == str(math.ceil(milliseconds / 1_000))
    assert (content["code"], content["key"]) == ("queue_full", "api.x")
    assert answer.info.delay == 0
    assert not answer.info.decision


class Refusal:
    status = 429
    headers = {"Retry-After": "2"}  # noqa: RUF012 - never changed


@pytest.mark.anyio
async def test_a_hold_that_cannot_be_placed_is_logged(caplog):
    store = MemoryStore()
    paced = request_shaper("10/s", store=store)
    with paced.admission(SEARCH) as admission:
        pass
    store.close()
    run(observe, admission, Refusal)
    await observe(TASKS, admission, Refusal)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "'api.x'" in caplog.text
