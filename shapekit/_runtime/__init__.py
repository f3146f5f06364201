"""What everything stands on: drivers for threads and event loops, and what concerns the process."""
