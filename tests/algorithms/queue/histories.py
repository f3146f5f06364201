"""Laws of a history, by brute force: each pair of calls, each window. Instants are microseconds."""


def check_spacing(departures, limit, period, burst):
    """t_j - t_i >= (cost(i..j) - max(burst, cost_j)) * T - 1 µs, for all i < j; in whole numbers."""
    for first, (t_i, cost_i) in enumerate(departures):
        total = cost_i
        for t_j, cost_j in departures[first + 1 :]:
            total += cost_j
            owed = (total - max(burst, cost_j)) * period - limit
            assert (t_j - t_i) * limit >= owed, f"{(t_i, cost_i)} and {(t_j, cost_j)} are too close"


def check_windows(departures, limit, window):
    """At most `limit` in any half-open window; it is enough to check windows that begin with a call."""
    for t_i, _ in departures:
        used = sum(cost for t_j, cost in departures if t_i <= t_j < t_i + window)
        assert used <= limit, f"{used} of {limit} in the window from {t_i}"


def check_periods(departures, limit, period):
    """At most `limit` in each period, counted from the epoch."""
    for number in {t // period for t, _ in departures}:
        used = sum(cost for t, cost in departures if t // period == number)
        assert used <= limit, f"{used} of {limit} in period {number}"
