"""Grafana can load the dashboard, which queries nothing that a real scrape does not have."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from shapekit import Policy
from shapekit.integrations.prometheus import instrument

from .promql import labels_left, parsed, selected

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "shapekit.json"
PAGE = DASHBOARD.parents[1] / "reference" / "metrics.md"
COLUMNS = 24


@pytest.fixture(scope="module")
def dashboard():
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def panels(dashboard):
    return dashboard["panels"]


@pytest.fixture
def queries(panels):
    return [(panel["title"], target) for panel in panels for target in panel.get("targets", ())]


@pytest.fixture
def labels_of(clock, registry, scrape):
    """The labels of each series of a real scrape."""
    stripe = Policy("10/s", name="stripe", clock=clock, quota="100/day")
    with instrument(stripe, registry=registry), stripe.admit():
        seen = scrape()
    found = {}
    for name, labels in seen.series:
        found.setdefault(name, {label for label, _ in labels})
    return found.__getitem__


def test_the_panels_have_distinct_ids_and_titles(dashboard, panels):
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    assert (dashboard["uid"], dashboard["title"], dashboard["id"]) == ("shapekit", "shapekit", None)
    assert dashboard["schemaVersion"] == 39  # of Grafana 10.4 and 11.0; later ones migrate it
    for panel in panels:
        assert panel["type"] in ("row", "timeseries", "stat")
        assert panel["type"] == "row" or panel["description"]
        marks = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(marks)) == len(marks)


def test_the_panels_do_not_overlap(panels):
    places = [(panel["title"], panel["gridPos"]) for panel in panels]
    for title, place in places:
        assert place["w"] > 0, title
        assert place["h"] > 0, title
        assert 0 <= place["x"] <= COLUMNS - place["w"], title
    for (title, one), (other_title, other) in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, f"{title} lies over {other_title}"


def test_every_query_reads_what_a_scrape_has(queries, labels_of):
    assert len(queries) > 10
    for title, target in queries:
        tree = parsed(target["expr"])
        for name, chosen_by in selected(tree):
            assert chosen_by <= labels_of(name), title
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert named <= labels_left(tree, labels_of), title
        # Lines that differ in a label that the legend omits would look alike.
        assert labels_left(tree, labels_of) <= named, title


def test_counters_are_read_as_rates_and_gauges_are_not(queries):
    for title, target in queries:
        for series, window in re.findall(
            r"(shapekit_\w+)(?:\{[^}]*\})?(\[\$__rate_interval\])?", target["expr"]
        ):
            assert bool(window) is series.endswith(("_total", "_bucket")), title


def test_every_metric_is_on_a_panel(queries, labels_of, registry, scrape):
    read = {name for _, target in queries for name, _ in selected(parsed(target["expr"]))}
    with instrument(registry=registry):
        scraped = {family.name for family in scrape().families}
    assert {name for name in scraped if not name.endswith("_created")} == {
        re.sub("_(bucket|total)$", "", name) for name in read
    }


def test_the_source_and_what_is_shown_can_be_chosen(dashboard, panels, queries, labels_of):
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for name in ("policy", "key"):
        variable = variables[name]
        expression, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
        assert label == name
        [(series, chosen_by)] = selected(parsed(expression))
        assert {label, *chosen_by} <= labels_of(series)
        assert variable["definition"] == variable["query"]["query"]
    source = {"type": "prometheus", "uid": "${datasource}"}
    asking = [panel for panel in panels if panel["type"] != "row"] + [target for _, target in queries]
    assert all(asks["datasource"] == source for asks in [*asking, variables["policy"], variables["key"]])
    used = set(re.findall(r"\$(\w+)", json.dumps(panels))) - {"__rate_interval"}
    assert used <= set(variables)


def test_the_page_lists_all_metrics(registry):
    page = PAGE.read_text(encoding="utf-8")
    with instrument(registry=registry):
        scraped = {f"{f.name}_total" if f.type == "counter" else f.name for f in registry.collect()}
    listed = set(re.findall(r"^\| `(shapekit_\w+)`", page, re.MULTILINE))
    assert listed == scraped
