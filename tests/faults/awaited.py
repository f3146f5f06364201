"""The coroutines that are discarded: every public one, each in a scenario with all of its awaits."""

import asyncio
import types

import httpx
from anyio.lowlevel import checkpoint

from shapekit import GCRA, Adaptive, Gate, LLMBudget, Policy, Quota, Shaper, shaped
from shapekit._runtime.drivers import TASKS
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.httpx import ShapedTransport
from shapekit.keys import Target


def fail():
    raise LookupError


async def gate_answers(store):
    gate = Gate(GCRA("1/h", burst=9), store=store, name="n")
    decision = await gate.arequire()
    await gate.acheck_many(["a", "b"])
    await gate.apeek()
    await gate.aforecast()
    await gate.arefund("default", decision)
    await gate.adebit("default")
    await gate.areset()
    await gate.aclose()


async def shaper_schedules(store):
    shaper = Shaper("1/h", store=store, name="n")
    async with shaper:
        await shaper.aschedule(timeout="2h")
        await shaper.aclose()


async def shaper_answers(store):
    shaper = Shaper("1/h", store=store, name="n")
    reservations = [await shaper.areserve() for _ in range(3)]
    await reservations[2].acancel()
    await shaper.asettle(reservations[0], 0)
    await shaper.aremaining(reservations[1])
    await shaper.aforecast()
    await shaper.ahold("1h")
    await shaper.aschedule()
    await shaper.aresume()
    await shaper.areset()


async def shaper_has_a_listener(store):
    shaper = Shaper("1/h", store=store, name="n", gates=[Quota("9/month")])
    listening = shaper.listen(lambda event: None)
    LISTENING.append(listening)  # closing it is the listener's affair, and takes a lock
    await shaper.aschedule()
    await shaper.aschedule()


async def shaper_adapts(store):
    shaper = Shaper(adaptive=Adaptive("1/h", "10/h"), store=store, name="n")
    await shaper.aschedule()
    await shaper.adaptive.asucceeded(age=0)
    await shaper.adaptive.athrottled(age=0)
    await shaper.aschedule()
    await shaper.adaptive.arate()


async def shaper_prefetches(store):
    if store.awaited_only:
        return  # slots are not prefetched from such a store
    shaper = Shaper("1/min", store=store, name="n", prefetch="1s")
    try:
        for _ in range(3):
            await shaper.aschedule()
        await shaper.aclose()
    finally:
        # Its thread gives back the rest after the test has stopped looking for locks.
        if shaper.core.prefetch is not None:
            shaper.core.prefetch._is_closed = True


async def policy_admits(store):
    policy = Policy("1/h", quota="9/month", store=store, name="n", refund_on=lambda _: True)
    for _ in range(2):
        try:
            async with policy.aadmit() as admission:
                await admission.aobserve(httpx.Response(429, headers={"Retry-After": "60"}))
                await checkpoint()
                fail()
        except LookupError:
            await policy.aquotas()


async def policy_measures(store):
    policy = Policy("1/h", concurrency=1, enforce=False, store=store, name="n")
    for _ in range(2):
        async with policy.aadmit():
            await checkpoint()


async def calls_sit(store):
    policy = Policy("1/h", concurrency=2, store=store, name="n", refund_on=LookupError)
    for _ in range(2):
        try:
            async with policy.aadmit():
                await checkpoint()
                fail()
        except LookupError:
            pass


async def calls_wait_for_a_permit(store):
    policy = Policy(concurrency=1, store=store, name="n")
    async with policy.aadmit(), policy.aadmit(max_wait="1d"):
        pass


async def scopes_are_waited_for(store, **limits):
    policy = Policy("2/h", store=store, name="n", **limits)
    target = Target("GET", "https", "api.example.com", None, "/search")
    policy.scoped.scopes.learn("default", target, "search")
    await policy.scoped.hold(TASKS, 3_600, "default", "search")
    for _ in range(2):
        admission = policy.aadmit()
        admission.target = target
        async with admission:
            pass


async def scopes_are_waited_for_without_permits(store):
    await scopes_are_waited_for(store, concurrency=1)


async def function_is_shaped(store):
    @shaped("1/h", store=store, name="n")
    async def call():
        await checkpoint()

    await call()
    await call()


async def generator_is_shaped(store):
    @shaped("1/h", concurrency=1, store=store, name="n")
    async def numbers():
        yield await checkpoint()
        yield await checkpoint()

    async for _ in numbers():
        await checkpoint()


class Body(httpx.AsyncByteStream):
    async def __aiter__(self):
        yield b"one"
        await checkpoint()
        yield b"two"

    async def aclose(self):
        await checkpoint()


class Sending(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request):
        await checkpoint()
        return httpx.Response(429, headers={"Retry-After": "60"}, stream=Body())


async def httpx_sends(store, **shaping):
    transport = ShapedTransport(Sending(), rate="1/h", store=store, name="n", **shaping)
    request = httpx.Request("GET", "https://api.example.com/v1/things")
    for _ in range(2):
        response = await transport.handle_async_request(request)
        async for _ in response.stream:
            await checkpoint()
        await response.aclose()


async def httpx_streams(store):
    await httpx_sends(store, concurrency=1, refund_on=lambda _: True)


class Plain(types.SimpleNamespace):
    __slots__ = ("__weakref__",)


async def aiohttp_sends(store):
    session = Plain(closed=False)
    url = httpx.URL("https://api.example.com/v1/things")
    url = Plain(scheme=url.scheme, raw_host=url.host, explicit_port=None, raw_path=url.path)
    request = Plain(url=url, method="GET", session=session)

    async def send(request):
        await checkpoint()
        return Plain(
            status=429,
            raw_headers=((b"Retry-After", b"60"),),
            content_type="application/json",
            close=asyncio.get_running_loop,
            connection=None,
        )

    middleware = shaped_middleware(rate="1/h", store=store, name="n", concurrency=1, refund_on=lambda _: True)
    for _ in range(2):
        await middleware(request, send)


async def model_is_called(store):
    budget = LLMBudget(requests="1/h", tokens="10/h", store=store, name="n", refund_on=lambda _: True)
    ask = budget.wrap(answered)
    for _ in range(2):
        await ask(max_tokens=1)
        try:
            async with budget.aadmit(1):
                fail()
        except LookupError:
            pass


async def answered(max_tokens):
    await checkpoint()
    return {"usage": {"prompt_tokens": 1, "completion_tokens": 0}}


async def model_streams(store):
    budget = LLMBudget(requests="1/h", tokens="10/h", store=store, name="n")
    stream = await budget.wrap(streamed)(prompt="why?", max_tokens=1)
    try:
        await anext(stream)
    finally:
        await stream.close()
    async for _ in budget.wrap(yielded)(prompt="why?", max_tokens=1):
        await checkpoint()


class Answer:
    async def __anext__(self):
        await checkpoint()
        return "a"

    async def close(self):
        """There is nothing to close."""


async def streamed(prompt, max_tokens):
    return Answer()


async def yielded(prompt, max_tokens):
    for text in "ab":
        await checkpoint()
        yield text


async def store_is_closed(store):
    await Gate(GCRA("1/h"), store=store, name="n").acheck()
    await store.aclose()


SCENARIOS = [
    gate_answers,
    shaper_schedules,
    shaper_answers,
    shaper_has_a_listener,
    shaper_adapts,
    shaper_prefetches,
    policy_admits,
    policy_measures,
    calls_sit,
    calls_wait_for_a_permit,
    scopes_are_waited_for,
    scopes_are_waited_for_without_permits,
    function_is_shaped,
    generator_is_shaped,
    httpx_sends,
    httpx_streams,
    aiohttp_sends,
    model_is_called,
    model_streams,
    store_is_closed,
]


LISTENING = []

OF_GENERATORS = (generator_is_shaped, model_streams, httpx_sends, httpx_streams)
