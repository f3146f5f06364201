"""Answers in pieces, as the SDKs hand them out, and how callers read them."""

from .errors import Response

ANSWER = {"text": "yes", "usage": {"prompt_tokens": 10, "completion_tokens": 50}}
CHUNKS = ["a", "b", {"choices": [], "usage": ANSWER["usage"]}]


class Stream:
    """An answer in pieces, as an SDK has it."""

    def __init__(self, items=CHUNKS, error=None):
        self.items = iter(items)
        self.error = error
        self.response = Response(200, {})
        self.closed = 0

    def __iter__(self):
        return self

    def __next__(self):
        item = next(self.items, None)
        if item is None:
            raise self.error or StopIteration
        return item

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.closed += 1


class AsyncStream(Stream):
    __iter__ = __next__ = __enter__ = __exit__ = None

    def __aiter__(self):
        return self

    async def __anext__(self):
        item = next(self.items, None)
        if item is None:
            raise self.error or StopAsyncIteration
        return item

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        self.closed += 1


def words(text):
    """Tokens that some budgets count in a text."""
    return len(text.split())


def whole(stream):
    return list(stream)


async def awhole(stream):
    return [item async for item in stream]


def streaming(stream):
    def ask(prompt="why?", max_tokens=100):
        return stream

    async def aask(prompt="why?", max_tokens=100):
        return stream

    return aask if isinstance(stream, AsyncStream) else ask
