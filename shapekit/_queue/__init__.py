"""The parts of a Shaper: reservations, waiters, key status, permits, prefetch."""
