"""Who may import whom. Read LAYERS downwards: a module imports only from rows above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

LAYERS = (
    ("shapekit.algorithms", "shapekit.stores", "shapekit.integrations"),  # the packages' own, empty files
    ("shapekit.decision",),
    ("shapekit.errors", "shapekit.switch", "shapekit.value", "shapekit.nonce"),
    ("shapekit.afterwards",),
    ("shapekit.events",),
    ("shapekit.alarm", "shapekit.keys"),
    ("shapekit.clock", "shapekit.line", "shapekit.target"),
    ("shapekit.scopes",),
    ("shapekit.rate",),
    ("shapekit.manual_clock", "shapekit.waiting", "shapekit.metrics"),
    ("shapekit.algorithms.base", "shapekit.algorithms.calendar", "shapekit.algorithms.tempo"),
    ("shapekit.algorithms.meter", "shapekit.algorithms.periods"),
    ("shapekit.algorithms.adaptive", "shapekit.algorithms.aimd"),
    (
        "shapekit.algorithms.gcra",
        "shapekit.algorithms.token_bucket",
        "shapekit.algorithms.leaky_bucket",
        "shapekit.algorithms.fixed_window",
        "shapekit.algorithms.sliding_window",
        "shapekit.algorithms.sliding_log",
        "shapekit.algorithms.period_counter",
    ),
    ("shapekit.algorithms.spread_counter",),
    ("shapekit.algorithms.quota", "shapekit.algorithms.composite"),
    ("shapekit.algorithms.compose",),
    ("shapekit.algorithms.runs",),
    ("shapekit.algorithms.concurrency",),
    ("shapekit.algorithms.constraints", "shapekit.spec"),
    ("shapekit.algorithms.grant", "shapekit.algorithms.places"),
    ("shapekit.algorithms.gaps",),
    ("shapekit.algorithms.wired_queue",),
    ("shapekit.algorithms.many_turns",),
    ("shapekit.algorithms.leaky_queue",),
    ("shapekit.algorithms.adaptive_queue",),
    ("shapekit.algorithms.description", "shapekit.algorithms.usage"),
    (
        "shapekit.stores.base",
        "shapekit.stores.errand",
        "shapekit.stores.file_lock",
        "shapekit.stores.parking",
        "shapekit.stores.host_clock",
    ),
    ("shapekit.stores.records", "shapekit.stores.states", "shapekit.stores.tags", "shapekit.stores.undo"),
    ("shapekit.stores.sighting",),
    ("shapekit.stores.sqlite_file",),
    ("shapekit.stores.sqlite_records",),
    ("shapekit.stores.sqlite_survey",),
    (
        "shapekit.stores.script",
        "shapekit.stores.redis_connections",
        "shapekit.stores.redis_keys",
        "shapekit.stores.redis_map",
    ),
    ("shapekit.stores.redis_program", "shapekit.stores.redis_link", "shapekit.stores.coalesce"),
    ("shapekit.stores.redis_loops", "shapekit.stores.redis_survey"),
    ("shapekit.stores.memory", "shapekit.stores.sqlite", "shapekit.stores.redis"),
    ("shapekit.stores.breaker", "shapekit.stores.deadline", "shapekit.stores.sides"),
    ("shapekit.stores.outage",),
    ("shapekit.stores.guard",),
    ("shapekit.stores.resilient",),
    (
        "shapekit.feedback.hint",
        "shapekit.feedback.fields",
        "shapekit.feedback.structured",
        "shapekit.feedback.incident",
    ),
    ("shapekit.feedback.answer",),
    ("shapekit.feedback.shopify",),
    ("shapekit.feedback.dialects",),
    ("shapekit.feedback.feedback",),
    ("shapekit.feedback",),
    ("shapekit.stock",),
    ("shapekit.rooms",),
    ("shapekit.lease_keeper",),
    ("shapekit.seats",),
    ("shapekit.gate", "shapekit.reservation", "shapekit.confirmations", "shapekit.budgets"),
    ("shapekit.leases",),
    ("shapekit.teller",),
    ("shapekit.departure",),
    ("shapekit.levers", "shapekit.tallies", "shapekit.turns"),
    ("shapekit.learning",),
    ("shapekit.shaper", "shapekit.scoped_caller"),
    ("shapekit.scoped_turns",),
    ("shapekit.admission", "shapekit.ticket"),
    ("shapekit.policy_parts", "shapekit.seated_admission"),
    ("shapekit.policy",),
    ("shapekit.gauges",),
    ("shapekit.integrations.prometheus", "shapekit.integrations.opentelemetry"),
    ("shapekit.calls",),
    ("shapekit.decorator",),
    ("shapekit.outgoing", "shapekit.request_options", "shapekit.ending", "shapekit.retry_budget"),
    ("shapekit.llm_usage",),
    ("shapekit.llm_estimate", "shapekit.llm_failure", "shapekit.llm_limits"),
    ("shapekit.llm_call",),
    ("shapekit.llm_stream",),
    ("shapekit.llm_wrap",),
    ("shapekit.llm",),
    ("shapekit.attempts",),
    ("shapekit.held_stream",),
    ("shapekit.transport",),
    ("shapekit.progress_line",),
    ("shapekit.progress_watch",),
    ("shapekit.progress_loop",),
    ("shapekit.integrations.httpx", "shapekit.integrations.httpx2"),
    ("shapekit.integrations.aiohttp", "shapekit.integrations.requests"),
    ("shapekit.integrations.tenacity",),
    ("shapekit.integrations.celery_shape",),
    ("shapekit.integrations.celery", "shapekit.integrations.celery_parking"),
    ("shapekit.integrations.celery_holds",),
    ("shapekit.integrations.celery_worker",),
    ("shapekit",),
    ("shapekit.cli",),
    ("shapekit.cli.complaint", "shapekit.cli.output", "shapekit.cli.words"),
    ("shapekit.cli.stores", "shapekit.cli.meaning", "shapekit.cli.course"),
    ("shapekit.cli.surveys", "shapekit.cli.row", "shapekit.cli.keyboard"),
    ("shapekit.cli.top",),
    ("shapekit.cli.levers",),
    ("shapekit.cli.demo_log",),
    ("shapekit.cli.demo_server", "shapekit.cli.demo_worker", "shapekit.cli.demo_picture"),
    ("shapekit.cli.demo_crew",),
    ("shapekit.cli.demo",),
    ("shapekit.cli.arrivals", "shapekit.cli.contender"),
    ("shapekit.cli.race", "shapekit.cli.check", "shapekit.cli.plan"),
    ("shapekit.cli.sketch", "shapekit.cli.picture"),
    ("shapekit.cli.simulate",),
    ("shapekit.cli.group",),
    ("shapekit.cli.main",),
    ("shapekit.cli.__main__",),
    ("shapekit.testing.history", "shapekit.testing.faulty", "shapekit.testing.trials"),
    ("shapekit.testing.truth",),
    ("shapekit.testing.timelines", "shapekit.testing.contract"),
    ("shapekit.testing.playing", "shapekit.testing.instants", "shapekit.testing.crowds"),
    ("shapekit.testing.identity",),
    ("shapekit.testing.conformance",),
    ("shapekit.testing",),
)

PURE = {
    *("__future__", "abc", "bisect", "collections", "dataclasses", "datetime", "fractions", "functools"),
    *("itertools", "json", "math", "re", "typing", "zoneinfo"),
}
"""All of the standard library that the mathematics may use: nothing here waits, and nothing does I/O
(but for zoneinfo, which reads its tables)."""

CLOCK_READERS = {"now", "today", "utcnow"}
"""Methods of datetime that read a clock."""


def imports(name: str, source: str, known: Mapping[str, object]) -> Iterator[str]:
    """What a module imports when it runs: a type checker's own imports do not count."""
    is_package = any(other.startswith(f"{name}.") for other in known)
    package = name if is_package else name.rpartition(".")[0]
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                yield inside if inside in known else base


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that is imported from, also where it is written with dots."""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def ours(module: str) -> bool:
    return module.partition(".")[0] in ("shapekit", "integrations")


def layer_of() -> dict[str, int]:
    return {name: index for index, layer in enumerate(LAYERS) for name in layer}


def violations(sources: Mapping[str, str]) -> list[str]:
    """Every import that does not lead upwards in the table, and every module that has no place there."""
    layers = layer_of()
    found = [f"{name} has no place in LAYERS" for name in sources if name not in layers]
    for name, source in sources.items():
        allowed = {above for above, layer in layers.items() if layer < layers.get(name, 0)}
        targets = [target for target in imports(name, source, sources) if ours(target)]
        found += [f"{name} imports {target}" for target in targets if target not in allowed]
    return found


def impurities(sources: Mapping[str, str]) -> list[str]:
    """What the algorithms reach, directly or through our own modules, that pure code must not."""
    found = []
    pending = [name for name in sources if name.startswith("shapekit.algorithms")]
    seen = set(pending)
    while pending:
        name = pending.pop()
        for target in imports(name, sources[name], sources):
            if not ours(target):
                if target.partition(".")[0] not in PURE:
                    found.append(f"{name} imports {target}")
            elif target in sources and target not in seen:
                seen.add(target)
                pending.append(target)
        attributes = [node for node in ast.walk(ast.parse(sources[name])) if isinstance(node, ast.Attribute)]
        found += [f"{name}:{node.lineno} .{node.attr}" for node in attributes if node.attr in CLOCK_READERS]
    return found


@pytest.fixture(scope="module")
def sources(modules: dict[str, Path]) -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in modules.items()}


def test_every_module_has_a_place_and_imports_only_from_above(sources: dict[str, str]) -> None:
    assert len(sources) > 20
    assert violations(sources) == []


def test_the_mathematics_is_pure(sources: dict[str, str]) -> None:
    assert impurities(sources) == []


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("shapekit.clock", "from shapekit.gate import Gate", "shapekit.clock imports shapekit.gate"),
        ("shapekit.clock", "import shapekit.gate", "shapekit.clock imports shapekit.gate"),
        (
            "shapekit.clock",
            "def late():\n    from shapekit import gate",
            "shapekit.clock imports shapekit.gate",
        ),
        ("shapekit.clock", "from . import gate", "shapekit.clock imports shapekit.gate"),
        ("shapekit.clock", "from .gate import Gate", "shapekit.clock imports shapekit.gate"),
        ("shapekit.clock", "from shapekit import GCRA", "shapekit.clock imports shapekit"),
        ("shapekit.clock", "import shapekit.line", "shapekit.clock imports shapekit.line"),
        ("shapekit.gate", "import integrations.httpx", "shapekit.gate imports integrations.httpx"),
        (
            "shapekit.algorithms.gcra",
            "from ..gate import Gate",
            "shapekit.algorithms.gcra imports shapekit.gate",
        ),
        ("shapekit.news", "", "shapekit.news has no place in LAYERS"),
    ],
)
def test_an_import_that_leads_down_is_found(module: str, source: str, found: str) -> None:
    made_up = {"shapekit": "", "shapekit.algorithms": "", "shapekit.gate": "", "shapekit.line": ""}
    assert found in violations({**made_up, module: source})


@pytest.mark.parametrize(
    "source",
    [
        "from shapekit.errors import ConfigError",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shapekit.gate import Gate",
        "import time",
    ],
)
def test_an_import_that_leads_up_is_none(source: str) -> None:
    assert violations({"shapekit.errors": "", "shapekit.gate": "", "shapekit.rate": source}) == []


@pytest.mark.parametrize(
    ("algorithm", "rate"),
    [
        ("import time", ""),
        ("from asyncio import sleep", ""),
        ("import threading", ""),
        ("import anyio.lowlevel", ""),
        ("from shapekit.rate import Rate", "import time"),
        ("from datetime import datetime\nstart = datetime.now()", ""),
    ],
)
def test_an_algorithm_that_is_not_pure_is_found(algorithm: str, rate: str) -> None:
    assert len(impurities({"shapekit.algorithms.base": algorithm, "shapekit.rate": rate})) == 1
