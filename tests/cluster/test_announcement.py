"""The announcement of a client on a cluster: it is on one node, and its locks are on all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyredisson._client import lifecycle
from pyredisson.identity import identity
from pyredisson.logic import announcement
from pyredisson.testing import Cluster
from tests.support.backends import Backend

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("announced")]


def fields(cluster: Cluster, key: str) -> list[Any]:
    found: list[Any] = cluster.node_of_key(key).ask("HKEYS", key)
    return found


async def test_a_holder_is_found_from_any_lock(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes longer for the withdrawal than `close` waits for it if there is nothing else to send.
    monkeypatch.setattr(lifecycle, "WITHDRAWAL_TIMEOUT", lifecycle.CLOSE_TIMEOUT)
    client, other = backend.connect(lock_watchdog_timeout=3), backend.connect()
    locks = [client.get_lock(f"lock {number}") for number in range(12)]
    for lock in locks:
        await lock.lock()
    key = f"pyredisson_client:{{{client.id}}}"
    await backend.until(lambda: sum(field.startswith("h:") for field in fields(cluster, key)) == len(locks))
    for lock in locks:
        found = await other.get_lock(lock.name).holder()
        assert found is not None
        assert (found.pid, found.since is None) == (identity().pid, False)
    for lock in locks:
        await lock.unlock()
    await backend.until(lambda: not any(field.startswith("h:") for field in fields(cluster, key)))
    await client.close()
    assert fields(cluster, key) == []


async def test_its_slot_moves(cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash moves with the slot, and the next announcement follows it."""
    monkeypatch.setattr(announcement, "SHORTEST_TTL", 0)
    client = backend.connect(lock_watchdog_timeout=3)
    lock = client.get_lock("a")
    await lock.lock()
    key = f"pyredisson_client:{{{client.id}}}"
    await backend.until(lambda: bool(fields(cluster, key)))
    source = cluster.node_of_key(key)
    target = next(node for node in cluster.masters() if node is not source)
    await asyncio.to_thread(cluster.move_slot, cluster.slot_of_key(key), target)
    number = int(target.ask("HGET", key, "n"))
    await backend.until(lambda: int(target.ask("HGET", key, "n") or 0) > number + 1)
    assert not lock.lost.is_set()
    await client.close()
    assert target.ask("EXISTS", key) == 0
