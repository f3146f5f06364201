"""A process that asks a model: `python askers.py REDIS SERVER BUDGET THREADS CALLS`.

Says "ready", asks when it has read a line, and tells of each call when it was to depart, and what it cost.
BUDGET is what LLMBudget is told, as JSON.
"""

import json
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress

from shapekit import LLMBudget, QueueFullError, RedisStore


class Refused(Exception):
    """As an SDK has it: with the response."""

    def __init__(self, response):
        super().__init__(response.code)
        self.response = response


EXPECTED = (Refused, OSError, QueueFullError, ValueError)
"""The server keeps count of what it did when one of these is seen."""


class Asker:
    def __init__(self, server, budget):
        self.server = server
        self.budget = budget
        self.wrapped = budget.wrap(self.ask)
        self.told = []

    def ask(self, max_tokens):
        """An answer in lines, the last of which tells the usage."""
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
            self.told.append((departs_at, usage["output_tokens"]))


def lines(response):
    with response:
        while line := response.readline():
            yield json.loads(line)


def main(where, server, said, threads, calls):
    store = RedisStore.from_url(where)
    asker = Asker(server, LLMBudget(**json.loads(said), store=store, name="model"))
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
    print(json.dumps(asker.told))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
