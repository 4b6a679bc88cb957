"""What the observers export, by the real libraries: metrics, spans; docs/grafana.json and docs/prometheus-rules.yml."""

import asyncio
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

import pyredisson
from pyredisson.events import METHODS, Event
from pyredisson.observe import OpenTelemetryObserver, PrometheusObserver
from pyredisson.observe import opentelemetry as module
from pyredisson.observe.prometheus import MOST_VALUES, first_part
from pyredisson.testing import Server
from tests.support.backends import Backend, fails
from tests.support.children import forked
from tests.support.inspecting import delivered, session_of

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text("utf-8"))
ALERTS: dict[str, Any] = yaml.safe_load((DOCS / "prometheus-rules.yml").read_text("utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OF_TARGETS = {"job", "instance"}
"""The labels that Prometheus adds."""
METRIC = re.compile(r"\b(pyredisson_\w+)(?:\{([^}]*)\})?")
BY = re.compile(r"\bby \(([^)]*)\)")
# Its processes share an output: print would write a line and its end separately.
PREFORK = """
import os, signal, sys
import pyredisson
from pyredisson.observe import PrometheusObserver

observer = PrometheusObserver()
client = pyredisson.connect(sys.argv[1], observer=observer)
with client.get_lock("order:0"):
    pass
for number in (1, 2):
    if not os.fork():
        signal.alarm(30)  # nobody waits for it if the test has failed
        client.get_lock(f"order:{number}").lock()
        break
client._lifecycle.delivery.drain(30)
os.write(1, b"holds\\n")
os.read(0, 1)
os._exit(0)
"""


def tell(observer: Any, *events: str, **fields: Any) -> None:
    """Tells an observer of events of the lock `order:1` as a client does. tests/api/test_events.py says which come."""
    usual: dict[str, Any] = {"client_id": "mine", "time_ns": 1, "name": "order:1", "kind": "lock"}
    for what in events:
        getattr(observer, what)(Event(what=what, **usual | fields))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)


def value(registry: CollectorRegistry, metric: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"pyredisson_{metric}", labels)


class Values:
    def __init__(self, registry: CollectorRegistry, kind: str = "lock", name: str = "order") -> None:
        self.registry = registry
        self.labels = {"kind": kind, "name": name}

    def __getitem__(self, metric: str) -> float | None:
        return value(self.registry, metric, **self.labels)

    def outcomes(self) -> dict[str, float | None]:
        names = ("acquired", "timed_out", "failed")
        return {name: value(self.registry, "acquires_total", **self.labels, outcome=name) for name in names}


def test_holds_renewals_servers_and_a_second_one(registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    of_lock = Values(registry)
    for number in range(3):
        tell(metrics, "acquired", hold_id=number, waited=0.0)
    tell(metrics, "released", hold_id=0, held=0.5)
    assert of_lock.outcomes() == {"acquired": 3, "timed_out": 0, "failed": 0}
    assert (of_lock["held"], of_lock["waiting"], of_lock["lost_total"]) == (2, 0, 0)
    # Granted at once: all are in the first bucket.
    assert value(registry, "wait_seconds_bucket", **of_lock.labels, le="0.001") == 3
    assert (of_lock["hold_seconds_count"], of_lock["hold_seconds_sum"]) == (1, 0.5)
    tell(metrics, "lost", hold_id=1, held=1.0)
    assert (of_lock["lost_total"], of_lock["held"], of_lock["hold_seconds_count"]) == (1, 1, 2)
    # Permits of a semaphore belong to nobody, so nobody knows how long they are held.
    tell(metrics, "acquired", name="shop", kind="semaphore", waited=0.0)
    of_shop = Values(registry, "semaphore", "shop")
    assert (of_shop.outcomes()["acquired"], of_shop["hold_seconds_count"], of_shop["held"]) == (1, 0, 0)
    tell(metrics, "renewed", count=3, late=-0.5)
    tell(metrics, "renewed", count=1, late=0.25)
    tell(metrics, "renewal_failed", count=2)
    names = ("renewed_locks_total", "renewal_late_seconds_count", "renewal_late_seconds_sum", "renewal_failures_total")
    # A negative lateness counts as none.
    assert [value(registry, name) for name in names] == [4, 2, 0.25, 2]
    # Before the first outage: else increase() would miss it.
    for what, counts in (("discovered", [0, 0]), ("disconnected", [1, 0]), ("connected", [1, 1])):
        tell(metrics, what, server="a:1")
        assert [value(registry, f"{each}_total", server="a:1") for each in ("disconnects", "reconnects")] == counts
    # A second one in the same registry is refused, and changes nothing there.
    assert all(callable(getattr(metrics, name)) for name in METHODS)
    before = generate_latest(registry)
    with pytest.raises(ValueError, match=r"Duplicated timeseries.*One PrometheusObserver serves all clients"):
        PrometheusObserver(registry)
    assert generate_latest(registry) == before
    PrometheusObserver(registry, namespace="other")


async def test_waits(backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    client, other = backend.connect(observer=metrics), backend.connect()
    of_lock = Values(registry)
    held = other.get_lock("order:1", owner=1)

    def one_waits() -> bool:
        delivered(client)
        return of_lock["waiting"] == 1

    # It is told of the server before the first call.
    server = backend.url.split("/")[2]
    await backend.until(lambda: value(registry, "disconnects_total", server=server) == 0)
    await held.lock()
    assert not await client.get_lock("order:1", owner=2).try_lock(0.01)
    waiting = await backend.begin(client.get_lock("order:1", owner=2).lock, one_waits)
    assert of_lock["held"] == 0
    await held.unlock()
    await waiting.result()
    delivered(client)
    assert (of_lock["waiting"], of_lock["held"], of_lock["wait_seconds_count"]) == (0, 1, 2)
    assert (of_lock["wait_seconds_sum"] or 0) > 0
    waiting = await backend.begin(client.get_lock("order:1", owner=3).lock, one_waits)
    await client.close()
    await fails(pyredisson.ClosedError, waiting.result)
    delivered(client)
    assert of_lock.outcomes() == {"acquired": 1, "timed_out": 1, "failed": 1}
    assert (of_lock["waiting"], of_lock["held"], of_lock["wait_seconds_count"]) == (0, 0, 3)


def test_the_first_part_of_a_name_is_its_label() -> None:
    labels = {"nightly": "nightly", "job_{order}:4711": "job", "Bestellung äöü:1": "Bestellung"}
    orders = ("order:4711", "order-4711", "order/4711/item", "order.4711", "{order}:4711")
    labels |= dict.fromkeys(orders, "order") | dict.fromkeys(("4711", "", ":x"), "other")
    assert {name: first_part(name) for name in labels} == labels


@pytest.mark.parametrize(
    ("label", "acquired", "warning"),
    [
        (lambda name: name, [1] * MOST_VALUES + [20], "different labels"),
        (lambda name: {"order:0": "k"}[name], [1, MOST_VALUES + 19], "could not be computed"),
    ],
)
def test_functions_that_make_too_many_labels_or_none(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, label: Any, acquired: list[int], warning: str
) -> None:
    """There are a hundred labels at most, and `other`. It is logged once."""
    observer = PrometheusObserver(registry, label=label)
    for number in range(MOST_VALUES + 20):
        tell(observer, "acquired", name=f"order:{number}")
    samples = [sample for family in registry.collect() for sample in family.samples if "name" in sample.labels]
    acquires = [each for each in samples if each.name == "pyredisson_acquires_total"]
    found = {each.labels["name"]: each.value for each in acquires if each.labels["outcome"] == "acquired"}
    assert (found.pop("other"), sorted(found.values())) == (acquired[-1], acquired[:-1])
    assert {each.labels["name"] for each in samples} == {*found, "other"}
    assert len([record for record in caplog.records if warning in record.getMessage()]) == 1


def test_dropped_events_of_metrics(registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    """The gauges show nothing that may have ended, and an end that comes later doesn't make them negative."""
    of_lock = Values(registry)
    tell(metrics, "acquired", hold_id=1)
    tell(metrics, "acquired", hold_id=1, client_id="other")
    tell(metrics, "waiting", wait_id=2)
    assert (of_lock["held"], of_lock["waiting"]) == (2, 1)
    tell(metrics, "dropped", count=7)
    assert (of_lock["held"], of_lock["waiting"]) == (1, 0)
    tell(metrics, "released", hold_id=1, held=0.5)
    tell(metrics, "timed_out", wait_id=2, waited=0.5)
    assert (of_lock["held"], of_lock["waiting"], value(registry, "dropped_events_total")) == (1, 0, 7)


def test_metrics_of_a_forked_child(server: Server, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    """What the parent holds is not the child's."""
    with pyredisson.connect(server.url, observer=metrics) as client:

        def has_one(name: str = "order:2") -> bool:
            client.get_lock(name, owner=1).lock()
            delivered(client)
            return Values(registry)["held"] == 1

        assert has_one("order:1")
        assert forked(has_one)
        assert Values(registry)["held"] == 1


def test_workers_that_are_forked(server: Server, child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In prometheus_client's mode for several processes their values are added up."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    process = child(PREFORK, server.url)
    assert [process.receive() for _ in range(3)] == ["holds"] * 3
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    of_lock = Values(registry)
    assert (of_lock["held"], of_lock.outcomes()["acquired"], of_lock["hold_seconds_count"]) == (2, 3, 1)
    for _ in range(3):
        process.send("")
    assert process.wait() == 0


class Spans:
    def __init__(self) -> None:
        self._exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer, self.observer = self.provider.get_tracer("program"), OpenTelemetryObserver(self.provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("pyredisson."): value for name, value in (span.attributes or {}).items()}


def error_of(span: ReadableSpan) -> str | None:
    assert (span.status.status_code is trace.StatusCode.ERROR) is (span.status.description is not None)
    return span.status.description


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.mark.parametrize(
    ("end", "fields", "error"), [("released", {}, None), ("lost", {"reason": "by force_unlock()"}, "by force_unlock()")]
)
def test_a_hold(spans: Spans, end: str, fields: dict[str, Any], error: str | None) -> None:
    tell(spans.observer, "acquired", time_ns=5, hold_id=1, owner_id=7, token=3)
    tell(spans.observer, end, time_ns=9, hold_id=1, held=0.5, **fields)
    assert not spans.named("lock wait")
    [hold] = spans.named("lock hold")
    # There is no current span.
    assert (hold.start_time, hold.end_time, hold.parent, [*hold.links]) == (5, 9, None, [])
    of_any = {"db.system.name": "redis", "name": "order:1", "kind": "lock", "client_id": "mine"}
    assert attributes(hold) == of_any | {"owner_id": 7, "token": 3, "held": 0.5, "outcome": end}
    assert error_of(hold) == error
    events = [(event.name, event.timestamp, event.attributes) for event in hold.events]
    assert events == ([("lock lost", 9, {"pyredisson.reason": error})] if error else [])


@pytest.mark.parametrize(
    ("end", "error"), [("acquired", None), ("timed_out", None), ("failed", "CancelledError: by the user")]
)
def test_the_end_of_a_wait(spans: Spans, end: str, error: str | None) -> None:
    tell(spans.observer, "waiting", time_ns=5, wait_id=1)
    tell(spans.observer, end, time_ns=9, wait_id=1, hold_id=2, waited=0.5, error=error)
    [wait] = spans.named("lock wait")
    assert (wait.start_time, wait.end_time, error_of(wait)) == (5, 9, error)
    assert (attributes(wait)["outcome"], attributes(wait)["waited"]) == (end, 0.5)
    assert not spans.named("lock hold")


async def test_the_parent_of_a_wait(backend: Backend, spans: Spans) -> None:
    client, other = backend.connect(observer=spans.observer), backend.connect()
    await other.get_lock("order:1", owner=1).lock()

    async def work() -> int:
        with spans.tracer.start_as_current_span("request") as request:
            await client.get_lock("order:1", owner=2).lock()
        # The hold outlives the span of its acquire.
        await client.get_lock("order:1", owner=2).unlock()
        return request.get_span_context().span_id

    # A call waits, of which the observer is or will be told.
    session: Any = session_of(client)
    working = await backend.begin(work, lambda: session.observing._waits)
    await other.get_lock("order:1", owner=1).unlock()
    request = await working.result()
    delivered(client)
    [wait], [hold] = spans.named("lock wait"), spans.named("lock hold")
    assert parent_of(wait) == parent_of(hold) == request
    assert ([link.context for link in hold.links], hold.start_time) == ([wait.context], wait.end_time)
    assert (attributes(wait)["outcome"], attributes(wait)["waited"] > 0) == ("acquired", True)


async def test_each_task_has_its_own_parent(tasks: Backend, spans: Spans) -> None:
    client = tasks.connect(observer=OpenTelemetryObserver(spans.provider, label=lambda name: name.split(":")[0]))
    parents: dict[int, int] = {}

    async def work(number: int) -> None:
        with spans.tracer.start_as_current_span("request") as request:
            parents[number] = request.get_span_context().span_id
            async with client.get_lock("order:1", owner=number):
                await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(1, 9)))
    delivered(client)
    holds = spans.named("lock hold")
    assert {attributes(span)["owner_id"]: parent_of(span) for span in holds} == parents
    assert [attributes(span)["name"] for span in holds] == ["order"] * 8
    waits = {span.context.span_id for span in spans.named("lock wait") if span.context is not None}
    assert {link.context.span_id for span in holds for link in span.links} == waits
    assert waits


def test_there_are_not_too_many_open_spans(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 3)
    for number in range(5):
        tell(spans.observer, "acquired", hold_id=number, name=f"order:{number}")
    ended = [attributes(span) for span in spans.named("lock hold")]
    assert [(each["name"], each["abandoned"]) for each in ended] == [("order:0", True), ("order:1", True)]
    for number in range(5):
        tell(spans.observer, "released", hold_id=number)
    assert len(spans.named("lock hold")) == 5


def test_dropped_events_of_spans(spans: Spans) -> None:
    """The end of a hold may be one of them: its span is ended."""
    for client_id in ("mine", "other"):
        tell(spans.observer, "waiting", client_id=client_id, wait_id=1)
        tell(spans.observer, "acquired", client_id=client_id, hold_id=2)
    tell(spans.observer, "dropped", count=7)
    ended = [attributes(span) for span in (*spans.named("lock wait"), *spans.named("lock hold"))]
    assert [(each["client_id"], each["abandoned"]) for each in ended] == [("mine", True)] * 2
    tell(spans.observer, "released", hold_id=2, held=0.5)
    assert len(spans.named("lock hold")) == 1


def test_spans_of_a_forked_child(server: Server, spans: Spans) -> None:
    """It doesn't end the spans of what its parent holds."""

    def holds() -> list[Any]:
        delivered(client)
        return [attributes(span)["name"] for span in spans.named("lock hold")]

    with pyredisson.connect(server.url, observer=spans.observer) as client:
        client.get_lock("order:1", owner=1).lock()
        delivered(client)

        def ends_its_own() -> bool:
            with client.get_lock("order:2", owner=1):
                pass
            client.close()
            return holds() == ["order:2"]

        assert forked(ends_its_own)
    assert holds() == ["order:1"]


def test_without_an_sdk(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    observer = OpenTelemetryObserver(trace.NoOpTracerProvider())
    with pyredisson.connect(server.url, observer=observer) as client, client.get_lock("order:1"):
        assert not client.get_lock("order:1", owner=1).try_lock(0.01)
    delivered(client)
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


@pytest.fixture
def labels(registry: CollectorRegistry, metrics: PrometheusObserver) -> dict[str, set[str]]:
    tell(metrics, "acquired", "lost", "renewed", waited=0.0, held=1.0, late=0.1)
    tell(metrics, "discovered", server="a:1")
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def check(expression: str, labels: dict[str, set[str]]) -> set[str]:
    """Each metric and each label in it exists. Returns the metrics."""
    used = METRIC.findall(expression)
    assert used, expression
    for metric, selector in used:
        assert metric in labels, expression
        assert {*re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"', selector)} <= labels[metric] | OF_TARGETS, expression
    known = OF_TARGETS.union(*(labels[metric] for metric, _ in used))
    assert set(re.findall(r"\w+", " ".join(BY.findall(expression)))) <= known, expression
    assert expression.count("(") == expression.count(")")
    return {metric for metric, _ in used}


def test_each_metric_has_a_panel_for_the_chosen_programs_and_a_row_of_the_page(labels: dict[str, set[str]]) -> None:
    """A histogram is shown by its buckets. Several programs, and several processes of each, are in one Prometheus."""
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    used = {metric for expression in expressions for metric in check(expression, labels)}
    assert used == {name for name in labels if not name.endswith(("_created", "_sum", "_count"))}
    for metric, selector in METRIC.findall("\n".join(expressions)):
        assert selector.startswith('job=~"$job", instance=~"$instance"'), metric
    queries = {each["name"]: each["query"]["query"] for each in DASHBOARD["templating"]["list"][1:]}
    assert [*queries] == ["job", "instance", "kind", "name"]
    assert 'job=~"$job"' in queries["instance"]
    for name, query in queries.items():
        assert query.endswith(f", {name})")
        check(query, labels)
    # The page is about metrics and alerts that exist.
    page = (DOCS / "observing.md").read_text("utf-8")
    assert re.findall(r"^\| `(Pyredisson\w+)`", page, re.MULTILINE) == [rule["alert"] for rule in RULES]
    # The key of a client begins like a metric.
    named = {metric for metric, _ in METRIC.findall(page)} - {"pyredisson_client"}
    # The table names histograms without the endings of their samples.
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in labels}
    assert named <= families | labels.keys()
    # All that are exported have a row.
    rows = {metric for line in page.splitlines() if line.startswith("| `") for metric, _ in METRIC.findall(line)}
    of_totals = {name.removesuffix("_total") for name in families if name.endswith("_total")}
    assert rows >= {name for name in families if not name.endswith("_created")} - of_totals


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert(rule: dict[str, Any], labels: dict[str, set[str]]) -> None:
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    check(rule["expr"], labels)
    # What the text says is a label of the result.
    groups = set(re.findall(r"\w+", " ".join(BY.findall(rule["expr"]))))
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= groups
    assert re.fullmatch(r"\d+m", rule.get("for", "1m"))


def test_grafana_can_show_it() -> None:
    """One id for each panel, places that don't overlap, the variable's data source, legends that the result has."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        x, y, width, height = (panel["gridPos"][each] for each in "xywh")
        own = set(product(range(x, x + width), range(y, y + height)))
        assert (x + width <= 24, own & cells) == (True, set()), panel["title"]
        cells |= own
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for panel in PANELS:
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for label in re.findall(r"\{\{(\w+)\}\}", part.get("legendFormat", "")):
                assert label in re.split("[, ]+", " ".join(BY.findall(part["expr"]))), panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(DASHBOARD))) == variables
