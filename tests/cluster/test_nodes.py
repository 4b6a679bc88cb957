"""Commands to each master: on a cluster, with Sentinels, and on a single server."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

import pyredisson
from pyredisson._backends.threads.operations import run
from pyredisson._core import command
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.routing import RoutingTable
from pyredisson.testing import Cluster, Proxy, Sentinels, Server
from tests.support.backends import Backend
from tests.support.topologies import LAST, address, make_node, shard, view

pytestmark = pytest.mark.asyncio
PORT = command(b"CONFIG", b"GET", b"port")


async def nodes(client: Any, name: str, *arguments: Any) -> Any:
    """Calls a method of the port `Nodes`."""
    runtime = getattr(client, "_target", client)._runtime
    method = getattr(runtime, name)
    if isinstance(getattr(client, "_target", client), pyredisson.Client):
        return run(lambda: method(*arguments))
    return await method(*arguments)


async def test_the_masters_of_a_cluster(cluster: Cluster, backend: Backend) -> None:
    """At the first call the topology isn't known. Each master gets its own commands."""
    client = backend.connect()
    masters = await nodes(client, "masters")
    assert [node.endpoint.port for node in masters] == sorted(node.port for node in cluster.masters())
    for node in masters:
        (_, port), pong = await nodes(client, "ask", node, (PORT, command(b"PING")))
        assert int(port) == node.endpoint.port
        assert pong == b"PONG"


async def test_keys_of_one_master(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("a").lock()
    sizes = {
        node.endpoint.port: (await nodes(client, "ask", node, (command(b"DBSIZE"),)))[0]
        for node in await nodes(client, "masters")
    }
    assert sizes.pop(cluster.node_of_key("a").port) == 1
    assert set(sizes.values()) == {0}


async def test_a_master_without_slots_is_none() -> None:
    table = RoutingTable(make_node, None)
    table.apply(view(shard(2, ((0, LAST),)), shard(1, ()), shard(0, ())), table.begin_view())
    assert [node.endpoint for node in table.masters()] == [address(2)]


async def test_error_replies_are_in_the_list(cluster: Cluster, backend: Backend) -> None:
    client = backend.connect()
    node = (await nodes(client, "masters"))[0]
    error, pong = await nodes(client, "ask", node, (command(b"NONSENSE"), command(b"PING")))
    assert isinstance(error, ResponseError)
    assert pong == b"PONG"


async def test_the_master_that_sentinels_name(sentinels: Sentinels, backend: Backend) -> None:
    client = backend.connect()
    (node,) = await nodes(client, "masters")
    (_, port), role = await nodes(client, "ask", node, (PORT, command(b"ROLE")))
    assert int(port) == node.endpoint.port
    assert role[0] == b"master"


async def test_a_single_server(backend_kind: type[Backend], server: Server) -> None:
    backend = backend_kind(server.url)
    client = backend.connect()
    (node,) = await nodes(client, "masters")
    ((_, port),) = await nodes(client, "ask", node, (PORT,))
    assert int(port) == server.port
    await backend.close()


async def test_a_server_that_does_not_reply(backend_kind: type[Backend], server: Server) -> None:
    with Proxy(server.host, server.port) as proxy:
        backend = backend_kind(proxy.url)
        client = backend.connect()
        (node,) = await nodes(client, "masters")
        proxy.refuse(True)
        with pytest.raises(NoReply):
            await nodes(client, "ask", node, (PORT,))
        await backend.close()
