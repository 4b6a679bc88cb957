"""An outage of the server: calls wait within their own limits, it is logged once, and a loss is known at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError

from pyredisson import ClosedError, LockLostError, PermitNotHeldError
from pyredisson.logic import retry
from pyredisson.testing import Proxy, Server
from tests.support.kinds import LOCKS
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners

from .kinds import GROUPS, KINDS, Used, away, excluding, lock_of, prepare

pytestmark = pytest.mark.asyncio
AT_ONCE = 1.0
"""Seconds; a command that is sent again, or waited for, takes longer."""
OTHERS: dict[str, Callable[[Any, float | None], Any]] = {
    "acquire": lambda client, wait: client.get_lock("a").acquire(timeout=-1 if wait is None else wait),
    "non-blocking": lambda client, _: client.get_lock("a").acquire(blocking=False),
    "query": lambda client, _: client.get_lock("a").is_locked(),
    "token": lambda client, _: client.get_fenced_lock("a").try_lock_and_get_token(),
    "latch": lambda client, wait: client.get_count_down_latch("done").wait(wait),
}
"""Calls besides those of each kind, by the time that they may wait (None: without limit)."""


async def ask(backend: RawBackend, client: Any, kind: str, wait: float | None) -> Any:
    if kind in OTHERS:
        return await backend.do(OTHERS[kind](client, wait))
    one = Used(backend, client, kind)
    return await (one.acquire() if wait is None else one.attempt(wait))


async def outlasts(backend: RawBackend, proxy: Proxy, client: Any, kind: str, wait: float | None) -> None:
    """A call waits while the server is away, and is done when it is back."""
    call = backend.start(ask, backend, client, kind, wait)
    # Longer than all tries of a call without time to wait.
    await backend.waits(call, 0.4)
    proxy.refuse(False)
    assert await call.result() is not False


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a fiftieth, so that more tries than a call without a limit once had fit into a test."""
    monkeypatch.setattr(retry, "FIRST_DELAY", retry.FIRST_DELAY / 50)
    monkeypatch.setattr(retry, "LONGEST_DELAY", retry.LONGEST_DELAY / 50)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", [*KINDS, *GROUPS, "acquire", "latch"])
async def test_a_call_without_a_limit_waits_until_the_server_is_back(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever `retry_attempts` says, which is not for it. A warning tells for which server it waits."""
    prepare(admin, kind)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=0)
    away(proxy)
    await outlasts(backend, proxy, client, kind, None)
    warning, over = warnings(caplog)
    assert warning.startswith(f"the server 127.0.0.1:{proxy.port} is not available")
    assert "is available again" in over


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", [*KINDS, *GROUPS, "non-blocking", "query", "token"])
async def test_a_call_without_time_to_wait_survives_a_short_outage_and_uses_its_tries_up(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str
) -> None:
    prepare(admin, kind)
    few, many = (backend.connect(proxy.url, timeout=0.8, retry_attempts=attempts) for attempts in (2, 200))
    await backend.do(many.get_lock("z").is_locked())
    away(proxy)
    if kind == "red":
        # Nothing is in doubt: the members that a minority granted were released.
        assert not await ask(backend, few, kind, 0)
    else:
        with pytest.raises(ConnectionError):
            await ask(backend, few, kind, 0)
    call = backend.start(ask, backend, many, kind, 0)
    await backend.waits(call, 0.2)
    proxy.refuse(False)
    outcome = await call.result()
    assert outcome is False if kind == "query" else outcome


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["lock", "fair", "spin", "write", "multi", "semaphore", "permits", "acquire", "latch"])
async def test_a_call_with_a_limit_waits_until_it_is_reached(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str
) -> None:
    prepare(admin, kind)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    away(proxy)
    begun = time.monotonic()
    # Not False: that it isn't taken is not known.
    with pytest.raises(ConnectionError):
        await ask(backend, client, kind, 0.5)
    # Without a limit it would be three times the timeout.
    assert 0.5 <= time.monotonic() - begun < 2.2
    await outlasts(backend, proxy, client, kind, 5)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["lock", "fair", "read", "write", "spin", "semaphore", "permits", "latch"])
async def test_an_outage_during_a_wait_does_not_end_it(
    backend: RawBackend, proxy: Proxy, server: Server, admin: Redis, kind: str
) -> None:
    prepare(admin, kind)
    holding, client = backend.connect(server.url), backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    latch = holding.get_count_down_latch("done")
    if kind == "latch":
        await backend.do(latch.try_set_count(1))
    else:
        holder = await excluding(backend, holding, "read" if kind == "write" else kind)
        if kind == "write":
            await backend.do(lock_of(holding, "read", 9).lock())
            await holder.release()
    call = backend.start(ask, backend, client, kind, None)
    await backend.until(lambda: proxy.seen(b"\r\na\r\n" if kind == "spin" else b"SUBSCRIBE") > 0)
    away(proxy)
    await backend.waits(call, 0.4)
    if kind == "latch":
        await backend.do(latch.count_down())
    else:
        await (backend.do(lock_of(holding, "read", 9).unlock()) if kind == "write" else holder.release())
    proxy.refuse(False)
    assert await call.result() is not False


async def test_a_restart_with_the_usual_settings(backend: RawBackend, own_server: Server) -> None:
    client = backend.connect(own_server.url)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())
    for take in (lock.try_lock, lock.lock, lambda: lock.try_lock(5)):
        own_server.kill()
        taking = backend.start(take)
        await backend.sleep(0.3)
        await backend.run_blocking(own_server.start)
        assert await taking.result() is not False


async def test_a_silent_server_is_waited_for(backend: RawBackend, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, timeout=0.2, retry_attempts=1)
    await backend.do(client.get_lock("a").is_locked())
    proxy.stall()
    call = backend.start(client.get_lock("a").lock)
    # Two tries and a pause, which is where it used to end.
    await backend.waits(call, 1.2)
    proxy.resume()
    await call.result()


@pytest.mark.parametrize("change", ["resetpass", "-@all +@connection", "resetkeys"])
async def test_an_error_that_waiting_cannot_cure_ends_a_waiting_call(backend: RawBackend, change: str) -> None:
    with Server(users=["alice on >x ~* &* +@all"]) as server, Proxy(server.host, server.port) as proxy:
        client = backend.connect(proxy.url, username="alice", password="x")
        await backend.do(client.get_lock("a").is_locked())
        away(proxy)
        call = backend.start(client.get_lock("a").lock)
        await backend.waits(call, 0.1)
        with server.redis() as admin:
            admin.execute_command("ACL", "SETUSER", "alice", *change.split())
        proxy.refuse(False)
        with pytest.raises((AuthenticationError, NoPermissionError)):
            await call.result()


@pytest.mark.parametrize("kind", ["lock", "fair", "multi", "red", "semaphore", "permits", "latch"])
async def test_closing_ends_a_call_that_waits_for_the_server(
    backend: RawBackend, proxy: Proxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 60.0)
    monkeypatch.setattr(retry, "LONGEST_DELAY", 60.0)
    client = backend.connect(proxy.url, timeout=0.8)
    away(proxy)
    call = backend.start(ask, backend, client, kind, None)
    await backend.waits(call, 0.3)
    begun = time.monotonic()
    await backend.do(client.close())
    with pytest.raises(ClosedError):
        await call.result()
    assert time.monotonic() - begun < 2


class TestLog:
    """One warning when an outage begins, and one when it ends."""

    async def test_an_outage(self, backend: RawBackend, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
        client = backend.connect(proxy.url, timeout=0.8, lock_watchdog_timeout=3)
        # A connection that is cut is no outage.
        for _ in range(3):
            await backend.do(client.get_lock("a").is_locked())
            proxy.cut()
        assert warnings(caplog) == []
        mine, other = client.get_lock("a"), client.get_lock("b", owner=1)
        await backend.do(mine.lock())
        await backend.do(other.lock())
        waiting = backend.start(client.get_lock("b").lock)
        await backend.until(lambda: proxy.seen(b"SUBSCRIBE") > 0)
        begun = time.monotonic()
        away(proxy)
        await backend.until(lambda: warnings(caplog))
        # All of them fail, more than once: the waiter, the subscription and the watchdog.
        await backend.sleep(1.3)
        proxy.refuse(False)
        await backend.do(mine.unlock())
        await backend.do(other.unlock())
        await waiting.result()
        said = warnings(caplog)
        assert len(said) == 2, said
        assert "is not available: " in said[0]
        text, _, seconds = said[1].removesuffix(" s").rpartition(" after ")
        assert text.endswith("is available again")
        assert 1.2 < float(seconds) < time.monotonic() - begun + 0.1
        assert all(proxy.url.split("/")[2] in line for line in said)

    async def test_a_connection_that_fails_after_a_later_one_was_made_is_no_outage(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(proxy.url, timeout=2, client_name="overtaking")
        await backend.do(client.get_lock("a", owner=1).lock())
        # The handshake of the subscription gets no reply.
        slow = proxy.hold_request(b"HELLO")
        waiting = backend.start(client.get_lock("a").lock)
        await backend.until(slow.held.is_set)
        for entry in admin.client_list():
            if entry["name"] == "overtaking":
                admin.client_kill_filter(_id=entry["id"])
        # Over a new connection.
        assert not await backend.do(client.get_lock("b").is_locked())
        # The one for the subscription has failed by then.
        await backend.until(lambda: listeners(admin, "a") == 1)
        assert warnings(caplog) == []
        await backend.do(client.get_lock("a", owner=1).unlock())
        await waiting.result()

    async def test_a_server_that_refuses(
        self, backend: RawBackend, own_server: Server, root: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(own_server.url)
        root.replicaof("127.0.0.1", 1)
        call = backend.start(client.get_lock("a").lock)
        await backend.waits(call, 1.2)
        root.replicaof("NO", "ONE")
        await call.result()
        said = warnings(caplog)
        assert len(said) == 2, said
        assert "is not available: READONLY" in said[0]
        assert "is available again after" in said[1]


class TestKnownLosses:
    """A hold that is known to be lost raises `LockLostError` at once, also if the server can't be reached."""

    @pytest.mark.parametrize("kind", [kind for kind in (*LOCKS, *GROUPS) if kind != "non-reentrant"])
    async def test_leaving_a_block_whose_lease_ended(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, kind: str
    ) -> None:
        lock = lock_of(backend.connect(proxy.url), kind)
        ended = 0.0
        with pytest.raises(LockLostError):
            if backend.threads:
                with lock.hold(lease_time=0.5):
                    away(proxy)
                    assert lock.lost.wait(5)
                    ended = time.monotonic()
            else:
                async with lock.hold(lease_time=0.5):
                    away(proxy)
                    try:
                        await asyncio.sleep(5)
                    finally:
                        ended = time.monotonic()
        assert time.monotonic() - ended < AT_ONCE
        proxy.refuse(False)
        # The loss was this hold's: the next one is held.
        await backend.do(lock.lock())
        await backend.do(lock.unlock())
        await backend.until(lambda: not admin.exists("a", "b"))

    async def test_the_release_of_each_level(self, backend: RawBackend, proxy: Proxy) -> None:
        lock = backend.connect(proxy.url).get_lock("a")
        for _ in range(3):
            await backend.do(lock.lock(1.5))
        away(proxy)
        lost = lock.lost
        assert await backend.do(lost.wait(5))
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(LockLostError):
                await backend.do(lock.unlock())
        assert time.monotonic() - began < AT_ONCE
        assert lost.is_set()

    async def test_a_lease_that_ends_while_its_release_is_sent_again(self, backend: RawBackend, proxy: Proxy) -> None:
        lock = backend.connect(proxy.url, retry_attempts=2, timeout=0.3).get_lock("a")
        await backend.do(lock.lock(0.6))
        lost = lock.lost
        away(proxy)
        with pytest.raises(LockLostError):
            await backend.do(lock.unlock())
        assert lost.is_set()

    async def test_a_renewed_permit(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        semaphore = backend.connect(proxy.url, lock_watchdog_timeout=0.5).get_permit_expirable_semaphore("a")
        await backend.do(semaphore.try_set_permits(1))
        permit = await backend.do(semaphore.acquire(renew=True))
        away(proxy)
        await backend.sleep(0.6)
        began = time.monotonic()
        with pytest.raises(PermitNotHeldError):
            await backend.do(semaphore.release(permit))
        assert time.monotonic() - began < AT_ONCE
        proxy.refuse(False)
        await backend.until(lambda: not admin.zcard("{a}:timeout"))
        assert await backend.do(semaphore.available_permits()) == 1
