"""The leaky bucket that delays: its slots, its further limits, its wire form."""
