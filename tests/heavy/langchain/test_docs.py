"""The page on LangChain runs, and the reference has every public name."""

import gc
import warnings
from pathlib import Path

import pytest

from shapekit.integrations import langchain

from ...docs.test_markdown import FENCE
from ...llm.provider import Provider
from ...redis_server import RedisServer

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_runs(monkeypatch):
    page = (DOCS / "how-to" / "langchain.md").read_text("utf-8")
    blocks = [code for language, code in FENCE.findall(page) if language == "python"]
    assert len(blocks) == 5
    namespace = {}
    with Provider() as provider, RedisServer() as redis:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        for code in blocks:
            exec(code.replace("redis://localhost", redis.url), namespace)
            model = namespace["model"]
            assert model.invoke("why?", max_tokens=10).content == "because"
        assert namespace["agent"].invoke({"messages": "why?"})["messages"][-1].content == "because"
        used = len(provider.arrivals)
        assert namespace["completion"].invoke("why?") == "because"
        assert len(provider.arrivals) == used + 1
        policies = [namespace["policy"], namespace["budget"]]
        for each in policies:
            each.close()
    # The models of the page leave their connections to the collector: here, and not in another test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        namespace.clear()
        del model
        gc.collect()


@pytest.mark.parametrize("name", langchain.__all__)
def test_a_public_name_is_in_the_reference_and_has_a_docstring(name):
    reference = (DOCS / "reference" / "integrations.md").read_text("utf-8")
    assert f"::: shapekit.integrations.langchain.{name}\n" in reference
    assert getattr(langchain, name).__doc__
