"""Copies of a session share its limit, also pickled copies; each process has one limit for all of them."""

import copy
import pickle
import subprocess
import sys

import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from shapekit import ConfigError, ManualClock, MemoryStore, Policy
from shapekit.integrations import requests as ours
from shapekit.integrations.requests import ShapedAdapter, request_options, shape


class Sink(BaseAdapter):
    def send(self, request, **_):
        response = requests.Response()
        response.status_code, response.request, response._content = 200, request, b""
        return response

    def close(self):
        pass


def delays(*sessions):
    with request_options(max_wait=0):
        return [session.get("http://host/").status_code for session in sessions]


@pytest.fixture
def session():
    session = requests.Session()
    session.mount("http://", ShapedAdapter(Sink(), rate="1/h", on_reject="respond"))
    return session


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, *(lambda s, p=p: pickle.loads(pickle.dumps(s, p)) for p in range(2, 6))],
)
def test_a_copy_shapes_together_with_the_original(session, copied):
    other = copied(session)
    assert delays(session, other, session) == [200, 429, 429]
    assert delays(copied(other), copied(session)) == [429, 429]


def test_two_limits_stay_two(session):
    other = requests.Session()
    other.mount("http://", ShapedAdapter(Sink(), rate="1/h", on_reject="respond"))
    assert delays(pickle.loads(pickle.dumps(session)), pickle.loads(pickle.dumps(other))) == [200, 200]


def test_the_inner_adapter_and_its_settings_come_along():
    adapter = ShapedAdapter(rate="10/s", max_retries=7, pool_maxsize=3)
    for other in (pickle.loads(pickle.dumps(adapter)), copy.deepcopy(adapter)):
        assert type(other._adapter) is HTTPAdapter
        assert other._adapter is not adapter._adapter
        assert (other.max_retries.total, other._pool_maxsize) == (7, 3)


def test_all_adapters_of_a_shaped_session_keep_their_one_limit():
    session = pickle.loads(pickle.dumps(shape(requests.Session(), rate="10/s")))
    first, second = session.adapters.values()
    assert first._limit is second._limit


ELSEWHERE = """
import pickle, sys
pickled = bytes.fromhex(sys.stdin.read())
seen_before = []
for _ in range(3):
    limit = pickle.loads(pickled).get_adapter("http://host")._limit
    seen_before.append(hasattr(limit, "seen"))
    limit.seen = True
    del limit
print(seen_before)
"""


def test_another_process_has_one_limit_for_all_copies_that_it_gets():
    pickled_session = pickle.dumps(shape(requests.Session(), rate="1/h")).hex()
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=pickled_session, capture_output=True, text=True, check=True
    )
    assert run.stdout == "[False, True, True]\n"


@pytest.mark.parametrize(
    ("field", "shaping"),
    [
        ("store", {"rate": "1/s", "store": MemoryStore(), "name": "api"}),
        ("clock", {"rate": "1/s", "clock": ManualClock()}),
        ("policy", {"policy": Policy("1/s")}),
    ],
)
def test_an_adapter_that_does_not_pickle_raises_but_can_be_copied(field, shaping):
    adapter = ShapedAdapter(**shaping)
    with pytest.raises(ConfigError, match=f"{field}=.*does not pickle; make the adapter in each process"):
        pickle.dumps(adapter)
    assert copy.copy(adapter)._limit is copy.deepcopy(adapter)._limit is adapter._limit


def test_the_table_of_pickled_limits_is_bounded(monkeypatch):
    monkeypatch.setattr(ours, "_TRAVELLED", {})
    monkeypatch.setattr(ours, "_MOST_TRAVELLED", 3)
    for _ in range(10):
        pickled = pickle.dumps(ShapedAdapter(rate="1/s"))
        assert len(ours._TRAVELLED) <= 3
        pickle.loads(pickled)
        assert len(ours._TRAVELLED) <= 3
