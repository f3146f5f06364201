"""The site builds without a warning, and loads nothing from other hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from .test_reference import named

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

LOADED = {
    **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed", "input"), "src"),
    "link": "href",
    "object": "data",
}
"""Elements for which a browser loads a resource, and the attribute with its address."""
NOT_LOADED = {"canonical", "next", "prev"}
"""Relations of a `link` for which a browser loads nothing."""
ELSEWHERE = re.compile(r"^\s*(?:[a-z]+:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?((?:[a-z]+:)?//[^'\")\s]*)", re.IGNORECASE)


class Page(HTMLParser):
    """A page's anchors, and the resources that it loads from other hosts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.elsewhere: list[str] = []
        self.quotes_doctests = bool(re.search(r"<blockquote>\s*(<blockquote>|<p>&gt;)", html))
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids.add(attributes.get("id", ""))
        self.elsewhere += IN_STYLE.findall(attributes.get("style", ""))
        # Diagrams would be drawn by a script that the theme loads from another host.
        is_diagram = "mermaid" in attributes.get("class", "").split()
        target = attributes.get(LOADED.get(tag, ""), "")
        if is_diagram or (ELSEWHERE.match(target) and attributes.get("rel") not in NOT_LOADED):
            self.elsewhere.append(target or "mermaid")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.elsewhere += IN_STYLE.findall(data)


def test_the_site_is_complete_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    # One test for all of it: building takes seconds, and every process of a test run would do it again.
    site = tmp_path / "site"
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert run.returncode == 0, run.stderr

    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 20
    assert {
        str(path.relative_to(site)): page.elsewhere for path, page in pages.items() if page.elsewhere
    } == {}
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert [target for style in styles for target in IN_STYLE.findall(style)] == []

    anchors = set().union(*(page.ids for page in pages.values()))
    assert named() - anchors == set()
    assert [str(path.relative_to(site)) for path, page in pages.items() if page.quotes_doctests] == []

    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "Retry-After" in entry["text"]}
    assert {"how-to/obey-429/", "reference/feedback/"} <= found


def test_a_resource_of_another_host_is_found() -> None:
    page = Page(
        '<link rel="canonical" href="https://a.example/"><a href="https://b.example/">b</a>'
        '<img src="/pictures/c.svg"><script src="//d.example/e.js"></script>'
        '<link rel="stylesheet" href="https://f.example/g.css"><style>@import "https://h.example/i.css"</style>'
        '<pre class="mermaid">graph</pre><p style="background: url(//j.example/k.png)">url("redis://l")</p>'
    )
    assert page.elsewhere == [
        *("//d.example/e.js", "https://f.example/g.css", "https://h.example/i.css", "mermaid"),
        "//j.example/k.png",
    ]


def test_a_doctest_that_became_a_quotation_is_found() -> None:
    assert Page("<blockquote>\n<blockquote><p>1 + 1</p>").quotes_doctests
    assert not Page("<blockquote>\n<p>somebody's words</p>").quotes_doctests
