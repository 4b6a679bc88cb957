"""Handing a fair lock on inside one client: how many calls that takes, the order, and what others may rely on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from pyredisson.errors import ClosedError, LockLostError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, WORK_LIMIT, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import fair_waiters

from .fair_queue import CHANNEL, CLIENTS, QUEUE, SCORES, Queue, start_waiter

pytestmark = pytest.mark.asyncio
ROUNDS = 20
HAND_OVER = b":1\r\n$6\r\n300000\r\n$38\r\n"
"""The end of the holder's name, the time of a place, and the beginning of another name: only hand-overs have them."""


async def rounds(lock: Any, count: int) -> None:
    """Acquires and releases it so many times."""
    for _ in range(count):
        await lock.lock()
        await lock.unlock()


async def two_wait(backend: Backend, client: Any) -> tuple[Any, Any, Any]:
    """Owner 1 holds the lock, owner 2 sleeps until it is released. Returns both locks, and the waiting call."""
    holder, waiter = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: fair_waiters(client, "orders") == 1)
    return holder, waiter, other


@pytest.mark.parametrize("kind", ["get_fair_lock", "get_non_reentrant_fair_lock"])
async def test_two_calls_for_each_acquisition_in_one_client(backend: Backend, queue: Queue, kind: str) -> None:
    """One that enters the queue, and one that hands the lock on; the rest begins and ends the contention.

    Without hand-overs there are three. On a busy machine some releases find the next owner awake.
    """
    lock = getattr(backend.connect(), kind)("orders")
    await rounds(lock, 1)
    before = queue.scripts()
    others = [backend.spawn(lambda: rounds(lock, ROUNDS)) for _ in range(64)]
    for other in others:
        await other.result(WORK_LIMIT)
    assert queue.scripts() - before <= 2.5 * 64 * ROUNDS
    assert queue.keys() == set()


async def test_nothing_is_published(backend: Backend, queue: Queue) -> None:
    client = backend.connect()
    with queue.redis.pubsub(ignore_subscribe_messages=True) as listening:
        listening.psubscribe(f"{CHANNEL}*")
        holder, waiter, other = await two_wait(backend, client)
        await holder.unlock()
        await other.result()
        await waiter.unlock()
        queue.redis.publish(CHANNEL, "end")
        messages: list[bytes] = []
        while not messages or messages[-1] != b"end":
            message = listening.get_message(timeout=TIME_LIMIT)
            if message is not None:
                messages.append(message["data"])
    assert messages == [b"end"]


async def test_it_is_switched_off(backend: Backend, queue: Queue) -> None:
    client = backend.connect(local_hand_over_time=0)
    holder, waiter, other = await two_wait(backend, client)
    before = queue.scripts()
    await holder.unlock()
    await other.result()
    # Its reply may come after the lock was acquired.
    await backend.until(lambda: queue.scripts() == before + 2)
    await waiter.unlock()


async def test_the_lease_of_the_next_owner(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    holder, waiter = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock(lease_time=1000)
    other = backend.spawn(lambda: waiter.lock(lease_time=20))
    await backend.until(lambda: fair_waiters(client, "orders") == 1)
    await holder.unlock()
    await other.result()
    assert 15_000 < server_state.redis.pttl("orders") <= 20_000
    assert await waiter.get_hold_count() == 1
    await waiter.lock()
    assert list(server_state.holds("orders").values()) == ["2"]
    await waiter.unlock()
    await waiter.unlock()
    assert server_state.redis.keys() == []


async def test_what_was_handed_on_is_renewed(backend: Backend) -> None:
    client = backend.connect(lock_watchdog_timeout=2)
    holder, waiter, other = await two_wait(backend, client)
    await holder.unlock()
    await other.result()
    await backend.sleep(2.6)
    assert await waiter.is_held()
    await waiter.unlock()


async def test_only_the_last_level_is_handed_on(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    await holder.lock()
    await holder.unlock()
    assert list(server_state.holds("orders").values()) == ["1"]
    assert not other.done()
    await holder.unlock()
    await other.result()
    await waiter.unlock()


@pytest.mark.parametrize("first", [0, 1])
async def test_arrival_order_of_two_clients(backend: Backend, queue: Queue, first: int) -> None:
    """However the waiters of two clients come one after the other, none is passed over."""
    clients = [backend.connect(), backend.connect()]
    holder = clients[first].get_fair_lock("orders", owner=100)
    await holder.lock()
    order: list[int] = []

    async def take(number: int, client: Any) -> None:
        lock = client.get_fair_lock("orders", owner=number)
        await lock.lock()
        order.append(number)
        await lock.unlock()

    others = []
    for number, place in enumerate([0, 0, 1, 0, 1, 1, 1, 0], start=1):
        client = clients[place]
        others.append(
            await start_waiter(backend, queue, lambda number=number, client=client: take(number, client))  # type: ignore[misc]
        )
    await holder.unlock()
    for other in others:
        await other.result()
    assert order == list(range(1, 9))
    assert queue.keys() == set()


async def test_a_refused_waiter_keeps_its_place_without_an_attempt(backend: Backend, queue: Queue) -> None:
    """Another client's waiter came first."""
    client, another = backend.connect(), backend.connect()
    holder, theirs = client.get_fair_lock("orders", owner=1), another.get_fair_lock("orders", owner=2)
    await holder.lock()
    first = await start_waiter(backend, queue, theirs.lock)
    await backend.until(lambda: fair_waiters(another, "orders") == 1)
    second = await start_waiter(backend, queue, client.get_fair_lock("orders", owner=3).lock)
    await backend.until(lambda: fair_waiters(client, "orders") == 1)
    [_, place] = queue.owners()
    asked_at = queue.redis.hget("pyredisson_fair_waiters:{orders}", place)
    await holder.unlock()
    await first.result()
    await backend.sleep(0.1)
    assert queue.owners() == [place]
    assert queue.redis.hget("pyredisson_fair_waiters:{orders}", place) == asked_at
    await theirs.unlock()
    await second.result()


async def test_java_waits_first(backend: Backend, queue: Queue, admin: Redis) -> None:
    client = backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    admin.lpush(QUEUE, "java:1")
    admin.zadd(SCORES, {"java:1": int(admin.time()[0]) * 1000 + 300_000})
    with queue.redis.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe(f"{CHANNEL}:java:1")
        assert listening.get_message(timeout=TIME_LIMIT) is None
        await holder.unlock()
        message = None
        while message is None:
            message = listening.get_message(timeout=TIME_LIMIT)
    assert message["data"] == b"0"
    assert not other.done()
    admin.lpop(QUEUE)
    admin.zrem(SCORES, "java:1")
    await other.result()
    await waiter.unlock()


async def test_a_dead_waiter_before_it(backend: Backend, queue: Queue, admin: Redis) -> None:
    client = backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    admin.lpush(QUEUE, "dead:1")
    admin.zadd(SCORES, {"dead:1": 1})
    before = queue.scripts()
    await holder.unlock()
    await other.result()
    # A first call of the script is sent twice.
    assert queue.scripts() - before <= 2
    await waiter.unlock()
    assert queue.keys() == set()


async def test_a_place_that_was_lost(backend: Backend, queue: Queue, admin: Redis) -> None:
    """The waiter enters the queue again, and gets the lock."""
    client = backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    admin.delete(QUEUE, SCORES)
    await holder.unlock()
    await other.result()
    await waiter.unlock()
    await backend.until(lambda: not admin.keys("*orders*") or admin.keys() == [b"pyredisson_fair_waiters:{orders}"])


async def test_two_calls_of_one_owner(tasks: Backend, queue: Queue, server_state: ServerState) -> None:
    """What one of them is given is the other's, too."""
    client = tasks.connect()
    holder, shared = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock()
    others = [await start_waiter(tasks, queue, shared.lock) for _ in range(2)]
    await tasks.until(lambda: fair_waiters(client, "orders") == 2)
    await holder.unlock()
    for other in others:
        await other.result()
    assert list(server_state.holds("orders").values()) == ["2"]
    await shared.unlock()
    await shared.unlock()
    await tasks.until(lambda: queue.keys() <= {"pyredisson_fair_waiters:{orders}"})


async def test_the_hold_was_lost(backend: Backend, queue: Queue) -> None:
    """A release that finds its lock gone enters nobody; the waiter gets the lock all the same."""
    client = backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    queue.redis.delete("orders")
    with pytest.raises(LockLostError):
        await holder.unlock()
    await other.result()
    await waiter.unlock()
    assert queue.keys() == set()


async def test_the_lock_is_deleted_before(backend: Backend, queue: Queue) -> None:
    client, another = backend.connect(), backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    assert await another.get_fair_lock("orders").delete()
    with pytest.raises(LockLostError):
        await holder.unlock()
    await other.result()
    await waiter.unlock()


@pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
async def test_a_lost_reply(
    backend: Backend, proxy: Proxy, queue: Queue, server_state: ServerState, fault: str
) -> None:
    client = backend.connect(proxy.url, timeout=0.3)
    holder, waiter, other = await two_wait(backend, client)
    getattr(proxy, fault)(HAND_OVER)
    await holder.unlock()
    await other.result()
    assert await waiter.is_held()
    assert list(server_state.holds("orders").values()) == ["1"]
    await waiter.unlock()
    await backend.until(lambda: queue.keys() <= {"pyredisson_fair_waiters:{orders}"})


async def test_a_command_that_takes_long_costs_no_place(
    threads: Backend, proxy: Proxy, queue: Queue, server_state: ServerState
) -> None:
    """The only waiter of its client goes on with its heartbeats meanwhile. (Tasks send them behind that command.)"""
    client, another = threads.connect(proxy.url, timeout=TIME_LIMIT), threads.connect()
    holder, waiter, other = await two_wait(threads, client)
    theirs = another.get_fair_lock("orders", owner=3)
    last = await start_waiter(threads, queue, theirs.lock)
    places = queue.owners()
    slow = proxy.hold_request(HAND_OVER)
    releasing = threads.spawn(holder.unlock)
    await threads.until(slow.held.is_set)

    def alive_until() -> float:
        """On the server's clock, ms."""
        return float(queue.redis.zscore(CLIENTS, another.id) or 0)

    await threads.until(lambda: alive_until() > 0)
    begun = alive_until()
    # A client counts as alive for 1.5 s after a heartbeat.
    await threads.until(lambda: alive_until() > begun + 2500)
    assert queue.owners() == places
    slow.deliver()
    await releasing.result()
    await other.result()
    assert not last.done()
    assert list(server_state.holds("orders")) == places[:1]
    await waiter.unlock()
    await last.result()
    await theirs.unlock()


async def test_a_waiter_that_is_cancelled_while_it_is_entered(tasks: Backend, proxy: Proxy, queue: Queue) -> None:
    client = tasks.connect(proxy.url)
    holder, waiter = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock()
    waiting = asyncio.ensure_future(waiter.lock())
    await tasks.until(lambda: fair_waiters(client, "orders") == 1)
    slow = proxy.hold_reply(HAND_OVER)
    releasing = asyncio.ensure_future(holder.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slow.deliver()
    await releasing
    await tasks.until(lambda: not queue.redis.exists("orders") and not len(queue))
    assert not await waiter.is_held()


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_release_that_is_cancelled(tasks: Backend, proxy: Proxy, queue: Queue, *, leaves: bool) -> None:
    """The waiter keeps its place, and finds out that it was entered. If it leaves as well, nobody has the lock."""
    client = tasks.connect(proxy.url)
    holder, waiter = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock()
    waiting = asyncio.ensure_future(waiter.lock())
    await tasks.until(lambda: fair_waiters(client, "orders") == 1)
    [name] = queue.owners()
    slow = proxy.hold_reply(HAND_OVER)
    releasing = asyncio.ensure_future(holder.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    releasing.cancel()
    if leaves:
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    if not leaves:
        slow.deliver()
        async with asyncio.timeout(TIME_LIMIT):
            await waiting
        assert await waiter.is_held()
        assert queue.redis.hkeys("orders") == [name.encode()]
        await waiter.unlock()
    else:
        with pytest.raises(asyncio.CancelledError):
            await waiting
        slow.deliver()
    await tasks.until(lambda: queue.keys() <= {"pyredisson_fair_waiters:{orders}"})
    assert not await waiter.is_held()


async def test_the_client_is_closed_while_a_waiter_is_entered(tasks: Backend, proxy: Proxy, queue: Queue) -> None:
    client = tasks.connect(proxy.url)
    holder, waiter = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock()
    waiting = asyncio.ensure_future(waiter.lock())
    await tasks.until(lambda: fair_waiters(client, "orders") == 1)
    slow = proxy.hold_reply(HAND_OVER)
    releasing = asyncio.ensure_future(holder.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    await client.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await releasing
    await tasks.until(lambda: not queue.redis.exists("orders") and not len(queue))


async def test_a_waiter_whose_time_is_over(backend: Backend, queue: Queue) -> None:
    client = backend.connect()
    holder, waiter = (client.get_fair_lock("orders", owner=owner) for owner in (1, 2))
    await holder.lock()
    assert not await backend.as_another_owner(lambda: waiter.try_lock(wait_time=0.05))
    await holder.unlock()
    await backend.until(lambda: queue.keys() == set())
    assert getattr(client, "_target", client)._session.local_queues == {}


async def test_a_script_that_the_server_refuses_fails_no_release(backend: Backend, queue: Queue, admin: Redis) -> None:
    """Another tool has spoilt the queue: the lock is released as without a waiter."""
    client = backend.connect()
    holder, waiter, other = await two_wait(backend, client)
    admin.delete(QUEUE)
    admin.set(QUEUE, "text")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await holder.unlock()
    admin.delete(QUEUE)
    await other.result()
    await waiter.unlock()
