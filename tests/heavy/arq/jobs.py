"""Jobs for the workers in these tests: `arq jobs.Settings` runs them."""

from arq import func
from arq.connections import RedisSettings

from shapekit.integrations.arq import shaped_job
from tests.heavy.queues.notes import note, note_worker, url

URL = url()


@shaped_job(rate="40/s", store=URL)
async def quick(ctx, number):
    note("quick", number)


@shaped_job(rate="40/s", store=URL)
async def killed(ctx, number):
    note("killed", number)


@shaped_job(rate="1/s", key="{account}", name="slow", store=URL)
async def slow(ctx, account, number):
    note(f"slow:{account}", number)
    return ctx["job_try"]


@shaped_job(rate="1/s", max_wait="1.5s", store=URL)
async def refused(ctx, number):
    note("refused", number)


@shaped_job(rate="2/s", max_wait=0, on_reject="retry", store=URL)
async def patient(ctx, number):
    note("patient", number)


@shaped_job(rate="5/s", store=URL)
async def called(ctx, number):
    note("called", number)


async def caller(ctx, number):
    for place in range(3):
        await far(ctx, 3 * number + place)
    return ctx["job_try"]


@shaped_job(rate="1 per 2s", store=URL)
async def far(ctx, number):
    note("far", number)


@shaped_job(rate="1/h", name="early", store=URL)
async def early(ctx): ...


async def free(ctx, number):
    note_worker(number)


class Settings:
    functions = (
        quick,
        killed,
        func(slow, max_tries=1),
        refused,
        func(patient, max_tries=1),
        caller,
        far,
        free,
    )
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = 100
    job_timeout = 6
    keep_result = 60
