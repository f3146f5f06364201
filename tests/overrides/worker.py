"""A process that has calls wait: its arguments are the store, a rate and how many.

It prints for each its number in the line of all processes, and when it leaves.
"""

import sys
import threading
import time

from shapekit import Policy


def main(where: str, rate: str, calls: int) -> None:
    policy = Policy(rate, name="stripe", store=where)
    policy.shaper.held()  # connected, and all is loaded
    print("ready", flush=True)
    sys.stdin.readline()
    lock = threading.Lock()

    def call() -> None:
        reservation = policy.shaper.schedule()
        at = time.time()
        with lock:
            print(reservation.grant.version, at, flush=True)

    threads = [threading.Thread(target=call) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
