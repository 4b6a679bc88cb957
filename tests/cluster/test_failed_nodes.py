"""Nodes die, hang, or serve nothing: calls for other nodes go on, and the others end within their limits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import chain

import pytest
from redis.exceptions import ClusterDownError, ConnectionError, RedisError

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Cluster
from pyredisson.testing.cluster_node import ClusterNode
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.waiting import eventually

from .test_redirects import calls

pytestmark = pytest.mark.asyncio


@pytest.fixture
def one_node() -> Iterator[Cluster]:
    """A cluster of one node."""
    with Cluster(masters=1, replicas=0) as running:
        yield running


@pytest.fixture
def masters_only() -> Iterator[Cluster]:
    """Three masters without replicas, which serve their slots although others are missing."""
    with Cluster(masters=3, replicas=0, config={"cluster-require-full-coverage": "no"}) as running:
        yield running


def names_on(cluster: Cluster, node: ClusterNode, count: int) -> list[str]:
    """Names of locks whose keys are on that node."""
    names = (f"name-{number}" for number in range(10_000))
    on_node = (name for name in names if cluster.node_of_key(name) is node)
    return [next(on_node) for _ in range(count)]


def backends(cluster: Cluster) -> list[Backend]:
    return [Threads(cluster.url), Asyncio(cluster.url)]


class TestFirstCalls:
    async def test_a_thousand_tasks_cause_one_discovery(self, cluster: Cluster) -> None:
        before = sum(calls(node, "cluster|slots") for node in cluster.nodes)
        async with pyredisson.asyncio.connect(cluster.url, topology_refresh_interval=600) as client:
            locks = [client.get_lock(f"many-{number}") for number in range(1000)]
            assert all(await asyncio.gather(*(lock.try_lock() for lock in locks)))
            assert sum(calls(node, "cluster|slots") for node in cluster.nodes) == before + 1

    async def test_many_threads_cause_one_discovery(self, cluster: Cluster) -> None:
        before = sum(calls(node, "cluster|slots") for node in cluster.nodes)
        with pyredisson.connect(cluster.url, topology_refresh_interval=600) as client:
            taken: list[bool] = []
            barrier = threading.Barrier(200)

            def take(number: int) -> None:
                barrier.wait()
                taken.append(client.get_lock(f"many-{number}").try_lock())

            threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(200)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert taken == [True] * 200
            assert sum(calls(node, "cluster|slots") for node in cluster.nodes) == before + 1

    async def test_no_server_is_there(self, one_node: Cluster) -> None:
        url = one_node.url
        one_node.stop()
        for backend in (Threads(url), Asyncio(url)):
            client = backend.connect(retry_attempts=1)
            with pytest.raises(ConnectionError, match="of the cluster of"):
                await client.get_lock("a").try_lock()
            begun = time.monotonic()
            with pytest.raises(RedisError):
                await client.get_lock("a").try_lock(wait_time=1)
            assert time.monotonic() - begun < 3
            await backend.close()

    async def test_the_cluster_comes_while_the_call_waits(self, one_node: Cluster) -> None:
        one_node.kill(one_node.nodes[0])
        for backend in backends(one_node):
            client = backend.connect()
            timer = threading.Timer(0.7, one_node.restart, (one_node.nodes[0],))
            timer.start()
            assert await client.get_lock("a").try_lock(wait_time=15)
            timer.join()
            await backend.close()
            one_node.kill(one_node.nodes[0])

    async def test_closed_while_it_waits_for_the_topology(self, one_node: Cluster) -> None:
        one_node.pause(one_node.nodes[0])
        for backend in backends(one_node):
            client = backend.connect(timeout=30, connect_timeout=30)

            async def take(client: pyredisson.asyncio.Client = client) -> None:
                await client.get_lock("a").lock()

            waiter = backend.spawn(take)
            await backend.sleep(0.3)
            begun = time.monotonic()
            await client.close()
            with pytest.raises(pyredisson.ClosedError):
                await waiter.result()
            assert time.monotonic() - begun < 5
        one_node.resume(one_node.nodes[0])


async def test_one_node(one_node: Cluster) -> None:
    for backend in backends(one_node):
        client = backend.connect()
        for number in range(5):
            lock = client.get_lock(f"a{number}")
            await lock.lock()
            await lock.unlock()
        await backend.close()


async def test_a_slot_that_nobody_serves(one_node: Cluster) -> None:
    node = one_node.nodes[0]
    slot = one_node.slot_of_key("a")
    for backend in backends(one_node):
        client = backend.connect(retry_attempts=1)
        assert await client.get_lock("a").try_lock()
        await client.get_lock("a").unlock()
        node.ask("CLUSTER", "DELSLOTS", slot)
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        with pytest.raises(ClusterDownError, match=rf"slot {slot} on .* of the cluster of"):
            await client.get_lock("a").try_lock()
        begun = time.monotonic()
        with pytest.raises(RedisError, match=f"slot {slot}"):
            await client.get_lock("a").try_lock(wait_time=0.5)
        assert time.monotonic() - begun < 2
        assert await client.get_lock("b").try_lock(), "other slots are served"
        await client.get_lock("b").unlock()
        timer = threading.Timer(0.5, node.ask, ("CLUSTER", "ADDSLOTS", slot))
        timer.start()
        assert await client.get_lock("a").try_lock(wait_time=10)
        await client.get_lock("a").unlock()
        timer.join()
        await backend.close()


class TestDeadNode:
    async def test_calls_end_within_their_limits(self, masters_only: Cluster) -> None:
        dead, *others = masters_only.masters()
        name = names_on(masters_only, dead, 1)[0]
        alive = [names_on(masters_only, other, 1)[0] for other in others]
        connected = [(backend, backend.connect(retry_attempts=1)) for backend in backends(masters_only)]
        for _, client in connected:
            assert await client.get_lock(name).try_lock()
            await client.get_lock(name).unlock()
        masters_only.kill(dead)
        for backend, client in connected:
            begun = time.monotonic()
            with pytest.raises(RedisError, match=rf"slot \d+ on 127.0.0.1:{dead.port} of the cluster of"):
                await client.get_lock(name).try_lock()
            with pytest.raises(RedisError, match=r"slot \d+ on"):
                await client.get_lock(name).try_lock(wait_time=1)
            assert time.monotonic() - begun < 4
            for other in alive:
                took = []
                for _ in range(10):
                    begun = time.monotonic()
                    assert await client.get_lock(other).try_lock()
                    await client.get_lock(other).unlock()
                    took.append(time.monotonic() - begun)
                # A pause between two tries takes longer. The machine may delay some of the calls, too.
                assert min(took) < 0.12
            await backend.close()

    async def test_a_replica_takes_over(self, own_cluster: Cluster, backend: Backend) -> None:
        client = backend.connect()
        master = own_cluster.masters()[0]
        name = names_on(own_cluster, master, 1)[0]
        lock = client.get_lock(name)
        await lock.lock()
        await lock.unlock()
        promoted_at: list[float] = []

        def watch() -> None:
            replicas = own_cluster.replicas_of(master)
            own_cluster.kill(master)
            killed.set()
            eventually(lambda: any(node.ask("ROLE")[0] == "master" for node in replicas), 20)
            promoted_at.append(time.monotonic())

        killed = threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        await backend.sleep(0.5)
        killed.wait()
        await lock.lock()
        taken_at = time.monotonic()
        watcher.join()
        # The cluster itself needs a moment until its nodes agree. The client looks again by itself after 5 s.
        assert taken_at - promoted_at[0] < 3

    async def test_a_hung_node_costs_the_others_no_release(self, masters_only: Cluster) -> None:
        hung, *others = masters_only.masters()
        names = {node: names_on(masters_only, node, 5) for node in (hung, *others)}
        for backend in backends(masters_only):
            client = backend.connect(timeout=30)
            for name in chain(*names.values()):
                assert await client.get_lock(name).try_lock()
            masters_only.pause(hung)
            begun = time.monotonic()
            await client.close()
            # Closing takes a second, whatever the timeout of calls is.
            assert time.monotonic() - begun < 5
            for other in others:
                assert other.ask("DBSIZE") == 0
            masters_only.resume(hung)
            hung.ask("FLUSHALL")


# A third of all slots is moved, each by six commands: a minute on a busy machine.
@pytest.mark.timeout(300)
async def test_a_node_without_slots_is_no_longer_connected(own_cluster: Cluster, backend: Backend) -> None:
    client = backend.connect(client_name="to-be-seen", topology_refresh_interval=0.2)
    removed, target, _ = own_cluster.masters()
    for name in names_on(own_cluster, removed, 2):
        await client.get_lock(name).lock()
        await client.get_lock(name).unlock()

    def connections() -> int:
        return str(removed.ask("CLIENT", "LIST")).count("name=to-be-seen")

    assert connections() >= 1
    slots = removed.view()[removed.id].slots
    own_cluster.reshard(sum(last - first + 1 for first, last in slots), removed, target)
    await backend.until(lambda: connections() == 0, 10)


async def test_calls_at_a_frozen_master_go_to_the_one_that_replaces_it(own_cluster: Cluster, backend: Backend) -> None:
    # The renewals of the hold find out soon that the master doesn't reply.
    client = backend.connect(timeout=20, lock_watchdog_timeout=1)
    master = own_cluster.masters()[0]
    name, held = names_on(own_cluster, master, 2)
    lock = client.get_lock(name)
    await lock.lock()
    await lock.unlock()
    await client.get_lock(held).lock()
    own_cluster.pause(master)

    async def take() -> None:
        await client.get_lock(name).lock()

    waiter = backend.spawn(take)
    await asyncio.to_thread(own_cluster.wait_for_promotion, master)
    begun = time.monotonic()
    await backend.until(waiter.done)
    await waiter.result()
    assert time.monotonic() - begun < 5
    own_cluster.resume(master)
