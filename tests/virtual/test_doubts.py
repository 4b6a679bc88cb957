"""What a client does when something is refused, gone or silent, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

import pyredisson.asyncio
from pyredisson._backends.aio.connection import connect
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config

from .cluster import MemoryCluster, install_cluster
from .server import Session
from .time import START
from .world import World, in_world


async def use(lock: Any) -> None:
    async with lock:
        pass


async def held(client: Any, *names: str) -> list[Any]:
    """Locks that the watchdog renews."""
    locks = [client.get_lock(name) for name in names]
    for lock in locks:
        await lock.lock()
    return locks


@pytest.mark.parametrize("clustered", [False, True])
@in_world
async def test_a_refused_subscription_ends_the_wait(
    world: World, monkeypatch: pytest.MonkeyPatch, clustered: bool
) -> None:
    def refuse(*_: object) -> bytes:
        raise NoPermissionError("NOPERM No permissions to access a channel")

    cluster = MemoryCluster(world.clock)
    install_cluster(monkeypatch, cluster)
    monkeypatch.setattr(Session, "do_subscribe", refuse)
    monkeypatch.setattr(Session, "do_ssubscribe", refuse)
    url = cluster.url if clustered else world.server.url
    async with pyredisson.asyncio.connect(url) as client, pyredisson.asyncio.connect(url) as other:
        await held(client, "a")
        with pytest.raises(NoPermissionError):
            await use(other.get_lock("a"))
    assert world.clock() < START + 1


@in_world
async def test_a_waiter_finds_permits_of_which_it_has_not_heard(world: World) -> None:
    async with world.client() as client:
        semaphore = client.get_semaphore("s")
        waiting = asyncio.create_task(semaphore.acquire())
        await asyncio.sleep(1)
        world.server.keys.keyspace.do_set(b"s", b"1")
        await waiting
    assert world.clock() < START + 200


@in_world
async def test_a_call_that_adds_a_level_needs_no_place_in_the_queue(world: World) -> None:
    """Its owner has acquired the lock by another call."""
    async with world.client() as client, world.client() as other:
        holder, lock = other.get_fair_lock("a"), client.get_fair_lock("a", owner="order")
        await holder.lock()
        both = [asyncio.create_task(lock.lock()) for _ in range(2)]
        await asyncio.sleep(1)
        last = asyncio.create_task(use(other.get_fair_lock("a")))
        await asyncio.sleep(1)
        await holder.unlock()
        await asyncio.gather(*both)
        await lock.unlock()
        await lock.unlock()
        await last
    assert world.clock() < START + 3


@in_world
async def test_a_failed_renewal_tells_how_many_locks(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(name: bytes, words: list[bytes]) -> Any:
        # The renewal has the keys of all.
        return ResponseError("ERR broken") if words[1:2] == [b"3"] and b"b" in words else run(name, words)

    run = world.server.keys.run
    async with world.client() as client:
        await held(client, "a", "b", "c")
        monkeypatch.setattr(world.server.keys, "run", broken)
        await asyncio.sleep(12)
        monkeypatch.setattr(world.server.keys, "run", run)
    assert "renewing 3 locks failed" in caplog.text


@in_world
async def test_a_call_is_tried_as_often_as_it_was_set(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def busy(name: bytes, _: list[bytes]) -> Any:
        calls.append(name)
        return ResponseError("BUSY Redis is busy running a script.")

    async with pyredisson.asyncio.connect(world.server.url, retry_attempts=5) as client:
        monkeypatch.setattr(world.server.keys, "run", busy)
        with pytest.raises(ResponseError, match="BUSY"):
            await client.get_lock("a").try_lock()
        assert calls.count(b"EVALSHA") == 1 + 5


@in_world
async def test_a_server_that_has_forgotten_its_scripts_is_sent_their_text(world: World) -> None:
    async with world.client() as client:
        (lock,) = await held(client, "a")
        for _ in range(3):
            world.server.keys.flush_scripts()
            await asyncio.sleep(30)
        await lock.unlock()


@in_world
async def test_replies_are_read_after_an_interrupt(world: World) -> None:
    """It has ended the handing out of replies in the middle."""
    pipeline = await connect(Node(Config(host=world.server.host, port=world.server.port)))
    reply = pipeline.submit(command(b"PING"))
    feed: Any = pipeline._feed
    feed(b"+early\r\n")
    pipeline.read_on()
    assert reply.done()
    # An idle connection keeps no reply alive.
    await asyncio.sleep(10)
    assert pipeline._checked is None
    pipeline.close()


@in_world
async def test_a_release_waits_for_another_call_of_its_owner(world: World) -> None:
    async with world.client() as client:
        lock = client.get_lock("a", owner="order")
        await lock.lock()
        world.server.pause()
        calls = [asyncio.create_task(lock.lock())]
        await asyncio.sleep(0.1)
        calls.append(asyncio.create_task(lock.unlock()))
        await asyncio.sleep(0.1)
        assert not calls[1].done()
        world.server.resume()
        await asyncio.gather(*calls)
        assert await lock.is_locked()
        await lock.unlock()
        assert not await lock.is_locked()


@in_world
async def test_a_task_that_has_ended_inside_of_a_block_is_forgotten(world: World) -> None:
    async with world.client() as client:
        lock = client.get_lock("a", owner="order")
        entering = asyncio.create_task(lock.__aenter__())
        await entering
        forgotten = weakref.ref(entering)
        del entering
        await asyncio.sleep(1)
        gc.collect()
        assert forgotten() is None
        await lock.unlock()


@pytest.mark.usefixtures("announced")
@in_world
async def test_the_end_of_a_client_is_told_once(world: World) -> None:
    async with world.client() as client:
        announcement: Any = client._lifecycle.session.announcement
        announcement._may_exist = True
        scripts = client._lifecycle.session.runtime.scripts
        assert [announcement.last(scripts) is None for _ in range(2)] == [False, True]


@in_world
async def test_what_is_repaired_behind_the_end_is_left_to_the_client(world: World) -> None:
    async with world.client() as client:
        watchdog = client._lifecycle.session.watchdog
    assert watchdog._renewer_of(object()).repairs._closed
