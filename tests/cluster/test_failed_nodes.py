"""Nodes die, hang, or serve nothing any more: calls for other nodes go on, all end in time, nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from redis.exceptions import ClusterDownError, ConnectionError, RedisError

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.aio.pipeline import AcquiringHolder
from pyredisson._backends.threads.runtime import run
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply, Redirected
from pyredisson._protocol.scripts import as_eval
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.testing import Cluster
from tests.support.backends import Backend
from tests.support.waiting import eventually

from .scenes import connections, known_lock, linger, map_of, names_on, other_than
from .test_redirects import connect

pytestmark = pytest.mark.asyncio


async def test_no_server_is_there(one_node: Cluster, backend: Backend) -> None:
    """A call that may wait for longer goes on when the cluster comes."""
    one_node.kill(one_node.nodes[0])
    lock = backend.connect(retry_attempts=1).get_lock("a")
    with pytest.raises(ConnectionError, match="of the cluster of"):
        await lock.try_lock()
    begun = time.monotonic()
    with pytest.raises(RedisError):
        await lock.try_lock(wait_time=1)
    assert time.monotonic() - begun < 3
    timer = threading.Timer(0.7, one_node.restart, (one_node.nodes[0],))
    timer.start()
    assert await backend.connect().get_lock("a").try_lock(wait_time=15)
    timer.join()


async def test_closed_while_it_waits_for_the_topology(one_node: Cluster, backend: Backend) -> None:
    one_node.pause(one_node.nodes[0])
    client = backend.connect(timeout=30, connect_timeout=30)
    waiter = backend.spawn(client.get_lock("a").lock)
    await backend.sleep(0.3)
    begun = time.monotonic()
    await client.close()
    with pytest.raises(pyredisson.ClosedError):
        await waiter.result()
    assert time.monotonic() - begun < 5
    one_node.resume(one_node.nodes[0])


async def test_a_slot_that_nobody_serves(one_node: Cluster, backend: Backend) -> None:
    node = one_node.nodes[0]
    slot = one_node.slot_of_key("a")
    client = backend.connect(retry_attempts=1)
    await known_lock(client)
    node.ask("CLUSTER", "DELSLOTS", slot)
    node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    with pytest.raises(ClusterDownError, match=rf"slot {slot} on .* of the cluster of"):
        await client.get_lock("a").try_lock()
    begun = time.monotonic()
    with pytest.raises(RedisError, match=f"slot {slot}"):
        await client.get_lock("a").try_lock(wait_time=0.5)
    assert time.monotonic() - begun < 2
    assert await client.get_lock("b").try_lock(), "other slots are served"
    timer = threading.Timer(0.5, node.ask, ("CLUSTER", "ADDSLOTS", slot))
    timer.start()
    assert await client.get_lock("a").try_lock(wait_time=10)
    timer.join()


class TestDeadNode:
    async def test_calls_end_within_their_limits(self, masters_only: Cluster, backend: Backend) -> None:
        dead, *others = masters_only.masters()
        name = names_on(masters_only, dead, 1)[0]
        alive = [names_on(masters_only, other, 1)[0] for other in others]
        client = backend.connect(retry_attempts=1)
        await known_lock(client, name)
        masters_only.kill(dead)
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
                await known_lock(client, other)
                took.append(time.monotonic() - begun)
            # A pause between two tries takes longer. The machine may delay some of the calls, too.
            assert min(took) < 0.12

    async def test_a_hung_node_costs_the_others_no_release(self, masters_only: Cluster, backend: Backend) -> None:
        hung, *others = masters_only.masters()
        client = backend.connect(timeout=30)
        for node in (hung, *others):
            for name in names_on(masters_only, node, 5):
                assert await client.get_lock(name).try_lock()
        masters_only.pause(hung)
        begun = time.monotonic()
        await client.close()
        # Closing takes a second, whatever the timeout of calls is.
        assert time.monotonic() - begun < 5
        assert [other.ask("DBSIZE") for other in others] == [0, 0]
        masters_only.resume(hung)


CLIENT_NAME = "to-be-seen"


async def test_a_node_without_slots_is_no_longer_connected(own_cluster: Cluster, backend: Backend) -> None:
    client = backend.connect(client_name=CLIENT_NAME, topology_refresh_interval=0.2)
    removed, target, _ = own_cluster.masters()
    await known_lock(client, names_on(own_cluster, removed, 1)[0])

    assert connections(CLIENT_NAME, removed) >= 1
    slots = removed.view()[removed.id].slots
    # At once: to move so many slots takes a minute on a busy machine. Those of the higher epoch count.
    target.ask("CLUSTER", "BUMPEPOCH")
    ranges = [number for bounds in slots for number in bounds]
    removed.ask("CLUSTER", "DELSLOTSRANGE", *ranges)
    with target.redis() as redis, redis.pipeline() as pipeline:
        for change in ("DELSLOTSRANGE", "ADDSLOTSRANGE"):
            pipeline.execute_command("CLUSTER", change, *ranges)
        pipeline.execute()
    own_cluster.wait_until_consistent()
    await backend.until(lambda: connections(CLIENT_NAME, removed) == 0, 10)


async def test_calls_at_a_frozen_master_go_to_the_one_that_replaces_it(own_cluster: Cluster, backend: Backend) -> None:
    # The renewals of the hold find out soon that the master doesn't reply.
    client = backend.connect(timeout=20, lock_watchdog_timeout=1)
    master = own_cluster.masters()[0]
    name, held = names_on(own_cluster, master, 2)
    lock = await known_lock(client, name)
    await client.get_lock(held).lock()
    own_cluster.pause(master)
    waiter = backend.spawn(lock.lock)
    await asyncio.to_thread(own_cluster.wait_for_promotion, master)
    begun = time.monotonic()
    await backend.until(waiter.done)
    await waiter.result()
    assert time.monotonic() - begun < 5
    own_cluster.resume(master)


def listening() -> set[object]:
    """The threads and tasks of listeners. Those of a client that was closed may still be about to end."""
    threads = {thread for thread in threading.enumerate() if thread.name == "pyredisson-listener"}
    return {*threads, *(task for task in asyncio.all_tasks() if task.get_name() == "pyredisson-listener")}


@pytest.mark.parametrize("turns", range(12))
async def test_a_connection_that_is_being_made(cluster: Cluster, turns: int) -> None:
    """The node is removed while its first connection is made, in asyncio: the connection is closed all the same."""
    master = cluster.masters()[0]
    address = Address(master.host, master.port)
    config = Config.of(topology="cluster", nodes=(address,), client_name=CLIENT_NAME)
    holder = AcquiringHolder(Node(config.at(address)))
    call = asyncio.ensure_future(holder.exchange((b"*1\r\n$4\r\nPING\r\n",)))
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.to_thread(holder.retire)
    [outcome] = await asyncio.gather(call, return_exceptions=True)
    if isinstance(outcome, NoReply):
        assert outcome.stale, "the command is sent again at once"
    else:
        assert not isinstance(outcome, BaseException)
        assert outcome[0] == [b"PONG"]
    await asyncio.to_thread(eventually, lambda: connections(CLIENT_NAME, master) == 0)
    with pytest.raises(NoReply) as refused:
        await holder.exchange((b"*1\r\n$4\r\nPING\r\n",))
    assert refused.value.stale
    assert connections(CLIENT_NAME, master) == 0


async def test_a_listener_ends_when_nobody_waits_and_with_its_client(
    masters_only: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has ended before, and was started again; and that of a node that is dead by then."""
    before = listening()
    linger(monkeypatch, 0.2)
    client, other = backend.connect(ping_interval=0.2), backend.connect()
    dead, alive, _ = masters_only.masters()
    first, second = (client.get_lock(names_on(masters_only, master, 1)[0]) for master in (dead, alive))

    async def wait_for(lock: pyredisson.asyncio.Lock) -> None:
        holder = other.get_lock(lock.name)
        await holder.lock()
        assert not await lock.try_lock(wait_time=0.3)
        await holder.unlock()

    await wait_for(first)
    await backend.until(lambda: listening() <= before, 10)
    await wait_for(first)
    dead.kill()
    await backend.until(lambda: listening() <= before, 10)
    linger(monkeypatch, 60)
    await wait_for(second)
    assert listening() - before
    await client.close()
    await backend.until(lambda: listening() <= before)


async def test_the_watchdog_waits_for_no_node_that_it_did_not_mean(cluster: Cluster, backend: Backend) -> None:
    """MOVED isn't followed: the renewals of the node that sends it would wait for the node that it names."""
    client = connect(backend)
    source = cluster.masters()[0]
    stays, moves = (client.get_lock(name) for name in names_on(cluster, source, 2))
    target = other_than(source, cluster)
    await stays.lock()
    await moves.lock()
    servers = map_of(client)
    runtime = servers.watchdog_runtime(5.0)
    scripts, slot = servers.scripts, cluster.slot_of_key(str(moves.name))
    session = getattr(client, "_target", client)._session
    # With the text of the script, which the server may not know yet.
    calls = [hold.commands.renew(scripts, [hold], 30_000) for hold in session.holds.table.values()]
    commands = [as_eval(call, with_shebang=scripts.with_shebang) for call in calls]
    cluster.move_slot(slot, target)
    target.pause()
    try:
        begun = time.monotonic()
        replies = await asyncio.to_thread(run, runtime.send_all, commands)
        # The timeout of the node that doesn't reply is 5 s.
        assert time.monotonic() - begun < 3
        assert replies[0] == [1]
        assert isinstance(replies[1], Redirected)
        node = servers.table.node_of_slot(slot)
        assert node is not None
        assert node.endpoint.port == target.port
    finally:
        target.resume()
        run(runtime.close)
