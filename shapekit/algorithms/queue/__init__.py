"""The leaky bucket as a queue: its slots, its constraints, its wire form, and one whose rate is learned."""
