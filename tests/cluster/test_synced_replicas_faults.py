"""Acquires that replicas confirm, while replies are lost, callers are cancelled, and replicas come and go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.aio.connection import Pipeline
from pyredisson._backends.replica_check import ReplicaCheck
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.scripts import script
from pyredisson.errors import NotReplicatedError
from pyredisson.testing import Cluster, Proxy
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.faults import ACQUIRE, FLAGS, LOSSES, InterruptAt, Lose
from tests.support.programs import PROGRAMS
from tests.support.replicated_master import ReplicatedMaster
from tests.support.waiting import cancel_after, eventually

from .conftest import NO_FAILOVER

pytestmark = pytest.mark.asyncio

SHORT = 0.9
"""`replicas_sync_timeout` where replicas don't answer."""
STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""
RELEASE = script("lock_release", with_shebang=FLAGS, pubsub=PubSub.BOTH).sha
Replicas = ReplicatedMaster[Cluster]
APP = "app on >secret ~* &* +@all"


@pytest.fixture(scope="module")
def shared_master() -> Iterator[Cluster]:
    with Cluster(
        masters=1, replicas=1, proxied=True, users=[f"{APP} -wait", f"{APP} -info".replace("app", "no-info")]
    ) as running:
        running.set_node_timeout(NO_FAILOVER)
        yield running


@pytest.fixture
def proxy(master: Replicas) -> Proxy:
    """The one between the clients and the master."""
    return master.proxy


# Replies are lost


@LOSSES
@pytest.mark.parametrize("what", [ACQUIRE, b"WAIT"])
async def test_a_lost_reply_leaves_one_hold(
    master: Replicas, backend: Backend, proxy: Proxy, lose: Lose, what: bytes
) -> None:
    lock = backend.connect(timeout=0.5, replicas_sync_timeout=SHORT).get_lock("a")
    assert not await lock.is_locked()
    fault = lose(proxy, what)
    await lock.lock()
    assert fault.happened.is_set()
    assert await lock.get_hold_count() == 1
    assert master.node.ask("HVALS", "a") == ["1"]
    await lock.unlock()
    assert not master.exists("a")


@LOSSES
@pytest.mark.parametrize("what", [ACQUIRE, b"WAIT"])
async def test_an_acquire_that_is_given_up_in_doubt_is_undone(
    master: Replicas, backend: Backend, proxy: Proxy, lose: Lose, what: bytes
) -> None:
    lock = backend.connect(timeout=1.0, replicas_sync_timeout=1.0, retry_attempts=0).get_lock("a")
    await lock.lock()
    await lock.unlock()
    for _ in range(2):
        fault = lose(proxy, what)
    with pytest.raises((ConnectionError, TimeoutError)):
        await lock.try_lock()
    assert fault.happened.is_set()
    await backend.until(lambda: not master.exists("a"))
    assert await lock.try_lock()


@LOSSES
async def test_an_undo_that_is_lost_is_repeated(master: Replicas, backend: Backend, proxy: Proxy, lose: Lose) -> None:
    lock = backend.connect(timeout=0.5, replicas_sync_timeout=SHORT).get_lock("a")
    await lock.lock()
    await lock.unlock()
    master.freeze()
    fault = lose(proxy, RELEASE)
    with pytest.raises(NotReplicatedError):
        await lock.lock()
    await backend.until(fault.happened.is_set)
    await backend.until(lambda: not master.exists("a"))
    master.restore()
    assert await lock.try_lock()


async def test_an_acquire_is_in_doubt_if_its_master_cannot_be_asked_for_its_replicas(
    master: Replicas, proxy: Proxy
) -> None:
    async with pyredisson.asyncio.connect(master.url, replicas_sync_timeout=SHORT, retry_attempts=0) as client:
        lock = client.get_lock("a")
        await lock.lock()
        await lock.unlock()
        runtime: Any = client._session.runtime
        # The question goes over the connection of other commands, which is closed and can't be made again.
        connections, *_ = runtime._connections.values()
        pipeline: Pipeline = connections.pipeline
        assert pipeline.connection_id is not None
        master.freeze()
        wait = proxy.hold_reply(b"WAIT")
        acquire = asyncio.ensure_future(lock.try_lock())
        await asyncio.to_thread(wait.held.wait, 5)
        proxy.refuse(True)
        master.node.ask("CLIENT", "KILL", "ID", pipeline.connection_id.id)
        await pipeline.failed
        await asyncio.to_thread(wait.deliver)
        with pytest.raises(ConnectionError):
            await acquire
        assert master.exists("a")
        proxy.refuse(False)
        await asyncio.to_thread(eventually, lambda: not master.exists("a"), 5)


@pytest.fixture(params=PROGRAMS)
def any_master(request: pytest.FixtureRequest) -> Iterator[Replicas]:
    """A master of this test's own, on each kind of server."""
    with Cluster(masters=1, replicas=1, proxied=True, executable=request.param()) as running:
        running.set_node_timeout(NO_FAILOVER)
        yield ReplicatedMaster(running)


@pytest.mark.parametrize("kind", [Threads, Asyncio], ids=lambda kind: str(kind.name))
async def test_a_repeated_acquire_of_permits_is_confirmed_anew(any_master: Replicas, kind: type[Backend]) -> None:
    backend = kind(any_master.url)
    client = backend.connect(timeout=0.3, replicas_sync_timeout=SHORT)
    semaphore, expirable = client.get_semaphore("s"), client.get_permit_expirable_semaphore("e")
    for each in (semaphore, expirable):
        await each.try_set_permits(3)
        await each.acquire()
    any_master.freeze()
    proxy = any_master.proxy
    # The copy finds the permits acquired. Newer servers confirm at once what its connection has not written.
    for name, acquire in (("s", semaphore.acquire), ("e", expirable.acquire)):
        fault = proxy.cut_reply(b"WAIT")
        with pytest.raises(NotReplicatedError, match="0 of 1"):
            await acquire()
        assert fault.happened.is_set()
        await backend.until(lambda name=name: any_master.node.ask("GET", name) == "2")  # type: ignore[misc]
    await backend.close()
    any_master.restore()


# Callers are interrupted


@pytest.mark.parametrize("frozen", [False, True])
async def test_cancelled_at_any_turn_of_the_loop_it_leaves_no_key(master: Replicas, frozen: bool) -> None:
    async with pyredisson.asyncio.connect(master.url, replicas_sync_timeout=SHORT) as client:
        lock = client.get_lock("a")
        await lock.lock()
        await lock.unlock()
        if frozen:
            master.freeze()
        struck = 0
        for turns in range(STEPS):
            struck += await cancel_after(turns, asyncio.ensure_future(take_and_end(client)))
            await asyncio.to_thread(eventually, lambda: not master.exists("a"), 5)
            assert not client._session.holds.table
        assert struck


async def take_and_end(client: pyredisson.asyncio.Client) -> None:
    try:
        async with client.get_lock("a"):
            await asyncio.sleep(0)
    except NotReplicatedError:
        return


async def test_an_interrupt_after_the_script_leaves_no_key(master: Replicas) -> None:
    with pyredisson.connect(master.url, replicas_sync_timeout=SHORT) as client:
        lock = client.get_lock("a")
        with InterruptAt(ReplicaCheck.check) as interrupt, pytest.raises(KeyboardInterrupt):
            lock.lock()
        assert interrupt.happened
        eventually(lambda: not master.exists("a"), 5)
        assert not client._session.holds.table
        assert lock.try_lock()


async def test_many_tasks_share_each_wait(master: Replicas) -> None:
    tasks = 200
    async with pyredisson.asyncio.connect(master.url, replicas_sync_timeout=SHORT) as client:
        await client.get_lock("a").lock()
        master.node.ask("CONFIG", "RESETSTAT")
        assert all(await asyncio.gather(*(client.get_lock(f"a{i}").try_lock() for i in range(tasks))))
        assert 1 <= master.waits() <= 3
        await asyncio.gather(*(client.get_lock(f"a{i}").unlock() for i in range(tasks)))
        master.freeze()
        began = asyncio.get_running_loop().time()
        attempts = (client.get_lock(f"a{i}").try_lock() for i in range(tasks))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {NotReplicatedError}
        assert asyncio.get_running_loop().time() - began < 5 * SHORT
        await asyncio.to_thread(eventually, lambda: master.node.ask("DBSIZE") == 1, 5)


# Replicas come and go


async def test_a_replica_that_has_left_is_not_missed(backend: Backend, own_master: Replicas) -> None:
    lock = backend.connect(replicas_sync_timeout=SHORT).get_lock("a")
    (replica,) = own_master.replicas
    for _ in range(2):
        await lock.lock()
        await lock.unlock()
        own_master.servers.kill(replica)
        await backend.until(lambda: own_master.online() == 0)
        # The number that the client knows is an old one.
        await lock.lock()
        await lock.unlock()
        own_master.servers.restart(replica)
        await backend.until(lambda: own_master.online() == 1, 10)
        before = own_master.waits()
        await backend.sleep(1.1)
        await lock.lock()
        await lock.unlock()
        assert own_master.waits() > before


async def test_after_a_failover_the_replicas_of_the_new_master_confirm(backend: Backend, own_master: Replicas) -> None:
    client = backend.connect(replicas_sync_timeout=SHORT)
    await client.get_lock("a").lock()
    own_master.servers.fail_over(own_master.node, takeover=True)
    promoted = ReplicatedMaster(own_master.servers)
    assert promoted.node is own_master.replicas[0]
    await backend.until(lambda: promoted.online() == 1, 10)
    await client.get_lock("b").lock(lease_time=20)
    assert promoted.exists("b")
    promoted.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("c").lock()
    promoted.restore()


@pytest.mark.parametrize("kind", [Threads, Asyncio], ids=lambda kind: str(kind.name))
async def test_a_master_that_is_replaced_while_an_acquire_waits(kind: type[Backend]) -> None:
    with Cluster(masters=1, replicas=2) as cluster:
        cluster.set_node_timeout(NO_FAILOVER)
        master, backend = ReplicatedMaster(cluster), kind(cluster.url)
        client = backend.connect(replicas_sync_timeout=20, timeout=5, min_synced_replicas=2)
        lock = client.get_lock("a")
        await client.get_lock("b").lock()
        master.freeze(1)
        acquire = backend.spawn(lock.lock)
        await backend.until(lambda: master.exists("a"))
        promoted = cluster.fail_over(master.node, to=master.replicas[1], takeover=True)
        # The old master has ended the WAIT, which had no result. The acquire is repeated at the new one.
        await acquire.result()
        assert promoted.ask("HVALS", "a") == ["1"]
        await backend.close()


# Rights


async def test_without_the_right_to_wait_nothing_is_confirmed(
    master: Replicas, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    client = backend.connect(username="app", password="secret")
    master.freeze()
    with caplog.at_level(logging.WARNING, "pyredisson"):
        for name in "abc":
            await client.get_lock(name).lock()
    assert sum("doesn't run WAIT" in record.getMessage() for record in caplog.records) == 1


async def test_without_the_right_to_info_the_routing_table_knows_the_replicas(
    master: Replicas, backend: Backend
) -> None:
    client = backend.connect(username="no-info", password="secret", replicas_sync_timeout=SHORT)
    await client.get_lock("a").lock()
    master.freeze()
    with pytest.raises(NotReplicatedError, match="0 of 1"):
        await client.get_lock("b").lock()
