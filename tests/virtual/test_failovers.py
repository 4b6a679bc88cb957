"""A replica takes over, in virtual time: what it knows stays held, and what it lacks is lost or extended."""

import asyncio
from collections.abc import Callable

import pytest

from pyredisson.errors import LockLostError
from tests.support.backends import hold_all, in_turn
from tests.support.waiting import within

from .cluster import ClusterNode, MemoryCluster, install_cluster
from .conftest import World

INTERVAL = 1.0
"""Virtual seconds: `topology_refresh_interval`. An idle client learns of a new master at the next refresh."""
NOTICE = 1.0
"""Seconds after which a client has looked at its holds, once it knows the new master."""


@pytest.fixture
def cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    made = MemoryCluster(world.clock)
    install_cluster(monkeypatch, made)
    for node in made.nodes:
        node.has_replica = True
    return made


def fail_over(cluster: MemoryCluster) -> ClusterNode:
    replica = cluster.fail_over(cluster.owner("{a}"))
    replica.has_replica = True
    return replica


def move(cluster: MemoryCluster) -> ClusterNode:
    target = cluster.begin_move("{a}")
    cluster.finish_move("{a}")
    return target


@pytest.mark.parametrize("change", [fail_over, move])
@pytest.mark.parametrize("lease", [None, 25.0])
async def test_a_hold_that_the_new_master_does_not_know_is_lost_within_a_second(
    world: World, cluster: MemoryCluster, lease: float | None, change: Callable[[MemoryCluster], ClusterNode]
) -> None:
    """What the new master knows stays as it is."""
    async with cluster.client(topology_refresh_interval=INTERVAL) as one, cluster.client() as two:
        known = one.get_lock("{a}known")
        # More than a command asks for.
        unknown = [one.get_lock(f"{{a}}{number}") for number in range(250)]
        for lock in (known, *unknown):
            await lock.lock(lease)
        await asyncio.sleep(1)
        change(cluster).keys.keyspace.do_del(*(str(lock.name).encode() for lock in unknown))
        await asyncio.sleep(INTERVAL + NOTICE)
        assert all(lock.lost.is_set() for lock in unknown)
        assert not known.lost.is_set()
        assert not await two.get_lock(known.name).try_lock()
        assert await two.get_lock(unknown[0].name).try_lock()
        with pytest.raises(LockLostError, match="another server serves it now, which doesn't know it"):
            await unknown[0].unlock()
        left = await known.remain_time_to_live()
        assert left is not None
        assert 20 < left <= (lease or 30)
        await known.unlock()


async def test_anybody_can_take_what_was_held_before(world: World, cluster: MemoryCluster) -> None:
    """Redisson's issue 4822: only the process that had held the lock could take it again."""
    async with cluster.client() as one, cluster.client() as two, cluster.client() as three:
        locks = [client.get_lock("{a}") for client in (one, two, three)]
        entered, done = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            async with locks[1]:
                entered.set()
                await done.wait()

        await locks[0].lock()
        waiter = asyncio.create_task(wait())
        await asyncio.sleep(1)
        for holder in locks[:2]:
            fail_over(cluster)
            assert (await holder.is_locked(), holder.lost.is_set()) == (True, False)
            assert not await locks[2].try_lock()
            with within(NOTICE):
                if holder is locks[0]:
                    await holder.unlock()
                    await entered.wait()
                else:
                    done.set()
                    await waiter
        for lock in (locks[2], locks[0]):
            assert await lock.try_lock()
            await lock.unlock()


async def test_leases_that_the_new_master_has_not_extended(world: World, cluster: MemoryCluster) -> None:
    """It knows a hold, but not the nested acquire with a longer lease: the lease is extended again.

    A lease that was not lost isn't extended, not even that of a reader. The watchdog visits a reader because clients in
    Java may shorten the leases of others.
    """
    async with cluster.client(topology_refresh_interval=INTERVAL) as client:
        reader, writer = (client.get_read_write_lock(f"{{a}}{name}") for name in ("reader", "writer"))
        locks = [
            *(reader.read_lock(), writer.write_lock(), client.get_lock("{a}lock")),
            *(client.get_fair_lock("{a}fair"), client.get_fenced_lock("{a}fenced")),
        ]
        for lock in locks:
            await lock.lock(15)
            await lock.lock(60)
        # The watchdog renews one of the levels.
        locks += await hold_all(client, "{a}mixed")
        await locks[-1].lock(60)
        short = client.get_read_write_lock("{a}short").read_lock()
        await short.lock(15)
        new = fail_over(cluster)
        for key in new.keys.keyspace.do_keys(b"{a}*"):
            new.keys.keyspace.do_pexpire(key, b"15000")
        await asyncio.sleep(INTERVAL + NOTICE)
        *lefts, last = (new.keys.keyspace.do_pttl(str(lock.name).encode()) for lock in (*locks, short))
        assert all(left > 30_000 for left in lefts)
        assert 10_000 < last <= 15_000
        assert not any(lock.lost.is_set() for lock in locks)
        await in_turn(lock.unlock for lock in (short, *locks, *locks))
