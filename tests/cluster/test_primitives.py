"""Every primitive works on a cluster, wherever its keys are."""

from __future__ import annotations

import asyncio

import pytest
from redis.cluster import RedisCluster

from pyredisson.testing import Cluster
from tests.support.backends import Asyncio, Backend

pytestmark = pytest.mark.asyncio

NAMES = [f"orders-{number}" for number in range(12)]
LOCKS = (
    "get_lock",
    "get_fair_lock",
    "get_fenced_lock",
    "get_spin_lock",
    "get_non_reentrant_lock",
    "get_non_reentrant_fair_lock",
)


def keys(cluster: Cluster) -> set[bytes]:
    with cluster.redis() as client:
        return set(client.keys(target_nodes=RedisCluster.PRIMARIES))


async def test_the_names_are_on_all_nodes(cluster: Cluster) -> None:
    assert {cluster.node_of_key(name) for name in NAMES} == set(cluster.masters())


@pytest.mark.parametrize("kind", LOCKS)
async def test_locks(cluster: Cluster, backend: Backend, kind: str) -> None:
    one, other = backend.connect(), backend.connect()
    for name in NAMES:
        lock, same = getattr(one, kind)(name), getattr(other, kind)(name)
        await lock.lock()
        assert await lock.is_held()
        assert not await same.try_lock()
        await lock.unlock()
        assert await same.try_lock(wait_time=5)
        await same.unlock()
    assert not [key for key in keys(cluster) if not key.startswith((b"redisson_lock_token", b"pyredisson_"))]


async def test_a_waiter_is_woken(cluster: Cluster, backend: Backend) -> None:
    one, other = backend.connect(), backend.connect()
    for name in NAMES[:6]:
        lock = one.get_lock(name)
        await lock.lock()

        async def wait(name: str = name) -> bool:
            return await other.get_lock(name).try_lock(wait_time=8)

        waiter = backend.spawn(wait)
        await backend.sleep(0.2)
        assert not waiter.done()
        await lock.unlock()
        assert await waiter.result()


async def test_readers_and_writers(cluster: Cluster, backend: Backend) -> None:
    one, other, third = backend.connect(), backend.connect(), backend.connect()
    for name in NAMES:
        mine, theirs = one.get_read_write_lock(name), other.get_read_write_lock(name)
        await mine.read_lock().lock()
        assert await theirs.read_lock().try_lock()
        assert not await third.get_read_write_lock(name).write_lock().try_lock()
        await mine.read_lock().unlock()
        await theirs.read_lock().unlock()
        assert await theirs.write_lock().try_lock()
        await theirs.write_lock().unlock()


async def test_permits_and_latches(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    for name in NAMES:
        semaphore = client.get_semaphore(f"s-{name}")
        assert await semaphore.try_set_permits(2)
        assert await semaphore.try_acquire(2)
        assert not await semaphore.try_acquire()
        await semaphore.release(2)
        assert await semaphore.available_permits() == 2
        expirable = client.get_permit_expirable_semaphore(f"e-{name}")
        assert await expirable.try_set_permits(1)
        permit = await expirable.try_acquire()
        assert permit is not None
        assert await expirable.try_acquire() is None
        await expirable.release(permit)
        latch = client.get_count_down_latch(f"l-{name}")
        assert await latch.try_set_count(1)
        await latch.count_down()
        assert await latch.wait(1)


async def test_groups_over_several_nodes(cluster: Cluster, backend: Backend) -> None:
    one, other = backend.connect(), backend.connect()
    for make in ("get_multi_lock", "get_red_lock"):
        group = getattr(one, make)(*map(one.get_lock, NAMES))
        await group.lock()
        assert not await other.get_lock(NAMES[3]).try_lock()
        await group.unlock()
        assert not keys(cluster)


async def test_locks_on_one_slot_on_purpose(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    names = [f"{{orders}}:{number}" for number in range(5)]
    assert len({cluster.slot_of_key(name) for name in names}) == 1
    for name in names:
        assert await client.get_lock(name).try_lock()
    assert {name.encode() for name in names} <= keys(cluster)


async def test_a_client_that_is_closed_releases_on_all_nodes(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    for name in NAMES:
        await client.get_lock(name).lock()
    assert len(keys(cluster)) == len(NAMES)
    await client.close()
    assert not keys(cluster)


async def test_many_tasks_at_once(cluster: Cluster) -> None:
    client = Asyncio(cluster.url).connect()

    async def work(number: int) -> None:
        async with client.get_lock(f"many-{number % 40}"):
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(400)))
    await client.close()
    assert not keys(cluster)
