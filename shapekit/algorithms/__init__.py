"""The mathematics: pure algorithms, one noun a file. No I/O, no clock, no asyncio."""
