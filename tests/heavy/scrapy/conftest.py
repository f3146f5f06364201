import asyncio
import logging
import time

import pytest
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerRunner

from ...adapters.http.server import Reply, Server

DOWNLOADER = "shapekit.integrations.scrapy.ShapedDownloader"


class Asking(Spider):
    """Sends its requests, and records their results."""

    name = "asking"

    def __init__(self, requests, crawled=None, **options):
        super().__init__(**options)
        self._requests, self._crawled = requests, crawled or (lambda _: None)
        self.statuses, self.errors, self.tasks, self.last = [], [], [], None

    async def start(self):
        for request in self._requests:
            yield request.replace(callback=self.parse, errback=self.failed)

    async def parse(self, response):
        self.statuses.append(response.status)
        self.last = response
        begun = len(self.tasks)
        self._crawled(self)
        self.tasks[begun:] = map(asyncio.ensure_future, self.tasks[begun:])

    def failed(self, failure):
        self.errors.append(failure.value)


@pytest.fixture
def left():
    """Where each request went, and when it left."""
    return []


@pytest.fixture
def server(left):
    """Answers what `by_path` has for a path, or what `script` holds, in the order of arrival, then 200."""

    def answer(arrival):
        left.append((arrival.path, server.now()))
        if arrival.path in server.by_path:
            return server.by_path[arrival.path]
        return server.script.pop(0) if server.script else Reply()

    server = Server(answer)
    server.now, server.script, server.settings = time.monotonic, [], {}
    server.by_path = {}
    server.start()
    yield server
    server.close()


@pytest.fixture
def virtual_time(server, shapekit_time):
    """Time that passes only where a request waits, for requests that are sent one by one."""
    server.settings = {"CONCURRENT_REQUESTS": 1, "SHAPEKIT_MOST_WAITING": 0}
    server.now = lambda: round(shapekit_time.now(), 6)


@pytest.fixture
def crawl(server):
    """Crawls paths of the server, or requests; returns the spider. After each answer it calls `crawled`."""

    def run(*requests, crawled=None, settings=None, **shaping):
        made = [
            wanted if isinstance(wanted, Request) else Request(server.url + wanted, dont_filter=True)
            for wanted in requests
        ]
        runner = AsyncCrawlerRunner(
            {
                "DOWNLOADER": DOWNLOADER,
                "SHAPEKIT": shaping,
                "TWISTED_REACTOR_ENABLED": False,
                "TELNETCONSOLE_ENABLED": False,
                "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
                "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
                **server.settings,
                **(settings or {}),
            }
        )

        async def crawling():
            crawler = runner.create_crawler(Asking)
            await runner.crawl(crawler, made, crawled=crawled)
            await asyncio.gather(*crawler.spider.tasks)
            return crawler.spider

        return asyncio.run(crawling())

    logging.getLogger("scrapy").setLevel(logging.ERROR)
    yield run
    logging.getLogger("scrapy").setLevel(logging.NOTSET)
