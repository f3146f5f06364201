"""A proxy that cuts a connection between a request and its reply."""

from tests.faults.proxy import Proxy


class CuttingProxy(Proxy):
    """Forwards TCP to a port; `cut_after(n)` cuts a connection instead of sending the n-th reply."""

    _left = 0

    def cut_after(self, number):
        """Cut a connection after this many requests."""
        self._left = number

    def spare(self):
        """Cut no connection; returns whether one was cut."""
        was_cut, self._left = self._left <= 0, 0
        return was_cut

    def _harm_of(self, data):
        with self._lock:
            self._left -= 1
            return "drop" if self._left == 0 else None
