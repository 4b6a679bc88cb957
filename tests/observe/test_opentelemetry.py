"""The spans of `OpenTelemetryObserver`, as the real SDK exports them."""

from __future__ import annotations

import asyncio
import os
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
from tests.support.observers import delivered


class Spans:
    """A provider, and what it has exported."""

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


@pytest.fixture
def spans() -> Spans:
    return Spans()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("pyredisson."): value for name, value in (span.attributes or {}).items()}


def waits(client: Any) -> bool:
    """Whether a call of the client waits, of which the observer is or will be told."""
    return bool(getattr(client, "_target", client)._session.observing._waits)


@pytest.mark.asyncio
class TestSpans:
    async def test_a_hold(self, backend: Backend, spans: Spans) -> None:
        client = backend.connect(observer=OpenTelemetryObserver(spans.provider))
        with spans.tracer.start_as_current_span("request") as request:
            lock = client.get_fenced_lock("order:1", owner=7)
            token = await lock.lock_and_get_token()
            # The program's own spans are not below those of locks.
            assert trace.get_current_span() is request
            await lock.unlock()
        delivered(client)
        assert not spans.named("lock wait")
        hold = spans.one("lock hold")
        assert parent_of(hold) == request.get_span_context().span_id
        assert hold.context is not None
        assert hold.context.trace_id == request.get_span_context().trace_id
        assert not hold.links
        assert hold.status.status_code is StatusCode.UNSET
        found = attributes(hold)
        held = found.pop("held")
        assert hold.start_time is not None
        assert hold.end_time is not None
        # By another clock, and from the sending of the acquire on.
        assert (hold.end_time - hold.start_time) / 1e9 == pytest.approx(held, abs=1)
        assert found == {
            "db.system.name": "redis",
            "name": "order:1",
            "kind": "fenced",
            "client_id": client.id,
            "owner_id": 7,
            "token": token,
            "outcome": "released",
        }

    async def test_a_wait(self, backend: Backend, spans: Spans) -> None:
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
        (request,) = requests
        for span in (wait, hold):
            assert parent_of(span) == request.get_span_context().span_id
        assert [link.context for link in hold.links] == [wait.context]
        assert wait.end_time == hold.start_time
        assert attributes(wait)["outcome"] == "acquired"
        assert attributes(wait)["waited"] > 0

    async def test_a_wait_that_ends_in_time(self, backend: Backend, spans: Spans) -> None:
        client, other = backend.connect(observer=OpenTelemetryObserver(spans.provider)), backend.connect()
        await other.get_lock("order:1", owner=1).lock()
        # Long enough for a first attempt on a machine that stands still for a moment.
        assert not await client.get_lock("order:1", owner=2).try_lock(1)
        delivered(client)
        wait = spans.one("lock wait")
        # There is no current span.
        assert wait.parent is None
        assert attributes(wait)["outcome"] == "timed_out"
        assert wait.status.status_code is StatusCode.UNSET
        assert not spans.named("lock hold")

    async def test_a_wait_that_fails(self, tasks: Backend, spans: Spans) -> None:
        client, other = tasks.connect(observer=OpenTelemetryObserver(spans.provider)), tasks.connect()
        await other.get_lock("order:1", owner=1).lock()
        task = asyncio.create_task(client.get_lock("order:1", owner=2).lock())
        await tasks.until(lambda: waits(client))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        delivered(client)
        wait = spans.one("lock wait")
        assert attributes(wait)["outcome"] == "failed"
        assert wait.status.status_code is StatusCode.ERROR
        assert wait.status.description == "CancelledError: "

    async def test_a_loss(self, backend: Backend, spans: Spans) -> None:
        client = backend.connect(observer=OpenTelemetryObserver(spans.provider))
        await client.get_lock("order:1").lock()
        await client.get_lock("order:1").force_unlock()
        delivered(client)
        hold = spans.one("lock hold")
        assert hold.status.status_code is StatusCode.ERROR
        assert "force_unlock()" in (hold.status.description or "")
        (event,) = hold.events
        assert event.name == "lock lost"
        assert event.timestamp == hold.end_time
        assert event.attributes is not None
        assert "force_unlock()" in str(event.attributes["pyredisson.reason"])

    async def test_each_task_has_its_own_parent(self, tasks: Backend, spans: Spans) -> None:
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


def test_there_are_not_too_many_open_spans(server: Server, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 3)
    with pyredisson.connect(server.url, observer=OpenTelemetryObserver(spans.provider)) as client:
        for number in range(5):
            client.get_lock(f"order:{number}").lock()
        delivered(client)
        ended = spans.named("lock hold")
        assert [attributes(span)["name"] for span in ended] == ["order:0", "order:1"]
        assert all(attributes(span)["abandoned"] for span in ended)
    delivered(client)
    assert len(spans.named("lock hold")) == 5


def test_dropped_events(spans: Spans) -> None:
    """The end of a hold may be one of them: its span is ended."""
    observer = OpenTelemetryObserver(spans.provider)
    for client_id in ("mine", "other"):
        fields: dict[str, Any] = {"client_id": client_id, "name": "order:1", "kind": "lock"}
        observer.waiting(pyredisson.Event(what="waiting", time_ns=1, wait_id=1, **fields))
        observer.acquired(pyredisson.Event(what="acquired", time_ns=2, hold_id=2, **fields))
    observer.dropped(pyredisson.Event(what="dropped", time_ns=3, count=7, client_id="mine"))
    ended = [*spans.named("lock wait"), *spans.named("lock hold")]
    assert [attributes(span)["client_id"] for span in ended] == ["mine", "mine"]
    assert all(attributes(span)["abandoned"] for span in ended)
    observer.released(
        pyredisson.Event(what="released", time_ns=4, hold_id=2, held=0.5, **fields | {"client_id": "mine"})
    )
    assert len(spans.named("lock hold")) == 1


def test_a_forked_child(server: Server, spans: Spans) -> None:
    """It doesn't end the spans of what its parent holds."""
    with pyredisson.connect(server.url, observer=OpenTelemetryObserver(spans.provider)) as client:
        client.get_lock("order:1", owner=1).lock()
        delivered(client)
        child = os.fork()
        if not child:
            status = 2
            try:
                with client.get_lock("order:2", owner=1):
                    pass
                client.close()
                delivered(client)
                names = [attributes(span)["name"] for span in spans.named("lock hold")]
                status = 0 if names == ["order:2"] else 1
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    delivered(client)
    assert [attributes(span)["name"] for span in spans.named("lock hold")] == ["order:1"]


def test_without_an_sdk(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    observer = OpenTelemetryObserver(trace.NoOpTracerProvider())
    with pyredisson.connect(server.url, observer=observer) as client, client.get_lock("order:1"):
        assert not client.get_lock("order:1", owner=1).try_lock(0.01)
    delivered(client)
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]
