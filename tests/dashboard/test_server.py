"""What the dashboard sends, and to whom: data, releases by force, outages, its end; hosts, origins, proxies, tokens."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Server
from tests.dashboard.conftest import LIMIT, Dashboard, Reply, Start
from tests.support.inspecting import DEADLOCK, add_foreign_keys, announce_deadlock

OWNER = "00000000-0000-4000-8000-000000000001:1"


class TestData:
    def test_who_holds_it(self, dashboard: Dashboard, client: pyredisson.Client, server: Server, redis: Any) -> None:
        add_foreign_keys(redis)
        lock = client.get_fenced_lock("handed on")
        lock.lock(lease_time=60)
        lock.lock(lease_time=60)
        dashboard.until(dashboard.rows)
        [row] = dashboard.rows().values()
        assert row | {"name": "handed on", "kind": "fenced", "held": True, "client": client.id, "scale": 60} == row
        [owner] = dashboard.view("lock", name="handed on")["owners"]
        [[raw, levels]] = redis.hgetall("handed on").items()
        assert (owner["raw"], owner["levels"]) == (raw.decode(), int(levels))
        dashboard.until(lambda: dashboard.rows("clients")[client.id]["holds"] == 1)
        lock.unlock()
        lock.unlock()
        with pyredisson.connect(server.url) as other, other.get_fenced_lock("handed on"):
            dashboard.until(lambda: dashboard.rows().get("handed on", {}).get("client") == other.id)
        dashboard.until(lambda: not dashboard.rows())
        # The page of a lock that a person has named shows that it is free, and its former holders.
        page = dashboard.view("lock", name="handed on")
        assert (page["row"]["held"], [hold["client"] for hold in page["past"]]) == (False, [other.id, client.id])
        assert page["past"][1]["from"] <= page["past"][0]["from"]
        assert all(hold["from"] <= hold["until"] for hold in page["past"])

    def test_keys_that_nobody_should_write(self, dashboard: Dashboard, client: pyredisson.Client, redis: Any) -> None:
        # The name of an announcement, but no hash; permits that end never, and before all time.
        redis.set("pyredisson_client:{x}", 1)
        redis.zadd("{x}:timeout", {"16 bytes exactly": "+inf", "or another one..": "-inf"})
        dashboard.until(lambda: dashboard.totals["keys"] == 2)
        client.get_lock("orders").lock()
        # A name that is no text is shown as text, which is the name of no key.
        redis.hset(b"\xff", OWNER, 1)
        dashboard.until(lambda: dashboard.rows().keys() == {"orders", "\\xff"})
        assert dashboard.totals["problems"] == []
        page = dashboard.view("lock", name="\\xff")
        assert (page["row"]["held"], page["owners"][0]["raw"]) == (True, OWNER)
        assert dashboard.post("/api/unlock", {"name": "\\xff", "owner": OWNER}).status == 200
        assert not redis.exists(b"\xff")

    def test_waiters_and_a_deadlock(self, dashboard: Dashboard, redis: Any) -> None:
        announce_deadlock(redis)
        dashboard.until(lambda: dashboard.totals["deadlocks"] == [DEADLOCK])
        waits = dashboard.view("lock", name="orders")["queue"]
        assert [(wait["who"], wait["place"]) for wait in waits] == [("web-2 (pid 9)", None), ("web-3 (pid 812)", None)]
        assert waits[0]["since"] < waits[1]["since"]
        [client] = [row["id"] for row in dashboard.rows("clients").values() if row["who"] == "web-3 (pid 812)"]
        assert [wait["name"] for wait in dashboard.view("client", name=client)["waits"]] == ["orders"]
        redis.delete("stock")
        dashboard.until(lambda: dashboard.totals["deadlocks"] == [])

    def test_a_query_that_is_none(self, dashboard: Dashboard) -> None:
        for name, value, text in (
            ("view", "keys", "there is no view 'keys'"),
            ("sort", "colour", "but not by 'colour'"),
            ("page", "0", "page must be a number from 1"),
            ("per", "201", "per must be a number from 1 to 200"),
            ("view", "lock", "needs the parameter name"),
        ):
            reply = dashboard.get(f"/events?{name}={value}")
            assert (reply.status, text in reply.text) == (400, True), reply.text


def test_the_charts_of_a_stream_go_on(dashboard: Dashboard) -> None:
    """Each stream gets all points first, and then the new ones."""
    dashboard.until(lambda: len(snapshots_of(dashboard, 2)[0]["points"]) > 2)
    snapshots = snapshots_of(dashboard, 6)
    times = [point[0] for snapshot in snapshots for point in snapshot["points"]]
    assert times == sorted(times)
    # On a busy machine two points may be made in one millisecond. A stream that repeats them repeats all.
    assert len(set(times)) > 0.9 * len(times)
    assert len(snapshots[0]["points"]) > 2
    assert all(snapshot["points"] for snapshot in snapshots)


def snapshots_of(dashboard: Dashboard, count: int) -> list[Any]:
    with closing(dashboard.events(view="locks")) as events:
        found = [next(events) for _ in range(count)]
    return [content for name, content in found if name == "snapshot"]


def release(dashboard: Dashboard, name: str) -> tuple[Any, Reply]:
    """Releases the only hold of an object, as shown."""
    dashboard.until(lambda: dashboard.view("lock", name=name)["owners"])
    [owner] = dashboard.view("lock", name=name)["owners"]
    return owner, dashboard.post("/api/unlock", {"name": name, "owner": owner["raw"]})


def test_a_release_of_the_hold_that_was_shown(server: Server, start: Start, client: pyredisson.Client) -> None:
    """Only if it was allowed; of a lock, and of a permit."""
    client.get_lock("orders").lock()
    _, reply = release(start(server.url), "orders")
    assert (reply.status, reply.text) == (403, "the dashboard was started without --allow-unlock\n")
    assert client.get_lock("orders").is_locked()
    dashboard = start(server.url, "--allow-unlock")
    owner, reply = release(dashboard, "orders")
    assert (reply.status, reply.json) == (200, {"released": owner["who"]})
    later = client.get_lock("orders", owner=1)
    later.lock()
    dashboard.until(dashboard.rows)
    reply = dashboard.post("/api/unlock", {"name": "orders", "owner": owner["raw"]})
    assert (reply.status, reply.text) == (409, "the holder has changed meanwhile; nothing was released\n")
    assert later.is_held()
    tokens = client.get_permit_expirable_semaphore("tokens")
    tokens.try_set_permits(2)
    tokens.acquire(lease_time=60)
    _, reply = release(dashboard, "tokens")
    assert (reply.status, tokens.available_permits()) == (200, 2)
    assert dashboard.post("/api/unlock", {"name": "nothing", "owner": "x"}).status == 404
    for body in ({}, {"name": "x"}, ["x"], "x", {"name": 1, "owner": 2}, {"name": "x" * 300_000, "owner": "x"}):
        assert dashboard.post("/api/unlock", body).status == 400
    assert f"({owner['raw']!r}) on 'orders' was released by force, from 127.0.0.1" in dashboard.stop()


class TestOutage:
    def test_it_starts_without_a_server_which_comes_and_goes(self, own_server: Server, start: Start) -> None:
        own_server.kill()
        dashboard = start(own_server.url)
        dashboard.until(lambda: dashboard.totals["away_since"])
        own_server.start()
        with own_server.redis() as redis:
            redis.hset("orders", OWNER, 1)
        dashboard.until(dashboard.rows)
        assert dashboard.get("/healthz").status == 200
        metrics = dashboard.get("/metrics")
        assert (metrics.status, metrics.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert 'pyredisson_dashboard_held_locks{kind="lock"} 1\n' in metrics.text
        assert "pyredisson_dashboard_server_up 1\n" in metrics.text
        own_server.kill()
        dashboard.until(lambda: dashboard.get("/healthz").status == 503)
        # The last known numbers would look like the present ones.
        dashboard.until(lambda: "pyredisson_dashboard_server_up 0\n" in dashboard.get("/metrics").text)
        assert "held_locks" not in dashboard.get("/metrics").text
        assert dashboard.totals["away_since"] is not None
        refused = [f"{own_server.host}:{own_server.port}: connection refused"]
        dashboard.until(lambda: dashboard.totals["problems"] == refused)
        # What was known is shown until the server is there again. Then it is empty.
        assert dashboard.rows()
        own_server.start()
        dashboard.until(lambda: dashboard.get("/healthz").status == 200)
        dashboard.until(lambda: not dashboard.rows())
        dashboard.until(lambda: dashboard.totals["problems"] == [])
        said = dashboard.stop()
        assert said.startswith(f"pyredisson: no server at {own_server.host}:{own_server.port}")
        assert "; the dashboard starts all the same, and tries again\n" in said

    def test_a_right_is_missing(self, start: Start, user: Callable[[str], str], redis: Any) -> None:
        dashboard = start(user("~* &* +@all -scan"))
        dashboard.until(lambda: dashboard.totals["problems"])
        [problem] = dashboard.totals["problems"]
        assert problem == "can't look for locks: this user lacks one of the rights +@read +eval +evalsha +time"
        # Only names can't be looked for.
        redis.hset("orders", OWNER, 1)
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
        # On a machine that is very busy the streams were cut off.
        if "timeout graceful shutdown exceeded" not in said:
            assert said == ""
            for stream in streams:
                # Each one ends as it should, without an error.
                list(stream)

    def test_the_port_is_in_use(self, server: Server, dashboard: Dashboard) -> None:
        with pytest.raises(AssertionError, match=r"pyredisson: can't listen at 127\.0\.0\.1.*address already in use"):
            Dashboard(server.url, port=dashboard.port)


class TestGuards:
    @pytest.mark.parametrize(
        ("hosts", "status"),
        [
            (("127.0.0.1:8787", "localhost", "LOCALHOST:1", "[::1]:8787", "10.1.2.3"), 200),
            # DNS rebinding: the name of an attacker becomes the address of this machine.
            (("evil.test", "evil.test:8787", "localhost.evil.test", "127.0.0.1.evil.test", "[::1", "@"), 421),
            (("", None), 400),
        ],
    )
    def test_the_name_it_is_asked_under(self, dashboard: Dashboard, hosts: tuple[str | None, ...], status: int) -> None:
        for host, path in product(hosts, ("/", "/page/app.js", "/api/locks", "/healthz", "/metrics")):
            reply = dashboard.get(path, {"Host": host})
            assert (reply.status, "doesn't serve as" in reply.text) == (status, status == 421), (host, path)

    def test_pages_and_forms_of_other_sites(self, dashboard: Dashboard, redis: Any) -> None:
        for site in ("cross-site", "same-site"):
            for path in ("/api/locks", "/events", "/metrics"):
                assert dashboard.get(path, {"Sec-Fetch-Site": site}).status == 403
            assert dashboard.get("/", {"Sec-Fetch-Site": site}).status == 200
        assert dashboard.get("/api/locks", {"Sec-Fetch-Site": "same-origin"}).status == 200
        redis.hset("orders", OWNER, 1)
        dashboard.until(dashboard.rows)
        wrong: list[dict[str, str | None]] = [{"X-Pyredisson": None}, {"Sec-Fetch-Site": "cross-site"}]
        wrong += [{"Content-Type": each} for each in ("text/plain", "application/x-www-form-urlencoded")]
        wrong += [{"Origin": each} for each in ("http://evil.test", "null")]
        for headers in wrong:
            assert dashboard.post("/api/unlock", {"name": "orders", "owner": OWNER}, headers).status == 403
        assert redis.exists("orders")
        assert dashboard.post("/api/unlock", {"name": "orders", "owner": OWNER}).status == 200

    def test_behind_a_proxy_without_a_token(self, dashboard: Dashboard, guarded: Dashboard) -> None:
        """A proxy on this machine asks for others, under the address of the dashboard."""
        for header in ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"):
            for path in ("/", "/api/locks", "/events", "/healthz", "/metrics"):
                reply = dashboard.get(path, {header: "10.1.2.3"})
                assert (reply.status, "needs a token" in reply.text) == (403, True)
            assert guarded.get("/api/locks", {header: "x", "Authorization": f"Bearer {guarded.token}"}).status == 200
        # nginx says nothing of itself if only `proxy_pass` is configured.
        with socket.create_connection(("127.0.0.1", dashboard.port), LIMIT) as connection:
            connection.sendall(b"GET /api/locks HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % dashboard.port)
            assert b" 403 " in connection.makefile("rb").readline()

    def test_the_files_of_the_page_and_their_headers(self, dashboard: Dashboard) -> None:
        headers = dashboard.get("/").headers
        expected = {"content-type": "text/html; charset=utf-8", "x-content-type-options": "nosniff"}
        expected |= {"cache-control": "no-store"}
        assert {name: headers[name] for name in expected} == expected
        policy = headers["content-security-policy"]
        assert ("default-src 'none'; script-src 'self'" in policy, "unsafe" in policy) == (True, False)
        assert dashboard.get("/page/style.css").headers["content-type"].startswith("text/css")
        for path in ("/page/..%2fapp.py", "/page/../app.py", "/page/__init__.py", "/nothing"):
            assert dashboard.get(path).status == 404


@pytest.fixture(scope="module")
def guarded(server: Server) -> Iterator[Dashboard]:
    """A dashboard for which others than this machine can ask."""
    with Dashboard(server.url, "--host", "0.0.0.0", "--allow-host", "locks.example.com") as running:
        yield running


class TestToken:
    def test_it_is_made_and_needed(self, guarded: Dashboard) -> None:
        assert len(guarded.token or "") >= 32
        for path in ("/api/locks", "/events", "/api/clients", "/api/lock?name=x", "/metrics"):
            assert guarded.get(path).status == 401
        # What contains no data.
        for path in ("/", "/page/app.js", "/healthz"):
            assert guarded.get(path).status in (200, 503)
        assert guarded.post("/api/unlock", {"name": "x", "owner": "y"}).status == 401
        assert guarded.get("/api/locks", {"Authorization": f"Bearer {guarded.token}"}).status == 200
        for wrong in ("Bearer x", "Bearer ", f"Basic {guarded.token}", f"Bearer {guarded.token}x", "Bearer \xe9"):
            assert guarded.get("/api/locks", {"Authorization": wrong}).status == 401
        # A browser would send a cookie to all web servers of that host name.
        for path in ("/", "/page/app.js", "/api/locks"):
            for headers in ({}, {"Authorization": f"Bearer {guarded.token}"}):
                assert guarded.get(path, headers).headers["set-cookie"] is None
        assert guarded.post("/login", {"token": guarded.token}).status in (401, 404)

    def test_others_can_ask_behind_a_proxy_on_this_machine(self, server: Server, start: Start) -> None:
        dashboard = start(server.url, "--allow-host", "locks.example.com")
        assert dashboard.token is not None
        for authorization, status in ((None, 401), (f"Bearer {dashboard.token}", 200)):
            headers = {"Host": "locks.example.com", "Authorization": authorization}
            assert dashboard.get("/api/locks", headers).status == status
