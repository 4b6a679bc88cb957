"""Chores of the watchdog on a cluster: each is run where its key is served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.chores import Append
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio


def watchdog_of(client: Any) -> Any:
    return getattr(client, "_target", client)._session.watchdog


async def test_each_shard(cluster: Cluster, backend: Backend) -> None:
    """A client that holds nothing on that shard gets a renewer there."""
    client = backend.connect()
    await client.get_lock("a").is_locked()
    watchdog = watchdog_of(client)
    keys = [f"chore-{number}" for number in range(30)]
    chores = [Append(key.encode()) for key in keys]
    for chore in chores:
        watchdog.do(chore)
    for key, chore in zip(keys, chores, strict=True):
        await asyncio.to_thread(eventually, chore.done.is_set)
        assert cluster.node_of_key(key).ask("GET", key) == "x"
    assert len(watchdog._renewers) == len(cluster.masters())


async def test_a_slot_that_has_moved(cluster: Cluster, backend: Backend) -> None:
    """The renewer that got the chore before gives it to the one of the new shard."""
    client = backend.connect()
    await client.get_lock("a").is_locked()
    watchdog, runtime = watchdog_of(client), watchdog_of(client)._runtime
    before = runtime.shard_of(b"chore")
    first = Append(b"chore")
    watchdog.do(first)
    await asyncio.to_thread(eventually, first.done.is_set)
    renewer = watchdog._renewers[before]
    source = cluster.node_of_key("chore")
    target = next(node for node in cluster.masters() if node is not source)
    await asyncio.to_thread(cluster.move_slot, cluster.slot_of_key("chore"), target)
    # By a redirect.
    await client.get_lock("chore").is_locked()
    after = runtime.shard_of(b"chore")
    assert after is not before
    # As a thread does that has looked at the map before the change.
    second = Append(b"chore")
    renewer.chores.append(second)
    renewer.wake()
    await asyncio.to_thread(eventually, second.done.is_set)
    assert target.ask("GET", "chore") == "xx"
    assert not renewer.chores
    assert watchdog._renewers[after].started


async def test_a_renewer_that_ends_gives_its_chores_away(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("a").is_locked()
    watchdog = watchdog_of(client)
    first = Append(b"chore")
    watchdog.do(first)
    await asyncio.to_thread(eventually, first.done.is_set)
    renewer = watchdog._renewers[watchdog._runtime.shard_of(b"chore")]
    second = Append(b"chore")
    renewer.chores.append(second)
    renewer._end()
    await asyncio.to_thread(eventually, second.done.is_set)
    assert watchdog._renewers[renewer.shard] is not renewer
