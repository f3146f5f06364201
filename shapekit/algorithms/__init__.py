"""The algorithms: pure functions of state and time, one noun per file. No I/O, no clock, no asyncio."""
