"""An acquire is confirmed by replicas, or it fails and is undone, also while they come and go."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ConnectionError

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.aio.connection import Pipeline
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Cluster, Replicated, Sentinels
from tests.support.backends import Backend, hold_all
from tests.support.faults import load_script
from tests.support.kinds import LOCKS
from tests.support.programs import ATOMIC_PROGRAMS
from tests.support.replicated_master import ReplicatedMaster
from tests.support.waiting import eventually, permit_waiters, within

from .conftest import NO_FAILOVER
from .scenes import begin_slow_move, known_lock, places, semaphores, tag_on, while_it_is_copied

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
REPLICAS = 2
USERS = [f"{name} on >secret ~* &* +@all -{name[3:]}" for name in ("no-info", "no-wait")]
TOPOLOGIES: dict[str, Callable[..., Any]] = {
    "cluster": lambda **options: Cluster(masters=1, proxied=True, **options),
    "sentinels": Sentinels,
    "replicated": Replicated,
}
Master = ReplicatedMaster[Any]
on_a_cluster = pytest.mark.parametrize("shared_master", ["cluster"], indirect=True)


@pytest.fixture(scope="module", params=TOPOLOGIES)
def shared_master(request: pytest.FixtureRequest) -> Iterator[Cluster | Sentinels | Replicated]:
    with TOPOLOGIES[request.param](replicas=REPLICAS, users=USERS) as running:
        if isinstance(running, Cluster):
            running.set_node_timeout(NO_FAILOVER)
        yield running


@pytest.mark.parametrize(
    ("shared_master", "kind"),
    [("cluster", kind) for kind in LOCKS] + [*product(("sentinels", "replicated"), ("lock", "fair", "write"))],
    indirect=["shared_master"],
)
async def test_a_lock_is_on_a_replica_or_it_is_not_acquired(master: Master, backend: Backend, kind: str) -> None:
    # The first call of a script is sent twice.
    await LOCKS[kind](backend.connect(check_lock_synced_replicas=False), "a").lock()
    master.node.ask("FLUSHALL")
    assert not master.waits()
    await LOCKS[kind](backend.connect(), "a").lock()
    assert master.waits() == 1
    assert any(replica.ask("DBSIZE") for replica in master.replicas)
    client = backend.connect(replicas_sync_timeout=SHORT)
    lock = LOCKS[kind](client, "b")
    acquire = lock.lock_and_get_token if kind == "fenced" else lock.lock
    master.freeze()
    with pytest.raises(NotReplicatedError) as raised:
        await acquire()
    for said in ("lock 'b' of owner ", f"0 of 1 replica confirmed it within {SHORT} s (2 conn"):
        assert said in str(raised.value)
    await backend.until(lambda: not master.exists("b"))
    assert not client._session.holds.table
    master.restore()
    await acquire()


async def test_so_many_must_confirm_as_the_user_wants(master: Master, backend: Backend) -> None:
    """But no more than are connected."""
    one, all_, more = (
        backend.connect(replicas_sync_timeout=SHORT, min_synced_replicas=count) for count in (1, REPLICAS, REPLICAS + 5)
    )
    for client in (all_, more):
        assert await client.get_lock("a").try_lock()
        await client.get_lock("a").unlock()
    master.freeze(1)
    assert await one.get_lock("a").try_lock()
    with pytest.raises(NotReplicatedError, match="1 of 2 replicas confirmed"):
        await all_.get_lock("b").lock()
    await backend.until(lambda: not master.exists("b"))


async def test_users_without_rights(master: Master, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Without the right to INFO the topology tells the replicas. Without the right to WAIT nothing is confirmed."""
    client = backend.connect(username="no-info", password="secret", replicas_sync_timeout=SHORT)
    await client.get_lock("a").lock()
    assert master.waits()
    master.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("b").lock()
    client = backend.connect(username="no-wait", password="secret")
    with caplog.at_level(logging.WARNING, "pyredisson"):
        await hold_all(client, *"cde")
    assert sum("doesn't run WAIT" in record.getMessage() for record in caplog.records) == 1


@on_a_cluster
async def test_what_needs_no_confirmation_does_not_wait_for_one(master: Master, backend: Backend) -> None:
    """Refused attempts, releases beside an acquire that waits, and all calls of a client without the check."""
    one, unchecked = backend.connect(), backend.connect(check_lock_synced_replicas=False)
    # Replicas may take longer than a reply.
    other = backend.connect(timeout=1.0, replicas_sync_timeout=2.0, retry_attempts=0)
    held = other.get_lock("held")
    await held.lock()
    assert await one.get_lock("a").try_lock()
    await semaphores(one, 0)
    master.freeze()
    waits = master.waits()
    assert await unchecked.get_lock("b").try_lock()
    assert await unchecked.get_semaphore("t").try_set_permits(1)
    assert await unchecked.get_semaphore("t").try_acquire()
    assert master.waits() == waits
    assert not await other.get_lock("a").try_lock()
    assert not await other.get_lock("a").try_lock(wait_time=0.1)
    assert not await other.get_semaphore("s").try_acquire()
    assert await other.get_permit_expirable_semaphore("e").try_acquire() is None
    attempt = backend.spawn(other.get_lock("c").lock)
    await backend.until(lambda: master.exists("c"))
    await held.unlock()
    assert not attempt.done()
    with pytest.raises(NotReplicatedError, match="within 2 s"):
        await attempt.result()


@on_a_cluster
async def test_an_acquire_is_in_doubt_if_its_master_cannot_be_asked(master: Master) -> None:
    async with pyredisson.asyncio.connect(master.url, replicas_sync_timeout=SHORT, retry_attempts=0) as client:
        lock = await known_lock(client)
        runtime: Any = client._session.runtime
        # The question goes over the connection of other commands, which is closed and can't be made again.
        connections, *_ = runtime._connections.values()
        pipeline: Pipeline = connections.pipeline
        assert pipeline.connection_id is not None
        master.freeze()
        wait = master.proxy.hold_reply(b"WAIT")
        acquire = asyncio.ensure_future(lock.try_lock())
        await asyncio.to_thread(wait.held.wait, 5)
        master.proxy.refuse(True)
        master.node.ask("CLIENT", "KILL", "ID", pipeline.connection_id.id)
        await pipeline.failed
        await asyncio.to_thread(wait.deliver)
        with pytest.raises(ConnectionError):
            await acquire
        assert master.exists("a")
        master.proxy.refuse(False)
        await asyncio.to_thread(eventually, lambda: not master.exists("a"), 5)


async def test_repeated_acquires_and_hand_overs_are_confirmed_anew(any_master: Master, backend: Backend) -> None:
    """The copy finds the permits acquired. Newer servers confirm at once what its connection has not written."""
    client = backend.connect(timeout=0.3, replicas_sync_timeout=SHORT, local_hand_over_time=60)
    load_script(any_master.node, "semaphore_hand_over")
    semaphore = client.get_semaphore("s")
    await semaphore.try_set_permits(1)
    await semaphore.acquire()
    other = backend.spawn(semaphore.acquire)
    await backend.until(lambda: permit_waiters(client, "s") == 1)
    more, expirable = client.get_semaphore("more"), client.get_permit_expirable_semaphore("e")
    for each in (more, expirable):
        await each.try_set_permits(3)
        await each.acquire()
    any_master.freeze()
    for name, acquire in (("more", more.acquire), ("e", expirable.acquire)):
        fault = any_master.proxy.cut_reply(b"WAIT")
        with pytest.raises(NotReplicatedError, match="0 of 1"):
            await acquire()
        assert fault.happened.is_set()
        await backend.until(lambda name=name: any_master.node.ask("GET", name) == "2")  # type: ignore[misc]
    fault = any_master.proxy.cut_reply(b"WAIT")
    await semaphore.release()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await other.result()
    assert fault.happened.is_set()
    await backend.until(lambda: any_master.node.ask("GET", "s") == "1")


# Replicas come and go


@pytest.mark.parametrize("with_replicas", ["one_master", "sentinels", "replicated"], indirect=True)
async def test_after_a_failover_the_replicas_of_the_new_master_confirm(
    backend: Backend, with_replicas: Cluster | Sentinels | Replicated
) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT, retry_attempts=10)
    await client.get_lock("a").lock()
    former = ReplicatedMaster(with_replicas)
    if isinstance(with_replicas, Cluster):
        with_replicas.fail_over(former.node, takeover=True)
    else:
        with_replicas.fail_over()
    promoted = ReplicatedMaster(with_replicas)
    assert promoted.node is former.replicas[0]
    await backend.until(lambda: promoted.online() == 1, 10)
    waits = promoted.waits()
    await client.get_lock("b").lock(lease_time=20)
    assert promoted.exists("b")
    assert promoted.waits() > waits
    promoted.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("c").lock()
    promoted.restore()


async def test_a_master_that_is_replaced_while_an_acquire_waits(two_replicas: Cluster, backend: Backend) -> None:
    two_replicas.set_node_timeout(NO_FAILOVER)
    master = ReplicatedMaster(two_replicas)
    client = backend.connect(replicas_sync_timeout=20, timeout=5, min_synced_replicas=2)
    await client.get_lock("b").lock()
    master.freeze(1)
    acquire = backend.spawn(client.get_lock("a").lock)
    await backend.until(lambda: master.exists("a"))
    promoted = two_replicas.fail_over(master.node, to=master.replicas[1], takeover=True)
    # The old master has ended the WAIT, which had no result. The acquire is repeated at the new one.
    await acquire.result()
    assert promoted.ask("HVALS", "a") == ["1"]


@pytest.mark.parametrize("program", ATOMIC_PROGRAMS, indirect=True)
async def test_the_node_that_copies_is_no_replica(own_cluster: Cluster, backend: Backend) -> None:
    """It confirms no acquire in place of a replica, and isn't waited for where there is none."""
    tag, source, other = places(own_cluster)
    client = backend.connect(replicas_sync_timeout=0.2)
    for node in (source, other):
        await client.get_lock(f"connected{{{tag_on(own_cluster, node)}}}").lock()
    (replica,) = own_cluster.replicas_of(source)
    own_cluster.set_node_timeout(NO_FAILOVER)
    replica.pause()
    begin_slow_move(own_cluster, tag, other)
    with pytest.raises(NotReplicatedError, match="0 of 1 replica confirmed it"):
        await client.get_lock(f"unconfirmed{{{tag}}}").lock()
    assert own_cluster.node_of_key(tag) is source
    replica.resume()
    eventually(lambda: own_cluster.node_of_key(tag) is other)
    own_cluster.wait_until_consistent()
    # The other way round, from a master without replicas.
    (replica,) = own_cluster.replicas_of(other)
    replica.kill()
    eventually(lambda: other.ask("INFO", "replication")["connected_slaves"] == 0)
    patient = backend.connect(replicas_sync_timeout=5.0)
    assert not await patient.get_lock(f"alone{{{tag}}}").is_locked()  # connects
    with while_it_is_copied(own_cluster, tag, source), within(4, "it has waited for a replica"):
        await patient.get_lock(f"alone{{{tag}}}").lock()
