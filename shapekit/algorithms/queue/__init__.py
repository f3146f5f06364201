"""The leaky bucket as a queue: its slots, its constraints, its wire format."""
