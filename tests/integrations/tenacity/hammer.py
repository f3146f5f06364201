"""Workers that hammer a server which fails half of all calls; as a script, one process full of them."""

from __future__ import annotations

import sys
import threading

import anyio
import httpx
import tenacity

from shapekit import Policy, SQLiteStore
from shapekit.integrations.tenacity import ashaped_retrying, shaped_retrying

CALLS = 4
"""Calls of each worker."""
SHARE = 0.25
RESERVE = 4

EAGER = {"wait": tenacity.wait_none(), "stop": tenacity.stop_never, "budget": SHARE, "reserve": RESERVE}


def in_threads(policy: Policy, url: str, workers: int) -> None:
    retrying = shaped_retrying(policy, **EAGER)

    def work() -> None:
        with httpx.Client() as client:
            for _ in range(CALLS):
                retrying(client.get, url)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def in_tasks(policy: Policy, url: str, workers: int) -> None:
    retrying = ashaped_retrying(policy, **EAGER)

    async def work() -> None:
        for _ in range(CALLS):
            await retrying(client.get, url)

    async with httpx.AsyncClient(timeout=None) as client, anyio.create_task_group() as tasks:
        for _ in range(workers):
            tasks.start_soon(work)


if __name__ == "__main__":
    _, path, url, rate, workers = sys.argv
    store = SQLiteStore(path)
    print("ready", flush=True)
    sys.stdin.readline()
    in_threads(Policy(rate, name="server", store=store), url, int(workers))
    store.close()
