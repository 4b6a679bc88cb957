"""The reading behind the dashboard: what is new, what is left out, what is fresh, and what ends it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request

import pyredisson
from pyredisson._settings.config import Config
from pyredisson.dashboard import collector as collectors
from pyredisson.dashboard.app import Dashboard, make_app
from pyredisson.dashboard.collector import Collector, Turns, is_new
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import Evidence
from pyredisson.inspection.states import Inspector
from pyredisson.testing import Server
from tests.dashboard.running import LIMIT
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio
OWNER = "00000000-0000-4000-8000-000000000001:1"


@asynccontextmanager
async def running(server: Server, interval: float = 0.02) -> AsyncIterator[Collector]:
    collector = Collector(Config.of(server.url), interval)
    task = asyncio.create_task(collector.run())
    try:
        yield collector
    finally:
        collector.stop()
        await task


async def until(collector: Collector, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            assert await collector.next(collector.snapshot.number) is not None


def new(collector: Collector) -> list[bytes]:
    """What the next round would read because it is new."""
    found, _ = collector._names()
    return [name for name, evidence in found.items() if is_new(name, evidence, collector._seen)]


async def test_each_object_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is visible, and also if a name comes or goes in between."""
    monkeypatch.setattr("pyredisson.dashboard.collector.READ_EACH_ROUND", 3)
    found = {b"%02d" % number: Evidence.HASH for number in range(10)}
    turns = Turns()
    read = [turns.next(found, found, [b"07", b"gone"]) for _ in range(3)]
    assert [list(each) for each in read] == [
        [b"07", b"00", b"01", b"02"],
        [b"07", b"03", b"04", b"05"],
        [b"07", b"06", b"08"],
    ]
    del found[b"09"]
    assert {*turns.next(found, found, [])} == {b"00", b"01", b"02"}
    # A new name doesn't wait for its turn, and comes with the other one that has the same companion keys.
    found |= {b"{new}": Evidence.HASH, b"new": Evidence.COMPANION}
    seen = {*found} - {b"{new}"}
    assert {*turns.next(found, seen, [])} == {b"03", b"04", b"05", b"new", b"{new}"}


@pytest.mark.parametrize("name", ["orders", "{orders}"])
async def test_what_is_known_is_not_new(server: Server, client: pyredisson.Client, name: str) -> None:
    """The further keys of a fenced lock may be those of `orders` and of `{orders}`, of which one is never seen."""
    await asyncio.to_thread(client.get_fenced_lock(name, owner=1).lock)
    async with running(server) as collector:
        with collector.watch():
            await until(collector, lambda: name.encode() in collector.snapshot.seen and collector.snapshot.complete)
            assert collector._names()[0].keys() == {b"orders", b"{orders}"}
            await until(collector, lambda: not new(collector))


async def test_counters_do_not_displace_holds(server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "MOST_OBJECTS", 2)

    for name in ("a", "b", "c"):
        redis.set(f"redisson_lock_token:{{{name}}}", 1)
    for name in ("y", "z"):
        redis.hset(name, OWNER, 1)
    async with running(server) as collector:
        with collector.watch():
            problem = "only 2 of 8 names are read"
            await until(collector, lambda: collector.snapshot.problems == (problem,))
            await until(collector, lambda: collector.snapshot.seen.keys() == {b"y", b"z"})


async def test_after_nobody_has_looked(server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks then is told what is there now."""
    monkeypatch.setattr(collectors, "IDLE_AFTER", 0.0)
    monkeypatch.setattr(collectors, "IDLE_INTERVAL", 3600.0)
    async with running(server) as collector:
        with collector.watch():
            await until(collector, lambda: collector.snapshot.complete)
        assert not collector._looking()
        # The walk stops after this pass, and the reading after this round. If not, the test only shows less.
        await asyncio.sleep(0.2)
        redis.hset("orders", OWNER, 1)
        with collector.watch():
            snapshot = await collector.fresh(LIMIT)
        assert snapshot is not None
        assert snapshot.seen.keys() == {b"orders"}


async def test_one_object_is_read_anew(server: Server, redis: Any) -> None:
    """However long the intervals are."""
    async with running(server, 3600.0) as collector, asyncio.timeout(LIMIT):
        await collector.next(0)
        await asyncio.to_thread(eventually, lambda: not math.isinf(collector._walked))
        redis.hset("orders", OWNER, 1)
        with collector.watch() as watch:
            watch.detail = b"orders"
            snapshot = await collector.fresh(LIMIT, time.monotonic())
        assert snapshot is not None
        assert snapshot.seen[b"orders"].state.held


async def test_a_defect_of_one_round(
    server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and the next rounds go on."""
    redis.hset("orders", OWNER, 1)
    found, failures = Inspector.found, iter([True] * 3)

    async def fail_at_first(self: Inspector, *args: Any, **kwargs: Any) -> Any:
        if next(failures, False):
            raise OverflowError("too large")
        return await found(self, *args, **kwargs)

    monkeypatch.setattr(Inspector, "found", fail_at_first)
    async with running(server) as collector:
        with collector.watch():
            problem = "what some keys contain can't be read: OverflowError"
            await until(collector, lambda: problem in collector.snapshot.problems)
            await until(collector, lambda: collector.snapshot.seen and not collector.snapshot.problems)
    assert [record.levelno for record in caplog.records if "can't be read" in record.getMessage()] == [logging.ERROR]


async def test_a_defect_that_ends_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The dashboard ends, too: a page without news would look as if all were well."""

    async def fail(self: Discovery) -> bool:
        raise OverflowError("too large")

    monkeypatch.setattr(Discovery, "step", fail)
    collector, ended = Collector(Config.of(server.url), 0.02), asyncio.Event()
    app = make_app(collector, None, (), allow_unlock=False, on_failure=ended.set)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(LIMIT):
            await ended.wait()
        reply = await Dashboard(collector, allow_unlock=False).health(Request({"type": "http"}))
        assert reply.status_code == 503
    assert isinstance(collector.failure, OverflowError)
    assert "the dashboard stops after a defect" in caplog.text
