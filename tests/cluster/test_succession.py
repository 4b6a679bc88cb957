"""An acquire is confirmed by replicas, or it fails and is undone; what two masters grant is not held by two owners."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ConnectionError

import pyredisson.asyncio
from pyredisson._backends.acquiring import LONGEST
from pyredisson._backends.aio.connection import Pipeline
from pyredisson._protocol.replication import ASKED_EVERY
from pyredisson._settings.address import Address, AddressMap
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Cluster, Proxy, Replicated, ReplicatedNode, Sentinels, Server
from tests.support.backends import Backend, eventually, fails, finished, hold_all, in_turn, permit_waiters, within
from tests.support.faults import ACQUIRE, load_script
from tests.support.kinds import LOCKS

from . import scenes
from .conftest import NO_FAILOVER, atomically, everywhere
from .scenes import Master, known_lock, let_a_minute_pass, map_of, places, replicas_known_to, semaphores, tag_on

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
ONE_TRY: dict[str, Any] = {"retry_attempts": 0, "replicas_sync_timeout": SHORT}
REPLICAS = 2
USERS = [f"{name} on >secret ~* &* +@all -{name[3:]}" for name in ("no-info", "no-wait")]
TOPOLOGIES: dict[str, Callable[..., Any]] = {
    "cluster": lambda **options: Cluster(masters=1, proxied=True, **options),
    "sentinels": Sentinels,
    "replicated": Replicated,
}
on_a_cluster = pytest.mark.parametrize("shared_master", ["cluster"], indirect=True)


@pytest.fixture(scope="module", params=TOPOLOGIES)
def shared_master(request: pytest.FixtureRequest) -> Iterator[Cluster | Sentinels | Replicated]:
    with TOPOLOGIES[request.param](replicas=REPLICAS, users=USERS) as running:
        if isinstance(running, Cluster):
            running.set_node_timeout(NO_FAILOVER)
        yield running


@pytest.fixture
def master(shared_master: Cluster | Sentinels | Replicated) -> Iterator[Master]:
    """A master whose replicas a test may freeze."""
    shared_master.flush()
    made = Master(shared_master)
    made.node.ask("CONFIG", "RESETSTAT")
    yield made
    made.restore()


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
    assert (master.waits(), any(replica.ask("DBSIZE") for replica in master.replicas)) == (1, True)
    client = backend.connect(replicas_sync_timeout=SHORT)
    lock = LOCKS[kind](client, "b")
    acquire = lock.lock_and_get_token if kind == "fenced" else lock.lock
    master.freeze()
    said = rf"lock 'b' of owner .*0 of 1 replica confirmed it within {SHORT} s \(2 conn"
    await fails(NotReplicatedError, acquire, match=said)
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
    await fails(NotReplicatedError, all_.get_lock("b").lock, match="1 of 2 replicas confirmed")
    await backend.until(lambda: not master.exists("b"))


@on_a_cluster
async def test_a_red_lock_waits_for_a_busy_member_beside_one_without_replicas(master: Master, backend: Backend) -> None:
    master.freeze()
    with Server() as busy, Server() as free:
        clients = [backend.connect(replicas_sync_timeout=SHORT), *(backend.connect(each.url) for each in (busy, free))]
        members = [client.get_lock("a") for client in clients]
        async with backend.connect(busy.url).get_lock("a"):
            assert await clients[0].get_red_lock(*members).try_lock(0.1) is False
        await clients[0].get_red_lock(*members).lock()


async def test_users_without_rights(master: Master, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Without the right to INFO the topology tells the replicas. Without the right to WAIT nothing is confirmed."""
    client = backend.connect(username="no-info", password="secret", replicas_sync_timeout=SHORT)
    await client.get_lock("a").lock()
    assert master.waits()
    master.freeze()
    await fails(NotReplicatedError, client.get_lock("b").lock, match="0 of 1")
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
    attempt = await backend.begin(other.get_lock("c").lock, lambda: master.exists("c"))
    await held.unlock()
    assert not attempt.done()
    await fails(NotReplicatedError, attempt.result, match="within 2 s")


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


@everywhere
async def test_repeated_acquires_and_hand_overs_are_confirmed_anew(one_master: Cluster, backend: Backend) -> None:
    """The copy finds the permits acquired. Newer servers confirm at once what its connection has not written."""
    one_master.set_node_timeout(NO_FAILOVER)
    master = Master(one_master)
    client = backend.connect(timeout=0.3, replicas_sync_timeout=SHORT, local_hand_over_time=60)
    load_script(master.node, "semaphore_hand_over")
    semaphore = client.get_semaphore("s")
    await semaphore.try_set_permits(1)
    await semaphore.acquire()
    other = await backend.begin(semaphore.acquire, lambda: permit_waiters(client, "s") == 1)
    more, expirable = client.get_semaphore("more"), client.get_permit_expirable_semaphore("e")
    for each in (more, expirable):
        await each.try_set_permits(3)
        await each.acquire()
    master.freeze()
    for name, acquire in (("more", more.acquire), ("e", expirable.acquire)):
        fault = master.proxy.cut_reply(b"WAIT")
        await fails(NotReplicatedError, acquire, match="0 of 1")
        assert fault.happened.is_set()
        await backend.until(lambda name=name: master.node.ask("GET", name) == "2")  # type: ignore[misc]
    fault = master.proxy.cut_reply(b"WAIT")
    await semaphore.release()
    await fails(NotReplicatedError, other.result, match="0 of 1")
    assert fault.happened.is_set()
    await backend.until(lambda: master.node.ask("GET", "s") == "1")


# Replicas come and go


@pytest.mark.parametrize("with_replicas", ["one_master", "sentinels", "replicated"], indirect=True)
async def test_after_a_failover_the_replicas_of_the_new_master_confirm(
    backend: Backend, with_replicas: Cluster | Sentinels | Replicated
) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT, retry_attempts=10)
    await client.get_lock("a").lock()
    former = Master(with_replicas)
    if isinstance(with_replicas, Cluster):
        with_replicas.fail_over(former.node, takeover=True)
    else:
        with_replicas.fail_over()
    promoted = Master(with_replicas)
    assert promoted.node is former.replicas[0]
    await backend.until(lambda: promoted.online() == 1, 10)
    waits = promoted.waits()
    await client.get_lock("b").lock(lease_time=20)
    assert (promoted.exists("b"), promoted.waits() > waits) == (True, True)
    promoted.freeze()
    await fails(NotReplicatedError, client.get_lock("c").lock, match="0 of 1")
    promoted.restore()


async def test_a_master_that_is_replaced_while_an_acquire_waits(two_replicas: Cluster, backend: Backend) -> None:
    two_replicas.set_node_timeout(NO_FAILOVER)
    master = Master(two_replicas)
    client = backend.connect(replicas_sync_timeout=20, timeout=5, min_synced_replicas=2)
    await client.get_lock("b").lock()
    master.freeze(1)
    acquire = await backend.begin(client.get_lock("a").lock, lambda: master.exists("a"))
    promoted = two_replicas.fail_over(master.node, to=master.replicas[1], takeover=True)
    # The old master has ended the WAIT, which had no result. The acquire is repeated at the new one.
    await acquire.result()
    assert promoted.ask("HVALS", "a") == ["1"]


@atomically
async def test_the_node_that_copies_is_no_replica(own_cluster: Cluster, backend: Backend) -> None:
    """It confirms no acquire in place of a replica, and isn't waited for where there is none."""
    tag, source, other = places(own_cluster)
    client = backend.connect(replicas_sync_timeout=0.2)
    for node in (source, other):
        await client.get_lock(f"connected{{{tag_on(own_cluster, node)}}}").lock()
    (replica,) = own_cluster.replicas_of(source)
    own_cluster.set_node_timeout(NO_FAILOVER)
    replica.pause()
    scenes.begin_slow_move(own_cluster, tag, other)
    await fails(NotReplicatedError, client.get_lock(f"unconfirmed{{{tag}}}").lock, match="0 of 1 replica confirmed it")
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
    with scenes.while_it_is_copied(own_cluster, tag, source), within(4, "it has waited for a replica"):
        await patient.get_lock(f"alone{{{tag}}}").lock()


# A replica is promoted


@pytest.fixture(params=[1, 2], ids=["one-replica", "two-replicas"])
def idle_sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    """Sentinels that don't interfere when a replica is promoted without them."""
    with Sentinels(replicas=request.param) as running:
        for sentinel in running.sentinels:
            # Milliseconds. A Sentinel demotes a master that it has not promoted after four of these periods.
            sentinel.ask("SENTINEL", "DEBUG", "PUBLISH-PERIOD", 60_000)
        yield running


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
        await fails(ConnectionError, acquire, match=f"{master.port} was replaced as the master by .*:{promoted.port}")
    assert not client._session.holds.table
    if replicas > 1:
        await backend.sleep(ASKED_EVERY)
        # One replica is enough for this client, and one confirms it. But it isn't the one that will be followed.
        for name in "cd":
            await fails(ConnectionError, easy.get_lock(name).try_lock, match="was replaced as the master")
    # What was granted is undone.
    await backend.until(lambda: (master.ask("EXISTS", "a"), master.ask("MGET", "s", "e")) == (0, ["3", "3"]))
    # The promotion was a mistake.
    promoted.follow(master)
    idle_sentinels.wait_until_consistent()
    await lock.lock()
    assert promoted.ask("EXISTS", "a")


async def test_a_connection_to_a_replica_may_be_dead(idle_sentinels: Sentinels, backend: Backend) -> None:
    """No packet arrives any more, and nobody says so. A new connection shows that the replica was promoted."""
    master, (replica, *others) = Master(idle_sentinels), idle_sentinels.replicas()
    with Proxy(replica.host, replica.port) as proxy:
        mapped = AddressMap({Address(replica.host, replica.port): Address(proxy.host, proxy.port)})
        lock = await known_lock(backend.connect(address_mapper=mapped, **ONE_TRY))
        for each in (replica, *others):
            each.ask("REPLICAOF", each.host, 1)
        await backend.until(lambda: master.online() == 0)
        await in_turn([lock.lock, lock.unlock])
        proxy.blackhole()
        replica.ask("REPLICAOF", "NO", "ONE")
        await fails(ConnectionError, lock.try_lock, match="was replaced as the master")


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
        assert (await lock.try_lock(5), promoted.ask("EXISTS", "a")) == (True, 1)
        await lock.unlock()
    assert (await other.get_lock("held").try_lock(), await held.is_held()) == (False, True)


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
    master = Master(sentinels)
    if how == "gone":
        sentinels.kill(master.replicas[0])
    else:
        master.freeze()
        master.node.ask("CLIENT", "KILL", "TYPE", "replica")
    await backend.until(lambda: master.online() == 0)
    with within(SHORT + 2 * LONGEST + 1):
        await in_turn([lock.lock, lock.unlock] * 20)


async def leave(replica: ReplicatedNode, master: Master, backend: Backend) -> None:
    """The replica follows a server that doesn't exist."""
    replica.ask("REPLICAOF", replica.host, 1)
    await backend.until(lambda: master.online() == 0)


@pytest.mark.parametrize("named", [1, 2], ids=["the-master-is-named", "both-are-named"])
async def test_a_replica_that_came_back_confirms_acquires(replicated: Replicated, backend: Backend, named: int) -> None:
    master = Master(replicated)
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
        attempts = {f"a{i}": backend.spawn(client.get_lock(f"a{i}", owner=i).try_lock) for i in range(10)}
        held = []
        for name, attempt in attempts.items():
            with suppress(NotReplicatedError):
                assert await attempt.result()
                held.append(name)
        master.node.kill()
        replica.ask("REPLICAOF", "NO", "ONE")
    other = backend.connect(f"redis+replicated://{replica.host}:{replica.port}")
    assert not [name for name in held if await other.get_lock(name).try_lock()], "held twice"


async def test_acquires_wait_for_no_replica_that_left_long_ago(replicated: Replicated, backend: Backend) -> None:
    """Before that it is asked each time, as it may have lost its connection only, and be promoted at any moment."""
    master = Master(replicated)
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
    assert all(await finished([backend.spawn(client.get_lock(f"a{i}", owner=i).try_lock) for i in range(10)]))
    assert master.waits() == waited


async def test_a_replica_that_comes_back_during_an_acquire_confirms_it(
    replicated: Replicated, backend: Backend
) -> None:
    """As if the process was stopped before it sent the acquire."""
    master = Master(replicated)
    await leave(master.replicas[0], master, backend)
    with Proxy(master.node.host, master.node.port) as proxy:
        client = backend.connect(f"redis+replicated://{proxy.host}:{proxy.port}", replicas_sync_timeout=10)
        lock = await known_lock(client)
        assert [state.online for state in replicas_known_to(client)] == [0]
        hold = proxy.hold_reply(ACQUIRE)
        attempt = await backend.begin(lock.try_lock, hold.held.is_set)
        master.replicas[0].follow(master.node)
        await backend.until(lambda: master.online() == 1)
        assert not master.waits()
        let_a_minute_pass(client)
        hold.deliver()
        assert (await attempt.result(), master.waits() > 0) == (True, True)
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
