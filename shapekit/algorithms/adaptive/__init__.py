"""The queue whose rate is learned."""
