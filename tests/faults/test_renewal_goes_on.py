"""Renewal goes on: past nested leases, a demoted master, a failing credential provider, and a heap of repairs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson.asyncio
from pyredisson.testing import Proxy, Server

from .support import RELEASE, RENEW, Credentials, World, eventually

pytestmark = pytest.mark.asyncio
LEASE = 1.2


async def test_short_nested_leases_never_put_the_renewal_off(world: World, server: Server) -> None:
    lock = world.connect(server.url, lock_watchdog_timeout=LEASE).get_lock("a")
    await world.do(lock.lock())
    # More often than once in a third of the lease, for two leases.
    for _ in range(12):
        await world.sleep(LEASE / 6)
        assert not lock.lost.is_set()
        await world.do(lock.lock(lease_time=0.01))
        await world.do(lock.unlock())
    assert await world.do(lock.is_held())
    await world.do(lock.unlock())


async def test_renewal_follows_to_the_new_master(world: World) -> None:
    """The old master lives on as a replica and keeps its connections; new ones reach the new master."""
    with Server() as old, Server() as new, Proxy(old.host, old.port) as proxy, old.redis() as was, new.redis() as now:
        lock = world.connect(proxy.url, lock_watchdog_timeout=2 * LEASE).get_lock("a")
        await world.do(lock.lock())
        await world.elsewhere(proxy.wait_for, RENEW)
        now.hset("a", mapping=was.hgetall("a"))
        now.pexpire("a", was.pttl("a"))
        proxy._server = new.host, new.port
        was.replicaof("127.0.0.1", 1)
        for _ in range(2):
            await world.until(lambda: now.pttl("a") < LEASE * 1600, 5)
            await world.until(lambda: now.pttl("a") > LEASE * 1700, 5)
        assert not lock.lost.is_set()
        await world.do(lock.unlock())
        assert not now.exists("a")


async def test_credentials_that_cannot_be_had_once_cost_no_lock(world: World) -> None:
    with Server(password="secret") as server:
        provider = Credentials("secret", failing="pyredisson-renew")
        url = f"redis://{server.host}:{server.port}/0"
        lock = world.connect(url, credential_provider=provider, lock_watchdog_timeout=LEASE).get_lock("a")
        await world.do(lock.lock())
        assert await world.elsewhere(provider.failed.wait, 5)
        await world.sleep(1.5 * LEASE)
        assert not lock.lost.is_set()
        assert await world.do(lock.is_held())


async def test_credentials_that_cannot_be_had_once_cost_no_release(world: World) -> None:
    with Server(password="secret") as server, Proxy(server.host, server.port) as proxy, server.redis() as root:
        provider = Credentials("secret", failing="pyredisson-renew")
        client = world.connect(proxy.url, credential_provider=provider, retry_attempts=0, timeout=0.8)
        lock = client.get_lock("a")
        await world.do(lock.lock())
        await world.do(lock.lock())
        await world.do(lock.unlock())
        proxy.cut_request(RELEASE)
        proxy.refuse(True)
        with pytest.raises(ConnectionError):
            await world.do(lock.unlock())
        assert await world.elsewhere(provider.failed.wait, 5)
        proxy.refuse(False)
        await world.until(lambda: not root.exists("a"))


@pytest.mark.parametrize("known", [True, False], ids=["known script", "unknown script"])
async def test_a_hundred_repairs_do_not_hold_up_a_renewal(proxy: Proxy, admin: Redis, known: bool) -> None:
    """A cut connection under as many tasks leaves them; one after the other they would take longer than the lease."""
    names = [f"gone{number}" for number in range(100)]
    async with pyredisson.asyncio.connect(proxy.url, lock_watchdog_timeout=LEASE) as client:
        lock = client.get_lock("a")
        await lock.lock()
        await asyncio.to_thread(proxy.wait_for, RENEW)
        proxy.stall()
        tasks = [asyncio.create_task(take(client, name)) for name in names]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not known:
            admin.script_flush()
        proxy.forget()
        proxy.latency(0.02)
        await asyncio.to_thread(proxy.cut)
        proxy.resume()
        await asyncio.to_thread(proxy.wait_for, lambda: proxy.seen(RELEASE) >= len(names))
        await asyncio.sleep(1.5 * LEASE)
        assert not lock.lost.is_set()
        assert await lock.is_held()
        await asyncio.to_thread(eventually, lambda: admin.keys() == [b"a"])


async def take(client: Any, name: str) -> None:
    await client.get_lock(name).lock()
