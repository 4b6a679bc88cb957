"""What is logged about an outage."""

from __future__ import annotations

import logging
import time

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners

from .outages import away, done, semaphore

pytestmark = pytest.mark.asyncio


class TestLog:
    """One warning when an outage begins, and one when it ends."""

    def warnings(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    async def test_an_outage(self, backend: RawBackend, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
        client = backend.connect(proxy.url, timeout=0.8, lock_watchdog_timeout=3)
        mine, other = client.get_lock("a"), client.get_lock("b", owner=1)
        await backend.do(mine.lock())
        await backend.do(other.lock())
        waiting = backend.start(lambda: done(backend, client.get_lock("b").lock))
        await backend.run_blocking(proxy.wait_for, b"SUBSCRIBE")
        begun = time.monotonic()
        away(proxy)
        await backend.until(lambda: self.warnings(caplog))
        # All of them fail, more than once: the waiter, the subscription and the watchdog.
        await backend.sleep(1.3)
        proxy.refuse(False)
        await backend.do(mine.unlock())
        await backend.do(other.unlock())
        await waiting.result()
        said = self.warnings(caplog)
        assert len(said) == 2, said
        assert "is not available: " in said[0]
        text, _, seconds = said[1].removesuffix(" s").rpartition(" after ")
        assert text.endswith("is available again")
        assert 1.2 < float(seconds) < time.monotonic() - begun + 0.1
        assert all(proxy.url.split("/")[2] in line for line in said)

    async def test_a_connection_that_is_cut_is_no_outage(
        self, backend: RawBackend, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(proxy.url, timeout=0.8)
        for _ in range(3):
            await backend.do(client.get_lock("a").is_locked())
            proxy.cut()
        assert self.warnings(caplog) == []

    async def test_a_connection_that_fails_after_a_later_one_was_made_is_no_outage(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(proxy.url, timeout=2, client_name="overtaking")
        await backend.do(client.get_lock("a", owner=1).lock())
        # The handshake of the subscription gets no reply.
        slow = proxy.hold_request(b"HELLO")
        waiting = backend.start(lambda: done(backend, client.get_lock("a").lock))
        assert await backend.run_blocking(slow.held.wait, 5)
        for entry in admin.client_list():
            if entry["name"] == "overtaking":
                admin.client_kill_filter(_id=entry["id"])
        # Over a new connection.
        assert not await backend.do(client.get_lock("b").is_locked())
        # The one for the subscription has failed by then.
        await backend.until(lambda: listeners(admin, "a") == 1)
        assert self.warnings(caplog) == []
        await backend.do(client.get_lock("a", owner=1).unlock())
        await waiting.result()

    async def test_a_server_that_refuses(
        self, backend: RawBackend, own_server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(own_server.url)
        with own_server.redis() as admin:
            admin.replicaof("127.0.0.1", 1)
            call = backend.start(lambda: done(backend, client.get_lock("a").lock))
            await backend.sleep(1.2)
            assert not call.done
            admin.replicaof("NO", "ONE")
            await call.result()
        said = self.warnings(caplog)
        assert len(said) == 2, said
        assert "is not available: READONLY" in said[0]
        assert "is available again after" in said[1]

    async def test_what_a_waiter_does(
        self, backend: RawBackend, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "pyredisson")
        client = backend.connect(server.url)
        await backend.do(client.get_lock("a", owner=1).lock())
        waiting = backend.start(lambda: done(backend, client.get_lock("a").lock))
        await backend.until(lambda: any("waiting on channel" in record.getMessage() for record in caplog.records))
        await backend.do(client.get_lock("a", owner=1).unlock())
        await waiting.result()
        said = "\n".join(record.getMessage() for record in caplog.records)
        for what in (
            "'a' of owner",
            "is acquired",
            "waiting on channel 'redisson_lock__channel:{a}'",
            "is released",
        ):
            assert what in said
        # The release finds the waiter asleep, or in an attempt after its subscription was confirmed.
        assert "woken" in said or "is handed on" in said

    async def test_permits(self, backend: RawBackend, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "pyredisson")
        shop = semaphore(backend.connect(server.url))
        await backend.do(shop.try_set_permits(2))
        await backend.do(shop.acquire(2))
        await backend.do(shop.release(2))
        said = [record.getMessage() for record in caplog.records]
        assert "2 permits of semaphore 'permits' are acquired" in said
        assert "2 permits of semaphore 'permits' are released" in said
