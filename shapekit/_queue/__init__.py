"""What a Shaper is made of: reservations, waiters, what is known of a key, permits, prefetch."""
