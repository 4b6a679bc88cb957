"""Clients of a cluster in virtual time: redirects, slots on their way, nodes that are replaced, replicas."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from pyredisson.errors import NotReplicatedError
from tests.support.kinds import LOCKS

from .cluster import MemoryCluster, install_cluster
from .world import World, in_world

SOON = 0.3
"""Virtual seconds. A waiter that isn't woken waits for the lease of 30 s."""
MOVES = ("not", "keys", "slot", "both")
"""What moves to another node while a client waits."""


@pytest.fixture
def cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    made = MemoryCluster(world.clock)
    install_cluster(monkeypatch, made)
    return made


@pytest.fixture
def synced(cluster: MemoryCluster) -> MemoryCluster:
    """Each node has a replica."""
    for node in cluster.nodes:
        node.has_replica = True
    return cluster


async def acquire(lock: Any, seconds: float = 0) -> None:
    """Without a watchdog, so that only a wakeup ends a wait."""
    assert await lock.try_lock(seconds, 30)


async def use(lock: Any) -> None:
    await acquire(lock, 100)
    await lock.unlock()


@pytest.mark.parametrize("sharded", ["auto", "on", "off"])
@pytest.mark.parametrize("moves", MOVES)
@in_world
async def test_a_waiter_is_woken_wherever_the_slot_is(
    world: World, cluster: MemoryCluster, moves: str, sharded: str
) -> None:
    async def hand_on(kind: str) -> None:
        async with cluster.client(sharded_pubsub=sharded) as one, cluster.client(sharded_pubsub=sharded) as two:
            holder, waiter = (LOCKS[kind](client, kind) for client in (one, two))
            # A reader doesn't wait for another one.
            other = LOCKS["write"](two, kind) if kind == "read" else waiter
            await acquire(holder)
            waiting = asyncio.create_task(use(other))
            await asyncio.sleep(1)
            if moves != "not":
                cluster.begin_move(kind)
            if moves in ("slot", "both"):
                cluster.finish_move(kind)
            if moves == "both":
                # The client learns where the slot is now.
                await asyncio.sleep(10)
                cluster.begin_move(kind)
            began = world.clock()
            await holder.unlock()
            await waiting
            assert world.clock() - began < SOON, kind
            if moves in ("keys", "both"):
                cluster.finish_move(kind)

    # The other kinds have several keys: a node refuses these until it has all of them.
    for kind in ("lock", "read", "write", "fenced") if moves in ("not", "slot") else ("lock", "spin"):
        await hand_on(kind)


@in_world
async def test_holds_on_all_nodes_are_renewed(world: World, cluster: MemoryCluster) -> None:
    """The watchdog sends the commands for one node at once, and those behind ASK to the other one."""
    async with cluster.client() as client:
        names = [cluster.name_on(node, prefix) for node in cluster.nodes for prefix in "abc"]
        locks = [client.get_lock(name) for name in names]
        for lock in locks:
            await lock.lock()
        for name in names[::2]:
            cluster.begin_move(name)
        await asyncio.sleep(100)
        for name in names[::2]:
            cluster.finish_move(name)
        await asyncio.sleep(100)
        for lock in locks:
            await lock.unlock()
        assert not any(node.keys.keyspace.do_keys(b"*-*") for node in cluster.nodes)


@in_world
async def test_a_call_to_a_master_that_hangs_is_sent_to_its_successor(world: World, synced: MemoryCluster) -> None:
    async with synced.client(timeout=60, topology_refresh_interval=1) as client:
        lock, node = client.get_lock("a"), synced.owner("a")
        await acquire(lock)
        node.pause()
        began = world.clock()
        call = asyncio.create_task(lock.unlock())
        await asyncio.sleep(1)
        synced.fail_over(node, gone=False)
        await call
        assert world.clock() - began < 5
        assert not await lock.is_locked()


def sessions(cluster: MemoryCluster) -> list[int]:
    return [len(node.sessions) for node in cluster.nodes]


@in_world
async def test_a_closed_client_leaves_no_connection(world: World, synced: MemoryCluster) -> None:
    async with synced.client() as client, synced.client() as other:
        for node in synced.nodes:
            await acquire(client.get_lock(synced.name_on(node)))
        waits = [asyncio.create_task(use(other.get_lock(synced.name_on(node)))) for node in synced.nodes]
        await asyncio.sleep(1)
        assert min(sessions(synced)) >= 5
        began = world.clock()
        await client.close()
        await asyncio.gather(*waits)
        assert world.clock() - began < SOON
    assert sessions(synced) == [0, 0, 0]


@pytest.mark.parametrize("moving", [False, True])
@in_world
async def test_acquires_that_are_not_confirmed(world: World, synced: MemoryCluster, moving: bool) -> None:
    """They don't count. Nothing is to be confirmed if the server doesn't run WAIT for this user."""
    async with synced.client() as client:
        lock = client.get_lock("a")
        await use(lock)
        if moving:
            synced.begin_move("a")
        for node in synced.nodes:
            node.confirmed = 0
        with pytest.raises(NotReplicatedError):
            await lock.lock(30)
        await asyncio.sleep(1)
        assert not await lock.is_locked()
        for node in synced.nodes:
            node.confirmed = NoPermissionError("NOPERM no permission to run 'wait'")
        await lock.lock(30)
        assert await lock.is_locked()


@in_world
async def test_acquires_that_come_while_a_wait_waits_share_the_next_one(world: World, synced: MemoryCluster) -> None:
    """Others are confirmed each by its own."""
    async with synced.client() as client:
        node, names = synced.nodes[0], [synced.name_on(synced.nodes[0], prefix) for prefix in "abcde"]
        await acquire(client.get_lock(names.pop()))
        await acquire(client.get_lock(names.pop()))
        assert node.calls["wait"] == 2
        node.pause()
        acquires = []
        for name in names:
            acquires.append(asyncio.create_task(acquire(client.get_lock(name))))
            await asyncio.sleep(0.1)
        node.resume()
        await asyncio.gather(*acquires)
        assert node.calls["wait"] == 4
