"""Jobs for the workers in these tests."""

from shapekit import Policy
from shapekit.integrations.rq import shaped_job
from tests.heavy.queues.notes import note, note_worker, url

URL = url()


@shaped_job(rate="20/s", store=URL)
def quick(number):
    note("quick", number)


@shaped_job(rate="10/s", store=URL)
def killed(number):
    note("killed", number)


@shaped_job(rate="1/3s", key="{account}", name="slow", store=URL)
def slow(account, number):
    note(f"slow:{account}", number)


@shaped_job(rate="1/s", max_wait="0.5s", store=URL)
def refused(number):
    note("refused", number)


@shaped_job(rate="1/3s", max_wait=0, on_reject="retry", store=URL)
def patient(number):
    note("patient", number)


@shaped_job(rate="5/s", store=URL)
def called(number):
    note("called", number)


@shaped_job(rate="5/s", store=URL)
def forked(number):
    note("forked", number)


@shaped_job(rate="1/2s", store=URL)
def stopped(number):
    note("stopped", number)


DROPPED = Policy("1/2s", quota="10/day", name="dropped", store=URL)


@shaped_job(policy=DROPPED)
def dropped(number):
    note("dropped", number)


REFUNDING = Policy("100/s", quota="10/day", refund_on=ConnectionError, name="refunding", store=URL)


@shaped_job(policy=REFUNDING)
async def refunding(number):
    note("refunding", number)
    raise ConnectionError(number)


def free(number):
    note_worker(number)
