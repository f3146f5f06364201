"""The records that tasks write, and the checks of them."""

import json

from shapekit.testing import check_pace

from .fleet import eventually

CLOCKS_S = 0.002
"""How far before its slot a start may seem to be: the server and the task read the time separately."""


class Records:
    """The starts of tasks, by account."""

    def __init__(self, client):
        self.client = client

    def of(self, account):
        """The starts so far, in order."""
        starts = [json.loads(text) for text in self.client.lrange(f"ran:{account}", 0, -1)]
        return sorted(starts, key=lambda start: start["at"])

    def wait(self, account, count):
        """The starts, as soon as there are `count` of them."""
        eventually(lambda: self.client.llen(f"ran:{account}") >= count)
        return self.of(account)

    def paced(self, account, count, rate):
        """The starts: `count` of them, each in its own slot and none before it."""
        starts = self.of(account)
        assert len(starts) == count, starts
        check_pace([(start["due"], start["cost"]) for start in starts], rate, tolerance="1us")
        for start in starts:
            assert start["at"] >= start["slot"] - CLOCKS_S, start
        return starts
