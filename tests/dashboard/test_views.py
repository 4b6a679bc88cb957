"""What is made of a snapshot: rows, pages, words, and the points of the charts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyredisson.dashboard.snapshot import MINUTES, History, Seen, Snapshot, who
from pyredisson.dashboard.views import Query, query_of, totals_of, view_of
from pyredisson.holder import Holder
from pyredisson.inspection.model import ClientState, Owner, State, Waiter

NOW = datetime(2026, 1, 2, tzinfo=UTC)
HERE = Holder(client_id="one", host="web-3", pid=812, since=NOW, time_to_live=20.0)


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

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ("", ["cron:daily", "cron:nightly", "orders"]),
            ("CRON", ["cron:daily", "cron:nightly"]),
            ("*ly", ["cron:daily", "cron:nightly"]),
            ("cron:?aily", ["cron:daily"]),
            ("web-4", ["orders"]),
            ("nothing", []),
        ],
    )
    def test_filter(self, wanted: str, found: list[str]) -> None:
        other = (Owner("two:1", replace(HERE, host="web-4")),)
        states = snapshot(lock("cron:nightly"), lock("cron:daily"), lock("orders", owners=other))
        assert shown(states, filter=wanted) == found

    def test_order_and_what_is_left_of_a_lease(self) -> None:
        older = (Owner("one:1", replace(HERE, since=NOW - timedelta(hours=1))),)
        unknown = (Owner("one:1", replace(HERE, since=None)),)
        states = snapshot(
            lock("b", time_to_live=5.0),
            lock("c", owners=older),
            lock("a", owners=unknown, time_to_live=math.inf),
            at=103.0,
        )
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
        other = (Owner("two:1", HERE),)
        assert Seen.of(lock("a", time_to_live=4.0, owners=other), 27.0, seen).scale == 5


class TestClients:
    def test_announced_and_unknown_ones(self) -> None:
        java = (Owner("java:31", Holder(client_id="b983c153-7421", owner_id=31, foreign=True)),)
        states = snapshot(lock("a"), lock("b", owners=java), clients=(announced("one", waits=4, waited=2.0),))
        rows = view_of(states, query_of({"view": "clients"})).content["rows"]
        assert [(row["who"], row["holds"], row["announced"]) for row in rows] == [
            ("Redisson b983c153", 1, False),
            ("web-3 (pid 812)", 1, True),
        ]

    def test_places_in_queues_and_that_everything_is_json(self) -> None:
        """Infinity is none."""
        waiter = Waiter(Owner("two:1", Holder(client_id="two"), levels=0), 3, None, math.inf)
        states = snapshot(lock("a", kind="fair", waiters=(waiter,), waiter_count=1, time_to_live=math.inf))
        page = view_of(states, query_of({"view": "client", "name": "two"})).content
        assert page["holds"] == []
        assert [(wait["name"], wait["place"]) for wait in page["waits"]] == [("a", 3)]
        assert view_of(states, query_of({"view": "client", "name": "three"})).content["row"] is None
        queries = [{"view": view} for view in ("locks", "clients", "semaphores", "latches")]
        contents = [view_of(states, query_of(each)).content for each in [*queries, {"view": "lock", "name": "a"}]]
        json.dumps([page, totals_of(states), *contents], allow_nan=False)


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (HERE, "web-3 (pid 812)"),
        (replace(HERE, client_name="billing"), "billing on web-3 (pid 812)"),
        (replace(HERE, client_name="billing@web-3:812", program="billing"), "web-3 (pid 812)"),
        (Holder(client_id="b983c153-7421", owner_id=31, foreign=True), "Redisson b983c153, thread 31"),
        (Holder(client_id="b983c153-7421", owner_id=2**33, foreign=False), "client b983c153"),
        (Holder(), "unknown"),
    ],
)
def test_words(holder: Holder, words: str) -> None:
    assert who(holder) == words


class TestHistory:
    def test_counts_become_differences(self) -> None:
        history = History()
        history.add(1.0, 5, 1, [announced("old", waits=100, waited=50.0, lost=7)])
        history.add(2.0, 6, 0, [announced("old", waits=103, waited=51.5, lost=8), announced("new", waits=2)])
        # A client that has ended takes its counts along; one that begins anew counts from there.
        history.add(3.0, 6, 0, [announced("new", waits=1)])
        history.add(4.0, 6, 0, [announced("new", waits=4)])
        assert [(point.waits, point.waited, point.lost) for point in history.since(0)] == [
            (0, 0.0, 0),
            (5, 1.5, 1),
            (0, 0.0, 0),
            (3, 0.0, 0),
        ]

    def test_it_is_bounded(self) -> None:
        history = History()
        for second in range(10_000):
            history.add(float(second), second, 0, [])
        times = [point.time for point in history.since(0)]
        assert (times[-1], len(times)) == (9999.0, MINUTES * 60 + 1)
        assert [point.held for point in history.since(9998.0)] == [9999]
