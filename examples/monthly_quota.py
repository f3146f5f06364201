"""A budget for each month: how far it reaches, and what happens when it is spent. Run it: it needs nothing.

Two months pass on a virtual clock, in no time.
"""

from datetime import UTC, datetime

from shapekit import ManualClock, Policy, QuotaExhaustedError

DAY_S = 86_400
BUDGET, A_DAY = 1_000, 45

clock = ManualClock(datetime(2026, 3, 1, 6, tzinfo=UTC).timestamp(), autojump=True)
# Without `clock=` it is real time, and with `store=` all workers spend one budget.
geocoder = Policy("10/s", quota=f"{BUDGET}/month", clock=clock)


def today(in_s: float = 0.0) -> str:
    return f"{datetime.fromtimestamp(clock.now() + in_s, UTC):%d %B %H:%M}"


def nightly(calls: int) -> int:
    """A nightly job: makes as many of the calls as the budget allows, and returns how many that were."""
    for number in range(calls):
        try:
            with geocoder.admit():
                ...  # the call
        except QuotaExhaustedError as error:
            print(f"{today()}  spent after {number} of {calls} calls: {error.decision.current} of {BUDGET}")
            print(f"{today()}  the next may leave on {today(error.retry_after)}")
            return number
    return calls


def main() -> None:
    left, night = BUDGET, 1
    while nightly(A_DAY) == A_DAY:
        left -= A_DAY
        if night % 7 == 0:
            # A forecast consumes nothing.
            print(f"{today()}  {left} are left, and call {left + 1} would leave on", end=" ")
            print(today(geocoder.forecast(left + 1).last_in))
        clock.advance(DAY_S - clock.now() % DAY_S + 6 * 3_600)  # until six o'clock tomorrow
        night += 1

    # To wait for the next month, say how long a wait may be. A call that would wait longer consumes nothing.
    with geocoder.admit(max_wait="31d") as admission:
        print(f"{today()}  a call left that had waited for {admission.delay / DAY_S:.2f} days")
    # The call was a batch that costs a hundred.
    admission.settle(100)
    left = BUDGET - 100
    print(f"{today()}  {left} are left, and call {left + 1} would leave on", end=" ")
    print(today(geocoder.forecast(left + 1).last_in))


if __name__ == "__main__":
    main()
