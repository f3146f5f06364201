"""Three processes with one budget, before a server that counts requests and tokens strictly."""

import pytest

from ...llm.fleet import run_fleet
from ...llm.provider import RETRY_AFTER_S, Provider

CALM_S = 9
"""Until then nothing but the limits refuses anything."""
SECONDS = CALM_S + RETRY_AFTER_S + 1
UNDER_WAY_S = 0.3
"""What had left by the time that a refusal was read may still arrive."""


@pytest.fixture(scope="module")
def seen():
    with Provider() as provider:
        provider.refuses_after_s = CALM_S
        fleet = run_fleet("tests.heavy.pydantic_ai.worker", "shaped", provider, SECONDS)
    return provider, fleet


def test_no_call_is_refused_for_its_requests_or_tokens(seen):
    provider, fleet = seen
    assert len(provider.refusals) == fleet.failed == 1  # the one that the server was told to refuse
    assert fleet.answered == len(provider.arrivals) - 1


def test_nearly_all_of_the_limit_is_used(seen):
    provider, _ = seen
    # 96 % is what the budget allows; the rest is room for a busy machine, on which the clients lack the time.
    assert 0.85 <= provider.share(1, CALM_S) <= 1


def test_a_refusal_of_one_process_stops_all_for_as_long_as_the_server_says(seen):
    provider, _ = seen
    [refusal] = provider.refusals
    later = [arrival.at - refusal.at for arrival in provider.arrivals if arrival.at > refusal.at]
    assert [at for at in later if UNDER_WAY_S < at < RETRY_AFTER_S] == []
    assert len([at for at in later if at >= RETRY_AFTER_S]) > 10
