"""A process that calls as often as it may: `python strict_asker.py REDIS SERVER BUDGET THREADS SECONDS`.

Prints "ready", starts when it has read a line, and ends after so many seconds. BUDGET holds the arguments of
LLMBudget, as JSON. A call reserves three times what it uses.
"""

import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

from shapekit import LLMBudget, RedisStore


def main(where, server, arguments, threads, seconds):
    store = RedisStore.from_url(where)
    budget = LLMBudget(**json.loads(arguments), store=store, name="model")
    go = threading.Event()

    def work(seed):
        chance = random.Random(seed)
        go.wait(60)
        ends = time.monotonic() + float(seconds)
        while time.monotonic() < ends:
            used = chance.randint(50, 150)
            with budget.admit(3 * used) as call, suppress(urllib.error.HTTPError):
                urllib.request.urlopen(server, data=str(used).encode(), timeout=60).close()
                call.settle(used)

    crew = [threading.Thread(target=work, args=(seed,)) for seed in range(int(threads))]
    for thread in crew:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in crew:
        thread.join()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
