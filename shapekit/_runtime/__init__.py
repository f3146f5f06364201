"""What everything stands on: drivers for threads and event loops, a background thread, forks, a switch."""
