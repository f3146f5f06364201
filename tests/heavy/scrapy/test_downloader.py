"""The downloader: spiders run on an asyncio loop of the test, against a server on loopback.

Time is virtual: it stands still while requests travel, and shows when each of them has left.
"""

import asyncio
from contextlib import closing

import pytest
from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest

from shapekit import ConfigError, Policy, QueueFullError

from ...adapters.http.server import Reply

PLAIN_QUEUE = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
"""First come, first served, whatever else the downloader has to do for a host."""


def refusal(retry_after):
    return Reply(429, {"Retry-After": str(retry_after)})


@pytest.fixture
def request_to(server):
    def made(path, host="127.0.0.1", **shaping):
        url = server.url.replace("127.0.0.1", host) + path
        return Request(url, dont_filter=True, meta={"shapekit": shaping} if shaping else {})

    return made


def times(left, start=""):
    began = left[0][1]
    return [round(at - began, 3) for path, at in left if path.startswith(start)]


@pytest.mark.usefixtures("virtual_time")
def test_each_request_takes_a_slot(crawl, left):
    spider = crawl("/a", "/b", "/c", rate="10/s")
    assert spider.statuses == [200] * 3
    assert left == [("/a", 0.0), ("/b", 0.1), ("/c", 0.2)]


@pytest.mark.usefixtures("virtual_time")
def test_hosts_have_limits_of_their_own(crawl, left, request_to):
    crawl("/a", request_to("/b", "localhost"), rate="10/s")
    assert times(left) == [0.0, 0.0]


@pytest.mark.usefixtures("virtual_time")
def test_a_request_may_have_a_cost(crawl, left, request_to):
    crawl(request_to("/a", cost=5), "/b", rate="10/s", burst=5)
    assert times(left) == [0.0, 0.1]
    left.clear()
    crawl(request_to("/a", cost=5), request_to("/b", cost=5), rate="10/s", burst=5)
    assert times(left) == [0.0, 0.5]


@pytest.mark.usefixtures("virtual_time")
def test_a_request_may_skip_shaping(crawl, left, request_to):
    spider = crawl("/a", request_to("/b", skip=True), Request("data:,some"), "/c", rate="10/s")
    assert spider.statuses == [200] * 4
    assert sorted(left) == [("/a", 0.0), ("/b", 0.0), ("/c", 0.1)]


@pytest.mark.usefixtures("virtual_time")
def test_a_429_holds_the_host_and_the_retry_waits(crawl, left, server):
    server.script = [refusal(7)]
    spider = crawl("/a", rate="10/s")
    assert spider.statuses == [200]
    assert left == [("/a", 0.0), ("/a", 7.1)]


def close_after(quick):
    """Close the spider when so many answers are there."""

    def crawled(spider):
        if len(spider.statuses) == quick:
            raise CloseSpider("enough")

    return crawled


@pytest.mark.parametrize("meta", [True, False])
def test_keys_of_one_host_do_not_wait_for_each_other(crawl, left, request_to, meta):
    paths = [f"/{account}/{number}" for account in "ab" for number in range(3)]
    requests = [request_to(path, key=f"of {path[1]}") if meta else path for path in paths]
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    crawl(*requests, crawled=close_after(2), settings=settings, rate="1/hour", key="{host} {path[0]}")
    assert sorted(path[1] for path, _ in left) == ["a", "b"]


@pytest.mark.parametrize("queue", ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"])
def test_a_slow_host_does_not_starve_another(crawl, left, request_to, server, queue):
    slow = [request_to(f"/slow/{number}", "localhost") for number in range(30)]
    quick = [request_to(f"/quick/{number}") for number in range(30)]
    crawl(
        *slow,
        *quick,
        crawled=close_after(31),
        settings={"CONCURRENT_REQUESTS": 4, "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{queue}"},
        rate="100/s",
        routes={server.url.replace("127.0.0.1", "localhost"): "1/hour"},
    )
    assert len(times(left, "/quick")) == 30
    assert len(times(left, "/slow")) == 1


def then_crawl(request):
    """Crawl this one with the `meta` of the first answer, and close the spider after the next one."""

    def crawled(spider):
        if len(spider.statuses) == 1:
            meta = {**spider.last.meta, **request.meta}
            spider.crawler.engine.crawl(request.replace(meta=meta, callback=spider.parse))
        close_after(2)(spider)

    return crawled


def test_a_redirect_waits_in_the_queue_of_the_host_that_it_leads_to(crawl, left, request_to, server):
    slow = server.url.replace("127.0.0.1", "localhost")
    paths = [f"/moved/{number}" for number in range(3)]
    server.by_path = dict.fromkeys(paths, Reply(302, {"Location": f"{slow}/slow"}))
    settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 2, **PLAIN_QUEUE}
    # The redirected requests wait by then.
    crawled = then_crawl(request_to("/quick"))
    crawl(*paths, crawled=crawled, settings=settings, rate="100/s", routes={slow: "1/hour"})
    assert sorted(path for path, _ in left) == [*paths, "/quick", "/slow"]


def test_a_request_with_the_meta_of_an_answer_waits_in_the_queue_of_its_own_key(crawl, left, request_to):
    of_a = [request_to(path, key="a") for path in ("/a", "/a/waits")]
    crawl(*of_a, crawled=then_crawl(request_to("/b", key="b")), rate="1/hour")
    assert [path for path, _ in left] == ["/a", "/b"]


def test_a_429_of_one_host_does_not_hold_another(crawl, left, server, request_to):
    server.script = [refusal(3600)]
    held = [request_to(f"/held/{number}", "localhost") for number in range(20)]
    free = [request_to(f"/free/{number}") for number in range(20)]
    settings = {"CONCURRENT_REQUESTS": 4, **PLAIN_QUEUE}
    crawl(*held, *free, crawled=close_after(20), settings=settings, rate="100/s")
    assert len(times(left, "/free")) == 20
    assert len(times(left, "/held")) == 1


def test_a_bounded_number_of_requests_waits_outside_of_the_scheduler(crawl):
    most = []

    def crawled(spider):
        most.append(len(spider.crawler.engine.downloader.active))

    settings = {"CONCURRENT_REQUESTS": 4, "SHAPEKIT_MOST_WAITING": 10}
    crawl(*(f"/{number}" for number in range(40)), crawled=crawled, settings=settings, rate="100/s")
    assert max(most) in range(10, 15)


@pytest.mark.usefixtures("virtual_time")
def test_a_request_that_would_wait_too_long_fails_and_costs_nothing(crawl, left, request_to):
    spider = crawl("/a", request_to("/b", max_wait=0), "/c", rate="10/s")
    (error,) = spider.errors
    assert isinstance(error, QueueFullError)
    assert error.retry_after == pytest.approx(0.1)
    assert left == [("/a", 0.0), ("/c", 0.1)]


def account(request):
    return request.meta["account"]


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("wish", [{"speed": 3}, {"cost": "much"}, {}])
def test_a_request_with_a_wrong_option_fails_and_stops_no_other(crawl, left, server, wish):
    made = [Request(f"{server.url}/{name}", meta={"account": "anna"}, dont_filter=True) for name in "abc"]
    if wish:
        made[1].meta["shapekit"] = wish
    else:
        del made[1].meta["account"]
    spider = crawl(*made, rate="10/s", key=account)
    assert [type(error) for error in spider.errors] == [ConfigError if wish else KeyError]
    assert left == [("/a", 0.0), ("/c", 0.1)]


def test_requests_give_their_permits_back_also_when_they_fail(crawl):
    broken = Request("http://127.0.0.1:1/refused")
    spider = crawl("/a", broken, "/b", settings={"RETRY_ENABLED": False}, key="default", concurrency=1)
    assert spider.statuses == [200, 200]
    assert len(spider.errors) == 1


API = Policy("2/s", name="api")


def test_a_policy_is_given_by_its_path(crawl, left, request_to):
    crawl("/a", request_to("/b", "localhost"), policy=f"{__name__}.API")
    assert API.shaper.forecast().first_in > 0
    assert len(left) == 2


@pytest.mark.parametrize(
    ("shaping", "settings", "field"),
    [
        ({}, {}, "rate"),
        ({}, {"SHAPEKIT": "10/s"}, "SHAPEKIT"),
        ({}, {"SHAPEKIT": 10}, "SHAPEKIT"),
        ({"rate": "10/s", "speed": 3}, {}, "speed"),
        ({"rate": "10/s", "on_reject": "respond"}, {}, "SHAPEKIT['on_reject']"),
        ({"rate": "10/s"}, {"SHAPEKIT_MOST_WAITING": -1}, "SHAPEKIT_MOST_WAITING"),
    ],
)
def test_a_wrong_setting_is_named(crawl, refused, shaping, settings, field):
    refused(lambda: crawl("/a", settings=settings, **shaping), field)


@pytest.fixture
def persisted(tmp_path):
    """The settings of a spider that may go on where it was closed."""
    return {"CONCURRENT_REQUESTS_PER_DOMAIN": 3, "JOBDIR": str(tmp_path / "job")}


def test_a_spider_that_closes_gives_back_its_slots_and_its_requests(crawl, left, persisted, tmp_path):
    limits = {"name": "crawl", "store": str(tmp_path / "slots.db"), "key": "default"}
    paths = [f"/{number}" for number in range(10)]
    crawl(*paths, crawled=close_after(1), settings=persisted, rate="1/hour", **limits)
    assert len(left) == 1
    with closing(Policy("1/hour", **limits)) as policy:
        assert policy.shaper.forecast(key="default").first_in <= 3600
        policy.shaper.reset("default")
    spider = crawl(settings=persisted, rate="1000/s", **limits)
    assert len(spider.statuses) == 9
    assert sorted(path for path, _ in left) == sorted(paths)


def test_a_request_that_is_awaited_when_the_spider_closes_is_refused(crawl, left, request_to):
    refused = []

    async def wait_for_answer(spider):
        with pytest.raises(IgnoreRequest, match="closes"):
            await spider.crawler.engine.download_async(request_to("/b"))
        refused.append(True)

    async def close_meanwhile(engine):
        while not engine.downloader.active:  # noqa: ASYNC110 - Scrapy has no event for it
            await asyncio.sleep(0)  # until it waits
        await engine.close_spider_async(reason="enough")

    def crawled(spider):
        spider.tasks += wait_for_answer(spider), close_meanwhile(spider.crawler.engine)

    crawl("/a", crawled=crawled, rate="1/hour")
    assert len(left) == 1
    assert refused


def test_a_request_awaited_while_the_spider_closes_leaves_if_its_slot_is_free(crawl, left, request_to):
    ended = []

    async def ask_while_it_closes(engine):
        downloads = [engine.download_async(request_to(path)) for path in ("/b", "/c")]
        closing = engine.close_spider_async(reason="enough")
        ended.extend(await asyncio.gather(*downloads, closing, return_exceptions=True))

    def crawled(spider):
        spider.tasks.append(ask_while_it_closes(spider.crawler.engine))

    crawl("/a", crawled=crawled, rate="2/hour", pace="burst")
    assert [path for path, _ in left] == ["/a", "/b"]
    assert ended[0].status == 200
    assert isinstance(ended[1], IgnoreRequest)
