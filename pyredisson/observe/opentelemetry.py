"""Spans for OpenTelemetry. Needs the extra `opentelemetry`, which is the API only; the program chooses its SDK."""

import os
import threading
from collections.abc import Callable

from opentelemetry.context import get_current
from opentelemetry.trace import Link, Span, Status, StatusCode, TracerProvider, get_tracer

from pyredisson.events import Event
from pyredisson.version import VERSION

MOST_SPANS = 10_000
"""So many waits, and so many holds, have an open span at most. Beyond that the oldest ones are ended."""

Number = tuple[str, int]
"""A client, and the number of one of its waits or holds."""
Attributes = dict[str, str | int | float]


class OpenTelemetryObserver:
    """A span for each wait, and one for each hold.

    Both are children of the span that was current where the lock was acquired. The span of the hold links to the span
    of the wait. An acquire that is granted at once has no wait. A span may end after its parent, as a hold may.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, label: Callable[[str], str] | None = None
    ) -> None:
        """`tracer_provider`: None is the global one. `label` maps the name of a lock to the attribute
        `pyredisson.name`; None: the name itself. Without an SDK this does nothing."""
        self._tracer = get_tracer("pyredisson", VERSION, tracer_provider)
        self._label = label
        self._mutex = threading.Lock()
        """Events of several clients come on several threads."""
        self._waits: dict[Number, Span] = {}
        self._holds: dict[Number, Span] = {}
        self._pid = os.getpid()

    def waiting(self, event: Event) -> None:
        self._begin(self._waits, event.wait_id, "lock wait", event)

    def acquired(self, event: Event) -> None:
        waited = self._end(self._waits, event.wait_id, event)
        links = [] if waited is None else [Link(waited.get_span_context())]
        self._begin(self._holds, event.hold_id, "lock hold", event, links)

    def timed_out(self, event: Event) -> None:
        """Ends the span of the wait. A timeout is no error: the program has said how long to wait."""
        self._end(self._waits, event.wait_id, event)

    failed = timed_out

    def released(self, event: Event) -> None:
        """Ends the span of the hold. The span of a lost hold gets an error, and an event that says why."""
        self._end(self._holds, event.hold_id, event)

    lost = released

    def dropped(self, event: Event) -> None:
        """The ends of waits and holds may be among the events that are missing: their spans end now."""
        with self._mutex:
            for spans in (self._waits, self._holds):
                for number in [number for number in spans if number[0] == event.client_id]:
                    _abandon(spans.pop(number), event.time_ns)

    def _begin(
        self, spans: dict[Number, Span], number: int | None, name: str, event: Event, links: list[Link] | None = None
    ) -> None:
        if number is None:
            return
        # The parent is the span that was current for the caller, not for this thread.
        parent = None if event.context is None else event.context.run(get_current)
        lock = event.name or ""
        attributes: Attributes = {
            "db.system.name": "redis",
            "pyredisson.name": lock if self._label is None else self._label(lock),
            "pyredisson.kind": event.kind or "",
            "pyredisson.client_id": event.client_id,
            **_given(event, "owner_id", "token"),
        }
        span = self._tracer.start_span(
            name, context=parent, attributes=attributes, links=links, start_time=event.time_ns
        )
        with self._mutex:
            if self._pid != os.getpid():
                # The spans of the parent process, which ends them itself.
                self._pid = os.getpid()
                self._waits.clear()
                self._holds.clear()
            spans[event.client_id, number] = span
            if len(spans) > MOST_SPANS:
                _abandon(spans.pop(next(iter(spans))), event.time_ns)

    def _end(self, spans: dict[Number, Span], number: int | None, event: Event) -> Span | None:
        with self._mutex:
            span = None if number is None else spans.pop((event.client_id, number), None)
        if span is None:
            return None
        span.set_attributes({"pyredisson.outcome": event.what, **_given(event, "waited", "held", "token")})
        if event.what == "lost":
            span.add_event("lock lost", {"pyredisson.reason": event.reason or ""}, event.time_ns)
        if event.what in ("lost", "failed"):
            span.set_status(Status(StatusCode.ERROR, event.reason or event.error or ""))
        span.end(event.time_ns)
        return span


def _given(event: Event, *names: str) -> Attributes:
    """The attributes for these fields, as far as they apply."""
    return {f"pyredisson.{name}": value for name in names if (value := getattr(event, name)) is not None}


def _abandon(span: Span, time_ns: int) -> None:
    """Ends a span although what it stands for may go on."""
    span.set_attribute("pyredisson.abandoned", value=True)
    span.end(time_ns)
