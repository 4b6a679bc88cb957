"""Virtual time itself, and clients of one server in it: what is refused, gone or silent."""

import asyncio
import datetime as dt
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from redis.exceptions import NoPermissionError, RedisError, ResponseError

import pyredisson.asyncio
from pyredisson._backends.aio.connection import connect
from pyredisson._backends.aio.runtime import AcquiringHolder, PipelineHolder
from pyredisson._core import ReleaseCall, command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import ASKING
from pyredisson._settings.config import Config
from pyredisson.errors import LockTimeoutError
from pyredisson.logic.locks.keeping import KeepingLock
from pyredisson.logic.ports import Operation
from tests.api.kinds import JAVA, lock_of
from tests.support.backends import cancel_after, fails, hold_all, in_turn, within
from tests.support.children import completed

from .conftest import World, as_tasks
from .network import connect as connect_in_memory
from .server import EPOCH, MemoryServer
from .time import LONGEST, START, VirtualLoop


def test_what_would_hang_or_depend_on_real_time_fails(world: World) -> None:
    """The time of day is the server's."""
    seconds, _ = world.server.keys.keyspace.do_time()
    assert dt.datetime.now(dt.UTC).timestamp() == time.time() == int(seconds) == EPOCH + START
    with pytest.raises(AssertionError, match="nothing can happen"):
        world.run(asyncio.Event().wait)
    with pytest.raises(AssertionError, match="3600 virtual seconds"):
        world.run(lambda: asyncio.sleep(LONGEST + 1))
    for real in (threading.Thread(target=print).start, partial(socket.create_connection, ("localhost", 1))):
        with pytest.raises(AssertionError, match="real time"):
            real()


PING = command(b"PING")
TRACED = """
import asyncio, os
import pytest
from tests.virtual.conftest import World
from tests.virtual.network import Way
from tests.virtual.plugin import install
put, os.getpid = Way.put, lambda: 1
Way.put = lambda way, data: print(way._loop.time(), data, flush=True) or put(way, data)
world = World()
install(pytest.MonkeyPatch(), world.clock)

async def contend(client, side):
    for _ in range(20):
        async with getattr(client.get_read_write_lock("orders"), side)():
            await asyncio.sleep(0.0002)

async def run():
    async with world.client() as one, world.client() as two, asyncio.TaskGroup() as group:
        for client in (one, two) * 2:
            for side in ("read_lock", "write_lock"):
                group.create_task(contend(client, side))

world.run(run)
"""


def test_two_runs() -> None:
    """They send the same. The order of a set of strings depends on the seed of their hashes."""
    root = Path(__file__).parents[2]
    run = partial(completed, sys.executable, "-c", TRACED, cwd=root, check=True)
    first, second = (run(env=os.environ | {"PYTHONHASHSEED": seed}).stdout.splitlines() for seed in "12")
    assert len(first) > 300
    assert first == second


MOST = 1.0
"""Seconds within which a caller that is woken has the lock."""
WAITING = b"pyredisson_waiting:{orders}"


async def listed(world: World) -> None:
    """Until a client waits on the server."""
    while not world.server.keys.keyspace.do_keys(WAITING):  # noqa: ASYNC110 (in virtual time, nothing else tells)
        await asyncio.sleep(0.01)


async def test_a_kept_lock_that_is_released_in_the_background(world: World) -> None:
    """The next caller of the same client gets it, although no call of the holder is there to tell."""
    async with world.client() as other, world.client() as client:
        (holder,) = await hold_all(other, "orders")
        session = client.get_lock("orders")._logic.session
        first, second = (KeepingLock(session, b"orders", 2000) for _ in range(2))
        owner = session.owners.new()
        acquiring = asyncio.create_task(first.acquire(owner, None, None))
        await listed(world)
        [waiting] = await as_tasks(second.acquire(session.owners.new(), None, None), seconds=0.1)
        await holder.unlock()
        await acquiring
        hold = first.hold_of(owner.id)
        assert hold
        first.release_in_background(owner, hold, ReleaseCall())
        with within(3.0, least=2.0):
            await waiting
    assert world.clock() < START + 60


async def test_woken_at_the_deadline(world: World) -> None:
    """The caller that was woken gives up, and the next one of its client is woken as soon as the lock is free."""
    async with world.client() as other, world.client() as client:
        (holder,) = await hold_all(other, "orders")
        first = asyncio.create_task(client.get_lock("orders").try_lock(wait_time=1.0))
        await listed(world)
        await asyncio.sleep(0.1)
        [second] = await as_tasks(client.get_lock("orders").lock(), seconds=0.85)
        [releasing] = await as_tasks(holder.unlock(), seconds=0)
        # The process is busy, and the deadline passes. Another owner acquires the lock.
        time.sleep(0.1)
        keyspace: Any = world.server.keys.keyspace
        assert keyspace.do_keys(b"orders") == []
        keyspace.do_hset(b"orders", JAVA.encode(), b"1")
        keyspace.do_pexpire(b"orders", b"30000")
        await releasing
        assert not await first
        await asyncio.sleep(0.4)
        await other.get_lock("orders").force_unlock()
        with within(MOST):
            await second
    assert world.clock() < START + 60


async def test_a_call_that_adds_a_level_needs_no_place_in_the_queue(world: World) -> None:
    """Its owner has acquired the lock by another call."""
    async with world.client() as client, world.client() as other:
        holder, lock = other.get_fair_lock("a"), client.get_fair_lock("a", owner="order")
        await holder.lock()
        both = await as_tasks(lock.lock(), lock.lock())
        [last] = await as_tasks(other.get_fair_lock("a", owner=1).lock())
        await holder.unlock()
        await asyncio.gather(*both)
        await in_turn([lock.unlock] * 2)
        await last
    assert world.clock() < START + 3


async def test_server_errors(world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A failed renewal tells how many locks it was for, and a call is tried as often as it was set."""
    calls = []

    def broken(name: bytes, words: list[bytes]) -> Any:
        # The renewal has the keys of all.
        return ResponseError("ERR broken") if words[1:2] == [b"3"] and b"b" in words else run(name, words)

    def busy(name: bytes, words: list[bytes]) -> Any:
        calls.append((name, b"d" in words))
        return ResponseError("BUSY Redis is busy running a script.")

    run = world.server.keys.run
    async with world.client(retry_attempts=5) as client:
        await hold_all(client, "a", "b", "c")
        monkeypatch.setattr(world.server.keys, "run", broken)
        await asyncio.sleep(12)
        monkeypatch.setattr(world.server.keys, "run", busy)
        await fails(ResponseError, client.get_lock("d").try_lock, match="BUSY")
        # The others are renewals.
        assert calls.count((b"EVALSHA", True)) == 1 + 5
        monkeypatch.setattr(world.server.keys, "run", run)
    assert "renewing 3 locks failed" in caplog.text


@pytest.mark.parametrize("kind", ["lock", "fair", "write", "fenced"])
async def test_a_late_renewal_lengthens_no_fixed_lease(world: World, monkeypatch: Any, kind: str) -> None:
    """Of the next hold of the same owner."""
    late: list[list[bytes]] = []

    def delay(name: bytes, words: list[bytes]) -> Any:
        if words[:1] != [client._session.runtime.scripts.lock_renew]:
            return run(name, words)
        late.append(words)
        return [1]

    async with world.client() as client:
        lock, run = lock_of(client, kind), world.server.keys.run
        await lock.lock()
        monkeypatch.setattr(world.server.keys, "run", delay)
        await asyncio.sleep(15)
        await lock.unlock()
        await (lock.lock_and_get_token if kind == "fenced" else lock.lock)(1)
        assert run(b"EVALSHA", late[-1]) is not None
        assert 0 < world.server.keys.keyspace.do_pttl(b"orders") <= 1000


async def test_a_renewal_that_is_denied_costs_no_other_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(name: bytes, words: list[bytes]) -> Any:
        return (
            NoPermissionError("NOPERM no permissions to access one of the keys") if b"a" in words else run(name, words)
        )

    run = world.server.keys.run
    async with world.client() as client:
        locks = await hold_all(client, "a", "b")
        monkeypatch.setattr(world.server.keys, "run", deny)
        await asyncio.sleep(60)
        assert [lock.lost.is_set() for lock in locks] == [True, False]


async def test_replies_are_read_after_an_interrupt(world: World) -> None:
    """It has ended the handing out of replies in the middle."""
    pipeline = await connect(Node(Config(host=world.server.host, port=world.server.port)))
    reply = pipeline.submit(PING)
    pipeline._reader.feed(b"+early\r\n")
    pipeline.read_on()
    assert reply.done()
    # An idle connection keeps no reply alive.
    await asyncio.sleep(10)
    assert pipeline._checked is None
    # Nor does it stay open, if it is to take no more commands.
    pipeline.drain()
    await pipeline.disconnected


async def test_an_exception_behind_a_handshake_leaves_no_connection(world: World) -> None:
    """As of a filter of the log, which is told that the server is available again."""
    node = Node(Config(host=world.server.host, port=world.server.port))
    node.on_handshake = Mock(side_effect=LookupError)
    with pytest.raises(LookupError):
        await connect(node)
    await asyncio.sleep(1)
    assert not world.server.sessions


async def test_cancelled_commands_behind_asking_are_in_doubt(world: World) -> None:
    """Their undo comes to the server over another connection, and must not overtake them."""
    node = Node(Config(host=world.server.host, port=world.server.port))
    holder = PipelineHolder(node)
    pipeline = await holder.opened()
    for first, suspects in ((PING, []), (ASKING, [pipeline.connection_id])):
        assert await cancel_after(1, asyncio.create_task(holder.exchange([first, PING])))
        assert node.suspects == suspects
    holder.stop()


def test_what_was_on_its_way_when_a_loop_ended(world: World) -> None:
    """What was posted is sent elsewhere. And it doesn't run late: tasks that are collected undo what they have sent."""

    async def post() -> None:
        await holder.opened()
        holder.post(PING, elsewhere.append)

    async def stop() -> None:
        holder.stop()

    holder, elsewhere = PipelineHolder(Node(Config(host=world.server.host, port=world.server.port))), list[bytes]()
    world.run(post)
    world.clock.sleep(31)
    world.run(post)
    assert elsewhere == [], "the server may have forgotten that it has executed this"
    world.run(post)
    assert (elsewhere, len(world.server.sessions)) == ([PING], 1)
    holder.disconnect()
    assert elsewhere == [PING] * 2
    world.run(post)
    world.run(stop)
    assert elsewhere == [PING] * 3
    # The node is gone: its server was replaced.
    holder = PipelineHolder(Node(Config(host=world.server.host, port=world.server.port)))
    world.run(post)
    holder.retire()
    assert elsewhere == [PING] * 4


async def test_a_retired_node_has_no_connections_that_no_call_uses(world: World) -> None:
    holder = AcquiringHolder(Node(Config(host=world.server.host, port=world.server.port)))
    await holder.exchange([PING])
    await holder.acquire([PING], None, bool, new_connection=False)
    assert len(world.server.sessions) == 2
    holder.retire()
    await asyncio.sleep(1)
    assert not world.server.sessions


@pytest.mark.usefixtures("restarts_noticed")
async def test_a_renewal_does_not_hide_that_the_server_was_restarted(world: World) -> None:
    """It makes another connection, and is answered before the watchdog looks for the end of the former one."""
    async with world.client() as client:
        [other] = await hold_all(client, "a")
        await asyncio.sleep(5.5)
        [lock] = await hold_all(client, "b")
        await asyncio.sleep(9.7)
        world.server.restart()
        await asyncio.sleep(1.6)
        assert (lock.lost.is_set(), other.lost.is_set()) == (True, True)


@pytest.mark.usefixtures("announced")
async def test_the_end_of_a_client(world: World) -> None:
    """It is told once, and what is repaired behind it is left to the client."""
    async with world.client() as client:
        session = client._lifecycle.session
        announcement: Any = session.announcement
        announcement._may_exist = True
        assert [announcement.last(session.runtime.scripts) is None for _ in range(2)] == [False, True]
    assert session.watchdog._renewer_of(object()).repairs._closed


@pytest.mark.usefixtures("announced")
@pytest.mark.parametrize(("denied", "most"), [(False, 10), (True, 1)])
async def test_announcements_are_rare(world: World, monkeypatch: Any, caplog: Any, denied: bool, most: int) -> None:
    """After an outage, in which a wait is listed, one is sent. One that is refused for good is the last, and logged."""
    sent: list[bytes] = []

    def note(name: bytes, words: list[bytes]) -> Any:
        if not words[2:] or not words[2].startswith(b"pyredisson_client"):
            return ResponseError("BUSY") if START + 9.9 < world.clock() < START + 20 else run(name, words)
        sent.append(name)
        return ResponseError("ERR ACL failure") if denied else run(name, words)

    run = world.server.keys.run
    monkeypatch.setattr(world.server.keys, "run", note)
    caplog.set_level("INFO", "pyredisson")
    async with world.client() as client:
        await hold_all(client, "a")
        await asyncio.sleep(9.5)
        [waiting] = await as_tasks(client.get_lock("a", owner=1).lock(), seconds=50)
        await client.get_lock("a").unlock()
        await waiting
    assert 1 <= len(sent) <= most
    assert caplog.text.count("others can't see who this client is") == denied


@pytest.mark.usefixtures("announced")
async def test_a_release_that_the_server_refuses_for_good_ends_no_announcement(world: World) -> None:
    async with world.client() as client:
        await hold_all(client, "a")
        world.server.keys.keyspace.do_set(b"b", b"no lock")
        client._session.repair(client.get_lock("b")._logic.commands.release(b"nobody:1", 0))
        await asyncio.sleep(60)
        assert client._session.watchdog.pending_repairs()
        assert world.server.keys.keyspace.do_keys(b"pyredisson_client:*")


@asynccontextmanager
async def three_servers(world: World) -> AsyncIterator[tuple[list[MemoryServer], list[Any]]]:
    """With a client for each."""
    async with AsyncExitStack() as stack:
        servers = [
            stack.enter_context(MemoryServer(world.clock, name)) for name in ("192.0.2.1", "192.0.2.2", "192.0.2.3")
        ]
        yield servers, [await stack.enter_async_context(pyredisson.asyncio.connect(each.url)) for each in servers]


async def test_a_server_that_hangs_delays_no_timeout_of_a_red_lock(world: World) -> None:
    async with three_servers(world) as (servers, clients):
        servers[0].pause()
        for server in servers[1:]:
            server.keys.keyspace.do_hset(b"a", JAVA.encode(), b"1")
        lock = clients[0].get_red_lock(*(client.get_lock("a") for client in clients))
        with within(1.5, least=1.0):
            await fails(LockTimeoutError, lock.hold(1).__aenter__, match="'a' on 192.0.2.2:6379/0 is held by")


async def test_a_release_that_begins_late_is_neither_a_second_one_nor_one_of_a_later_hold(world: World) -> None:
    """Of a red lock. In no random schedule one begins so late."""
    held_up: list[Operation] = []
    holds_up: list[bool] = []
    """Which of the next operations do not begin."""

    def spawn_or_hold_up(operation: Operation) -> None:
        held_up.append(operation) if holds_up and holds_up.pop(0) else spawn(operation)

    async def check(level: int) -> None:
        """Each member is held so many times, as the clients and the servers say."""
        await asyncio.sleep(4)
        holds = [hold.count for client in clients for hold in client._session.holds.table.values()]
        assert holds == [level] * (len(clients) if level else 0)
        on_servers = [server.keys.keyspace.do_hvals(b"a") for server in servers]
        assert on_servers == [[b"%d" % level] if level else []] * len(servers)

    async with three_servers(world) as (servers, clients):
        lock = clients[0].get_red_lock(*(client.get_lock("a") for client in clients))
        runtime: Any = clients[0]._session.runtime
        spawn, runtime.spawn = runtime.spawn, spawn_or_hold_up
        await in_turn([lock.lock] * 2)
        for levels, which in ((1, [False, True, False]), (2, [True, True, True])):
            holds_up += which
            # Perhaps a majority has not replied.
            with suppress(RedisError):
                await lock.unlock()
            await check(1)
            assert len(held_up) == sum(which)
            if levels == 2:
                await lock.lock()
            while held_up:
                spawn(held_up.pop(0))
            await check(levels)
            await lock.lock()
        for levels in (2, 1, 0):
            await lock.unlock()
            await check(levels)


def test_a_claimant_whose_loop_was_closed_keeps_no_other_from_claiming(world: World) -> None:
    client, claim = world.client(), b"pyredisson_semaphore_claim:{a}"
    semaphore = client.get_semaphore("a")
    waiting: list[asyncio.Task[None]] = []

    async def wait() -> int:
        waiting.extend(await as_tasks(semaphore.acquire(2), seconds=3))
        return world.server.keys.keyspace.do_exists(claim)

    first, second = (VirtualLoop(world.clock, connect_in_memory) for _ in range(2))
    first.run_until_complete(semaphore.try_set_permits(1))
    assert first.run_until_complete(wait()) == 1
    first.close()
    assert second.run_until_complete(wait()) == 1
    second.run_until_complete(client.close())
    second.close()


def test_hand_overs_that_a_closed_loop_was_about_to_send_keep_no_release_waiting(world: World) -> None:
    client = world.client(local_hand_over_time=60)
    semaphore, unfinished = client.get_semaphore("a"), list[asyncio.Task[None]]()

    async def begin() -> None:
        unfinished.extend(await as_tasks(*[semaphore.acquire() for _ in range(2)]))
        unfinished.extend(await as_tasks(*[semaphore.release() for _ in range(2)], seconds=0))

    async def use() -> None:
        waiting = await as_tasks(semaphore.acquire())
        await semaphore.release()
        await asyncio.gather(*waiting)

    first, second = (VirtualLoop(world.clock, connect_in_memory) for _ in range(2))
    first.run_until_complete(begin())
    assert client._session.permits.queues[b"a"].batch is not None
    first.close()
    second.run_until_complete(use())
    # Their releases are for this server, and for no other one at its address.
    unfinished.clear()
    gc.collect()
    second.run_until_complete(client.close())
    second.close()
