"""What `PrometheusObserver` counts and times, as prometheus_client exports it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from redis.exceptions import ConnectionError as RedisConnectionError

import pyredisson
from pyredisson.errors import ClosedError
from pyredisson.events import METHODS, Event
from pyredisson.observe import PrometheusObserver
from pyredisson.observe.labels import MOST_VALUES, first_part
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend
from tests.support.children import Child
from tests.support.observers import delivered


def value(registry: CollectorRegistry, metric: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"pyredisson_{metric}", labels)


class Values:
    """The samples of one kind and name."""

    def __init__(self, registry: CollectorRegistry, kind: str = "lock", name: str = "order") -> None:
        self.registry = registry
        self.labels = {"kind": kind, "name": name}

    def __getitem__(self, metric: str) -> float | None:
        return value(self.registry, metric, **self.labels)

    def outcomes(self) -> dict[str, float | None]:
        names = ("acquired", "timed_out", "failed")
        return {name: value(self.registry, "acquires_total", **self.labels, outcome=name) for name in names}


@pytest.mark.asyncio
class TestLocks:
    async def test_an_uncontended_pair(
        self, backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver
    ) -> None:
        client = backend.connect(observer=metrics)
        of_lock = Values(registry)
        # Its wait is as long as it takes to load the script, where the server doesn't have it.
        await client.get_lock("first").lock()
        for number in range(3):
            await client.get_lock(f"order:{number}").lock()
        await client.get_lock("order:0").unlock()
        delivered(client)
        assert of_lock.outcomes() == {"acquired": 3, "timed_out": 0, "failed": 0}
        assert (of_lock["held"], of_lock["waiting"], of_lock["lost_total"]) == (2, 0, 0)
        # Granted at once: all are in the first bucket.
        assert value(registry, "wait_seconds_bucket", **of_lock.labels, le="0.001") == 3
        assert of_lock["wait_seconds_sum"] == 0
        assert of_lock["hold_seconds_count"] == 1
        held = of_lock["hold_seconds_sum"]
        assert held is not None
        assert held > 0

    async def test_a_wait(self, backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
        client, other = backend.connect(observer=metrics), backend.connect()
        of_lock = Values(registry)
        await other.get_lock("order:1", owner=1).lock()
        acquired = backend.spawn(lambda: client.get_lock("order:1", owner=2).lock())

        def waits() -> bool:
            delivered(client)
            return of_lock["waiting"] == 1

        await backend.until(waits)
        assert of_lock["held"] == 0
        await other.get_lock("order:1", owner=1).unlock()
        await acquired.result()
        delivered(client)
        assert (of_lock["waiting"], of_lock["held"], of_lock["wait_seconds_count"]) == (0, 1, 1)
        waited = of_lock["wait_seconds_sum"]
        assert waited is not None
        assert waited > 0

    async def test_other_ends(self, backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
        client, other = backend.connect(observer=metrics), backend.connect()
        of_lock = Values(registry)
        await other.get_lock("order:1", owner=1).lock()
        assert not await client.get_lock("order:1", owner=2).try_lock(0.01)
        waiting = backend.spawn(client.get_lock("order:1", owner=2).lock)

        def waits() -> bool:
            delivered(client)
            return of_lock["waiting"] == 1

        await backend.until(waits)
        await client.close()
        with pytest.raises(ClosedError):
            await waiting.result()
        delivered(client)
        assert of_lock.outcomes() == {"acquired": 0, "timed_out": 1, "failed": 1}
        assert (of_lock["waiting"], of_lock["held"], of_lock["wait_seconds_count"]) == (0, 0, 2)

    async def test_a_loss(self, backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
        client = backend.connect(observer=metrics)
        of_lock = Values(registry)
        await client.get_lock("order:1").lock()
        await client.get_lock("order:1").force_unlock()
        delivered(client)
        assert (of_lock["lost_total"], of_lock["held"], of_lock["hold_seconds_count"]) == (1, 0, 1)

    async def test_other_kinds(
        self, backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver
    ) -> None:
        client = backend.connect(observer=metrics)
        async with client.get_fair_lock("order:1"), client.get_read_write_lock("order:2").read_lock():
            pass
        shop = client.get_semaphore("shop")
        await shop.try_set_permits(3)
        await shop.acquire(2)
        await shop.release(2)
        delivered(client)
        for kind in ("fair", "read"):
            assert Values(registry, kind).outcomes()["acquired"] == 1
            assert Values(registry, kind)["hold_seconds_count"] == 1
        of_shop = Values(registry, "semaphore", "shop")
        # Such permits belong to nobody, so nobody knows how long they are held.
        assert of_shop.outcomes()["acquired"] == 1
        assert (of_shop["hold_seconds_count"], of_shop["held"]) == (0, 0)


@pytest.mark.asyncio
class TestServers:
    async def test_renewals(self, backend: Backend, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
        client = backend.connect(observer=metrics, lock_watchdog_timeout=3.0)
        await client.get_lock("order:1").lock()

        def renewed() -> bool:
            return (value(registry, "renewed_locks_total") or 0) >= 2

        await backend.until(renewed)
        # The observer counts the locks first, and then how late they were.
        delivered(client)
        assert (value(registry, "renewal_late_seconds_count") or 0) >= 2
        # A negative lateness counts as none.
        assert (value(registry, "renewal_late_seconds_sum") or 0) >= 0

    async def test_an_outage(
        self, backend: Backend, proxy: Proxy, registry: CollectorRegistry, metrics: PrometheusObserver
    ) -> None:
        client = backend.connect(proxy.url, observer=metrics, lock_watchdog_timeout=3.0, retry_attempts=0)
        server = proxy.url.split("/")[2]
        # Before the first call: else increase() would miss the first outage.
        await backend.until(lambda: value(registry, "disconnects_total", server=server) == 0)
        assert value(registry, "reconnects_total", server=server) == 0
        await client.get_lock("order:1").lock()
        proxy.refuse(True)
        proxy.cut()
        with pytest.raises(RedisConnectionError):
            await client.get_lock("order:2").is_locked()
        await backend.until(lambda: (value(registry, "renewal_failures_total") or 0) >= 1)
        assert value(registry, "disconnects_total", server=server) == 1
        assert value(registry, "reconnects_total", server=server) == 0
        proxy.refuse(False)
        await client.get_lock("order:2").is_locked()
        await backend.until(lambda: value(registry, "reconnects_total", server=server) == 1)


class TestLabels:
    @pytest.mark.parametrize(
        ("name", "label"),
        [
            ("nightly", "nightly"),
            ("order:4711", "order"),
            ("order-4711", "order"),
            ("order/4711/item", "order"),
            ("order.4711", "order"),
            ("{order}:4711", "order"),
            ("job_{order}:4711", "job"),
            ("4711", "other"),
            ("", "other"),
            (":x", "other"),
            ("Bestellung äöü:1", "Bestellung"),
        ],
    )
    def test_the_first_part(self, name: str, label: str) -> None:
        assert first_part(name) == label

    def test_there_are_a_hundred_at_most(
        self, server: Server, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whatever the function returns."""
        observer = PrometheusObserver(registry, label=lambda name: name)
        with pyredisson.connect(server.url, observer=observer) as client:
            for number in range(MOST_VALUES + 20):
                with client.get_lock(f"order:{number}"):
                    pass
            delivered(client)
        samples = [sample for family in registry.collect() for sample in family.samples]
        names = {sample.labels["name"] for sample in samples if "name" in sample.labels}
        assert len(names - {"other"}) == MOST_VALUES
        assert Values(registry, name="other").outcomes()["acquired"] == 20
        assert len([record for record in caplog.records if "different labels" in record.getMessage()]) == 1

    def test_one_that_raises(
        self, server: Server, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        observer = PrometheusObserver(registry, label=lambda name: {"known": "k"}[name])
        with pyredisson.connect(server.url, observer=observer) as client:
            for name in ("known", "order:1", "order:2"):
                with client.get_lock(name):
                    pass
            delivered(client)
        assert Values(registry, name="k").outcomes()["acquired"] == 1
        assert Values(registry, name="other").outcomes()["acquired"] == 2
        assert len([record for record in caplog.records if "could not be computed" in record.getMessage()]) == 1


def test_it_has_every_method() -> None:
    assert all(callable(getattr(PrometheusObserver, name)) for name in METHODS)


def test_two_in_one_registry(registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    before = generate_latest(registry)
    with pytest.raises(ValueError, match=r"Duplicated timeseries.*One PrometheusObserver serves all clients"):
        PrometheusObserver(registry)
    assert generate_latest(registry) == before
    # Under other names there may be a second one.
    PrometheusObserver(registry, namespace="other")


def test_one_for_two_clients(server: Server, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    with (
        pyredisson.connect(server.url, observer=metrics) as one,
        pyredisson.connect(server.url, observer=metrics) as two,
    ):
        one.get_lock("order:1").lock()
        two.get_lock("order:2").lock()
        delivered(one)
        delivered(two)
        assert Values(registry)["held"] == 2
    delivered(one)
    delivered(two)
    assert Values(registry)["held"] == 0


def test_dropped_events(registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    """The gauges show nothing that may have ended, and an end that comes later doesn't make them negative."""

    def event(what: str, client_id: str = "mine", **fields: Any) -> Event:
        return Event(what=what, client_id=client_id, time_ns=1, name="order:1", kind="lock", **fields)

    metrics.acquired(event("acquired", hold_id=1))
    metrics.acquired(event("acquired", "other", hold_id=1))
    metrics.waiting(event("waiting", wait_id=2))
    assert (Values(registry)["held"], Values(registry)["waiting"]) == (2, 1)
    metrics.dropped(event("dropped", count=7))
    assert (Values(registry)["held"], Values(registry)["waiting"]) == (1, 0)
    metrics.released(event("released", hold_id=1, held=0.5))
    metrics.timed_out(event("timed_out", wait_id=2, waited=0.5))
    assert (Values(registry)["held"], Values(registry)["waiting"]) == (1, 0)
    assert value(registry, "dropped_events_total") == 7


def test_a_forked_child(server: Server, registry: CollectorRegistry, metrics: PrometheusObserver) -> None:
    """What the parent holds is not the child's."""
    with pyredisson.connect(server.url, observer=metrics) as client:
        client.get_lock("order:1", owner=1).lock()
        delivered(client)
        child = os.fork()
        if not child:
            status = 2
            try:
                client.get_lock("order:2", owner=1).lock()
                delivered(client)
                status = 0 if Values(registry)["held"] == 1 else 1
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert Values(registry)["held"] == 1


# Its processes share an output: print would write a line and its end separately.
PREFORK = """
import os, signal, sys
from prometheus_client import CollectorRegistry
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
        client._lifecycle.delivery.drain(30)
        os.write(1, b"holds\\n")
        os.read(0, 1)
        os._exit(0)
client._lifecycle.delivery.drain(30)
os.write(1, b"holds\\n")
os.read(0, 1)
"""


def test_workers_of_a_server_that_forks(
    server: Server, child: Callable[..., Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prometheus_client's mode for several processes their values are added up."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    process = child(PREFORK, server.url)
    assert [process.receive() for _ in range(3)] == ["holds"] * 3
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]
    of_lock = Values(registry)
    assert of_lock["held"] == 2
    assert of_lock.outcomes()["acquired"] == 3
    assert of_lock["hold_seconds_count"] == 1
    for _ in range(3):
        process.send("")
    assert process.wait() == 0
