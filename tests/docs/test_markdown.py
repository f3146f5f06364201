"""The code of the pages runs, and their links lead somewhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import celery.app.builtins  # noqa: F401 - whose tasks every app has
import pytest
from celery import _state as celery_state

from ..redis_cluster import shared_cluster
from ..redis_server import shared_server

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOW_TO = ROOT / "docs" / "how-to"
WITH_PYTEST = HOW_TO / "testing-shaped-code.md"  # which test_testing_page.py runs
WITH_SDKS = HOW_TO / "sdks-that-take-a-client.md"  # which tests/heavy/cookbook runs
RUNNING = [page for page in PAGES if page.parent.name != "tutorial" and page not in (WITH_PYTEST, WITH_SDKS)]
"""The tutorial is walked through by test_tutorial.py."""
LINKING = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]

FENCE = re.compile(r"^```([\w+-]*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n+\Z")
NOT_CODE = {"", "text", "sh", "toml", "lua", "markdown"}
"""Languages that a fence may have beside Python. A fence in any other has to be checked by a test."""
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
"""A link, or a picture."""
FROM_DOCSTRING = re.compile(r"^::: (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


LOCAL_REDIS = "redis://localhost"
"""The reader's Redis on the pages: here it is one of the tests' own."""
A_CLUSTER = "redis://cluster-1:6379"
"""A server of the reader's cluster on the pages."""
IMPATIENT, PATIENT = "socket_timeout=0.5", "socket_timeout=20"
"""How long a page waits for a Redis, and how long it has to wait on a machine that is busy with tests."""


class Block(NamedTuple):
    line: int
    code: str


def blocks(markdown: str) -> Iterator[Block]:
    """The Python blocks of a page, but for those marked `<!-- not run: reason -->`."""
    for fence in FENCE.finditer(markdown):
        language, code = fence.groups()
        if language == "python":
            if not NOT_RUN.search(markdown, 0, fence.start()):
                yield Block(markdown.count("\n", 0, fence.start()) + 1, code)
        elif language not in NOT_CODE:
            raise AssertionError(f"a block of {language!r}: write python, or one of {sorted(NOT_CODE)}")


def run(markdown: str, name: str) -> int:
    """Run a page from top to bottom, in one namespace; returns how many blocks it had."""
    namespace: dict[str, object] = {"__name__": name}
    found = list(blocks(markdown))
    for block in found:
        code = block.code.replace(IMPATIENT, PATIENT)
        if LOCAL_REDIS in code:
            code = code.replace(LOCAL_REDIS, f"redis://127.0.0.1:{shared_server().port}")
        if A_CLUSTER in code:
            code = code.replace(A_CLUSTER, f"redis://127.0.0.1:{shared_cluster().servers[0].port}")
        # The blank lines make tracebacks point at the line of the page.
        exec(compile("\n" * block.line + code, name, "exec"), namespace)
    return len(found)


def anchors(markdown: str) -> set[str]:
    """The parts after # that a link may have."""
    headings = HEADING.findall(FENCE.sub("", markdown))
    own = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return own | set(FROM_DOCSTRING.findall(markdown))


def dead_links(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            dead.append(target)
    return dead


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """Logging that a page configures is for the page alone."""
    loggers = [logging.getLogger(name) for name in ("", "shapekit", "shapekit.progress", "shapekit.store")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def celery_as_it_was() -> Iterator[None]:
    """The tasks that a page declares are for the page alone: Celery hands them to every app that is made."""
    before = set(celery_state._on_app_finalizers)
    yield
    celery_state._on_app_finalizers.intersection_update(before)


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, logging_as_it_was: None, celery_as_it_was: None) -> None:
    run(page.read_text(encoding="utf-8"), str(page))


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_the_readme_has_code() -> None:
    assert list(blocks((ROOT / "README.md").read_text(encoding="utf-8")))


MADE_UP = """
# A page

```python
seen = 1
```

<!-- not run: needs a server -->

```python
raise RuntimeError("not reached")
```

```sh
exit 1
```

```python
assert seen == 1
```
"""


def test_blocks_share_a_namespace_and_marked_ones_do_not_run() -> None:
    assert run(MADE_UP, "page.md") == 2


def test_a_block_that_fails_fails_at_its_line() -> None:
    with pytest.raises(AssertionError) as failure:
        run(MADE_UP.replace("seen = 1", "seen = 2"), "page.md")
    assert failure.traceback[-1].lineno + 1 == MADE_UP[: MADE_UP.index("assert")].count("\n") + 1


@pytest.mark.parametrize("mark", ["<!-- not run: -->", "<!-- not run -->", ""])
def test_a_block_is_skipped_only_with_a_reason(mark: str) -> None:
    with pytest.raises(RuntimeError, match="not reached"):
        run(MADE_UP.replace("<!-- not run: needs a server -->", mark), "page.md")


def test_code_under_another_name_is_not_skipped() -> None:
    with pytest.raises(AssertionError, match="pycon"):
        run("```pycon\n>>> 1\n2\n```\n", "page.md")


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One word\n[a](page.md) [b](gone.md) [c](#one-word) [d](page.md#two) [e](https://x.org)\n"
        "![f](gone.svg) [g](#shapekit.Gate)\n\n::: shapekit.Gate\n"
    )
    assert dead_links(page) == ["gone.md", "page.md#two", "gone.svg"]
