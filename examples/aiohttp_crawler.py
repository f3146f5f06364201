"""A crawler that stays under a site's limit. Run it: it brings a site that takes 25 calls a second."""

import asyncio
import time

import aiohttp
from aiohttp import web

from shapekit.integrations.aiohttp import shaped_middleware

MOST = 25
PAGES = 40
WORKERS = 8


class Site:
    """Pages that link to each other, behind a strict limit."""

    def __init__(self) -> None:
        self.served: list[float] = []
        self.refused = 0

    async def page(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        if len([at for at in self.served if now - at < 1.0]) >= MOST:
            self.refused += 1
            return web.Response(status=429, headers={"Retry-After": "1"})
        self.served.append(now)
        number = int(request.match_info["number"])
        return web.json_response([f"/{link}" for link in (2 * number, 2 * number + 1) if link <= PAGES])


async def crawl(session: aiohttp.ClientSession, start: str) -> set[str]:
    """Find all pages that can be reached, with eight workers whose code has no limits in it."""
    found, queue = {start}, asyncio.Queue[str]()
    queue.put_nowait(start)

    async def work() -> None:
        while True:
            path = await queue.get()
            async with session.get(path) as response:
                if response.status == 429:
                    queue.put_nowait(path)  # all workers wait as long as the site says
                else:
                    new = set(await response.json()) - found
                    found.update(new)
                    for link in new:
                        queue.put_nowait(link)
            queue.task_done()

    async with asyncio.TaskGroup() as workers:
        tasks = [workers.create_task(work()) for _ in range(WORKERS)]
        await queue.join()
        for task in tasks:
            task.cancel()
    return found


async def main() -> None:
    """Serve the site, crawl it, and report the result."""
    site = Site()
    application = web.Application()
    application.router.add_get(r"/{number:\d+}", site.page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    # A little below the site's limit: requests leave evenly, but do not arrive quite as evenly.
    polite = shaped_middleware(rate=f"{MOST}/s", headroom=0.2)
    start = time.monotonic()
    async with aiohttp.ClientSession(f"http://{host}:{port}", middlewares=[polite]) as session:
        found = await crawl(session, "/1")
    await runner.cleanup()
    print(f"{len(found)} pages in {time.monotonic() - start:.1f} s, {site.refused} times refused")


if __name__ == "__main__":
    asyncio.run(main())
