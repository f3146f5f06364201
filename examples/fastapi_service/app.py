"""A service in front of an API that allows ten calls a second: `uvicorn app:app`, the API in UPSTREAM."""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import BackgroundTasks, FastAPI, Request
from fastapi.responses import JSONResponse

from shapekit import RateLimitedError
from shapekit.integrations.httpx import shape

PATIENT = {"shapekit": {"max_wait": "1h"}}
"""Background calls may wait longer than other calls of the client."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """One client with one rate for the whole process. Several processes also need a `store=` and a name."""
    upstream = os.environ.get("UPSTREAM", "http://127.0.0.1:9000")
    async with shape(httpx.AsyncClient(base_url=upstream), rate="10/s", max_wait="0.5s") as client:
        yield {"client": client}


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RateLimitedError)
async def busy(request: Request, error: RateLimitedError) -> JSONResponse:
    """The queue is full: refuse at once, and say when to try again."""
    headers = {"Retry-After": str(math.ceil(error.retry_after))}
    return JSONResponse({"detail": "too many at once"}, status_code=503, headers=headers)


@app.get("/quotes/{symbol}")
async def quote(symbol: str, request: Request) -> Any:
    """A user waits for this, so it waits for its slot at most half a second."""
    response = await request.state.client.get(f"/{symbol}")
    return response.json()


@app.post("/refresh", status_code=202)
async def refresh(symbols: list[str], request: Request, later: BackgroundTasks) -> dict[str, int]:
    """No user waits for these: they are fetched after the response has been sent."""
    later.add_task(fetch_all, request.state.client, symbols)
    return {"accepted": len(symbols)}


async def fetch_all(client: httpx.AsyncClient, symbols: list[str]) -> None:
    """One after another, so that at most one of them is in the queue before a user's request."""
    for symbol in symbols:
        await client.get(f"/{symbol}", extensions=PATIENT)
