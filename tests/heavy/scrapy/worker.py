"""A process that crawls: `python worker.py REACTOR URL SETTINGS`, the last as JSON.

Prints "ready", waits for a line, and crawls until the server answers 410; then it prints when the slots of
its requests came, and the longest time for which its reactor stood still. REACTOR is "asyncio", "epoll", or
"none".
"""

import json
import sys
import time

from scrapy import Request, Spider, signals
from scrapy.crawler import AsyncCrawlerProcess, CrawlerProcess
from scrapy.exceptions import CloseSpider
from scrapy.utils.asyncio import create_looping_call

from shapekit.events import Departed, listen

REACTORS = {
    "asyncio": (CrawlerProcess, {}),
    "epoll": (CrawlerProcess, {"TWISTED_REACTOR": "twisted.internet.epollreactor.EPollReactor"}),
    "none": (AsyncCrawlerProcess, {"TWISTED_REACTOR_ENABLED": False}),
}
REQUESTS = 400
TICK_S = 0.02
GONE = 410


class Crawling(Spider):
    name = "crawling"
    handle_httpstatus_list = (GONE,)
    url = ""
    stood_still = 0.0

    @classmethod
    def from_crawler(cls, crawler, *args, **options):
        spider = super().from_crawler(crawler, *args, **options)
        crawler.signals.connect(spider.opened, signals.spider_opened)
        crawler.signals.connect(spider.closed_, signals.spider_closed)
        return spider

    def opened(self):
        self.last = None
        self.ticking = create_looping_call(self.tick)
        self.ticking.start(TICK_S)

    def tick(self):
        now = time.monotonic()
        if self.last is not None:
            Crawling.stood_still = max(Crawling.stood_still, now - self.last)
        self.last = now

    def closed_(self):
        self.ticking.stop()

    async def start(self):
        for number in range(REQUESTS):
            yield Request(f"{self.url}/{number}", dont_filter=True)

    def parse(self, response):
        if response.status == GONE:
            raise CloseSpider


def note(event):
    if isinstance(event, Departed):
        slots.append(time.monotonic() - event.late)


if __name__ == "__main__":
    slots = []
    listen(note)
    reactor, url, settings = sys.argv[1:]
    kind, of_reactor = REACTORS[reactor]
    process = kind(
        {
            "LOG_LEVEL": "ERROR",
            "TELNETCONSOLE_ENABLED": False,
            "RETRY_GIVE_UP_LOG_LEVEL": "DEBUG",
            **of_reactor,
            **json.loads(settings),
        }
    )
    print("ready", flush=True)
    sys.stdin.readline()
    process.crawl(Crawling, url=url)
    process.start()
    print(json.dumps([slots, Crawling.stood_still]), flush=True)
