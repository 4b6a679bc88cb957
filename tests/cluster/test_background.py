"""Nodes die or hang: calls for others go on, all end in time, nothing is left behind. What goes on without calls."""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ClusterDownError, ConnectionError, RedisError, TryAgainError

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.aio.runtime import AcquiringHolder
from pyredisson._backends.threads.runtime import run
from pyredisson._client import final_release, lifecycle
from pyredisson._core import command
from pyredisson._protocol.node import Node, ServerInfo
from pyredisson._protocol.replies import NoReply, Redirected
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.identity import identity
from pyredisson.inspection import discovery as walking
from pyredisson.logic import announcement
from pyredisson.testing import Cluster
from tests.support.backends import Backend, eventually, fails, hold_all, within
from tests.support.faults import Append
from tests.support.inspecting import Recorder, discovery_of, inspector, listed, session_of, state_of, told, walked

from .scenes import connections, half_moved, hold, known_lock, linger, map_of, names_on, other_than
from .test_redirects import connect, move, port_of

CLIENT_NAME = "to-be-seen"


async def ends_in_time(lock: Any, error: type[Exception], said: str) -> None:
    """Calls that don't get through say where, within their limits."""
    await fails(error, lock.try_lock, match=said)
    with within(3), pytest.raises(RedisError, match=said):
        await lock.try_lock(wait_time=1)


async def goes_on(lock: Any, mend: Callable[[], object]) -> None:
    """A call that may wait for longer goes on when the trouble is over."""
    timer = threading.Timer(0.7, mend)
    timer.start()
    assert await lock.try_lock(wait_time=15)
    timer.join()


async def test_nobody_serves_a_slot(one_node: Cluster, backend: Backend) -> None:
    """The only node hangs; it has given up the slot; it is dead."""
    [node], slot = one_node.nodes, one_node.slot_of_key("a")
    one_node.pause(node)
    client = backend.connect(timeout=30, connect_timeout=30)
    waiter = backend.spawn(client.get_lock("a").lock)
    await backend.sleep(0.3)
    # It waits for the topology.
    with within(5):
        await client.close()
        await fails(pyredisson.ClosedError, waiter.result)
    one_node.resume(node)
    client = backend.connect(retry_attempts=1)
    await known_lock(client)
    node.ask("CLUSTER", "DELSLOTS", slot)
    node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    await ends_in_time(client.get_lock("a"), ClusterDownError, rf"slot {slot} on .* of the cluster of")
    assert await client.get_lock("b").try_lock(), "other slots are served"
    await goes_on(client.get_lock("a"), partial(node.ask, "CLUSTER", "ADDSLOTS", slot))
    one_node.kill(node)
    await ends_in_time(backend.connect(retry_attempts=1).get_lock("a"), ConnectionError, "of the cluster of")
    await goes_on(backend.connect().get_lock("a"), partial(one_node.restart, node))


async def test_a_node_that_hangs_or_is_dead_costs_the_others_nothing(
    masters_only: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = masters_only.masters()
    node, *others = masters
    client = backend.connect(timeout=30)
    await hold_all(client, *(name for each in masters for name in names_on(masters_only, each, 5)))
    masters_only.pause(node)
    # Closing takes a second, whatever the timeout of calls is.
    with within(5):
        await client.close()
    assert [other.ask("DBSIZE") for other in others] == [0, 0]
    masters_only.resume(node)
    name, *alive = (names_on(masters_only, each, 1, "other")[0] for each in masters)
    client = backend.connect(retry_attempts=1)
    await hold_all(client, *names_on(masters_only, node, 5, "held"))
    await known_lock(client, name)
    masters_only.kill(node)
    await ends_in_time(client.get_lock(name), RedisError, rf"slot \d+ on 127.0.0.1:{node.port} of the cluster of")
    for other in alive:
        took = []
        for _ in range(10):
            begun = time.monotonic()
            await known_lock(client, other)
            took.append(time.monotonic() - begun)
        # A pause between two tries takes longer. The machine may delay some of the calls, too.
        assert min(took) < 0.12
    await hold_all(client, *alive)
    # The client has so many locks on that node that all of its first commands go there.
    monkeypatch.setattr(final_release, "BATCH", 5)
    await client.close()
    assert [other.ask("EXISTS", name) for other, name in zip(others, alive, strict=True)] == [0, 0]


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
    with within(5):
        await waiter.result()
    own_cluster.resume(master)


def listening() -> set[object]:
    """The threads and tasks that listen. Those of a client that was closed may still be about to end."""
    threads = {thread for thread in threading.enumerate() if thread.name == "pyredisson-listener"}
    return {*threads, *(task for task in asyncio.all_tasks() if task.get_name() == "pyredisson-listener")}


@pytest.mark.parametrize("turns", range(12))
async def test_a_connection_that_is_being_made(cluster: Cluster, turns: int) -> None:
    """The node is removed while its first connection is made, in asyncio: the connection is closed all the same."""
    master = cluster.masters()[0]
    address = Address(master.host, master.port)
    config = Config.of(topology="cluster", nodes=(address,), client_name=CLIENT_NAME)
    holder = AcquiringHolder(Node(config.at(address)))
    call = asyncio.ensure_future(holder.exchange((command(b"PING"),)))
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.to_thread(holder.retire)
    outcomes: Any = await asyncio.gather(call, return_exceptions=True)
    # A stale command is sent again at once.
    assert outcomes[0].stale if isinstance(outcomes[0], NoReply) else outcomes[0][0] == [b"PONG"]
    await asyncio.to_thread(eventually, lambda: connections(CLIENT_NAME, master) == 0)
    assert (await fails(NoReply, holder.exchange, (command(b"PING"),))).stale
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
    _, moves = await hold_all(client, *names_on(cluster, source, 2))
    target = other_than(source, cluster)
    servers = map_of(client)
    runtime = servers.watchdog_runtime()
    runtime.limit_timeout(5.0)
    scripts, slot = servers.scripts, cluster.slot_of_key(str(moves.name))
    # With the text of the script, which the server may not know yet.
    calls = [hold.commands.renew(scripts, [hold], 30_000) for hold in session_of(client).holds.table.values()]
    commands = [scripts.as_eval(call) for call in calls]
    cluster.move_slot(slot, target)
    target.pause()
    try:
        # The timeout of the node that doesn't reply is 5 s.
        with within(3):
            replies = await asyncio.to_thread(run, runtime.send_all, commands)
        assert (replies[0], type(replies[1]), port_of(client, str(moves.name))) == ([1], Redirected, target.port)
    finally:
        target.resume()
        run(runtime.close)


async def test_chores_of_a_slot_that_has_moved(cluster: Cluster, backend: Backend) -> None:
    """The renewer that got the chore before gives it to the one of the new shard. So does one that ends."""
    client = backend.connect()
    await client.get_lock("a").is_locked()
    watchdog = session_of(client).watchdog
    chores: list[Any] = [Append(b"chore") for _ in range(3)]
    shard = partial(watchdog._runtime.shard_of, b"chore")
    before = shard()
    watchdog.do(chores[0])
    await asyncio.to_thread(eventually, chores[0].done.is_set)
    renewer = watchdog._renewers[before]
    target = await asyncio.to_thread(move, cluster, "chore")
    # By a redirect.
    await client.get_lock("chore").is_locked()
    assert shard() is not before
    # As by a thread that has looked at the map before the change.
    renewer.chores.append(chores[1])
    renewer.wake()
    await asyncio.to_thread(eventually, chores[1].done.is_set)
    assert target.ask("GET", "chore") == "xx"
    assert not renewer.chores
    renewer = watchdog._renewers[shard()]
    assert renewer.started
    renewer.chores.append(chores[2])
    renewer._end()
    await asyncio.to_thread(eventually, chores[2].done.is_set)
    assert watchdog._renewers[renewer.shard] is not renewer


@pytest.mark.usefixtures("announced")
async def test_holders_of_locks_are_found(cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its announcement is on one node, and follows when its slot moves. Its locks are on all nodes."""
    monkeypatch.setattr(announcement, "SHORTEST_TTL", 0)
    # A busy machine takes longer for the withdrawal than `close` waits for it if there is nothing else to send.
    monkeypatch.setattr(lifecycle, "WITHDRAWAL_TIMEOUT", lifecycle.CLOSE_TIMEOUT)
    client, other = backend.connect(lock_watchdog_timeout=3), backend.connect()
    locks = await hold_all(client, *(f"lock {number}" for number in range(12)))
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


async def test_an_observer_is_told_which_server_is_not_available(cluster: Cluster, backend: Backend) -> None:
    """And of each server from the beginning, so that metrics have a series for it before its first outage."""
    client = backend.connect(observer=Recorder("discovered", "connected", "disconnected"))
    await client.get_lock("a").is_locked()
    assert {f"{node.host}:{node.port}" for node in cluster.masters()} <= {event.server for event in told(client)}
    node: Any = map_of(client).serving(command(b"GET", b"a"))
    # As a connection reports it that can't be made; and as the next one does that can.
    node.on_unreachable(ConnectionError("refused"), time.monotonic())
    node.on_connected(ServerInfo(script_flags=True, connection_id=None, server_id=None), [], 0.0)
    where = "{0.host}:{0.port}".format(cluster.node_of_key("a"))
    events = [(event.what, event.server, event.error) for event in told(client) if event.what != "discovered"]
    assert events == [("disconnected", where, "ConnectionError: refused"), ("connected", where, None)]


NAMES = [f"orders-{number}" for number in range(30)]


@pytest.mark.slow
async def test_slots_move_and_a_master_is_killed_during_a_walk(
    own_cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pass may miss is found by the next one, and each object is listed once."""
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)
    # Until the replica has taken over.
    monkeypatch.setattr(walking, "MOST_TRIES", 100)
    keys = {name.encode() for name in NAMES}
    hold(own_cluster, *NAMES)
    with own_cluster.redis() as redis:
        for number in range(2000):
            redis.set(f"counter:{number}", number)
    client = backend.connect(topology_refresh_interval=0.1, connect_timeout=0.5)
    discovery = discovery_of(client)
    for name in NAMES[:5]:
        assert await discovery.step()
        move(own_cluster, name)
        # A key in a slot that has moved.
        assert (await state_of(client, name)).held
    await backend.until(lambda: discovery.topology_changed)
    while await discovery.step():
        pass
    assert keys - set(discovery.found) <= {name.encode() for name in NAMES[:5]}
    discovery.restart()
    while await discovery.step():
        pass
    assert (set(discovery.found), len(discovery.failed)) == (keys, 0)
    own_cluster.wait_until_consistent()
    for node in own_cluster.masters():
        node.ask("WAIT", 1, 5000)
    discovery = discovery_of(client)
    assert await discovery.step()
    own_cluster.kill(own_cluster.masters()[0])
    while await discovery.step():
        pass
    assert (set(discovery.found), discovery.topology_changed, len(discovery.failed)) == (keys, True, 0)


async def test_keys_of_a_slot_on_two_nodes(cluster: Cluster, backend: Backend) -> None:
    """Each of them is found where it is, and the state of each can be read once they are together again."""
    names = [f"{number}{{orders}}" for number in range(6)]
    hold(cluster, *names)
    client = backend.connect(retry_attempts=1)
    with half_moved(cluster, "orders", *names[:3]):
        discovery = await walked(client)
        assert set(discovery.found) == {name.encode() for name in names}
        # No script can read a key whose companion keys may be elsewhere.
        known, failed = await inspector(client).found(discovery.found)
        assert (known, set(failed)) == ([], set(discovery.found))
        assert all(isinstance(error, TryAgainError) for error in failed.values())
    assert set(await listed(client)) == set(names)
    # Java can hold such a lock on a cluster: its companion keys are always elsewhere.
    _, failed = await inspector(client).states([b"a{b"])
    assert set(failed) == {b"a{b"}
    # The subscription of a waiter is on the node of the lock.
    waiter = backend.spawn(partial(backend.connect().get_lock(names[0]).try_lock, 20))
    while (await state_of(client, names[0])).waiting_clients != 1:
        await backend.sleep(0.005)
    await client.get_lock(names[0]).force_unlock()
    assert await waiter.result()
