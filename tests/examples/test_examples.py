"""The examples run as they stand, and do what they say. The bounds hold on a busy machine too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str) -> str:
    """The output of an example, which prints no errors."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stderr == ""
    return run.stdout


def numbers(text: str, line: str) -> list[float]:
    """The numbers in the one line that has this form, with # for each of them."""
    pattern = re.escape(line).replace(r"\#", r"([\d.]*\d)")
    (found,) = re.finditer(f"^{pattern}$", text, re.MULTILINE)
    return [float(number) for number in found.groups()]


def test_settled_tokens_are_available_to_other_calls():
    printed = output_of("llm_token_budget.py")
    calls, threads, took = numbers(printed, "# calls by # threads in # s")
    reserved, used, counted, requests = numbers(
        printed, "reserved # tokens, used #; the server counted # in #"
    )
    (unsettled,) = numbers(printed, "had nothing been settled, it would have taken # s")
    assert (calls, threads, requests, reserved) == (32, 4, 32, 32_000)
    assert used == counted
    assert numbers(printed, "of the day's tokens # are charged") == [used]
    # Ten requests a second, and 1,000 tokens a second beside the 6,000 that are there at the start.
    assert took >= max(3.1, (used - 6_000) / 1_000) - 0.05
    # The margin is wide: it takes four seconds, and 26 without settling.
    assert took < unsettled == 26


def test_a_spent_month_refuses_until_the_next_one():
    assert output_of("monthly_quota.py").splitlines() == [
        "07 March 06:00  685 are left, and call 686 would leave on 01 April 00:00",
        "14 March 06:00  370 are left, and call 371 would leave on 01 April 00:00",
        "21 March 06:00  55 are left, and call 56 would leave on 01 April 00:00",
        "23 March 06:00  spent after 10 of 45 calls: 1000 of 1000",
        "23 March 06:00  the next may leave on 01 April 00:00",
        "01 April 00:00  a call left that had waited for 8.75 days",
        "01 April 00:00  900 are left, and call 901 would leave on 01 May 00:00",
    ]


def test_a_customer_who_floods_is_refused_and_delays_no_other():
    printed = output_of("multi_tenant.py")
    # A sequential caller waits for at most one interval of its own rate.
    for customer, plan, interval in (("anna", "pro", 0.05), ("bert", "free", 0.2), ("cleo", "free", 0.2)):
        calls, longest = numbers(printed, f"  {customer} ({plan}): # calls, none waited longer than # s")
        assert calls == 6
        assert longest <= interval
    answered, flood, refused = numbers(printed, "bert floods: # of # answered, # refused at once")
    assert answered + refused == flood == 30
    assert refused > 0
    assert printed.endswith("cleo's 0.0 s\n")


def test_a_service_answers_503_when_its_queue_is_full_and_fetches_later():
    printed = output_of("fastapi_service/run.py")
    sent, answered, refused = numbers(printed, "# asked at once: # answered, # times 503")
    assert answered + refused == sent == 30
    assert answered >= 6
    assert refused > 0
    assert "Retry-After: 1\n" in printed
    later, status, _ = numbers(printed, "# to be refreshed: # after # s")
    assert (later, status) == (10, 202)
    # Nine waits of a tenth of a second each, behind the calls that were still in line.
    assert numbers(printed, "all of them were fetched after # s")[0] >= 0.8
    assert numbers(printed, "the API has seen # calls") == [answered + later]
