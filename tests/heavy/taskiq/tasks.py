"""Tasks for the workers in these tests: `taskiq worker … tasks:broker` runs them."""

import os
from typing import Annotated

from pydantic import BaseModel
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends, TaskiqMiddleware
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from shapekit import Policy
from shapekit.integrations.taskiq import shaped_task
from tests.heavy.queues.notes import note, note_worker, url

URL = url()


class Sealing(TaskiqMiddleware):
    """Seals the arguments of one task where it is sent, and opens them where it runs."""

    def pre_send(self, message):
        if message.task_name == "sealed":
            message.args = [f"sealed {argument}" for argument in message.args]
        return message

    def pre_execute(self, message):
        if message.task_name == "sealed":
            assert all(argument.startswith("sealed ") for argument in message.args)
            message.args = [int(argument.removeprefix("sealed ")) for argument in message.args]
        return message


KINDS = {
    "stream": lambda: RedisStreamBroker(URL, consumer_id="0", idle_timeout=3000),
    "list": lambda: ListQueueBroker(URL),
}
broker = KINDS[os.environ.get("QUEUES_BROKER", "stream")]()
broker = broker.with_result_backend(RedisAsyncResultBackend(URL))
broker = broker.with_middlewares(SimpleRetryMiddleware(), Sealing())


CALLED = Policy("5/s", name="called", store=URL)


class Account(BaseModel):
    name: str


@broker.task
@shaped_task(rate="40/s", store=URL)
async def quick(number: int):
    note("quick", number)


@broker.task
@shaped_task(rate="40/s", store=URL)
def killed(number: int):
    note("killed", number)


@broker.task
def nothing() -> None:
    """Its message alone matters."""


@broker.task(some=b"bytes", retry_on_error=True, max_retries=1)
@shaped_task(rate="1/s", key="{account.name}", name="slow", store=URL)
async def slow(account: Account, number: int, context: Annotated[Context, TaskiqDepends()]):
    note(f"slow:{account.name}", number)
    return sorted(context.message.labels), context.message.labels["some"] == b"bytes"


@broker.task(task_name="sealed")
@shaped_task(rate="1/s", store=URL)
async def sealed(number: int):
    note("sealed", number)


@broker.task(retry_on_error=True)
@shaped_task(rate="1/s", max_wait="1.5s", store=URL)
async def refused(number: int):
    note("refused", number)
    return number


@broker.task
@shaped_task(rate="2/s", max_wait=0, on_reject="retry", store=URL)
def patient(number: int):
    note("patient", number)


@broker.task(retry_on_error=True, max_retries=3)
@shaped_task(rate="1/s", store=URL)
async def failing(number: int):
    note("failing", number)
    raise ValueError(number)


@broker.task(ack_type="manual")
@shaped_task(rate="1/s", store=URL)
async def manual(number: int, context: Annotated[Context, TaskiqDepends()]):
    note("manual", number)
    await context.ack()


@broker.task
@shaped_task(policy=CALLED)
async def called(number: int):
    note("called", number)


@broker.task
@shaped_task(rate="5/s", key="{account.nothing}", store=URL)
async def wrong(account: Account):
    note("wrong", 0)


@broker.task
async def free(number: int):
    note_worker(number)
