"""Nodes that serve nothing any more, for now or for good: no connection, thread or task is left, and nobody waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import pyredisson.asyncio
from pyredisson._backends.aio import listener as aio_listener
from pyredisson._backends.aio.acquiring import AcquiringHolder
from pyredisson._backends.threads import listener
from pyredisson._backends.threads.operations import run
from pyredisson._protocol.cluster import is_redirect
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import as_eval
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.logic import channels
from pyredisson.testing import Cluster
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.waiting import eventually

from .test_failed_nodes import names_on
from .test_redirects import connect, map_of, other_than

pytestmark = pytest.mark.asyncio

CLIENT_NAME = "to-be-seen"


@pytest.fixture
def masters_only() -> Iterator[Cluster]:
    """Three masters without replicas, which serve their slots although others are missing."""
    with Cluster(masters=3, replicas=0, config={"cluster-require-full-coverage": "no"}) as running:
        yield running


@pytest.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
def backend_of(request: pytest.FixtureRequest) -> type[Backend]:
    """Each of the two backends."""
    kind: type[Backend] = request.param
    return kind


def linger(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Sets how long a channel without waiters stays subscribed."""
    for module in (channels, listener, aio_listener):
        monkeypatch.setattr(module, "LINGER", seconds)


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
    await asyncio.to_thread(eventually, lambda: CLIENT_NAME not in str(master.ask("CLIENT", "LIST")))
    with pytest.raises(NoReply) as refused:
        await holder.exchange((b"*1\r\n$4\r\nPING\r\n",))
    assert refused.value.stale
    assert CLIENT_NAME not in str(master.ask("CLIENT", "LIST"))


async def test_a_listener_that_ended_and_was_started_again_ends_with_its_client(
    cluster: Cluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listening()
    linger(monkeypatch, 0.2)
    client, other = backend.connect(ping_interval=0.2), backend.connect()
    masters = cluster.masters()
    first, second = (client.get_lock(names_on(cluster, master, 1)[0]) for master in masters[:2])

    async def wait_for(lock: pyredisson.asyncio.Lock) -> None:
        holder = other.get_lock(lock.name)
        await holder.lock()
        assert not await lock.try_lock(wait_time=0.3)
        await holder.unlock()

    await wait_for(first)
    await backend.until(lambda: listening() <= before, 10)
    await wait_for(second)
    linger(monkeypatch, 60)
    await wait_for(first)
    assert listening() - before
    await client.close()
    await backend.until(lambda: listening() <= before)


async def test_a_dead_node_that_nobody_waits_for_is_not_connected_to(
    masters_only: Cluster, backend_of: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listening()
    linger(monkeypatch, 0.5)
    backend = backend_of(masters_only.url)
    client, other = backend.connect(), backend.connect()
    master = masters_only.masters()[0]
    lock = client.get_lock(names_on(masters_only, master, 1)[0])
    await other.get_lock(lock.name).lock()
    assert not await lock.try_lock(wait_time=0.2)
    master.kill()
    await backend.until(lambda: listening() <= before, 10)
    await backend.close()


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
        assert is_redirect(replies[1])
        node = servers.table.node_of_slot(slot)
        assert node is not None
        assert node.endpoint.port == target.port
    finally:
        target.resume()
        run(runtime.close)
