"""What everything stands on: events and sleepers for threads and loops, worker threads, forks, ids."""
