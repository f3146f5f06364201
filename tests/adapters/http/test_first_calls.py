"""The first calls of many threads: what they need is loaded once, and by nobody in halves."""

import subprocess
import sys

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
