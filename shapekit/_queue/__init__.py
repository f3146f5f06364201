"""The parts of a Shaper: waiters, what moves them, permits, scopes, prefetch, events."""
