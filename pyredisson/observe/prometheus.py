"""Metrics for Prometheus. Needs the extra `prometheus`."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from pyredisson._diagnostics import logger
from pyredisson.events import Event

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Seconds: waits are short, and holds may last for long."""
LATE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
OUTCOMES = ("acquired", "timed_out", "failed")

Number = tuple[str, int | None]
"""A client, and the number of one of its waits or holds. None, which is never a key: there is none."""
OTHER = "other"
"""The value for everything else."""
MOST_VALUES = 100
"""So many different values are used at most."""

_FIRST_PART = re.compile(r"[{\s]*([^\d:/.{}\s]*)")


def first_part(name: str) -> str:
    """The beginning of a name up to the first `:`, `/`, `.`, brace, space or digit: `order` for `order:4711`."""
    found = _FIRST_PART.match(name)
    return (found[1].strip("-_#") if found else "") or OTHER


class PrometheusObserver:
    """Counts and times acquires, holds, losses, renewals and outages of one or more clients of this process.

    Pass the same object to all clients: two of them can't have metrics of the same names in one registry.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        label: Callable[[str], str] = first_part,
        *,
        buckets: Sequence[float] = BUCKETS,
        namespace: str = "pyredisson",
    ) -> None:
        """`registry`: where the metrics are registered; None: the default one of prometheus_client.

        `label` maps the name of a lock to the value of the label `name`. There should be few: by default it is the part
        before the first `:`, `/`, `.`, space or digit. After 100 different values each further one is `other`.
        `buckets`: of the histograms of waits and holds, in seconds. `namespace`: the beginning of all names of metrics.

        Raises `ValueError` if the registry has metrics of the same names.
        """
        self._metrics = _Metrics(registry or REGISTRY, buckets, namespace)
        self._labels = BoundedLabels(label)
        self._servers = BoundedLabels(str)
        self._mutex = threading.Lock()
        """Events of several clients come on several threads."""
        self._series: dict[tuple[str, str], _Series] = {}
        self._waits: dict[Number, _Series] = {}
        """The waits that have not ended. The gauges are computed from them, so they can't drift when events are
        dropped."""
        self._holds: dict[Number, _Series] = {}
        self._pid = os.getpid()

    def waiting(self, event: Event) -> None:
        with self._mutex:
            series = self._series_of(event)
            if event.wait_id is not None:
                self._waits[event.client_id, event.wait_id] = series
                series.waiting.inc()

    def acquired(self, event: Event) -> None:
        """An acquire has succeeded. A hold begins, unless these are permits without one."""
        with self._mutex:
            series = self._acquire_ended(event)
            if event.hold_id is not None:
                self._holds[event.client_id, event.hold_id] = series
                series.held.inc()

    def timed_out(self, event: Event) -> None:
        with self._mutex:
            self._acquire_ended(event)

    failed = timed_out

    def released(self, event: Event) -> None:
        with self._mutex:
            self._hold_ended(event)

    def lost(self, event: Event) -> None:
        with self._mutex:
            self._hold_ended(event).lost.inc()

    def renewed(self, event: Event) -> None:
        self._metrics.renewed.inc(event.count)
        if event.late is not None:
            # An earlier one is in time. A negative value would make the sum of the histogram smaller.
            self._metrics.late.observe(max(0.0, event.late))

    def renewal_failed(self, event: Event) -> None:
        self._metrics.renewal_failures.inc(event.count)

    def discovered(self, event: Event) -> None:
        """A client knows a server. Both counters exist from now on, so that the first outage is an increase."""
        server = self._servers.of(event.server or "")
        self._metrics.disconnects.labels(server)
        self._metrics.reconnects.labels(server)

    def disconnected(self, event: Event) -> None:
        self._metrics.disconnects.labels(self._servers.of(event.server or "")).inc()

    def connected(self, event: Event) -> None:
        self._metrics.reconnects.labels(self._servers.of(event.server or "")).inc()

    def dropped(self, event: Event) -> None:
        """The ends of waits and holds may be among the events that are missing: they all count as ended."""
        self._metrics.dropped.inc(event.count)
        with self._mutex:
            for open_ones, gauge in ((self._waits, "waiting"), (self._holds, "held")):
                for number in [number for number in open_ones if number[0] == event.client_id]:
                    getattr(open_ones.pop(number), gauge).dec()

    def _acquire_ended(self, event: Event) -> _Series:
        series = self._series_of(event)
        series.outcomes[event.what].inc()
        if event.waited is not None:
            series.wait.observe(event.waited)
        waited = self._waits.pop((event.client_id, event.wait_id), None)
        if waited is not None:
            waited.waiting.dec()
        return series

    def _hold_ended(self, event: Event) -> _Series:
        series = self._series_of(event)
        if event.held is not None:
            series.hold.observe(event.held)
        held = self._holds.pop((event.client_id, event.hold_id), None)
        if held is not None:
            held.held.dec()
        return series

    def _series_of(self, event: Event) -> _Series:
        if self._pid != os.getpid():
            # The process was forked: what the parent waits for and holds is not this process's.
            self._pid = os.getpid()
            self._waits.clear()
            self._holds.clear()
            for series in self._series.values():
                series.waiting.set(0)
                series.held.set(0)
        key = event.kind or "", self._labels.of(event.name or "")
        if key not in self._series:
            self._series[key] = _Series(self._metrics, *key)
        return self._series[key]


class _Metrics:
    """All metrics. Those with a kind and a name are used through `_Series`."""

    def __init__(self, registry: CollectorRegistry, buckets: Sequence[float], namespace: str) -> None:
        of_lock = ("kind", "name")
        counter = functools.partial(Counter, namespace=namespace, registry=registry)
        histogram = functools.partial(Histogram, namespace=namespace, registry=registry)
        # Of several processes: the sum of all that live.
        gauge = functools.partial(Gauge, namespace=namespace, registry=registry, multiprocess_mode="livesum")
        try:
            self.wait = histogram("wait_seconds", "From the call of an acquire to its end", of_lock, buckets=buckets)
        except ValueError as error:
            raise ValueError(f"{error}. One PrometheusObserver serves all clients of a process") from None
        self.hold = histogram("hold_seconds", "From an acquire to the end of the hold", of_lock, buckets=buckets)
        self.acquires = counter("acquires", "Acquires that have ended, by outcome", (*of_lock, "outcome"))
        self.waiting = gauge("waiting", "Acquires that wait now", of_lock)
        self.held = gauge("held", "Locks and renewed permits that are held now", of_lock)
        self.lost = counter("lost", "Holds that were lost", of_lock)
        self.renewed = counter("renewed_locks", "Leases that were extended")
        self.late = histogram("renewal_late_seconds", "How late leases were extended", buckets=LATE_BUCKETS)
        self.renewal_failures = counter("renewal_failures", "Leases that a command failed to extend")
        self.disconnects = counter("disconnects", "Outages of a server that have begun", ("server",))
        self.reconnects = counter("reconnects", "Outages of a server that have ended", ("server",))
        self.dropped = counter("dropped_events", "Events that are missing here, as the observer was too slow")


class _Series:
    """The time series of one kind and name. All exist from the first event on, so that a first loss is an increase."""

    def __init__(self, metrics: _Metrics, kind: str, name: str) -> None:
        self.wait = metrics.wait.labels(kind, name)
        self.hold = metrics.hold.labels(kind, name)
        self.waiting = metrics.waiting.labels(kind, name)
        self.held = metrics.held.labels(kind, name)
        self.lost = metrics.lost.labels(kind, name)
        self.outcomes = {outcome: metrics.acquires.labels(kind, name, outcome) for outcome in OUTCOMES}


# --- Labels, of whose values there must be few: each makes a time series of its own


class BoundedLabels:
    """Maps names to at most `MOST_VALUES` different values, and everything else to `other`.

    `label` is a user's function, and may return too many values, or raise.
    """

    def __init__(self, label: Callable[[str], str]) -> None:
        self._label = label
        self._values: set[str] = {OTHER}
        self._mutex = threading.Lock()
        self._full = False
        self._failed = False

    def of(self, name: str) -> str:
        """The value for a name. Called on threads of observers only."""
        value = self._computed(name)
        with self._mutex:
            if value in self._values:
                return value
            if len(self._values) <= MOST_VALUES:
                self._values.add(value)
                return value
            first, self._full = not self._full, True
        if first:
            text = "more than %d different labels: the label of %r and of all further new names is %r"
            logger.warning(text, MOST_VALUES, name, OTHER)
        return OTHER

    def _computed(self, name: str) -> str:
        try:
            return str(self._label(name))
        except Exception:  # noqa: BLE001
            # Without a value the event would be missing in all sums.
            if not self._failed:
                self._failed = True
                logger.exception("the label of %r could not be computed, it is %r; this is logged once", name, OTHER)
            return OTHER
