"""A service in front of an API that admits ten calls a second: `uvicorn app:app`, the API in UPSTREAM."""

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
"""Background calls may wait longer than the client allows otherwise."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """One client for the whole process, with one rate. Several processes: give it a `store=`, and a name."""
    upstream = os.environ.get("UPSTREAM", "http://127.0.0.1:9000")
    async with shape(httpx.AsyncClient(base_url=upstream), rate="10/s", max_wait="0.5s") as client:
        yield {"client": client}


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RateLimitedError)
async def busy(request: Request, error: RateLimitedError) -> JSONResponse:
    """The queue is full: refuse at once, and say when to come again."""
    headers = {"Retry-After": str(math.ceil(error.retry_after))}
    return JSONResponse({"detail": "too many at once"}, status_code=503, headers=headers)


@app.get("/quotes/{symbol}")
async def quote(symbol: str, request: Request) -> Any:
    """Somebody waits for this, so it waits for its slot at most half a second."""
    response = await request.state.client.get(f"/{symbol}")
    return response.json()


@app.post("/refresh", status_code=202)
async def refresh(symbols: list[str], request: Request, later: BackgroundTasks) -> dict[str, int]:
    """Nobody waits for these: they are fetched when the answer has been sent."""
    later.add_task(fetch_all, request.state.client, symbols)
    return {"accepted": len(symbols)}


async def fetch_all(client: httpx.AsyncClient, symbols: list[str]) -> None:
    """One after the other: so never more than one of them stands in line before those who are waited for."""
    for symbol in symbols:
        await client.get(f"/{symbol}", extensions=PATIENT)
