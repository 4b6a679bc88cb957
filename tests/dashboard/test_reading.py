"""The reading behind the dashboard, and what is made of a snapshot: rows, pages, words, points of charts."""

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request

import pyredisson
from pyredisson._settings.config import Config
from pyredisson.dashboard import collector as collectors
from pyredisson.dashboard import snapshot as snapshots
from pyredisson.dashboard.app import Dashboard, make_app
from pyredisson.dashboard.collector import Collector, is_new
from pyredisson.dashboard.snapshot import MOST_CHANGED, MOST_PAST, History, PastHold, Seen, Snapshot, who
from pyredisson.dashboard.views import MOST_EDGES, Query, metrics_of, query_of, totals_of, view_of
from pyredisson.holder import Holder
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import ClientState, Evidence, Owner, State, WaitingOwner
from pyredisson.inspection.states import Inspector
from pyredisson.testing import Server
from tests.dashboard.conftest import LIMIT
from tests.support.backends import eventually
from tests.support.inspecting import announce

OWNER = "00000000-0000-4000-8000-000000000001:1"
NOW = datetime(2026, 1, 2, tzinfo=UTC)
HERE = Holder(client_id="one", host="web-3", pid=812, since=NOW, time_to_live=20.0)


@asynccontextmanager
async def running(server: Server, interval: float = 0.02, *, watched: bool = False) -> AsyncIterator[Collector]:
    collector = Collector(Config.of(server.url), interval)
    task = asyncio.create_task(collector.run())
    try:
        with collector.watch() if watched else nullcontext():
            yield collector
    finally:
        collector.stop()
        await task


async def until(collector: Collector, condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            assert await collector.next(collector.snapshot.number) is not None


async def test_each_object_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is visible, and also if a name comes or goes in between."""
    monkeypatch.setattr(collectors, "READ_EACH_ROUND", 3)
    found = {b"%02d" % number: Evidence.HASH for number in range(10)}
    collector = Collector(Config(), 1.0)
    seen: Any = "known"
    collector._seen = dict.fromkeys(found, seen)
    read = [collector._turn(found, [b"07", b"gone"]) for _ in range(3)]
    assert [b" ".join(each) for each in read] == [b"07 00 01 02", b"07 03 04 05", b"07 06 08"]
    del found[b"09"]
    assert {*collector._turn(found, [])} == {b"00", b"01", b"02"}
    # A new name doesn't wait for its turn, and comes with the other one that has the same companion keys.
    found |= {b"{new}": Evidence.HASH, b"new": Evidence.COMPANION}
    collector._seen[b"new"] = seen
    assert {*collector._turn(found, [])} == {b"03", b"04", b"05", b"new", b"{new}"}


@pytest.mark.parametrize("name", ["orders", "{orders}"])
async def test_what_is_known_is_not_new(server: Server, client: pyredisson.Client, name: str) -> None:
    """The further keys of a fenced lock may be those of `orders` and of `{orders}`, of which one is never seen."""
    await asyncio.to_thread(client.get_fenced_lock(name, owner=1).lock)
    async with running(server, watched=True) as collector:
        await until(collector, lambda: name.encode() in collector.snapshot.seen and collector.snapshot.complete)
        assert collector._names()[0].keys() == {b"orders", b"{orders}"}
        # Else the next round would read it again.
        await until(collector, lambda: not any(is_new(*it, collector._seen) for it in collector._names()[0].items()))


async def test_counters_do_not_displace_holds(server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "MOST_OBJECTS", 2)
    for name in ("a", "b", "c"):
        redis.set(f"redisson_lock_token:{{{name}}}", 1)
    for name in ("y", "z"):
        redis.hset(name, OWNER, 1)
    async with running(server, watched=True) as collector:
        await until(collector, lambda: collector.snapshot.problems == ("only 2 of 8 names are read",))
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
            snapshot: Any = await collector.fresh(LIMIT)
        assert snapshot.seen.keys() == {b"orders"}


async def test_one_object_is_read_anew(server: Server, redis: Any) -> None:
    """However long the intervals are."""
    async with running(server, 3600.0) as collector, asyncio.timeout(LIMIT):
        await collector.next(0)
        await asyncio.to_thread(eventually, lambda: not math.isinf(collector._walked))
        redis.hset("orders", OWNER, 1)
        with collector.watch() as watch:
            watch.detail = b"orders"
            snapshot: Any = await collector.fresh(LIMIT, time.monotonic())
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
    problem = "what some keys contain can't be read: OverflowError"
    async with running(server, watched=True) as collector:
        await until(collector, lambda: problem in collector.snapshot.problems)
        await until(collector, lambda: collector.snapshot.seen and not collector.snapshot.problems)
    assert [record.levelno for record in caplog.records if "can't be read" in record.getMessage()] == [logging.ERROR]


async def test_what_ends_it(server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The dashboard ends, too: a page without news would look as if all were well."""

    async def fail(self: Discovery) -> bool:
        raise OverflowError("too large")

    monkeypatch.setattr(Discovery, "step", fail)
    collector, ended = Collector(Config.of(server.url), 0.02), asyncio.Event()
    app = make_app(collector, None, (), allow_unlock=False, on_failure=ended.set)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(LIMIT):
            await ended.wait()
        assert (await Dashboard(collector, allow_unlock=False).health(Request({"type": "http"}))).status_code == 503
    assert isinstance(collector.failure, OverflowError)
    assert "the dashboard stops after a defect" in caplog.text


def lock(name: str, **fields: Any) -> State:
    usual = State(name.encode(), name, "lock", True, "", True, (Owner("one:1", HERE),), time_to_live=20.0)
    made = replace(usual, **fields)
    return replace(made, owner_count=len(made.owners))


def snapshot(*states: State, clients: tuple[ClientState, ...] = (), at: float = 100.0) -> Snapshot:
    seen = {state.key: Seen.of(state, 100.0, None) for state in states}
    return Snapshot(number=1, at=at, seen=seen, clients={client.id: client for client in clients})


def announced(id_: str, waits: int = 0, waited: float = 0.0, lost: int = 0) -> ClientState:
    return ClientState(id_, "", "web-3", 812, "billing", "0.1", NOW, 30.0, (), 0, waits, waited, lost)


def shown(found: Snapshot, **query: str) -> list[str]:
    return [row["name"] for row in view_of(found, query_of(query)).content["rows"]]


class TestLists:
    def test_pages(self) -> None:
        many = snapshot(*(lock(f"orders-{number:05}") for number in range(10_000)))
        first = view_of(many, Query(per=200))
        assert (first.content["total"], first.content["pages"], len(first.content["rows"])) == (10_000, 50, 200)
        assert first.keys == {f"orders-{number:05}".encode() for number in range(200)}
        assert shown(many, page="3", per="2") == ["orders-00004", "orders-00005"]
        # A page beyond the end is the last one: there were more locks a moment ago.
        last = view_of(many, Query(page=99, per=200)).content
        assert (last["page"], last["rows"][-1]["name"]) == (50, "orders-09999")

    def test_filter(self) -> None:
        other = (Owner("two:1", replace(HERE, host="web-4")),)
        states = snapshot(lock("cron:nightly"), lock("cron:daily"), lock("orders", owners=other))
        crons = ["cron:daily", "cron:nightly"]
        found = {"": [*crons, "orders"], "CRON": crons, "*ly": crons, "cron:?aily": crons[:1], "web-4": ["orders"]}
        found |= {"nothing": []}
        assert {wanted: shown(states, filter=wanted) for wanted in found} == found

    def test_order_and_what_is_left_of_a_lease(self) -> None:
        older = (Owner("one:1", replace(HERE, since=NOW - timedelta(hours=1))),)
        unknown = (Owner("one:1", replace(HERE, since=None)),)
        last = lock("a", owners=unknown, time_to_live=math.inf)
        states = snapshot(lock("b", time_to_live=5.0), lock("c", owners=older), last, at=103.0)
        for sort, names in (("since", "cba"), ("ttl", "bca"), ("-ttl", "acb"), ("-name", "cba")):
            assert shown(states, sort=sort) == list(names)
        # It was read some time before the snapshot.
        assert [row["ttl"] for row in view_of(states, query_of({"sort": "ttl"})).content["rows"]] == [2.0, 17.0, -1]

    def test_what_is_listed(self) -> None:
        """A free lock isn't, unless somebody stands in its queue."""
        free = replace(lock("free"), held=False, owners=(), owner_count=0)
        queue = replace(free, key=b"queue", name="queue", kind="fair", waiter_count=2)
        latch = replace(free, key=b"latch", name="latch", kind="latch", held=True, count=1)
        states = snapshot(free, queue, latch, lock("held"))
        assert shown(states) == ["held", "queue"]
        assert shown(states, kind="fair") == ["queue"]
        assert shown(states, view="latches") == ["latch"]
        assert [totals_of(states)[name] for name in ("locks", "latches")] == [1, 1]

    def test_the_scale_of_a_bar(self) -> None:
        """The longest time that was left counts, as long as the holder is the same."""
        seen = Seen.of(lock("a", time_to_live=29.9), 0.0, None)
        seen = Seen.of(lock("a", time_to_live=4.0), 26.0, seen)
        assert seen.scale == 30
        assert Seen.of(lock("a", time_to_live=4.0, owners=(Owner("two:1", HERE),)), 27.0, seen).scale == 5


def test_clients_places_in_queues_and_that_everything_is_json() -> None:
    """Clients that have announced themselves, and unknown ones. Infinity is no JSON."""
    java = (Owner("java:31", Holder(client_id="b983c153-7421", owner_id=31, foreign=True)),)
    waiter = WaitingOwner(Owner("two:1", Holder(client_id="two"), levels=0), 3, None, math.inf)
    endless = lock("a", kind="fair", waiters=(waiter,), waiter_count=1, time_to_live=math.inf)
    states = snapshot(endless, lock("b", owners=java), clients=(announced("one", waits=4, waited=2.0),))
    rows = view_of(states, query_of({"view": "clients"})).content["rows"]
    found = [(row["who"], row["holds"], row["announced"]) for row in rows]
    assert found == [("Redisson b983c153", 1, False), ("client two", 0, False), ("web-3 (pid 812)", 1, True)]
    page = view_of(states, query_of({"view": "client", "name": "two"})).content
    assert (page["holds"], [(wait["name"], wait["place"]) for wait in page["waits"]]) == ([], [("a", 3)])
    assert view_of(states, query_of({"view": "client", "name": "three"})).content["row"] is None
    queries = [{"view": view} for view in ("locks", "clients", "semaphores", "latches", "graph", "wall")]
    contents = [view_of(states, query_of(each)).content for each in [*queries, {"view": "lock", "name": "a"}]]
    json.dumps([page, totals_of(states), *contents], allow_nan=False)


def test_words() -> None:
    for holder, words in (
        (HERE, "web-3 (pid 812)"),
        (replace(HERE, client_name="billing"), "billing on web-3 (pid 812)"),
        (replace(HERE, client_name="billing@web-3:812", program="billing"), "web-3 (pid 812)"),
        (Holder(client_id="b983c153-7421", owner_id=31, foreign=True), "Redisson b983c153, thread 31"),
        (Holder(client_id="b983c153-7421", owner_id=2**33, foreign=False), "client b983c153"),
        (Holder(), "unknown"),
    ):
        assert who(holder) == words


def test_in_the_history_counts_become_differences_and_it_is_bounded() -> None:
    history, long = History(), History()
    history.began = NOW
    old, new = replace(announced("old"), since=NOW - timedelta(seconds=1)), announced("new")
    history.add(1.0, 5, 1, [replace(old, waits=100, waited=50.0, lost=7)])
    history.add(2.0, 6, 0, [replace(old, waits=103, waited=51.5, lost=8), replace(new, waits=2)])
    # A client that has ended takes its counts along; one that begins anew counts from there.
    history.add(3.0, 6, 0, [replace(new, waits=1)])
    history.add(4.0, 6, 0, [replace(new, waits=4)])
    points = [(point.waits, point.waited, point.lost) for point in history.since(0)]
    assert points == [(0, 0.0, 0), (5, 1.5, 1), (0, 0.0, 0), (3, 0.0, 0)]
    for second in range(10_000):
        long.add(float(second), second, 0, [])
    times = [point.time for point in long.since(0)]
    assert (times[-1], len(times)) == (9999.0, snapshots.MINUTES * 60 + 1)
    assert [point.held for point in long.since(9998.0)] == [9999]


async def test_what_clients_counted_before_is_no_news(
    server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the dashboard needs several rounds to read all of them."""
    monkeypatch.setattr(collectors, "MOST_CLIENTS", 2)
    for number in range(7):
        announce(redis, f"client {number}", lost=3)
    async with running(server, watched=True) as collector:
        await until(collector, lambda: len(collector.snapshot.clients) == 7)
        assert collector.snapshot.lost == 0
        announce(redis, "client 7", lost=4, since=round(time.time() * 1000))
        await until(collector, lambda: len(collector.snapshot.clients) == 8)
        assert collector.snapshot.lost == 4


def owners(*numbers: int) -> tuple[Owner, ...]:
    return tuple(Owner(f"one:{number}", replace(HERE, owner_id=number)) for number in numbers)


def waiters(*numbers: int) -> tuple[WaitingOwner, ...]:
    return tuple(WaitingOwner(owner) for owner in owners(*numbers))


def remembered(*states: State | None) -> dict[bytes, tuple[PastHold, ...]]:
    """What a collector remembers of states of one lock, read one second after the other. None: it is gone."""
    collector = Collector(Config(), 1.0)
    for second, state in enumerate(states):
        collector._note([] if state is None else [state], [b"a"], float(second))
    return collector._past


class TestFormerHolders:
    def test_who_for_how_long_and_how_many_waited(self) -> None:
        unknown = lock("a", kind="fair", owners=(Owner("one:1", replace(HERE, since=None)),), waiters=waiters(2, 3))
        free = lock("a", owners=(), held=False)
        past = remembered(unknown, lock("a"), lock("a", owners=owners(2)), None)
        holds = (0.0, NOW, 2.0, 2), (2.0, NOW, 3.0, 0)
        assert past[b"a"] == tuple(PastHold("web-3 (pid 812)", "one", *hold) for hold in holds)
        states = replace(snapshot(free, at=103.0), past=past, time=NOW.timestamp() + 103)
        page = view_of(states, query_of({"view": "lock", "name": "a"})).content["past"]
        assert [hold["until"] for hold in page] == ["2026-01-02T00:00:03.000Z", "2026-01-02T00:00:02.000Z"]
        assert [hold["from"] for hold in page] == ["2026-01-02T00:00:00.000Z"] * 2

    def test_the_same_holders(self) -> None:
        """Of very many readers other ones may be listed each time. Holders of permits are no holders of a lock."""
        many = replace(lock("a", kind="read-write", owners=owners(1, 2)), owner_count=500)
        other = replace(many, owners=owners(3, 4))
        assert remembered(many, other, replace(lock("a", owners=owners(3, 4)), owner_count=500)) == {}
        assert len(remembered(many, replace(other, owner_count=499))[b"a"]) == 1
        assert remembered(lock("a", kind="permits"), None) == {}

    def test_it_is_bounded(self) -> None:
        [past] = remembered(*(lock("a", owners=owners(number)) for number in range(MOST_PAST + 10))).values()
        assert [hold.until for hold in past] == [float(second) for second in range(10, MOST_PAST + 10)]
        every: dict[bytes, tuple[PastHold, ...]] = {}
        for number in (*range(MOST_CHANGED), 0, MOST_CHANGED):
            snapshots.remember(every, Seen.of(lock(f"{number}"), 0.0, None), None, 1.0)
        assert len(every) == MOST_CHANGED
        # The lock whose holder hasn't changed for the longest time is dropped.
        assert (len(every[b"0"]), b"1" in every) == (2, False)


class TestContention:
    def test_the_graph_is_limited_and_shows_deadlocks(self) -> None:
        crowd = lock("crowd", waiters=waiters(*range(100, 100 + 2 * MOST_EDGES)))
        pair = lock("pair", owners=owners(5), waiters=waiters(6, 7))
        states = snapshot(crowd, pair, lock("latch", kind="latch", owners=(), waiters=waiters(8)), lock("alone"))
        view = view_of(states, Query(view="graph"))
        assert view.keys == {b"crowd", b"pair"}
        assert (len(view.content["edges"]), view.content["left_out"]) == (MOST_EDGES, MOST_EDGES + 4)
        # No lock takes all the place.
        assert [edge["name"] for edge in view.content["edges"]].count("pair") == 3
        marked = replace(states, deadlocked=frozenset({("one", 5, b"pair"), ("one", 7, b"pair")}))
        edges = view_of(marked, Query(view="graph")).content["edges"]
        stuck = [(edge["owner"], edge["what"]) for edge in edges if edge["deadlock"]]
        assert stuck == [("one:5", "holds"), ("one:7", "waits")]
        assert [edge["deadlock"] for edge in edges[:3]] == [True, True, False]

    def test_the_wall(self) -> None:
        losers = [replace(announced(id_, lost=lost), host=id_) for id_, lost in (("a", 1), ("b", 0), ("c", 4))]
        few, more = lock("x", waiters=waiters(2)), lock("y", waiters=waiters(3, 4))
        wall = view_of(snapshot(few, more, lock("z"), clients=(*losers,)), Query(view="wall")).content
        assert [(row["name"], row["waiting"]) for row in wall["rows"]] == [("y", 2), ("x", 1)]
        assert [row["who"] for row in wall["clients"]] == ["c (pid 812)", "a (pid 812)"]
        assert wall["lost"] == 5


def test_metrics() -> None:
    states = snapshot(lock("a"), lock("b", kind="fair"), lock("c"), lock("d", kind="fenced", held=False, owners=()))
    found = replace(states, round_trip=0.0021, waiting=7, lost=3, deadlocks=("a deadlock",), complete=True)
    lines = metrics_of(found).splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    prefix = "pyredisson_dashboard_"
    held = {kind: samples.pop(f'{prefix}held_locks{{kind="{kind}"}}') for kind in ("lock", "fair", "fenced", "spin")}
    assert held == {"lock": "2", "fair": "1", "fenced": "0", "spin": "0"}
    expected = {"server_up": "1", "lost_holds_total": "3", "round_trip_seconds": "0.0021", "waiters": "7"}
    expected |= {"clients": "1", "deadlocks": "1", "complete": "1"}
    assert {prefix + name: value for name, value in expected.items()}.items() <= samples.items()
    # Each metric has a meaning and a type before its samples.
    names = [line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")]
    for name in names:
        at = min(number for number, line in enumerate(lines) if line.startswith(name))
        assert [line.split(" ")[:3] for line in lines[at - 2 : at]] == [["#", "HELP", name], ["#", "TYPE", name]]
    # Nobody knows what a server holds that doesn't reply.
    away = [line for line in metrics_of(replace(found, round_trip=None)).splitlines() if not line.startswith("#")]
    assert away == [f"{prefix}server_up 0", f"{prefix}lost_holds_total 3"]
