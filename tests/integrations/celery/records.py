"""What tasks have written down of themselves, and how it is judged."""

import json

from shapekit.testing import check_pace

from .fleet import eventually

CLOCKS_S = 0.002
"""By how much a start may seem to be before its slot: the server and the task each read the time."""


class Records:
    """The starts of tasks, by account."""

    def __init__(self, client):
        self.client = client

    def of(self, account):
        """What has run so far, in the order of starting."""
        told = [json.loads(text) for text in self.client.lrange(f"ran:{account}", 0, -1)]
        return sorted(told, key=lambda start: start["at"])

    def wait(self, account, count):
        """The starts, as soon as there are so many."""
        eventually(lambda: self.client.llen(f"ran:{account}") >= count)
        return self.of(account)

    def paced(self, account, count, rate):
        """The starts, which were so many, each on a slot of its own and none before it."""
        starts = self.of(account)
        assert len(starts) == count, starts
        check_pace([(start["due"], start["cost"]) for start in starts], rate, tolerance="1us")
        for start in starts:
            assert start["at"] >= start["slot"] - CLOCKS_S, start
        return starts
