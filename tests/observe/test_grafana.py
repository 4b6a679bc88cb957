"""The dashboard in docs/grafana.json, and the alerts in docs/prometheus-rules.yml, are about metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from pyredisson.observe import PrometheusObserver

from .conftest import tell

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text("utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((DOCS / "prometheus-rules.yml").read_text("utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OF_TARGETS = {"job", "instance"}
"""The labels that Prometheus adds."""
METRIC = re.compile(r"\b(pyredisson_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
BY = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"pyredisson_client"}
"""What begins like a metric, and is none: the key of a client."""


@pytest.fixture
def labels(registry: CollectorRegistry, metrics: PrometheusObserver) -> dict[str, set[str]]:
    tell(metrics, "acquired", "lost", "renewed", waited=0.0, held=1.0, late=0.1)
    tell(metrics, "discovered", server="a:1")
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Each with its title."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def check(expression: str, labels: dict[str, set[str]], where: str) -> set[str]:
    """Each metric and each label in it exists. Returns the metrics."""
    used = set()
    known = set(OF_TARGETS)
    for metric, selector in METRIC.findall(expression):
        assert metric in labels, f"{where}: there is no {metric}"
        used.add(metric)
        known |= labels[metric]
        for label, _, _ in LABEL.findall(selector or ""):
            assert label in labels[metric] | OF_TARGETS, f"{where}: {metric} has no label {label}"
    assert used, f"{where}: no metric in {expression}"
    for group in BY.findall(expression):
        for label in group.split(","):
            assert label.strip() in known, f"{where}: no label {label}"
    assert expression.count("(") == expression.count(")")
    return used


def test_each_metric_has_a_panel(labels: dict[str, set[str]]) -> None:
    """A histogram by its buckets; what prometheus_client adds, such as the time of creation, has none."""
    used = {metric for title, expression in expressions() for metric in check(expression, labels, title)}
    samples = {name for name in labels if not name.endswith(("_created", "_sum", "_count"))}
    assert used == samples


def test_each_panel_and_each_filter_is_for_the_chosen_programs(labels: dict[str, set[str]]) -> None:
    """Several programs, and several processes of each, are in one Prometheus."""
    for title, expression in expressions():
        for metric, selector in METRIC.findall(expression):
            assert selector.startswith('job=~"$job", instance=~"$instance"'), (title, metric)
    queries = {each["name"]: each["query"]["query"] for each in DASHBOARD["templating"]["list"][1:]}
    assert [*queries] == ["job", "instance", "kind", "name"]
    assert 'job=~"$job"' in queries["instance"]
    for name, query in queries.items():
        assert query.endswith(f", {name})")
        check(query, labels, name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert(rule: dict[str, Any], labels: dict[str, set[str]]) -> None:
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    check(rule["expr"], labels, rule["alert"])
    # What the text says is a label of the result.
    groups = set(re.findall(r"\w+", " ".join(BY.findall(rule["expr"]))))
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= groups
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))


def test_grafana_can_show_it() -> None:
    """One id for each panel, places that don't overlap, the variable's data source, legends that the result has."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for panel in panels():
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for label in re.findall(r"\{\{(\w+)\}\}", part.get("legendFormat", "")):
                assert label in re.split("[, ]+", " ".join(BY.findall(part["expr"]))), panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    text = json.dumps(DASHBOARD)
    used = set(re.findall(r"\$\{?([a-z]+)\b", text))
    assert used == variables


def test_the_page_is_about_metrics_and_alerts_that_exist(labels: dict[str, set[str]]) -> None:
    page = (DOCS / "observing.md").read_text("utf-8")
    assert re.findall(r"^\| `(Pyredisson\w+)`", page, re.MULTILINE) == [rule["alert"] for rule in RULES]
    named = {metric for metric, _ in METRIC.findall(page)} - OF_PROMETHEUS
    # The table names histograms without the endings of their samples.
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in labels}
    assert named <= families | labels.keys()
    # All that are exported have a row.
    rows = {metric for line in page.splitlines() if line.startswith("| `") for metric, _ in METRIC.findall(line)}
    assert rows >= {name for name in families if not name.endswith("_created")} - {
        name.removesuffix("_total") for name in families if name.endswith("_total")
    }
