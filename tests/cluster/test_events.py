"""What an observer is told of several servers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from pyredisson._core import command
from pyredisson._protocol.handshake import ServerInfo
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.observers import Recorder, check_pairs, everything_told, told, whats

pytestmark = pytest.mark.asyncio


async def test_renewals_on_all_masters(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect(observer=Recorder(), lock_watchdog_timeout=1.2)
    locks = [client.get_lock(f"a-{number}") for number in range(30)]
    for lock in locks:
        await lock.lock()

    def renewed() -> int:
        return sum(event.count for event in everything_told(client) if event.what == "renewed")

    await backend.until(lambda: renewed() >= len(locks))
    for lock in locks:
        await lock.unlock()
    assert whats(told(client)) == ["acquired"] * 30 + ["released"] * 30
    check_pairs(told(client))


async def test_which_server_is_not_available(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect(observer=Recorder())
    await client.get_lock("a").is_locked()
    runtime: Any = getattr(client, "_target", client)._runtime
    node = runtime.node_for(command(b"GET", b"a"))
    # As a connection reports it that can't be made; and as the next one does that can.
    node.on_unreachable(ConnectionError("refused"), time.monotonic())
    node.on_connected(ServerInfo(script_flags=True, connection_id=None, server_id=None), [])
    where = cluster.node_of_key("a")
    assert [(event.what, event.server, event.error) for event in told(client)] == [
        ("disconnected", f"{where.host}:{where.port}", "ConnectionError: refused"),
        ("connected", f"{where.host}:{where.port}", None),
    ]


async def test_each_server_is_discovered(cluster: Cluster, backend: Backend) -> None:
    """So that metrics have a series for each before its first outage."""
    client = backend.connect(observer=Recorder("discovered"))
    await client.get_lock("a").is_locked()
    servers = {event.server for event in everything_told(client)}
    assert {f"{node.host}:{node.port}" for node in cluster.masters()} <= servers
