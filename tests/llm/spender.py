"""A process that spends as much as it may: `python spender.py STORE SEED`.

Prints "ready", spends when it has read a line, and ends when three of its calls in a row were refused. It
prints what its calls cost, in millionths of a cent, by tenant.
"""

import json
import random
import sys
import threading

from shapekit import LLMBudget, QuotaExhaustedError, TokenUsage

PRICES = {"currency": "USD", "big": {"input": "2.50", "cached": "1.25", "output": "10", "reasoning": "12"}}
THREADS, MOST = 4, 2_000


def main(store, seed):
    budget = LLMBudget(
        spend="0.5 USD/day", total="1 USD/day", prices=PRICES, key="{user}", name="model", store=store
    )
    cost, lock, go = dict.fromkeys("abc", 0), threading.Lock(), threading.Event()

    def work(number):
        chance, refused = random.Random(f"{seed} {number}"), 0
        go.wait(60)
        while refused < 3:
            user = chance.choice("abc")
            given, thought = chance.randint(0, 900), chance.randint(0, 300)
            usage = TokenUsage(given, thought + chance.randint(0, MOST - 300), given // 3, 0, thought)
            request = {"model": "big", "user": user, "prompt": "abc" * 900, "max_tokens": MOST}
            try:
                with budget.admit(request) as call:
                    call.settle(usage)
            except QuotaExhaustedError:
                refused += 1
                continue
            refused = 0
            # Per token: 250, 125, 1000 and 1200 millionths of a cent.
            fresh, spoken = given - usage.cached, usage.output - thought
            with lock:
                cost[user] += 250 * fresh + 125 * usage.cached + 1000 * spoken + 1200 * thought

    crew = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in crew:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in crew:
        thread.join()
    budget.close()
    print(json.dumps(cost))


if __name__ == "__main__":
    main(*sys.argv[1:])
