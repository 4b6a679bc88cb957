"""Renewal continues after nested leases, a demoted master, a failing credential provider, and many repairs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson.asyncio
from pyredisson.testing import Proxy, Server
from tests.support.faults import RELEASE, RENEW, Credentials
from tests.support.raw_backends import RawBackend
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio
LEASE = 2.0


async def test_short_nested_leases_never_put_the_renewal_off(backend: RawBackend, server: Server) -> None:
    lock = backend.connect(server.url, lock_watchdog_timeout=LEASE).get_lock("a")
    await backend.do(lock.lock())
    # More often than once in a third of the lease, for two leases.
    for _ in range(12):
        await backend.sleep(LEASE / 6)
        assert not lock.lost.is_set()
        await backend.do(lock.lock(lease_time=0.01))
        await backend.do(lock.unlock())
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


async def test_renewal_follows_to_the_new_master(backend: RawBackend) -> None:
    """The old master lives on as a replica and keeps its connections; new ones reach the new master."""
    with Server() as old, Server() as new, Proxy(old.host, old.port) as proxy, old.redis() as was, new.redis() as now:
        lock = backend.connect(proxy.url, lock_watchdog_timeout=2 * LEASE).get_lock("a")
        await backend.do(lock.lock())
        await backend.run_blocking(proxy.wait_for, RENEW)
        now.hset("a", mapping=was.hgetall("a"))
        now.pexpire("a", was.pttl("a"))
        proxy._server = new.host, new.port
        was.replicaof("127.0.0.1", 1)
        for _ in range(2):
            await backend.until(lambda: now.pttl("a") < LEASE * 1600, 5)
            await backend.until(lambda: now.pttl("a") > LEASE * 1700, 5)
        assert not lock.lost.is_set()
        await backend.do(lock.unlock())
        assert not now.exists("a")


async def test_one_failure_of_a_credential_provider_costs_no_lock(backend: RawBackend) -> None:
    with Server(password="secret") as server:
        provider = Credentials("secret", failing="pyredisson-renew")
        url = f"redis://{server.host}:{server.port}/0"
        lock = backend.connect(url, credential_provider=provider, lock_watchdog_timeout=LEASE).get_lock("a")
        await backend.do(lock.lock())
        assert await backend.run_blocking(provider.failed.wait, 5)
        await backend.sleep(1.5 * LEASE)
        assert not lock.lost.is_set()
        assert await backend.do(lock.is_held())


async def test_one_failure_of_a_credential_provider_costs_no_release(backend: RawBackend) -> None:
    with Server(password="secret") as server, Proxy(server.host, server.port) as proxy, server.redis() as root:
        provider = Credentials("secret", failing="pyredisson-renew")
        client = backend.connect(proxy.url, credential_provider=provider, retry_attempts=0, timeout=0.8)
        lock = client.get_lock("a")
        await backend.do(lock.lock())
        await backend.do(lock.lock())
        await backend.do(lock.unlock())
        proxy.cut_request(RELEASE)
        proxy.refuse(True)
        with pytest.raises(ConnectionError):
            await backend.do(lock.unlock())
        assert await backend.run_blocking(provider.failed.wait, 5)
        proxy.refuse(False)
        await backend.until(lambda: not root.exists("a"))


@pytest.mark.parametrize("known", [True, False], ids=["known script", "unknown script"])
async def test_a_hundred_repairs_do_not_hold_up_a_renewal(proxy: Proxy, admin: Redis, known: bool) -> None:
    """A cut connection under as many tasks leaves them; one after the other they would take longer than the lease."""
    names = [f"gone{number}" for number in range(100)]
    async with pyredisson.asyncio.connect(proxy.url, lock_watchdog_timeout=2 * LEASE) as client:
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
        await asyncio.sleep(3 * LEASE)
        assert not lock.lost.is_set()
        assert await lock.is_held()
        await asyncio.to_thread(eventually, lambda: admin.keys() == [b"a"])


async def take(client: Any, name: str) -> None:
    await client.get_lock(name).lock()
