"""The parts of a Shaper: waiting calls, moved slots, permits, scopes, prefetch, events."""
