"""The page on LlamaIndex runs, and the reference has every public name."""

from pathlib import Path

import pytest

from shapekit.integrations import llama_index

from ...docs.test_markdown import FENCE
from ...redis_server import RedisServer

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_runs():
    page = (DOCS / "how-to" / "llama-index.md").read_text("utf-8")
    [code] = [code for language, code in FENCE.findall(page) if language == "python"]
    namespace = {}
    with RedisServer() as redis:
        exec(code.replace("redis://localhost", redis.url), namespace)
        assert len(namespace["embed_model"].get_text_embedding("why?")) == 8
        namespace["budget"].close()


@pytest.mark.parametrize("name", llama_index.__all__)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(name):
    reference = (DOCS / "reference" / "integrations.md").read_text("utf-8")
    assert f"::: shapekit.integrations.llama_index.{name}\n" in reference
    assert getattr(llama_index, name).__doc__
