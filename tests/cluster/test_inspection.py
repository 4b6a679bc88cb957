"""Inspection where there are several servers, also while slots move and masters change."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from redis.exceptions import RedisError, TryAgainError

from pyredisson.inspection import discovery as walking
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.inspecting import announce, inspector, listed, state_of
from tests.support.programs import also_on, newest_valkey

from .conftest import NO_FAILOVER
from .scenes import half_moved
from .test_redirects import move

pytestmark = pytest.mark.asyncio

CLIENT = str(uuid.UUID(int=3))
NAMES = [f"orders-{number}" for number in range(30)]


async def finish(discovery: walking.Discovery) -> None:
    while await discovery.step():
        pass


def fill(redis: Any) -> None:
    for number in range(2000):
        redis.set(f"counter:{number}", number)
    for name in NAMES:
        redis.hset(name, f"{CLIENT}:1", 1)
        redis.pexpire(name, 60_000)


@also_on(newest_valkey)
async def test_all_masters(cluster: Cluster, backend: Backend) -> None:
    with cluster.redis() as redis:
        fill(redis)
        announce(redis, CLIENT, {f"1 {NAMES[0]}": "fair"})
    client = backend.connect()
    found = await listed(client)
    assert set(found) == set(NAMES)
    addresses = {name: cluster.node_of_key(name).address for name in NAMES}
    assert {name: state.server for name, state in found.items()} == {
        name: f"{host}:{port}" for name, (host, port) in addresses.items()
    }
    # The announcement is on one node, the locks are on all.
    assert {state.owners[0].holder.host for state in found.values()} == {"web-3"}
    assert found[NAMES[0]].kind == "fair"
    [one] = await inspector(client).clients([CLIENT, client.id])
    assert (one.id, one.hold_count) == (CLIENT, 1)


async def test_a_waiter_of_each_kind(cluster: Cluster, backend: Backend) -> None:
    """Their subscriptions are on the node of the lock."""
    client, other = backend.connect(), backend.connect()
    lock = client.get_lock("orders")
    await lock.lock()

    waiter = backend.spawn(other.get_lock("orders").lock)
    while (await state_of(client, "orders")).waiting_clients != 1:
        await backend.sleep(0.005)
    await lock.unlock()
    await waiter.result()


async def test_slots_that_move_during_the_walk(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pass may miss is found by the next one, and each object is listed once."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    with cluster.redis() as redis:
        fill(redis)
    client = backend.connect(topology_refresh_interval=0.1)
    discovery = inspector(client).discovery()
    for name in NAMES[:5]:
        assert await discovery.step()
        move(cluster, name)
        # A key in a slot that has moved.
        assert (await state_of(client, name)).held
    await backend.until(lambda: discovery.topology_changed)
    await finish(discovery)
    missed = {name.encode() for name in NAMES} - set(discovery.found)
    assert missed <= {name.encode() for name in NAMES[:5]}
    discovery.restart()
    await finish(discovery)
    assert set(discovery.found) == {name.encode() for name in NAMES}
    assert not discovery.failed


async def test_keys_of_a_slot_on_two_nodes(cluster: Cluster, backend: Backend) -> None:
    """Each of them is found where it is, and the state of each can be read once they are together again."""
    names = [f"{number}{{orders}}" for number in range(6)]
    with cluster.redis() as redis:
        for name in names:
            redis.hset(name, f"{CLIENT}:1", 1)
    client = backend.connect(retry_attempts=1)
    with half_moved(cluster, "orders", *names[:3]):
        discovery = inspector(client).discovery()
        await finish(discovery)
        assert set(discovery.found) == {name.encode() for name in names}
        # No script can read a key whose companion keys may be elsewhere.
        known, failed = await inspector(client).found(discovery.found)
        assert (known, set(failed)) == ([], set(discovery.found))
        assert all(isinstance(error, TryAgainError) for error in failed.values())
    assert set(await listed(client)) == set(names)


@pytest.mark.slow
async def test_a_master_that_is_killed_during_the_walk(
    own_cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    # Until the replica has taken over.
    monkeypatch.setattr(walking, "MOST_TRIES", 100)
    with own_cluster.redis() as redis:
        fill(redis)
    own_cluster.wait_until_consistent()
    for node in own_cluster.masters():
        node.ask("WAIT", 1, 5000)
    client = backend.connect(topology_refresh_interval=0.1, connect_timeout=0.5)
    discovery = inspector(client).discovery()
    assert await discovery.step()
    own_cluster.kill(own_cluster.masters()[0])
    await finish(discovery)
    assert set(discovery.found) == {name.encode() for name in NAMES}
    assert discovery.topology_changed
    assert not discovery.failed


async def test_a_master_that_stays_away(
    own_cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are finished, and what is on it is said to be missing."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 64)
    # As soon as the others know that nobody serves a part of the slots, they refuse everything.
    own_cluster.set_node_timeout(NO_FAILOVER)
    with own_cluster.redis() as redis:
        fill(redis)
    master = own_cluster.masters()[0]
    there = {name for name in NAMES if own_cluster.node_of_key(name) is master}
    for replica in own_cluster.replicas_of(master):
        own_cluster.kill(replica)
    client = backend.connect(timeout=0.3, connect_timeout=0.3, retry_attempts=1)
    known = {state.name for state in (await listed(client)).values()}
    assert known == set(NAMES)
    own_cluster.kill(master)
    discovery = inspector(client).discovery()
    await finish(discovery)
    host, port = master.address
    assert set(discovery.failed) == {f"{host}:{port}"}
    assert set(discovery.found) == {name.encode() for name in NAMES} - {name.encode() for name in there}
    states, failed = await inspector(client).states([name.encode() for name in NAMES])
    assert {state.name for state in states} == set(NAMES) - there
    assert {key.decode() for key in failed} == there
    assert all(isinstance(error, RedisError) for error in failed.values())


async def test_names_whose_companion_keys_are_elsewhere(cluster: Cluster, backend: Backend) -> None:
    """Java can hold such a lock on a cluster. Its state can't be read by one script, which is said."""
    client = backend.connect()
    _, failed = await inspector(client).states([b"a{b"])
    assert set(failed) == {b"a{b"}
