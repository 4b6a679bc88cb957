"""Renewal on a cluster: by slot, one thread for each master; moves and failovers cost no lock that the server knows."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from pyredisson.errors import LockLostError
from pyredisson.testing import Cluster, Replicated
from tests.support.backends import Backend

from .conftest import NO_FAILOVER
from .scenes import calls, half_moved, names_on, other_than

pytestmark = pytest.mark.asyncio

LEASE = 1.5


def renewing_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "pyredisson-renew"}


async def test_leases_on_all_nodes_are_renewed(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect(lock_watchdog_timeout=LEASE)
    locks = [client.get_lock(f"a-{number}") for number in range(300)]
    readers = [client.get_read_write_lock(f"r-{number}").read_lock() for number in range(10)]
    before = renewing_threads()
    for lock in (*locks, *readers):
        await lock.lock()
    await backend.sleep(2 * LEASE)
    assert len(renewing_threads() - before) == len(cluster.masters())
    for lock in (*locks, *readers):
        assert not lock.lost.is_set()
        assert await lock.is_held()
        await lock.unlock()
    await backend.until(lambda: renewing_threads() <= before, 5 * LEASE)


async def test_a_slot_of_which_the_keys_are_in_two_places(cluster: Cluster, backend: Backend) -> None:
    """It may stay like this for longer than a lease. A batch of its locks is refused; each lock alone is served."""
    client = backend.connect(lock_watchdog_timeout=LEASE)
    names = [f"{{orders}}:{number}" for number in range(20)]
    locks = [client.get_lock(name) for name in names]
    for lock in locks:
        await lock.lock()
    with half_moved(cluster, "orders", *names[::2]):
        await backend.sleep(2.5 * LEASE)
        assert not any(lock.lost.is_set() for lock in locks)
    await backend.sleep(1.5 * LEASE)
    assert not any(lock.lost.is_set() for lock in locks)
    for lock in locks:
        await lock.unlock()


async def test_readers_in_a_slot_that_is_being_moved(cluster: Cluster, backend: Backend) -> None:
    """Each has a key for its lease beside the lock: they are found where the lock is, before the move and after it."""
    client = backend.connect(lock_watchdog_timeout=LEASE)
    readers = [client.get_read_write_lock(f"{{readers}}:{number}").read_lock() for number in range(10)]
    for number, reader in enumerate(readers):
        await reader.lock(60 if number % 2 else None)
    slot = cluster.slot_of_key("readers")
    with half_moved(cluster, "readers"):
        await backend.sleep(1.5 * LEASE)
        # For a moment a lock is on one node, and the key of its lease on the other: a new key there would end the move.
        await asyncio.to_thread(cluster.move_keys, slot, *[reader.name for reader in readers])
        await backend.sleep(LEASE / 2)
        await asyncio.to_thread(cluster.move_keys, slot)
        await backend.sleep(1.5 * LEASE)
        assert not any(reader.lost.is_set() for reader in readers)
    for reader in readers:
        await reader.unlock()


async def test_what_a_failover_has_lost_is_known_at_once(own_cluster: Cluster, backend: Backend) -> None:
    """Long before the next renewal, in full batches. What the new master knows stays held, fixed leases as they are."""
    client = backend.connect()
    master = own_cluster.masters()[0]
    (replica,) = own_cluster.replicas_of(master)
    forgotten = [client.get_lock(name) for name in names_on(own_cluster, master, 250, "forgotten")]
    known = [client.get_lock(name) for name in names_on(own_cluster, master, 40, "known")]
    elsewhere = client.get_lock(names_on(own_cluster, own_cluster.masters()[1], 1)[0])
    for number, lock in enumerate(forgotten):
        await lock.lock(60 if number % 2 else None)
    # It loses what it has received so far.
    replica.ask("CONFIG", "SET", "replica-read-only", "no")
    replica.ask("FLUSHALL")
    for number, lock in enumerate((*known, elsewhere)):
        await lock.lock(60 if number % 2 else None)
    await backend.until(lambda: replica.ask("DBSIZE") == len(known))
    shard_of, key = getattr(client, "_target", client)._session.runtime.shard_of, str(forgotten[0].name).encode()
    before = shard_of(key)
    own_cluster.kill(master)
    await backend.until(lambda: shard_of(key) is not before, 20)
    begin = time.monotonic()
    await backend.until(lambda: all(lock.lost.is_set() for lock in forgotten))
    assert time.monotonic() - begin < 3
    await backend.sleep(1)
    assert not any(lock.lost.is_set() for lock in (*known, elsewhere))
    with pytest.raises(LockLostError, match="another server serves it now, which doesn't know it"):
        await forgotten[0].unlock()
    for number, lock in enumerate(known):
        remaining = await lock.remain_time_to_live()
        assert remaining is not None
        assert 30 < remaining < 60 if number % 2 else 25 < remaining <= 30
        await lock.unlock()


async def test_a_failover_may_lose_the_extension_of_a_lease(replicated: Replicated, backend: Backend) -> None:
    """The new master knows the hold, but not the nested acquire with a longer lease: the lease is extended again."""
    client = backend.connect(topology_refresh_interval=0.2)
    (replica,) = replicated.replicas()
    reader, writer = client.get_read_write_lock("reader").read_lock(), client.get_read_write_lock("writer").write_lock()
    locks = [reader, writer, client.get_lock("lock"), client.get_fair_lock("fair"), client.get_fenced_lock("fenced")]
    for lock in locks:
        await lock.lock(15)
        await lock.lock(60)
    # The watchdog renews one of the levels.
    mixed = client.get_lock("mixed")
    await mixed.lock()
    await mixed.lock(60)
    locks.append(mixed)
    replica.ask("CONFIG", "SET", "replica-read-only", "no")
    for key in replica.ask("KEYS", "*"):
        replica.ask("PEXPIRE", key, 15_000)
    await asyncio.to_thread(replicated.fail_over, replica)
    for lock in locks:
        await backend.until(lambda lock=lock: replica.ask("PTTL", lock.name) > 30_000)  # type: ignore[misc]
    for lock in locks:
        assert not lock.lost.is_set()
        await lock.unlock()
        await lock.unlock()


async def test_a_lease_that_was_not_lost_is_not_extended(cluster: Cluster, backend: Backend) -> None:
    """Not even that of a reader, which the watchdog visits because clients in Java may shorten the leases of others."""
    client = backend.connect(topology_refresh_interval=0.2)
    read_write_lock = client.get_read_write_lock("orders")
    await read_write_lock.read_lock().lock(15)
    new = other_than(cluster.node_of_key("orders"), cluster)
    # So it doesn't know the script of the check.
    new.ask("SCRIPT", "FLUSH")
    before = calls(new, "eval")
    cluster.move_slot(cluster.slot_of_key("orders"), new)
    await backend.until(lambda: calls(new, "eval") > before)
    assert 10_000 < new.ask("PTTL", "orders") <= 15_000
    await read_write_lock.read_lock().unlock()


async def test_a_dead_master_delays_no_renewal_on_another(own_cluster: Cluster, backend: Backend) -> None:
    """Neither one that has gone, nor one that doesn't reply any more; with a replica or without."""
    lease = 2 * LEASE
    # Otherwise the other master refuses everything as soon as it knows that the cluster is down.
    own_cluster.set_node_timeout(NO_FAILOVER)
    gone, frozen, alive = own_cluster.masters()
    for master in (gone, frozen):
        for replica in own_cluster.replicas_of(master):
            own_cluster.kill(replica)
    client = backend.connect(lock_watchdog_timeout=lease)
    dead = [client.get_lock(name) for node in (gone, frozen) for name in names_on(own_cluster, node, 50)]
    locks = [client.get_lock(name) for name in names_on(own_cluster, alive, 50)]
    for lock in (*dead, *locks):
        await lock.lock()
    own_cluster.kill(gone)
    own_cluster.pause(frozen)
    begin, least = time.monotonic(), lease
    with alive.redis() as admin:
        while time.monotonic() - begin < 0.8 * lease:
            least = min(least, *(admin.pttl(lock.name) / 1000 for lock in locks))
            await backend.sleep(0.02)
    assert least > lease / 2
