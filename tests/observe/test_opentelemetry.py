"""The spans of `OpenTelemetryObserver`, as the real SDK exports them."""

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import pyredisson
from pyredisson.observe import OpenTelemetryObserver
from pyredisson.observe import opentelemetry as module
from pyredisson.testing import Server
from tests.support.backends import Backend
from tests.support.children import forked
from tests.support.observers import delivered

from .conftest import tell


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("program")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("pyredisson."): value for name, value in (span.attributes or {}).items()}


def error_of(span: ReadableSpan) -> str | None:
    assert (span.status.status_code is StatusCode.ERROR) is (span.status.description is not None)
    return span.status.description


def waits(client: Any) -> bool:
    """Whether a call of the client waits, of which the observer is or will be told."""
    return bool(getattr(client, "_target", client)._session.observing._waits)


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def observer(spans: Spans) -> OpenTelemetryObserver:
    return OpenTelemetryObserver(spans.provider)


@pytest.mark.parametrize(
    ("end", "fields", "error"), [("released", {}, None), ("lost", {"reason": "by force_unlock()"}, "by force_unlock()")]
)
def test_a_hold(
    observer: OpenTelemetryObserver, spans: Spans, end: str, fields: dict[str, Any], error: str | None
) -> None:
    tell(observer, "acquired", time_ns=5, hold_id=1, owner_id=7, token=3)
    tell(observer, end, time_ns=9, hold_id=1, held=0.5, **fields)
    assert not spans.named("lock wait")
    hold = spans.one("lock hold")
    # There is no current span.
    assert (hold.start_time, hold.end_time, hold.parent, [*hold.links]) == (5, 9, None, [])
    assert attributes(hold) == {
        "db.system.name": "redis",
        "name": "order:1",
        "kind": "lock",
        "client_id": "mine",
        "owner_id": 7,
        "token": 3,
        "held": 0.5,
        "outcome": end,
    }
    assert error_of(hold) == error
    events = [(event.name, event.timestamp, event.attributes) for event in hold.events]
    assert events == ([("lock lost", 9, {"pyredisson.reason": error})] if error else [])


@pytest.mark.parametrize(
    ("end", "error"), [("acquired", None), ("timed_out", None), ("failed", "CancelledError: by the user")]
)
def test_the_end_of_a_wait(observer: OpenTelemetryObserver, spans: Spans, end: str, error: str | None) -> None:
    tell(observer, "waiting", time_ns=5, wait_id=1)
    tell(observer, end, time_ns=9, wait_id=1, hold_id=2, waited=0.5, error=error)
    wait = spans.one("lock wait")
    assert (wait.start_time, wait.end_time, error_of(wait)) == (5, 9, error)
    assert (attributes(wait)["outcome"], attributes(wait)["waited"]) == (end, 0.5)
    assert not spans.named("lock hold")


async def test_the_parent_of_a_wait(backend: Backend, spans: Spans) -> None:
    client, other = backend.connect(observer=OpenTelemetryObserver(spans.provider)), backend.connect()
    await other.get_lock("order:1", owner=1).lock()
    requests = []

    async def work() -> None:
        with spans.tracer.start_as_current_span("request") as request:
            requests.append(request)
            await client.get_lock("order:1", owner=2).lock()
        # The hold outlives the span of its acquire.
        await client.get_lock("order:1", owner=2).unlock()

    working = backend.spawn(work)
    await backend.until(lambda: waits(client))
    await other.get_lock("order:1", owner=1).unlock()
    await working.result()
    delivered(client)
    wait, hold = spans.one("lock wait"), spans.one("lock hold")
    [request] = requests
    assert parent_of(wait) == parent_of(hold) == request.get_span_context().span_id
    assert [link.context for link in hold.links] == [wait.context]
    assert wait.end_time == hold.start_time
    assert attributes(wait)["outcome"] == "acquired"
    assert attributes(wait)["waited"] > 0


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
    assert len(holds) == 8
    assert {attributes(span)["name"] for span in holds} == {"order"}
    waits = {span.context.span_id for span in spans.named("lock wait") if span.context is not None}
    assert {link.context.span_id for span in holds for link in span.links} == waits
    assert waits


def test_there_are_not_too_many_open_spans(
    observer: OpenTelemetryObserver, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 3)
    for number in range(5):
        tell(observer, "acquired", hold_id=number, name=f"order:{number}")
    ended = spans.named("lock hold")
    assert [attributes(span)["name"] for span in ended] == ["order:0", "order:1"]
    assert all(attributes(span)["abandoned"] for span in ended)
    for number in range(5):
        tell(observer, "released", hold_id=number)
    assert len(spans.named("lock hold")) == 5


def test_dropped_events(observer: OpenTelemetryObserver, spans: Spans) -> None:
    """The end of a hold may be one of them: its span is ended."""
    for client_id in ("mine", "other"):
        tell(observer, "waiting", client_id=client_id, wait_id=1)
        tell(observer, "acquired", client_id=client_id, hold_id=2)
    tell(observer, "dropped", count=7)
    ended = [*spans.named("lock wait"), *spans.named("lock hold")]
    assert [attributes(span)["client_id"] for span in ended] == ["mine", "mine"]
    assert all(attributes(span)["abandoned"] for span in ended)
    tell(observer, "released", hold_id=2, held=0.5)
    assert len(spans.named("lock hold")) == 1


def test_a_forked_child(server: Server, spans: Spans) -> None:
    """It doesn't end the spans of what its parent holds."""

    def holds() -> list[Any]:
        delivered(client)
        return [attributes(span)["name"] for span in spans.named("lock hold")]

    with pyredisson.connect(server.url, observer=OpenTelemetryObserver(spans.provider)) as client:
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
