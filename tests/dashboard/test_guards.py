"""Who may ask the dashboard: hosts, origins, proxies and tokens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pyredisson.testing import Server
from tests.dashboard.conftest import Start
from tests.dashboard.running import LIMIT, Dashboard

TOKEN = "a token of this test"


class TestGuards:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("127.0.0.1:8787", 200),
            ("localhost", 200),
            ("LOCALHOST:1", 200),
            ("[::1]:8787", 200),
            ("10.1.2.3", 200),
            ("evil.test", 421),
            ("evil.test:8787", 421),
            ("localhost.evil.test", 421),
            ("127.0.0.1.evil.test", 421),
            ("[::1", 421),
            ("@", 421),
            ("", 400),
            (None, 400),
        ],
    )
    def test_the_name_it_is_asked_under(self, dashboard: Dashboard, host: str | None, status: int) -> None:
        for path in ("/", "/page/app.js", "/api/locks", "/healthz"):
            assert dashboard.get(path, {"Host": host}).status == status

    def test_pages_of_other_sites(self, dashboard: Dashboard) -> None:
        for site in ("cross-site", "same-site"):
            for path in ("/api/locks", "/events"):
                assert dashboard.get(path, {"Sec-Fetch-Site": site}).status == 403
            assert dashboard.get("/", {"Sec-Fetch-Site": site}).status == 200
        assert dashboard.get("/api/locks", {"Sec-Fetch-Site": "same-origin"}).status == 200

    def test_forms_of_other_sites(self, dashboard: Dashboard, redis: Any) -> None:
        owner = "00000000-0000-4000-8000-000000000001:1"
        redis.hset("orders", owner, 1)
        dashboard.until(dashboard.rows)
        wrong: list[dict[str, str | None]] = [
            {"X-Pyredisson": None},
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Origin": "http://evil.test"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
        ]
        for headers in wrong:
            assert dashboard.post("/api/unlock", {"name": "orders", "owner": owner}, headers).status == 403
        assert redis.exists("orders")
        assert dashboard.post("/api/unlock", {"name": "orders", "owner": owner}).status == 200

    def test_behind_a_proxy_without_a_token(self, dashboard: Dashboard, guarded: Dashboard) -> None:
        """A proxy on this machine asks for others, under the address of the dashboard."""
        for header in ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"):
            for path in ("/", "/api/locks", "/events", "/healthz"):
                reply = dashboard.get(path, {header: "10.1.2.3"})
                assert (reply.status, "needs a token" in reply.text) == (403, True)
            assert guarded.get("/api/locks", {header: "x", "Authorization": f"Bearer {guarded.token}"}).status == 200

    def test_behind_a_proxy_that_says_nothing(self, dashboard: Dashboard) -> None:
        """As nginx if only `proxy_pass` is configured."""
        with socket.create_connection(("127.0.0.1", dashboard.port), LIMIT) as connection:
            connection.sendall(b"GET /api/locks HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n" % dashboard.port)
            assert b" 403 " in connection.makefile("rb").readline()

    def test_the_files_of_the_page_and_their_headers(self, dashboard: Dashboard) -> None:
        reply = dashboard.get("/")
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert dashboard.get("/page/style.css").headers["content-type"].startswith("text/css")
        for path in ("/page/..%2fapp.py", "/page/../app.py", "/page/__init__.py", "/nothing"):
            assert dashboard.get(path).status == 404


@pytest.fixture(scope="module")
def guarded(server: Server) -> Iterator[Dashboard]:
    """A dashboard for which others than this machine can ask."""
    running = Dashboard(server.url, "--host", "0.0.0.0", "--allow-host", "locks.example.com")
    yield running
    running.stop()


class TestToken:
    def test_it_is_made_and_needed(self, guarded: Dashboard) -> None:
        assert guarded.token is not None
        assert len(guarded.token) >= 32
        for path in ("/api/locks", "/events", "/api/clients", "/api/lock?name=x"):
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

    @pytest.mark.parametrize("token", ["short", "längeres Wort", " begins with a space", "line\nbreak"])
    def test_a_token_that_no_header_can_have(self, server: Server, token: str) -> None:
        with pytest.raises(AssertionError, match="--token must"):
            Dashboard(server.url, "--token", token)

    @pytest.mark.parametrize(
        ("options", "host", "token"),
        [
            # Also on loopback, where none is needed. Printed, it might end up in a log.
            (["--token", TOKEN], None, TOKEN),
            # Behind a proxy on this machine others can ask.
            (["--allow-host", "locks.example.com"], "locks.example.com", ""),
        ],
    )
    def test_other_reasons_for_a_token(
        self, server: Server, start: Start, options: list[str], host: str | None, token: str
    ) -> None:
        dashboard = start(server.url, *options)
        assert (dashboard.token is None) is bool(token)
        headers = {"Host": host} if host else {}
        assert dashboard.get("/api/locks", headers).status == 401
        headers["Authorization"] = f"Bearer {dashboard.token or token}"
        assert dashboard.get("/api/locks", headers).status == 200
