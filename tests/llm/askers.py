"""A process that calls a model: `python askers.py REDIS SERVER BUDGET THREADS CALLS`.

Prints "ready", starts when it has read a line, and prints for each call when it was to depart and what it
cost. BUDGET holds the arguments of LLMBudget, as JSON.
"""

import json
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress

from shapekit import LLMBudget, QueueFullError, RedisStore


class Refused(Exception):
    """A response as an SDK has it."""

    def __init__(self, response):
        super().__init__(response.code)
        self.response = response


EXPECTED = (Refused, OSError, QueueFullError, ValueError)
"""Events at which the server knows what it counted."""


class Asker:
    def __init__(self, server, budget):
        self.server = server
        self.budget = budget
        self.wrapped = budget.wrap(self.ask)
        self.results = []

    def ask(self, max_tokens):
        """An answer in lines, of which the last has the usage."""
        body = json.dumps({"max_tokens": max_tokens}).encode()
        try:
            response = urllib.request.urlopen(self.server, data=body, timeout=60)
        except urllib.error.HTTPError as error:
            raise Refused(error) from error
        return lines(response)

    def one_wrapped(self, max_tokens):
        with suppress(*EXPECTED), self.wrapped(max_tokens) as stream:
            for _ in stream:
                pass

    def one_by_hand(self, max_tokens):
        with suppress(*EXPECTED), self.budget.admit({"max_tokens": max_tokens}) as call:
            departs_at = call._entered[0].reservation.grant.departs_at_us
            usage = None
            for line in self.ask(max_tokens):
                usage = line.get("usage", usage)
            call.settle(usage)
            self.results.append((departs_at, usage["output_tokens"]))


def lines(response):
    with response:
        while line := response.readline():
            yield json.loads(line)


def main(where, server, arguments, threads, calls):
    store = RedisStore.from_url(where)
    asker = Asker(server, LLMBudget(**json.loads(arguments), store=store, name="model"))
    warm, go = threading.Barrier(int(threads) + 1), threading.Event()

    def work():
        asker.budget.policies["tokens"].forecast(key="another")
        warm.wait(60)
        go.wait(60)
        for number in range(int(calls)):
            one = asker.one_by_hand if number % 3 else asker.one_wrapped
            one(100 + number)

    crew = [threading.Thread(target=work) for _ in range(int(threads))]
    for thread in crew:
        thread.start()
    warm.wait(60)
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in crew:
        thread.join()
    print(json.dumps(asker.results))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
