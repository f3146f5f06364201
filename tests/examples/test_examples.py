"""The examples run as they stand, and do what they say. The bounds hold on a busy machine too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def told_by(name: str) -> str:
    """What an example prints; it complains of nothing."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stderr == ""
    return run.stdout


def numbers(told: str, line: str) -> list[float]:
    """The numbers of the one line that reads like this, with # for each of them."""
    pattern = re.escape(line).replace(r"\#", r"([\d.]*\d)")
    (found,) = re.finditer(f"^{pattern}$", told, re.MULTILINE)
    return [float(number) for number in found.groups()]


def test_settled_tokens_are_there_for_others():
    told = told_by("llm_token_budget.py")
    calls, threads, took = numbers(told, "# calls by # threads in # s")
    reserved, used, counted, requests = numbers(told, "reserved # tokens, used #; the server counted # in #")
    (unsettled,) = numbers(told, "had nothing been settled, it would have taken # s")
    assert (calls, threads, requests, reserved) == (32, 4, 32, 32_000)
    assert used == counted
    assert numbers(told, "of the day's tokens # are charged") == [used]
    # Ten requests a second, and 1,000 tokens a second beside the 6,000 that are there at the start.
    assert took >= max(3.1, (used - 6_000) / 1_000) - 0.05
    # Not by a hair: it takes four seconds, and 26 where nobody settles.
    assert took < unsettled == 26


def test_a_month_is_spent_and_another_comes():
    assert told_by("monthly_quota.py").splitlines() == [
        "07 March 06:00  685 are left, and call 686 would leave on 01 April 00:00",
        "14 March 06:00  370 are left, and call 371 would leave on 01 April 00:00",
        "21 March 06:00  55 are left, and call 56 would leave on 01 April 00:00",
        "23 March 06:00  spent after 10 of 45 calls: 1000 of 1000",
        "23 March 06:00  the next may leave on 01 April 00:00",
        "01 April 00:00  a call left that had waited for 8.75 days",
        "01 April 00:00  900 are left, and call 901 would leave on 01 May 00:00",
    ]


def test_a_customer_who_floods_is_refused_and_stands_in_nobodys_way():
    told = told_by("multi_tenant.py")
    # Whoever calls one after the other waits for no more than one interval of their own rate.
    for customer, plan, interval in (("anna", "pro", 0.05), ("bert", "free", 0.2), ("cleo", "free", 0.2)):
        calls, longest = numbers(told, f"  {customer} ({plan}): # calls, none waited longer than # s")
        assert calls == 6
        assert longest <= interval
    answered, flood, refused = numbers(told, "bert floods: # of # answered, # refused at once")
    assert answered + refused == flood == 30
    assert refused > 0
    assert told.endswith("cleo's 0.0 s\n")


def test_a_service_answers_503_when_its_queue_is_full_and_fetches_later():
    told = told_by("fastapi_service/run.py")
    asked, answered, refused = numbers(told, "# asked at once: # answered, # times 503")
    assert answered + refused == asked == 30
    assert answered >= 6
    assert refused > 0
    assert "Retry-After: 1\n" in told
    later, status, _ = numbers(told, "# to be refreshed: # after # s")
    assert (later, status) == (10, 202)
    # Nine waits of a tenth of a second each, behind what still stood in line.
    assert numbers(told, "all of them were fetched after # s")[0] >= 0.8
    assert numbers(told, "the API has seen # calls") == [answered + later]
