"""Publishes tasks for two accounts, far more than may leave at once, and measures when they start."""

import time

from celery import group
from tasks import ping, records, sync

ACCOUNTS = ("anna", "bert")
CALLS = 100


def main() -> None:
    """Publish the tasks, watch them, and report the result."""
    ping.delay(time.time()).get(timeout=30)
    calls = group(sync.s(account, number) for number in range(CALLS) for account in ACCOUNTS)
    result = calls.apply_async()
    print(f"{len(ACCOUNTS)} x {CALLS} tasks published, 20 a second for each account")
    waits = []
    while not result.ready():
        waits.append(ping.delay(time.time()).get(timeout=30))
        done = result.completed_count()
        print(f"\r  {done:3} of {len(result)} done, a task without a limit waits {waits[-1]:.3f} s", end="")
        time.sleep(0.2)
    print()
    for account in ACCOUNTS:
        starts = sorted(float(start) for start in records.lrange(f"starts:{account}", 0, -1))
        rate = (len(starts) - 1) / (starts[-1] - starts[0])
        worst = max(sum(1 for at in starts if 0 <= at - start < 1) for start in starts)
        print(f"{account}: {len(starts)} calls at {rate:.2f}/s, at most {worst} in any second")


if __name__ == "__main__":
    main()
