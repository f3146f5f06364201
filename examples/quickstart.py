"""Calls that leave at the right moment. Run it: it takes a second and needs no network."""

import threading
import time

from shapekit import GCRA, Gate, ManualClock, Quota, RateLimitedError, all_of, shaped


def paced() -> None:
    """Three threads share one limit of ten calls a second; each sleeps once, and leaves in its slot."""
    print("ten a second, two at once, three threads:")
    start = time.monotonic()

    @shaped("10/s", burst=2)
    def call(name: str, number: int) -> None:
        print(f"  {time.monotonic() - start:5.2f} s  {name} makes its call {number}")

    def work(name: str) -> None:
        for number in range(1, 5):
            call(name, number)  # sleeps once, until this call's slot

    workers = [threading.Thread(target=work, args=(name,)) for name in ("anna", "bert", "cleo")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def refused() -> None:
    """Two limits decide together about each call; a refusal names the limit, and says how long to wait."""
    print("two in a minute, and a budget for the month, decided together:")
    clock = ManualClock()  # virtual time: the minutes below take no time at all
    gate = Gate(all_of(pace=GCRA("2/min"), month=Quota("3/month")), clock=clock)
    for _ in range(6):
        try:
            gate.require("reports")
            print(f"  {clock.now():9.0f} s  sent")
        except RateLimitedError as error:
            wait = error.retry_after  # exact: one wait is enough
            print(f"  {clock.now():9.0f} s  {error.code} by {error.decision.binding!r}: wait {wait:.0f} s")
            clock.advance(wait)


if __name__ == "__main__":
    paced()
    refused()
