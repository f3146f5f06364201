"""The lowest layer: drivers for threads and event loops, and what concerns the process."""
