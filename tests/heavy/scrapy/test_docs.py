"""The settings on the page on Scrapy work, and the reference has every public name."""

from pathlib import Path

import pytest
from scrapy import Request

from shapekit.integrations import scrapy

from ...docs.test_markdown import FENCE
from ...redis_server import RedisServer

DOCS = Path(__file__).parents[3] / "docs"
BLOCKS = [
    code
    for language, code in FENCE.findall((DOCS / "how-to" / "scrapy.md").read_text("utf-8"))
    if language == "python"
]


def test_the_page_has_settings_and_a_request():
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("code", BLOCKS)
def test_the_page_runs(crawl, code):
    made = {}
    with RedisServer() as redis:
        exec(code.replace("redis://localhost", redis.url), made)
        request = made.get("request", Request("http://some/", dont_filter=True))
        settings = {name: made[name] for name in ("DOWNLOADER",) if name in made}
        path = request.replace(url="data:,some")
        spider = crawl("/a", path, settings=settings, **made.get("SHAPEKIT", {"rate": "10/s", "burst": 5}))
    assert spider.statuses == [200, 200]


@pytest.mark.parametrize("name", scrapy.__all__)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(name):
    reference = (DOCS / "reference" / "integrations.md").read_text("utf-8")
    assert f"::: shapekit.integrations.scrapy.{name}\n" in reference
    assert getattr(scrapy, name).__doc__
