"""A replica is promoted: what both masters grant is not held by two owners, and changes that it lacks are repeated."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from pyredisson._backends.acquiring import LONGEST
from pyredisson._protocol.replication import ASKED_EVERY
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Proxy, Replicated, ReplicatedNode, Sentinels
from tests.support.backends import Backend, finished, hold_all
from tests.support.faults import ACQUIRE
from tests.support.replicated_master import ReplicatedMaster, let_a_minute_pass, replicas_known_to
from tests.support.waiting import eventually, within

from .scenes import known_lock, map_of, semaphores

SHORT = 1.0
"""`replicas_sync_timeout` where replicas don't answer."""
LONG = 60_000
"""Milliseconds. A Sentinel demotes a master that it has not promoted after four of these periods."""
Master = ReplicatedMaster[Replicated]
ONE_TRY: dict[str, Any] = {"retry_attempts": 0, "replicas_sync_timeout": SHORT}


@pytest.fixture(params=[1, 2], ids=["one-replica", "two-replicas"])
def idle_sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """Sentinels that don't interfere when a replica is promoted without them."""
    with Sentinels(replicas=request.param) as running:
        for sentinel in running.sentinels:
            sentinel.ask("SENTINEL", "DEBUG", "PUBLISH-PERIOD", LONG)
        yield running


@pytest.fixture
def master(replicated: Replicated) -> Master:
    """A master with a replica, both of this test's own."""
    return ReplicatedMaster(replicated)


def promoted_replica(servers: Sentinels | Replicated) -> tuple[ReplicatedNode, ReplicatedNode]:
    """The master that all name, which still is one, and the replica that was promoted in its place."""
    master, promoted = servers.master(), servers.replicas()[0]
    promoted.ask("REPLICAOF", "NO", "ONE")
    assert (master.is_master, promoted.is_master) == (True, True)
    return master, promoted


async def test_the_former_master_grants_nothing_any_more(idle_sentinels: Sentinels, backend: Backend) -> None:
    replicas = len(idle_sentinels.replicas())
    client = backend.connect(**ONE_TRY, min_synced_replicas=replicas)
    semaphore, permits = await semaphores(client, 3)
    lock = await known_lock(client)
    easy = backend.connect(**ONE_TRY)
    await easy.get_lock("first").lock()
    master, promoted = promoted_replica(idle_sentinels)
    # A client that has never seen the replica knows of it.
    stranger = backend.connect(**ONE_TRY).get_lock("b")
    for acquire in (lock.try_lock, semaphore.try_acquire, permits.try_acquire, stranger.try_lock):
        with pytest.raises(ConnectionError, match=f"{master.port} was replaced as the master by .*:{promoted.port}"):
            await acquire()
    assert not client._session.holds.table
    if replicas > 1:
        await backend.sleep(ASKED_EVERY)
        # One replica is enough for this client, and one confirms it. But it isn't the one that will be followed.
        for name in "cd":
            with pytest.raises(ConnectionError, match="was replaced as the master"):
                await easy.get_lock(name).try_lock()
    # What was granted is undone.
    await backend.until(lambda: master.ask("EXISTS", "a") == 0)
    await backend.until(lambda: master.ask("MGET", "s", "e") == ["3", "3"])
    # The promotion was a mistake.
    promoted.follow(master)
    idle_sentinels.wait_until_consistent()
    await lock.lock()
    assert promoted.ask("EXISTS", "a")


async def test_the_replica_that_was_promoted_is_used(replicated: Replicated, backend: Backend) -> None:
    client, other = backend.connect(), backend.connect()
    semaphore = backend.connect(replicas_sync_timeout=SHORT, topology_refresh_interval=600).get_semaphore("s")
    await semaphore.try_set_permits(2)
    await semaphore.acquire()
    held = client.get_lock("held")
    await held.lock()
    _, promoted = promoted_replica(replicated)
    await semaphore.release()
    assert promoted.ask("GET", "s") == "2"
    for each in (client, other):
        # Both clients, one of which has just come, leave the former master although it still is one.
        lock = each.get_lock("a")
        assert await lock.try_lock(5)
        assert promoted.ask("EXISTS", "a")
        await lock.unlock()
    assert not await other.get_lock("held").try_lock()
    assert await held.is_held()


async def test_what_only_the_former_master_renews_is_lost(replicated: Replicated, backend: Backend) -> None:
    client = backend.connect(check_lock_synced_replicas=False, topology_refresh_interval=600, lock_watchdog_timeout=3)
    copied, lost = client.get_lock("copied"), client.get_lock("lost")
    await copied.lock()
    assert replicated.master().ask("WAIT", 1, 1000) == 1
    promoted_replica(replicated)
    await lost.lock()
    await backend.sleep(3.5)
    assert await lost.is_held()
    map_of(client).table.request_refresh("a command has failed")
    # The lease that the former master has renewed counts for nothing: two thirds of it are left at least.
    await backend.until(lost.lost.is_set, 1.9)
    # The new master has counted the lease from the last renewal that reached it.
    assert (await copied.is_held()) is (replicated.nodes[1].ask("EXISTS", "copied") == 1)


@pytest.mark.parametrize("how", ["gone", "hangs"])
async def test_a_replica_that_is_gone_or_hangs_costs_little(sentinels: Sentinels, backend: Backend, how: str) -> None:
    lock = await known_lock(backend.connect(**ONE_TRY))
    master = ReplicatedMaster(sentinels)
    if how == "gone":
        sentinels.kill(master.replicas[0])
    else:
        master.freeze()
        master.node.ask("CLIENT", "KILL", "TYPE", "replica")
    await backend.until(lambda: master.online() == 0)
    with within(SHORT + 2 * LONGEST + 1):
        for _ in range(20):
            await lock.lock()
            await lock.unlock()


async def leave(replica: ReplicatedNode, master: Master, backend: Backend) -> None:
    """The replica follows a server that doesn't exist."""
    replica.ask("REPLICAOF", replica.host, 1)
    await backend.until(lambda: master.online() == 0)


@pytest.mark.parametrize("named", [1, 2], ids=["the-master-is-named", "both-are-named"])
async def test_a_replica_that_came_back_confirms_acquires(master: Master, backend: Backend, named: int) -> None:
    (replica,) = master.replicas
    addresses = ",".join(f"{node.host}:{node.port}" for node in (master.node, replica)[:named])
    client = backend.connect(f"redis+replicated://{addresses}", **ONE_TRY)
    await leave(replica, master, backend)
    await client.get_lock("before").lock()
    assert [state.online for state in replicas_known_to(client)] == [0]
    let_a_minute_pass(client)
    with Proxy(master.node.host, master.node.port) as link:
        replica.ask("REPLICAOF", link.host, link.port)
        await backend.until(lambda: master.online() == 1)
        # The replica receives nothing more, and its master doesn't know that.
        link.blackhole()
        locks = [client.get_lock(f"a{i}", owner=i) for i in range(10)]
        attempts = [backend.spawn(lock.try_lock) for lock in locks]
        held = []
        for lock, attempt in zip(locks, attempts, strict=True):
            try:
                assert await attempt.result()
            except NotReplicatedError:
                continue
            held.append(lock.name)
        master.node.kill()
        replica.ask("REPLICAOF", "NO", "ONE")
    other = backend.connect(f"redis+replicated://{replica.host}:{replica.port}")
    assert not [name for name in held if await other.get_lock(name).try_lock()], "held twice"


async def test_acquires_wait_for_no_replica_that_left_long_ago(master: Master, backend: Backend) -> None:
    """Before that it is asked each time, as it may have lost its connection only, and be promoted at any moment."""
    client = backend.connect(**ONE_TRY)
    await client.get_lock("before").lock()
    assert [state.online for state in replicas_known_to(client)] == [1]
    (replica,) = master.replicas
    await leave(replica, master, backend)
    replica.ask("CONFIG", "RESETSTAT")
    await hold_all(client, *"bcd")
    assert replica.ask("INFO", "commandstats")["cmdstat_info"]["calls"] >= 3
    let_a_minute_pass(client)
    waited = master.waits()
    attempts = [backend.spawn(client.get_lock(f"a{i}", owner=i).try_lock) for i in range(10)]
    outcomes = await finished(attempts)
    assert all(outcomes)
    assert master.waits() == waited


async def test_a_replica_that_comes_back_during_an_acquire_confirms_it(master: Master, backend: Backend) -> None:
    """As if the process was stopped before it sent the acquire."""
    await leave(master.replicas[0], master, backend)
    with Proxy(master.node.host, master.node.port) as proxy:
        client = backend.connect(f"redis+replicated://{proxy.host}:{proxy.port}", replicas_sync_timeout=10)
        lock = await known_lock(client)
        assert [state.online for state in replicas_known_to(client)] == [0]
        hold = proxy.hold_reply(ACQUIRE)
        attempt = backend.spawn(lock.try_lock)
        await backend.until(hold.held.is_set)
        master.replicas[0].follow(master.node)
        await backend.until(lambda: master.online() == 1)
        assert not master.waits()
        let_a_minute_pass(client)
        hold.deliver()
        assert await attempt.result()
        assert master.waits()
        assert master.node.ask("HVALS", "a") == ["1"]


async def test_changes_that_the_promoted_replica_lacks(replicated: Replicated, backend: Backend) -> None:
    """What still waits for its confirmation is repeated there. What no replica has confirmed in time needs leases."""
    master, (replica,) = replicated.master(), replicated.replicas()
    # Each call has a client of its own: the connection on which one WAIT waits executes nothing else.
    one, two, three = (backend.connect(replicas_sync_timeout=30, timeout=30) for _ in range(3))
    waits, latch, made = one.get_semaphore("waits"), two.get_count_down_latch("l"), three.get_semaphore("made")
    semaphore, leased = await semaphores(backend.connect(replicas_sync_timeout=SHORT), 2)
    with Proxy(master.host, master.internal_port) as link:
        # What the master sends to its replica goes through a proxy, which can keep it.
        replica.ask("REPLICAOF", link.host, link.port)
        eventually(lambda: replica.ask("ROLE")[3] == "connected")
        await waits.try_set_permits(2)
        await latch.try_set_count(3)
        # The server knows the scripts from now on.
        await latch.count_down()
        await waits.acquire(2)
        await waits.release()
        await semaphore.acquire()
        permit = await leased.acquire(lease_time=1.0)
        assert master.ask("WAIT", 1, 10_000) == 1
        # The replica gets nothing from now on, and stays connected.
        link.stall()
        calls = [backend.spawn(call) for call in (waits.release, latch.count_down, lambda: made.try_set_permits(5))]
        await backend.until(lambda: master.ask("MGET", "waits", "l", "made") == ["2", "1", "5"])
        await semaphore.release()
        await leased.try_release(permit)
        master.kill()
        replica.ask("REPLICAOF", "NO", "ONE")
    await finished(calls)
    assert replica.ask("MGET", "waits", "l", "made") == ["2", "1", "5"]
    assert (await semaphore.available_permits(), replica.ask("GET", "s")) == (1, "1")
    assert len(await leased.try_acquire_many(2, wait_time=30)) == 2
