"""Permits, counted the slow way: one list of all calls, what each has and until when its lease lasts."""


class Model:
    """What `Concurrency` has to do, as a plain list."""

    def __init__(self, limit, lease_us, most_waiting):
        self.limit = limit
        self.lease_us = lease_us
        self.most_waiting = most_waiting
        self.time = 0
        self.until = {}
        """By owner: when its lease ends."""
        self.calls = []
        """`[owner, number, whether it has a permit]`, in order of arrival."""

    def enter(self, now, owner, number, may_wait):
        before = self._snapshot()
        self._pass(now)
        if self._of(owner, number) is None:
            waiting = [call for call in self.calls if not call[2]]
            free = self.limit - (len(self.calls) - len(waiting))
            if not waiting and free > 0:
                self.calls.append([owner, number, True])
            elif may_wait and len(waiting) < self.most_waiting:
                self.calls.append([owner, number, False])
            else:
                # A denial leaves no trace: not even of its time.
                self.time, self.until, self.calls = before
                return -1
        self.until[owner] = max(self.until.get(owner, 0), self.time + self.lease_us)
        call = self._of(owner, number)
        return 0 if call[2] else [other for other in self.calls if not other[2]].index(call) + 1

    def watch(self, now, owner):
        before = self._snapshot()
        self._pass(now)
        return self._answer(before, owner)

    def leave(self, now, owner, number):
        before = self._snapshot()
        self._pass(now)
        self.calls = [call for call in self.calls if call[:2] != [owner, number]]
        return self._answer(before, owner)

    def keep(self, now, owner, upto, numbers):
        before = self._snapshot()
        self._pass(now)
        if any(call[0] == owner for call in self.calls):
            self.until[owner] = max(self.until[owner], self.time + self.lease_us)
        self.calls = [call for call in self.calls if call[0] != owner or call[1] > upto or call[1] in numbers]
        return self._answer(before, owner)

    def _pass(self, now):
        self.time = max(self.time, now)
        self.calls = [call for call in self.calls if self.until[call[0]] > self.time]
        self._permit()

    def _permit(self):
        # An owner without a call is forgotten, and so is its lease.
        self.until = {
            owner: until
            for owner, until in self.until.items()
            if any(call[0] == owner for call in self.calls)
        }
        for call in self.calls:
            if sum(other[2] for other in self.calls) >= self.limit:
                break
            call[2] = True

    def _snapshot(self):
        return self.time, dict(self.until), [list(call) for call in self.calls]

    def _answer(self, before, owner):
        self._permit()
        if (self.until, self.calls) == before[1:]:
            # No owner has anything more or less: then nothing is remembered.
            self.time = before[0]
        return {call[1] for call in self.calls if call[0] == owner and call[2]}

    def _of(self, owner, number):
        return next((call for call in self.calls if call[:2] == [owner, number]), None)
