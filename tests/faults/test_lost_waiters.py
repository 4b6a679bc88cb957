"""A hold that vanishes from the server publishes nothing: the client that notices it notifies the waiters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy, Server
from tests.support.faults import FLAGS
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners

pytestmark = pytest.mark.asyncio
LEASE = 30.0
"""Seconds: what a waiter reads as the time left to the holder."""
SOON = 2.5
"""Seconds: the half that lies between two renewals of the holder, and what a busy machine takes."""
NOTICE = script("lock_wake_waiters", with_shebang=FLAGS).sha

Kind = Callable[[Any], Any]


def multi(client: Any) -> Any:
    return client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))


PAIRS: dict[str, tuple[Kind, Kind]] = {
    "lock": (lambda client: client.get_lock("a"),) * 2,
    "non-reentrant": (lambda client: client.get_lock("a"), lambda client: client.get_non_reentrant_lock("a")),
    "fair": (lambda client: client.get_fair_lock("a"),) * 2,
    "fenced": (lambda client: client.get_fenced_lock("a"),) * 2,
    "read, write": (
        lambda client: client.get_read_write_lock("a").read_lock(),
        lambda client: client.get_read_write_lock("a").write_lock(),
    ),
    "write, read": (
        lambda client: client.get_read_write_lock("a").write_lock(),
        lambda client: client.get_read_write_lock("a").read_lock(),
    ),
    "multi": (multi, multi),
}


def waits(admin: Redis) -> bool:
    """Whether somebody listens on any channel of the lock."""
    return any(b"{a}" in channel for channel in admin.pubsub_channels())


@pytest.mark.parametrize("kind", PAIRS)
async def test_waiters_of_a_lock_that_is_gone_are_woken(
    backend: RawBackend, server: Server, admin: Redis, kind: str
) -> None:
    held, wanted = PAIRS[kind]
    holder, waiter = backend.connect(server.url, lock_watchdog_timeout=1.5), backend.connect(server.url)
    lock = held(holder)
    await backend.do(lock.lock(LEASE))
    await backend.do(lock.lock())

    async def take() -> float:
        assert await backend.do(wanted(waiter).try_lock(LEASE))
        return time.monotonic()

    taking = backend.start(take)
    await backend.until(lambda: waits(admin))
    # The waiter looks once more when it is known that messages arrive.
    await backend.sleep(0.1)
    gone = time.monotonic()
    admin.flushall()
    assert await taking.result() - gone < SOON


async def test_the_lock_of_another_owner_is_not_touched(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """The holder's key is gone, but another owner has taken the lock: there is nothing to wait for."""
    await backend.do(backend.connect(proxy.url, lock_watchdog_timeout=1.5).get_lock("a").lock())
    plain: Any = admin
    with plain.pubsub() as ear:
        ear.subscribe("redisson_lock__channel:{a}")
        assert ear.get_message(timeout=5)
        plain.pipeline().delete("a").hset("a", "another:1", 1).execute()
        await backend.run_blocking(proxy.wait_for, NOTICE)
        assert ear.get_message(timeout=0.3) is None
    assert admin.hgetall("a") == {b"another:1": b"1"}


async def test_a_notice_that_got_lost_is_sent_again(
    backend: RawBackend, server: Server, admin: Redis, proxy: Proxy
) -> None:
    holder, waiter = backend.connect(proxy.url, lock_watchdog_timeout=1.5, timeout=0.8), backend.connect(server.url)
    lock = holder.get_lock("a")
    await backend.do(lock.lock(LEASE))
    await backend.do(lock.lock())

    async def take() -> float:
        assert await backend.do(waiter.get_lock("a").try_lock(LEASE))
        return time.monotonic()

    taking = backend.start(take)
    await backend.until(lambda: listeners(admin, "a"))
    await backend.sleep(0.1)
    fault = proxy.cut_request(NOTICE, times=2)
    gone = time.monotonic()
    admin.flushall()
    assert await taking.result() - gone < SOON
    assert fault.happened.is_set()


@pytest.mark.usefixtures("restarts_noticed")
async def test_a_loss_that_a_closed_connection_has_shown(
    backend: RawBackend, server: Server, admin: Redis, proxy: Proxy
) -> None:
    """No renewal is due for 40 s."""
    holder, waiter = backend.connect(proxy.url, lock_watchdog_timeout=120), backend.connect(server.url)
    await backend.do(holder.get_lock("a").lock())

    async def take() -> bool:
        acquired: bool = await backend.do(waiter.get_lock("a").try_lock(LEASE))
        return acquired

    taking = backend.start(take)
    await backend.until(lambda: listeners(admin, "a"))
    await backend.sleep(0.1)
    admin.delete("a")
    proxy.cut()
    assert await taking.result() is True


@pytest.mark.parametrize("refused", ["the key", "the channel"])
async def test_a_notice_that_is_refused_is_not_repeated(backend: RawBackend, refused: str) -> None:
    with Server(users=["alice on >x ~* &* +@all"]) as own, Proxy(own.host, own.port) as proxy, own.redis() as admin:
        client = backend.connect(proxy.url, username="alice", password="x", lock_watchdog_timeout=0.9)
        await backend.do(client.get_lock("a").lock())
        if refused == "the key":
            admin.execute_command("ACL", "SETUSER", "alice", "resetkeys")
        else:
            admin.execute_command("ACL", "SETUSER", "alice", "resetchannels")
            admin.delete("a")
        await backend.run_blocking(proxy.wait_for, NOTICE)
        # A failed renewal is repeated ten times a round.
        await backend.sleep(0.3)
        assert proxy.seen(NOTICE) == 1
