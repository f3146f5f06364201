"""The leaky bucket as a queue: slots, constraints and wire form, and a queue with an adaptive rate."""
