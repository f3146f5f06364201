"""A process that makes calls: `worker.py STORE URL PERMITS LEASE how many`.

`crowd N`: N calls to /crowd from four threads. `hold N`: N calls to /held; a line is printed once they
are under way, and they never end.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from shapekit import Concurrency
from shapekit.integrations.httpx import ShapedTransport
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore


def main(where: str, url: str, permits: str, lease: str, how: str, many: str) -> None:
    store = RedisStore.from_url(where) if where.startswith("redis:") else SQLiteStore(where)
    limit = Concurrency(int(permits), lease)
    transport = ShapedTransport(concurrency=limit, name="api", store=store, key="default")
    with httpx.Client(transport=transport, base_url=url, timeout=60) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        if how == "crowd":
            with ThreadPoolExecutor(4) as threads:
                for answer in threads.map(lambda _: client.get("/crowd"), range(int(many))):
                    answer.raise_for_status()
            print("done", flush=True)
        else:
            held = [client.send(client.build_request("GET", "/held"), stream=True) for _ in range(int(many))]
            print("holds", len(held), flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
