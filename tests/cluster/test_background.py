"""What a client does on each server: chores, announcements, what an observer is told, and commands to each master."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

import pyredisson
from pyredisson._backends.threads.operations import run
from pyredisson._client import lifecycle
from pyredisson._core import command
from pyredisson._protocol.handshake import ServerInfo
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.routing import RoutingTable
from pyredisson.identity import identity
from pyredisson.logic import announcement
from pyredisson.testing import Cluster, Proxy, Sentinels, Server
from tests.support.backends import Backend
from tests.support.chores import Append
from tests.support.observers import Recorder, check_pairs, everything_told, told, whats
from tests.support.topologies import LAST, address, make_node, shard, view
from tests.support.waiting import eventually

from .test_redirects import move

pytestmark = pytest.mark.asyncio


class Chores:
    """The watchdog of a client that is connected, and its renewers."""

    def __init__(self, client: Any) -> None:
        self.watchdog = getattr(client, "_target", client)._session.watchdog

    @property
    def shard(self) -> Any:
        return self.watchdog._runtime.shard_of(b"chore")

    async def do(self, key: bytes = b"chore", renewer: Any = None) -> None:
        """Runs a chore. With a renewer: as by a thread that has looked at the map before a change."""
        chore = Append(key)
        if renewer is None:
            self.watchdog.do(chore)
        else:
            renewer.chores.append(chore)
            renewer.wake()
        await asyncio.to_thread(eventually, chore.done.is_set)


async def test_chores_of_each_shard(cluster: Cluster, backend: Backend) -> None:
    """A client that holds nothing on that shard gets a renewer there."""
    client = backend.connect()
    await client.get_lock("a").is_locked()
    chores = Chores(client)
    keys = [f"chore-{number}" for number in range(30)]
    for key in keys:
        await chores.do(key.encode())
        assert cluster.node_of_key(key).ask("GET", key) == "x"
    assert len(chores.watchdog._renewers) == len(cluster.masters())


async def test_chores_of_a_slot_that_has_moved(cluster: Cluster, backend: Backend) -> None:
    """The renewer that got the chore before gives it to the one of the new shard. So does one that ends."""
    client = backend.connect()
    await client.get_lock("a").is_locked()
    chores = Chores(client)
    before = chores.shard
    await chores.do()
    renewer = chores.watchdog._renewers[before]
    target = await asyncio.to_thread(move, cluster, "chore")
    # By a redirect.
    await client.get_lock("chore").is_locked()
    assert chores.shard is not before
    await chores.do(renewer=renewer)
    assert target.ask("GET", "chore") == "xx"
    assert not renewer.chores
    renewer = chores.watchdog._renewers[chores.shard]
    assert renewer.started
    last = Append(b"chore")
    renewer.chores.append(last)
    renewer._end()
    await asyncio.to_thread(eventually, last.done.is_set)
    assert chores.watchdog._renewers[renewer.shard] is not renewer


@pytest.mark.usefixtures("announced")
async def test_a_holder_is_found_from_any_lock(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its announcement is on one node, and follows when its slot moves. Its locks are on all nodes."""
    monkeypatch.setattr(announcement, "SHORTEST_TTL", 0)
    # A busy machine takes longer for the withdrawal than `close` waits for it if there is nothing else to send.
    monkeypatch.setattr(lifecycle, "WITHDRAWAL_TIMEOUT", lifecycle.CLOSE_TIMEOUT)
    client, other = backend.connect(lock_watchdog_timeout=3), backend.connect()
    locks = [client.get_lock(f"lock {number}") for number in range(12)]
    for lock in locks:
        await lock.lock()
    key = f"pyredisson_client:{{{client.id}}}"

    def holds() -> int:
        return sum(field.startswith("h:") for field in cluster.node_of_key(key).ask("HKEYS", key))

    await backend.until(lambda: holds() == len(locks))
    for lock in locks:
        found = await other.get_lock(lock.name).holder()
        assert found is not None
        assert (found.pid, found.since is None) == (identity().pid, False)
    target = await asyncio.to_thread(move, cluster, key)
    number = int(target.ask("HGET", key, "n"))
    await backend.until(lambda: int(target.ask("HGET", key, "n") or 0) > number + 1)
    for lock in locks:
        assert not lock.lost.is_set()
        await lock.unlock()
    await backend.until(lambda: holds() == 0)
    await client.close()
    assert target.ask("EXISTS", key) == 0


async def test_an_observer_is_told_of_renewals_on_all_masters(cluster: Cluster, backend: Backend) -> None:
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


async def test_an_observer_is_told_which_server_is_not_available(cluster: Cluster, backend: Backend) -> None:
    """And of each server from the beginning, so that metrics have a series for it before its first outage."""
    client = backend.connect(observer=Recorder("discovered", "connected", "disconnected"))
    await client.get_lock("a").is_locked()
    assert {f"{node.host}:{node.port}" for node in cluster.masters()} <= {event.server for event in told(client)}
    runtime: Any = getattr(client, "_target", client)._runtime
    node = runtime.node_for(command(b"GET", b"a"))
    # As a connection reports it that can't be made; and as the next one does that can.
    node.on_unreachable(ConnectionError("refused"), time.monotonic())
    node.on_connected(ServerInfo(script_flags=True, connection_id=None, server_id=None), [])
    where = cluster.node_of_key("a")
    assert [(event.what, event.server, event.error) for event in told(client) if event.what != "discovered"] == [
        ("disconnected", f"{where.host}:{where.port}", "ConnectionError: refused"),
        ("connected", f"{where.host}:{where.port}", None),
    ]


PORT = command(b"CONFIG", b"GET", b"port")


async def nodes(client: Any, name: str, *arguments: Any) -> Any:
    """Calls a method of the port `Nodes`."""
    runtime = getattr(client, "_target", client)._runtime
    method = getattr(runtime, name)
    if isinstance(getattr(client, "_target", client), pyredisson.Client):
        return run(lambda: method(*arguments))
    return await method(*arguments)


async def test_the_masters_of_a_cluster(cluster: Cluster, backend: Backend) -> None:
    """At the first call the topology isn't known. Each master gets its own commands, and may reply with an error."""
    client = backend.connect()
    masters = await nodes(client, "masters")
    assert [node.endpoint.port for node in masters] == sorted(node.port for node in cluster.masters())
    await client.get_lock("a").lock()
    for node in masters:
        commands = PORT, command(b"NONSENSE"), command(b"DBSIZE")
        (_, port), error, size = await nodes(client, "ask", node, commands)
        assert int(port) == node.endpoint.port
        assert isinstance(error, ResponseError)
        assert size == (cluster.node_of_key("a").port == node.endpoint.port)


async def test_a_master_without_slots_is_none() -> None:
    table = RoutingTable(make_node, None)
    table.apply(view(shard(2, ((0, LAST),)), shard(1, ()), shard(0, ())), table.begin_view())
    assert [node.endpoint for node in table.masters()] == [address(2)]


async def test_the_master_that_sentinels_name(sentinels: Sentinels, backend: Backend) -> None:
    client = backend.connect()
    (node,) = await nodes(client, "masters")
    (_, port), role = await nodes(client, "ask", node, (PORT, command(b"ROLE")))
    assert int(port) == node.endpoint.port
    assert role[0] == b"master"


async def test_a_single_server(backend_kind: type[Backend], server: Server) -> None:
    with Proxy(server.host, server.port) as proxy:
        backend = backend_kind(proxy.url)
        client = backend.connect()
        (node,) = await nodes(client, "masters")
        ((_, port),) = await nodes(client, "ask", node, (PORT,))
        assert int(port) == server.port
        proxy.refuse(True)
        proxy.cut()
        with pytest.raises(NoReply):
            await nodes(client, "ask", node, (PORT,))
        await backend.close()
