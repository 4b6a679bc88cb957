"""What the dashboard sends, and to whom: data, releases by force, outages, and its end."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

import pyredisson
from pyredisson.errors import ClosedError
from pyredisson.testing import Server
from tests.dashboard.conftest import Start
from tests.dashboard.running import Dashboard
from tests.support.commands import pyredisson as pyredisson_command
from tests.support.inspecting import FOREIGN
from tests.support.waiting import eventually, waiters

OWNER = "00000000-0000-4000-8000-000000000001:1"


class TestData:
    def test_locks(self, dashboard: Dashboard, client: pyredisson.Client, redis: Any) -> None:
        for command in FOREIGN.values():
            redis.execute_command(*command)
        lock = client.get_lock("orders")
        lock.lock()
        lock.lock()
        client.get_fenced_lock("leader").lock(lease_time=60)
        client.get_read_write_lock("config").read_lock().lock()
        dashboard.until(lambda: len(dashboard.rows()) == 3)
        rows = dashboard.rows()
        assert {name: row["kind"] for name, row in rows.items()} == {
            "orders": "lock",
            "leader": "fenced",
            "config": "read-write",
        }
        assert all(row["held"] and row["client"] == client.id for row in rows.values())
        assert 0 < rows["orders"]["ttl"] <= 30
        assert (rows["orders"]["scale"], rows["leader"]["scale"]) == (30, 60)
        page = dashboard.view("lock", name="orders")
        [owner] = page["owners"]
        [[raw, levels]] = redis.hgetall("orders").items()
        assert (owner["raw"], owner["levels"]) == (raw.decode(), int(levels))
        lock.unlock()
        lock.unlock()
        dashboard.until(lambda: "orders" not in dashboard.rows())
        # The page of a lock that a person has named shows that it is free.
        assert dashboard.view("lock", name="orders")["row"]["held"] is False

    def test_a_queue(self, dashboard: Dashboard, client: pyredisson.Client, redis: Any) -> None:
        """Its order is that of the queue on the server."""
        client.get_fair_lock("jobs").lock()
        threads = []
        for owner in ("one", "two", "three"):
            threads.append(threading.Thread(target=wait_for_jobs, args=(client, owner)))
            threads[-1].start()
            eventually(lambda: redis.llen("redisson_lock_queue:{jobs}") == len(threads))
        try:
            dashboard.until(lambda: dashboard.rows().get("jobs", {}).get("waiters") == 3)
            on_server = [place.decode() for place in redis.lrange("redisson_lock_queue:{jobs}", 0, -1)]
            expected = [(raw, place, True, client.id) for place, raw in enumerate(on_server, 1)]
            # On a busy machine a waiter shows no sign of life now and then.
            dashboard.until(lambda: queue_of(dashboard, "jobs") == expected)
            waits = dashboard.view("client", name=client.id)["waits"]
            assert [wait["place"] for wait in waits] == [1, 2, 3]
        finally:
            client.close()
            for thread in threads:
                thread.join()

    def test_permits_and_latches(self, dashboard: Dashboard, client: pyredisson.Client) -> None:
        tokens = client.get_permit_expirable_semaphore("tokens")
        tokens.try_set_permits(5)
        tokens.acquire(lease_time=60)
        pool = client.get_semaphore("pool")
        pool.try_set_permits(4)
        pool.acquire()
        client.get_count_down_latch("ready").try_set_count(2)
        dashboard.until(lambda: len(dashboard.rows("semaphores")) == 2 and dashboard.rows("latches"))
        rows = dashboard.rows("semaphores")
        assert [rows["tokens"][field] for field in ("kind", "permits", "free", "owners")] == ["permits", 5, 4, 1]
        assert [rows["pool"][field] for field in ("kind", "permits", "free")] == ["semaphore", None, 3]
        assert dashboard.rows("latches")["ready"]["count"] == 2
        totals = dashboard.get("/api/latches").json["totals"]
        assert [totals[field] for field in ("locks", "semaphores", "latches")] == [0, 2, 1]

    def test_clients(self, dashboard: Dashboard, client: pyredisson.Client) -> None:
        client.get_lock("orders").lock()
        dashboard.until(lambda: client.id in dashboard.rows("clients"))
        assert dashboard.rows("clients")[client.id]["holds"] == 1
        page = dashboard.view("client", name=client.id)
        assert [hold["name"] for hold in page["holds"]] == ["orders"]

    def test_no_key_is_looked_for_by_keys(self, dashboard: Dashboard, redis: Any) -> None:
        """KEYS blocks a server for as long as it has keys."""
        redis.config_resetstat()
        events = dashboard.events(view="locks")
        next(events)
        dashboard.until(lambda: "cmdstat_scan" in redis.info("commandstats"))
        events.close()
        assert "cmdstat_keys" not in redis.info("commandstats")

    @pytest.mark.parametrize(
        "command",
        [
            # The name of an announcement, but no hash.
            ("SET", "pyredisson_client:{x}", 1),
            # Permits that end never, and before all time.
            ("ZADD", "{x}:timeout", "+inf", "16 bytes exactly", "-inf", "or another one.."),
        ],
    )
    def test_keys_that_nobody_should_write(
        self, dashboard: Dashboard, client: pyredisson.Client, redis: Any, command: tuple[Any, ...]
    ) -> None:
        redis.execute_command(*command)
        dashboard.until(lambda: dashboard.get("/api/locks").json["totals"]["keys"] == 1)
        client.get_lock("orders").lock()
        dashboard.until(lambda: [*dashboard.rows()] == ["orders"])
        assert dashboard.get("/api/locks").json["totals"]["problems"] == []

    def test_a_name_that_is_no_text(self, dashboard: Dashboard, redis: Any) -> None:
        """It is shown as text, which is the name of no key."""
        redis.hset(b"\xff", OWNER, 1)
        dashboard.until(lambda: [*dashboard.rows()] == ["\\xff"])
        page = dashboard.view("lock", name="\\xff")
        assert (page["row"]["held"], page["owners"][0]["raw"]) == (True, OWNER)
        assert dashboard.post("/api/unlock", {"name": "\\xff", "owner": OWNER}).status == 200
        assert not redis.exists(b"\xff")

    @pytest.mark.parametrize(
        ("query", "text"),
        [
            ({"view": "keys"}, "there is no view 'keys'"),
            ({"sort": "colour"}, "but not by 'colour'"),
            ({"page": "0"}, "page must be a number from 1"),
            ({"per": "201"}, "per must be a number from 1 to 200"),
            ({"view": "lock"}, "needs the parameter name"),
        ],
    )
    def test_a_query_that_is_none(self, dashboard: Dashboard, query: dict[str, str], text: str) -> None:
        reply = dashboard.get("/events", query=query)
        assert reply.status == 400
        assert text in reply.text


class TestStream:
    def test_it_goes_on(self, dashboard: Dashboard, client: pyredisson.Client) -> None:
        events = dashboard.events(view="locks", filter="ord")
        name, about = next(events)
        assert (name, about["unlock"]) == ("about", True)
        assert next(events)[1]["view"]["rows"] == []
        lock = client.get_lock("orders")
        client.get_lock("other").lock()
        lock.lock()
        assert next(rows for rows in names(events) if rows) == ["orders"]
        lock.unlock()
        assert next(rows for rows in names(events) if not rows) == []
        events.close()

    def test_the_charts_go_on(self, dashboard: Dashboard) -> None:
        """Each stream gets all points first, and then the new ones."""
        dashboard.until(lambda: len(snapshots_of(dashboard, 2)[0]["points"]) > 2)
        snapshots = snapshots_of(dashboard, 6)
        times = [point[0] for snapshot in snapshots for point in snapshot["points"]]
        assert times == sorted(set(times))
        assert len(snapshots[0]["points"]) > 2
        assert all(snapshot["points"] for snapshot in snapshots)


def wait_for_jobs(client: pyredisson.Client, owner: str) -> None:
    """Waits for the lock until the client is closed."""
    with pytest.raises(ClosedError):
        client.get_fair_lock("jobs", owner=owner).lock()


def names(events: Any) -> Any:
    return ([row["name"] for row in content["view"]["rows"]] for name, content in events if name == "snapshot")


def queue_of(dashboard: Dashboard, name: str) -> list[tuple[Any, ...]]:
    fields = ("raw", "place", "alive", "client")
    return [tuple(waiter[field] for field in fields) for waiter in dashboard.view("lock", name=name)["queue"]]


def snapshots_of(dashboard: Dashboard, count: int) -> list[Any]:
    """The snapshots among the first events of a stream."""
    events = dashboard.events(view="locks")
    found = [next(events) for _ in range(count)]
    events.close()
    return [content for name, content in found if name == "snapshot"]


class TestRelease:
    def test_of_the_hold_that_was_shown(self, dashboard: Dashboard, client: pyredisson.Client) -> None:
        lock = client.get_lock("orders")
        lock.lock()
        dashboard.until(dashboard.rows)
        [owner] = dashboard.view("lock", name="orders")["owners"]
        reply = dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]})
        assert (reply.status, reply.json) == (200, {"released": owner["who"]})
        assert not lock.is_locked()
        # It is nobody's now.
        assert dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]}).status in (404, 409)

    def test_a_holder_that_has_changed(
        self, dashboard: Dashboard, client: pyredisson.Client, other: pyredisson.Client
    ) -> None:
        lock = client.get_lock("orders")
        lock.lock()
        dashboard.until(dashboard.rows)
        [owner] = dashboard.view("lock", name="orders")["owners"]
        lock.unlock()
        other.get_lock("orders").lock()
        reply = dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]})
        assert (reply.status, reply.text) == (409, "the holder has changed meanwhile; nothing was released\n")
        assert other.get_lock("orders").is_held_by_current_thread()

    def test_a_waiter_is_woken(self, dashboard: Dashboard, client: pyredisson.Client, other: pyredisson.Client) -> None:
        client.get_lock("orders").lock()
        waiter = threading.Thread(target=other.get_lock("orders").lock)
        waiter.start()
        eventually(lambda: waiters(other, "orders"))
        dashboard.until(dashboard.rows)
        [owner] = dashboard.view("lock", name="orders")["owners"]
        assert dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]}).status == 200
        waiter.join(10)
        assert not waiter.is_alive()

    def test_a_permit(self, dashboard: Dashboard, client: pyredisson.Client) -> None:
        tokens = client.get_permit_expirable_semaphore("tokens")
        tokens.try_set_permits(2)
        permit = tokens.acquire(lease_time=60)
        dashboard.until(lambda: dashboard.rows("semaphores"))
        assert dashboard.post("/api/unlock", {"name": "tokens", "owner": permit}).status == 200
        assert tokens.available_permits() == 2

    def test_what_can_not_be_released(self, dashboard: Dashboard) -> None:
        assert dashboard.post("/api/unlock", {"name": "nothing", "owner": "x"}).status == 404
        for body in ({}, {"name": "x"}, ["x"], "x", {"name": 1, "owner": 2}, {"name": "x" * 300_000, "owner": "x"}):
            assert dashboard.post("/api/unlock", body).status == 400

    def test_only_if_it_was_allowed(self, server: Server, start: Start, client: pyredisson.Client) -> None:
        lock = client.get_lock("orders")
        lock.lock()
        dashboard = start(server.url)
        dashboard.until(dashboard.rows)
        [owner] = dashboard.view("lock", name="orders")["owners"]
        reply = dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]})
        assert (reply.status, reply.text) == (403, "the dashboard was started without --allow-unlock\n")
        assert lock.is_locked()

    def test_it_is_logged(self, server: Server, start: Start, client: pyredisson.Client) -> None:
        client.get_lock("orders").lock()
        dashboard = start(server.url, "--allow-unlock")
        dashboard.until(dashboard.rows)
        [owner] = dashboard.view("lock", name="orders")["owners"]
        assert dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]}).status == 200
        said = dashboard.stop()
        assert f"({owner['raw']!r}) on 'orders' was released by force, from 127.0.0.1" in said


class TestOutage:
    def test_the_server_is_gone_and_comes_back(self, own_server: Server, start: Start) -> None:
        with own_server.redis() as redis:
            redis.hset("orders", "00000000-0000-4000-8000-000000000001:1", 1)
        dashboard = start(own_server.url)
        dashboard.until(dashboard.rows)
        assert dashboard.get("/healthz").status == 200
        own_server.kill()
        dashboard.until(lambda: dashboard.get("/healthz").status == 503)
        assert dashboard.get("/api/locks").json["totals"]["away_since"] is not None
        refused = [f"{own_server.host}:{own_server.port}: connection refused"]
        dashboard.until(lambda: dashboard.get("/api/locks").json["totals"]["problems"] == refused)
        # What was known is shown until the server is there again. Then it is empty.
        assert dashboard.rows()
        own_server.start()
        dashboard.until(lambda: dashboard.get("/healthz").status == 200)
        dashboard.until(lambda: not dashboard.rows())
        dashboard.until(lambda: dashboard.get("/api/locks").json["totals"]["problems"] == [])

    def test_it_starts_without_a_server(self, own_server: Server, start: Start) -> None:
        own_server.kill()
        dashboard = start(own_server.url)
        dashboard.until(lambda: dashboard.get("/api/locks").json["totals"]["away_since"])
        own_server.start()
        dashboard.until(lambda: dashboard.get("/healthz").status == 200)
        said = dashboard.stop()
        assert said.startswith(f"pyredisson: no server at {own_server.host}:{own_server.port}")
        assert said.endswith("; the dashboard starts all the same, and tries again\n")
        assert said.count("\n") == 1

    def test_a_wrong_password(self) -> None:
        """Waiting can't mend it, so the dashboard doesn't start. It says what `ls` says."""
        with Server(password="secret") as server:
            url = server.url.replace(":secret@", ":wrong@")
            ended = pyredisson_command("dashboard", "--url", url, "--port", "0")
            assert ended.status == 77
            assert ended == pyredisson_command("ls", "--url", url)

    def test_a_right_is_missing(self, start: Start) -> None:
        with Server(users=["viewer on >secret ~* &* +@all -scan"]) as server:
            dashboard = start(server.url.replace("redis://", "redis://viewer:secret@"))
            dashboard.until(lambda: dashboard.get("/api/locks").json["totals"]["problems"])
            [problem] = dashboard.get("/api/locks").json["totals"]["problems"]
            assert problem == "can't look for locks: this user lacks one of the rights +@read +eval +evalsha +time"
            # Only names can't be looked for.
            with server.redis() as redis:
                redis.hset("orders", "00000000-0000-4000-8000-000000000001:1", 1)
            dashboard.until(lambda: dashboard.view("lock", name="orders")["row"]["held"])


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_with_open_streams(self, server: Server, start: Start, number: int) -> None:
        dashboard = start(server.url)
        streams = [dashboard.events(view="locks") for _ in range(3)]
        for stream in streams:
            next(stream)
        said = dashboard.stop(number)
        assert dashboard.process.returncode == 0
        if "timeout graceful shutdown exceeded" in said:
            # The machine is so busy that the streams were cut off.
            return
        assert said == ""
        for stream in streams:
            # Each one ends as it should, without an error.
            list(stream)

    def test_the_port_is_in_use(self, server: Server, dashboard: Dashboard) -> None:
        with pytest.raises(AssertionError) as caught:
            Dashboard(server.url, port=dashboard.port)
        assert "pyredisson: can't listen at 127.0.0.1" in str(caught.value)
        assert "address already in use" in str(caught.value)
