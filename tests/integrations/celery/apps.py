"""The app that the workers of most tests load, and the tests publish to."""

import ast
import json
import os
import time

import httpx
import redis
from celery import Celery
from kombu.serialization import register

from shapekit import Policy, RateLimitedError, RedisStore
from shapekit.decision import Decision
from shapekit.integrations.celery import ShapedTask, shape_app

PATIENT = "socket_timeout=20&socket_connect_timeout=20"
"""How late a reply may come before it costs the slot that was taken: no slot is given up on a busy machine.
"""
BLOCK_BELOW_S = 0.3
"""A task whose slot is further away than this is parked."""
KEYED = {"rate": "10/s", "key": "{account}"}


def spelled(body):
    """Decode what a serializer writes that supports more types than the default one."""
    return ast.literal_eval(body if isinstance(body, str) else body.decode())


register("spelled", repr, spelled, "application/x-spelled", "utf-8")


def make_app(url):
    app = Celery("tests", broker=url, backend=url)
    app.conf.update(
        shapekit_store=f"{url}?{PATIENT}",
        shapekit_block_below=BLOCK_BELOW_S,
        task_default_queue="tests",
        accept_content=["json", "spelled"],
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        result_chord_retry_interval=0.05,
    )
    client = redis.Redis.from_url(url)

    def note(task, account, **more):
        """Record that a task runs."""
        request = task.request
        record = {"at": time.time(), "id": request.id, "retries": request.retries, **more}
        shaped = getattr(task, "shaped", None)
        if shaped is not None:
            reservation = shaped.admission.reservation
            due = reservation.grant.due_us / 1_000_000
            record |= {
                "slot": reservation.departs_at,
                "due": due,
                "cost": reservation.cost,
                "key": reservation.key,
            }
        client.rpush(f"ran:{account}", json.dumps(record))

    def shaped(**options):
        return app.task(base=ShapedTask, bind=True, shared=False, **{"shape": KEYED, **options})

    add_canvas(app, shaped, note)
    add_retrying(app, shaped, note)
    add_refused(app, shaped, note)
    add_throttled(app, shaped, note)
    add_foreign(app, client, note)
    fault = os.environ.get("SHAPEKIT_TEST_FAULT")
    if fault:
        faulty = {"memory": Policy("10/s"), "rate": {"rate": "10/x"}}[fault]

        @shaped(name="faulty", shape=faulty)
        def run(self):
            note(self, "faulty")

    return app


def add_canvas(app, shaped, note):
    @shaped(name="add")
    def add(self, x, y=0, account="add"):
        note(self, account, x=x)
        return x + y

    @shaped(name="total")
    def total(self, numbers, account="total"):
        note(self, account)
        return sum(numbers)

    @shaped(name="fail")
    def fail(self, x=0, account="fail"):
        note(self, account)
        raise ValueError(x)

    def seen(self, account, more=()):
        request = {
            name: value
            for name, value in vars(self.request).items()
            if name in ("id", "timelimit", "expires", "delivery_info", "correlation_id", "reply_to", "group")
        }
        own = {name: header for name, header in (self.request.headers or {}).items() if name != "shapekit"}
        note(self, account, request=request, headers=own, shown=self.request.argsrepr)
        return "seen"

    shaped(name="seen", track_started=True)(seen)
    app.task(name="plainly_seen", shared=False, bind=True, track_started=True)(seen)

    @shaped(name="told_id")
    def told_id(self, failed, account):
        note(self, account, failed=failed)

    @app.task(base=ShapedTask, shape=KEYED, name="told_error", shared=False)
    def told_error(request, error, _trace, account):
        note(told_error, account, failed=request.id, error=type(error).__name__)

    @shaped(name="rare", shape={"rate": "10/s", "key": "{account}", "quota": "3/day"})
    def rare(self, account):
        note(self, account)

    store = RedisStore.from_url(app.conf.shapekit_store)
    policy = Policy("20/s burst 5", name="weighty", store=store)

    @shaped(name="measured", shape={"rate": "1/h", "key": "{account}", "enforce": False})
    def measured(self, account):
        note(self, account)

    weighty = {"policy": policy, "key": "{account}"}

    @shaped(name="weighed", shape=weighty)
    def weighed(self, account, n=None, fails=0):
        note(self, account)
        if self.request.retries < fails:
            raise self.retry(countdown=0)
        return n

    @shaped(name="weighed_sum", shape=weighty)
    def weighed_sum(self, numbers, account):
        note(self, account)
        return sum(numbers)

    @shaped(name="hourly", shape={"rate": "1/h"})
    def hourly(self, account):
        note(self, account)


def add_retrying(app, shaped, note):
    @shaped(name="flaky", max_retries=3)
    def flaky(self, account, fails):
        note(self, account)
        if self.request.retries < fails:
            raise self.retry(exc=ConnectionError("gone"), countdown=0)
        return self.request.retries

    @shaped(name="auto", autoretry_for=(ConnectionError,), retry_kwargs={"countdown": 0, "max_retries": 3})
    def auto(self, account, fails):
        note(self, account)
        if self.request.retries < fails:
            raise ConnectionError("gone")
        return self.request.retries

    @shaped(
        name="refunding",
        shape={**KEYED, "quota": "2/day", "refund_on": ConnectionError},
        autoretry_for=(ConnectionError,),
        retry_kwargs={"countdown": 0},
    )
    def refunding(self, account, fails):
        note(self, account)
        if self.request.retries < fails:
            raise ConnectionError("gone")
        return self.request.retries


def add_refused(app, shaped, note):
    short = {**KEYED, "rate": "2/s", "max_wait": "0.7s"}
    for on_reject in ("fail", "reject", "retry"):

        @shaped(name=f"short_{on_reject}", shape={**short, "on_reject": on_reject}, max_retries=10)
        def run(self, account):
            note(self, account)
            return "ran"

    @shaped(name="short_retry_once", shape={**short, "on_reject": "retry"}, max_retries=0)
    def once(self, account):
        note(self, account)

    @shaped(name="monthly", shape={**KEYED, "quota": "2/month"})
    def monthly(self, account):
        note(self, account)
        return "ran"


def add_throttled(app, shaped, note):
    def limited(key):
        return RateLimitedError(Decision(False, 1, 1, 0, 0, 600_000), key)

    def after_429(self, account, answer):
        note(self, account)
        if self.request.retries or answer == "fine":
            return self.request.retries
        request = httpx.Request("GET", "http://server.test")
        response = httpx.Response(429, headers={"Retry-After": "1"}, request=request)
        if answer == "error":
            response = httpx.HTTPStatusError("429", request=request, response=response)
        if answer == "limited":
            response = limited(account)
        raise self.shaped.throttled(response)

    shaped(name="after_429")(after_429)
    shaped(name="after_429_once", max_retries=0)(after_429)

    @shaped(name="auto_limited", autoretry_for=(RateLimitedError,), retry_kwargs={"max_retries": 1})
    def auto_limited(self, account, fails=1):
        note(self, account)
        if self.request.retries < fails:
            raise limited(account)
        return self.request.retries


def add_foreign(app, client, note):
    """Tasks without shapes of their own, and tasks that are written as classes."""

    def foreign(name, **options):
        @app.task(name=name, bind=True, shared=False, **options)
        def run(self, account, fails=0):
            note(self, account, name=name)
            if self.request.retries < fails:
                raise ConnectionError("gone")
            return self.request.retries

    repeats = {"autoretry_for": (ConnectionError,), "retry_kwargs": {"countdown": 0}}
    foreign("billing.first")
    foreign("billing.auto", **repeats)
    shape_app(
        app,
        {
            "billing.first": {"rate": "5/s", "key": "{account}"},
            "billing.*": {"rate": "10/s", "key": "{account}"},
            "late.*": {"rate": "10/s", "key": "{account}"},
        },
    )
    foreign("billing.second")
    foreign("unshaped")

    @app.task(name="busy", bind=True, shared=False)
    def busy(self, account):
        note(self, account)
        assert client.blpop([f"go:{account}"], timeout=30)

    app.finalize()
    foreign("late.task")

    class Sync(ShapedTask):
        name = "sync"
        shape = KEYED

        def run(self, account, n=0):
            note(self, account)
            return n

    app.register_task(Sync())
