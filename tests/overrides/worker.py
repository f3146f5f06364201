"""A process that has calls wait: its arguments are the store, and how many; it prints when each leaves."""

import sys
import threading
import time

from shapekit import Policy


def main(where: str, calls: int) -> None:
    policy = Policy("5/s", name="stripe", store=where)
    policy.shaper.held()  # connected, and all is loaded
    print("ready", flush=True)
    sys.stdin.readline()
    lock = threading.Lock()

    def call() -> None:
        with policy.admit():
            at = time.time()
        with lock:
            print(at, flush=True)

    threads = [threading.Thread(target=call) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
