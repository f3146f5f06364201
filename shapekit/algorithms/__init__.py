"""Algorithms: limits as pure functions of state and time. No I/O, no clock, no asyncio."""
