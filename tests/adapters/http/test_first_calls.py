"""First calls load what they need before they take a slot, once, and no thread sees a half-loaded module."""

import subprocess
import sys
from pathlib import Path

import pytest

from ...redis_server import shared_server

PROGRAM = Path(__file__).with_name("first_call.py")
CALLERS = [
    *("httpx", "httpx async", "httpx2", "httpx2 async", "aiohttp", "requests"),
    *("shaped", "shaped async", "shaped trio"),
]
STORES = {
    "memory": lambda _: "memory",
    "file": lambda path: str(path / "limits.db"),
    "redis": lambda _: shared_server().url,
}

FIRST_CALLS = """
import httpx
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from shapekit.integrations.httpx import ShapedTransport

# httpcore imports trio with the first request, not with httpx.
client = httpx.Client(transport=ShapedTransport(rate="200/s"))

def fetch(number):
    try:
        client.get("http://127.0.0.1:9/")
    except httpx.ConnectError:
        return "refused"
    except Exception as error:
        return repr(error)

with ThreadPoolExecutor(60) as threads:
    print(*Counter(threads.map(fetch, range(60))).items())
"""


def test_threads_do_not_load_an_event_loop_in_halves():
    run = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS], check=False, capture_output=True, text=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("('refused', 60)\n", "")


@pytest.mark.parametrize("place", STORES)
@pytest.mark.parametrize("caller", CALLERS)
def test_nothing_is_loaded_made_or_connected_between_slot_and_departure(caller, place, server, tmp_path):
    # Loading would take longer than a slot, and calls behind it would leave right after this one.
    run = subprocess.run(
        [sys.executable, str(PROGRAM), caller, STORES[place](tmp_path), server.url],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.stdout, run.stderr) == ("left\n", "")
