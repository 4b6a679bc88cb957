"""Masters that are replaced while locks are held, waited for, and acquired by many."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pyredisson import LockLostError
from pyredisson.testing import Cluster, ClusterNode
from tests.faults.soak_worker import clock
from tests.support.backends import Backend
from tests.support.programs import also_on, newest_redis, newest_valkey, valkey_server
from tests.support.replicated_master import let_a_minute_pass
from tests.support.waiting import eventually

from .load import KINDS, LEASE, OPTIONS, Load, tag_on, wants

ALL = (*KINDS, "semaphore", "permit")
NOTICE_SECONDS = 3.0
"""Within which a holder learns that the new master doesn't know its hold, once the client knows the new master.
The next renewal comes later."""
FIRST_LOCK_SECONDS = 3.0
"""How much longer than the promotion the first locks on the slot may take on a busy machine, without any refresh."""

pytestmark = pytest.mark.slow


def watch_promotion(replica: ClusterNode, slot: int) -> tuple[threading.Thread, list[float]]:
    """Notes when a replica serves the slot as a master."""
    moment: list[float] = []

    def watch() -> None:
        eventually(lambda: replica.view()[replica.id].has(slot), 20)
        moment.append(clock())

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, moment


@also_on(valkey_server)
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["kill", "pause"])
async def test_a_lock_on_the_slots_of_a_dead_master_is_acquired_right_after_the_promotion(
    own_cluster: Cluster, backend: Backend, kind: str
) -> None:
    replica = own_cluster.masters()[0]
    (master,) = own_cluster.replicas_of(replica)
    tag = tag_on(own_cluster, replica)
    # A client that waits for a replica which has left would wait so long.
    client = backend.connect(**OPTIONS | {"topology_refresh_interval": 600, "replicas_sync_timeout": 30})
    before = client.get_lock(f"before{{{tag}}}")
    # The server that will be promoted has been a master before, which had a replica.
    for promote in (lambda: own_cluster.fail_over(replica, takeover=True), own_cluster.wait_until_consistent):
        async with before:
            let_a_minute_pass(client)
            promote()
    watcher, promoted = watch_promotion(replica, own_cluster.slot_of_key(tag))
    getattr(own_cluster, kind)(master)
    locks = [client.get_lock(f"after{i}{{{tag}}}", owner=i) for i in range(6)]
    for attempt in [backend.spawn(lock.lock) for lock in locks]:
        await attempt.result(30)
    taken = clock()
    watcher.join()
    assert taken - promoted[0] < FIRST_LOCK_SECONDS
    for lock in locks:
        await lock.unlock()


@also_on(newest_redis)
@pytest.mark.asyncio
async def test_after_a_failover_anybody_can_take_what_was_held_before(own_cluster: Cluster, backend: Backend) -> None:
    """Redisson's issue 4822: only the process that had held the lock could take it again."""
    master = own_cluster.masters()[0]
    tag = tag_on(own_cluster, master)
    one, two, three = (backend.connect(**OPTIONS) for _ in range(3))
    locks = [client.get_lock(f"held{{{tag}}}") for client in (one, two, three)]
    await locks[0].lock()
    waiter = backend.spawn(lambda: locks[1].try_lock(20))
    await backend.sleep(0.2)
    own_cluster.fail_over(master)
    assert await locks[0].is_held()
    assert not locks[0].lost.is_set()
    assert not waiter.done()
    assert not await locks[2].try_lock()
    released = clock()
    await locks[0].unlock()
    assert await waiter.result()
    assert clock() - released < LEASE
    last = own_cluster.fail_over(own_cluster.node_of_key(tag), takeover=True)
    assert own_cluster.node_of_key(tag) is last
    await two.close()  # which releases what it holds
    assert await locks[2].try_lock(5)
    await locks[2].unlock()
    assert await locks[0].try_lock(5)
    await locks[0].unlock()


@also_on(newest_valkey)
@pytest.mark.asyncio
@pytest.mark.parametrize("lease", [None, 25.0])
async def test_a_hold_that_the_new_master_does_not_know_is_lost_within_a_second(
    own_cluster: Cluster, backend: Backend, lease: float | None
) -> None:
    """Asynchronous replication may lose an acquire that nobody waited for."""
    master = own_cluster.masters()[0]
    (replica,) = own_cluster.replicas_of(master)
    tag = tag_on(own_cluster, master)
    options = {"lock_watchdog_timeout": 30.0, "check_lock_synced_replicas": False}
    one, two = (backend.connect(**OPTIONS | options) for _ in range(2))
    known, unknown = one.get_lock(f"known{{{tag}}}"), one.get_lock(f"unknown{{{tag}}}")
    await known.lock(lease)
    own_cluster.wait_until_consistent()
    eventually(lambda: replica.ask("KEYS", "*"))
    replica.pause()
    # Otherwise the replica would read the acquire out of its socket later.
    assert master.ask("CLIENT", "KILL", "TYPE", "replica") == 1
    await unknown.lock(lease)
    master.kill()
    replica.resume()
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    slot = own_cluster.slot_of_key(tag)
    eventually(lambda: replica.view()[replica.id].has(slot))
    promoted = clock()
    await backend.until(unknown.lost.is_set, 10)
    # An idle client learns of the new master at the next refresh.
    assert clock() - promoted < OPTIONS["topology_refresh_interval"] + NOTICE_SECONDS
    assert not known.lost.is_set()
    assert not await two.get_lock(f"known{{{tag}}}").try_lock()
    assert await two.get_lock(f"unknown{{{tag}}}").try_lock()
    with pytest.raises(LockLostError):
        await unknown.unlock()
    await known.unlock()


@also_on(newest_valkey)
def test_masters_fail_over_under_load(own_cluster: Cluster, tmp_path: Path) -> None:
    """CLUSTER FAILOVER: the master stops serving until its replica has everything. So nothing may be lost."""
    masters = own_cluster.masters()[:2]
    tags = [tag_on(own_cluster, master) for master in masters]
    owners = [*(wants(tag, ALL) for tag in tags), [("multi", [f"both{{{tag}}}" for tag in tags])]]
    with Load(own_cluster, tmp_path, owners * 2) as load:
        for tag in tags:
            own_cluster.fail_over(own_cluster.node_of_key(tag))
            load.wait_until_taken(40)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()


@also_on(valkey_server)
@pytest.mark.parametrize("strike", ["kill", "pause"])
def test_a_master_dies_or_freezes_under_load(own_cluster: Cluster, tmp_path: Path, strike: str) -> None:
    """The replica that is promoted has confirmed each acquire. The other nodes' locks don't wait."""
    master, spared = own_cluster.masters()[:2]
    tag, other = tag_on(own_cluster, master), tag_on(own_cluster, spared)
    owners = [
        wants(tag),
        wants(tag),
        [("multi", [f"both{{{tag}}}", f"both{{{other}}}"])],
        wants(other, ("lock", "fair"), "spared"),
        wants(other, ("lock", "read"), "spared"),
    ]
    # So there is time to see that the locks of other nodes don't wait for the promotion.
    own_cluster.set_node_timeout(5)
    with Load(own_cluster, tmp_path, owners) as load:
        getattr(own_cluster, strike)(master)
        load.wait_until_served(4, "spared")
        own_cluster.wait_for_promotion(master)
        load.wait_until_served(LEASE + 3, f"{{{tag}}}")
        (own_cluster.restart if strike == "kill" else own_cluster.resume)(master)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not [failure for failure in history.failures if "spared" in failure.name]
