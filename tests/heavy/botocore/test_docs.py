"""The page on AWS runs, and the reference has every public name."""

from pathlib import Path

import pytest

from shapekit.integrations import botocore

from ...docs.test_markdown import FENCE
from ...redis_server import RedisServer

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_runs(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "AKID")
    page = (DOCS / "how-to" / "aws.md").read_text("utf-8")
    blocks = [code for language, code in FENCE.findall(page) if language == "python"]
    assert len(blocks) == 5
    with RedisServer() as redis:
        namespace = {}
        for code in blocks:
            exec(code.replace("redis://localhost", redis.url), namespace)


@pytest.mark.parametrize("name", botocore.__all__)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(name):
    reference = (DOCS / "reference" / "integrations.md").read_text("utf-8")
    if name != "request_options":  # which is that of requests
        assert f"::: shapekit.integrations.botocore.{name}\n" in reference
    assert getattr(botocore, name).__doc__
