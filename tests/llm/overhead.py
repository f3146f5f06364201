"""How the cost of a framework's hooks is measured; each `tests/heavy/*/overhead.py` prints it."""

import asyncio
import time

from shapekit import LLMBudget, Policy

CALLS, ROUNDS = 300, 9
FAST = "1000000/s"
POLICY, BUDGET = Policy(FAST), LLMBudget(requests=FAST, tokens="1000000000/s")


def micros(call):
    """The best of a few rounds, for each call."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - began)
    return best / CALLS * 1e6


def amicros(ask):
    """`micros`, on an event loop."""

    async def rounds():
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(CALLS):
                await ask()
            best = min(best, time.perf_counter() - began)
        return best / CALLS * 1e6

    return asyncio.run(rounds())


def report(name, without, **shaped):
    costs = [f"{what} {cost - without:.0f}" for what, cost in shaped.items()]
    print(f"{name}: {without:.0f} µs without; more with {', '.join(costs)} µs", flush=True)
