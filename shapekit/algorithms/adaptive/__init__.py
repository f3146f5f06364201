"""The queue with an adaptive rate."""
