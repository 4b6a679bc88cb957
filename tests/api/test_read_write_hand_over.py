"""A release that enters readers or a writer of the same client: the number of calls, and what others may rely on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from pyredisson.errors import ClosedError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

from .read_write import CHANNEL, CLAIM, sides

pytestmark = pytest.mark.asyncio
ROUNDS = 20
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
BY_TIME = 3
"""Attempts that waiters make after some time by themselves, as on a machine that stands still for a second."""
READ, WRITE = 0, 1
SIDES = ("read", "write")
HAND_OVER = {READ: b":1:write\r\n$38\r\n", WRITE: b":1:write\r\n$44\r\n"}
"""The end of the writer's name, and the beginning of that of whom its release enters: no other command has both."""
both_sides = pytest.mark.parametrize("side", [READ, WRITE], ids=SIDES)


async def cycle(lock: Any, count: int) -> None:
    """Acquires and releases it so many times."""
    for _ in range(count):
        await lock.lock()
        await lock.unlock()


async def write_after_a_wait(backend: Backend, client: Any, server_state: ServerState) -> Any:
    """A writer that has waited for a reader, so that its client knows that it holds the lock."""
    read, _ = sides(client, 99)
    await read.lock()
    _, write = sides(client, 1)
    writing = backend.spawn(write.lock)
    await backend.until(lambda: waiters(client, "orders", "write") == 1)
    await read.unlock()
    await writing.result()
    return write


async def test_one_call_lets_all_readers_in(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    write = await write_after_a_wait(backend, client, server_state)
    before = server_state.scripts()
    readers = [backend.spawn(sides(client, owner)[READ].lock) for owner in range(2, 66)]
    await backend.until(lambda: waiters(client, "orders", "read") == 64)
    # They know that the writer keeps them out, and make no attempt.
    await write.unlock()
    for reader in readers:
        await reader.result()
    assert before + 1 <= server_state.scripts() <= before + 1 + BY_TIME
    assert len(server_state.holds("orders")) == 65
    for owner in range(2, 66):
        await sides(client, owner)[READ].unlock()
    assert server_state.redis.keys() == []


async def test_readers_wait_for_a_claim_of_their_client(backend: Backend, server_state: ServerState) -> None:
    """They make no attempt: neither when they come, nor when the last reader has left and the writer is next."""
    client = backend.connect()
    first, _ = sides(client, 99)
    await first.lock()
    _, write = sides(client, 1)
    writing = backend.spawn(write.lock)
    await backend.until(lambda: waiters(client, "orders", "write") == 1)
    before = server_state.scripts()
    readers = [backend.spawn(sides(client, owner)[READ].lock) for owner in range(2, 10)]
    await backend.until(lambda: waiters(client, "orders", "read") == 8)
    await first.unlock()
    await writing.result()
    await write.unlock()
    for reader in readers:
        await reader.result()
    # The releases of the first reader and of the writer, and the attempt of the writer.
    assert before + 3 <= server_state.scripts() <= before + 3 + BY_TIME


async def test_calls_of_readers_beside_a_writer(backend: Backend, server_state: ServerState) -> None:
    """At most three calls for each hold, refused attempts included."""
    client = backend.connect()
    ended, writes = False, 0

    async def write() -> None:
        nonlocal writes
        _, lock = sides(client)
        while not ended:
            await cycle(lock, 1)
            writes += 1

    await cycle(sides(client, 1)[WRITE], 1)
    before = server_state.scripts()
    writing = backend.spawn(write)
    others = [backend.spawn(lambda: cycle(sides(client)[READ], ROUNDS)) for _ in range(16)]
    for other in others:
        await other.result()
    ended = True
    await writing.result()
    assert server_state.scripts() - before <= 3 * (16 * ROUNDS + writes)


async def test_readers_ask_the_server_when_the_claim_is_withdrawn(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    first, _ = sides(client, 99)
    await first.lock()
    writing = backend.spawn(lambda: sides(client, 1)[WRITE].try_lock(wait_time=3))
    await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
    readers = [backend.spawn(sides(client, owner)[READ].lock) for owner in (2, 3)]
    await backend.until(lambda: waiters(client, "orders", "read") == 2)
    assert not await writing.result()
    for reader in readers:
        await reader.result()
    # Nobody claims the lock any more: a reader that comes now asks at once.
    assert await sides(client, 4)[READ].try_lock()


async def test_readers_of_other_clients_hear_of_it(backend: Backend, server_state: ServerState) -> None:
    client, other = backend.connect(), backend.connect()
    write = await write_after_a_wait(backend, client, server_state)
    near = backend.spawn(sides(client, 2)[READ].lock)
    far = backend.spawn(sides(other, 3)[READ].lock)
    await backend.until(lambda: waiters(client, "orders", "read") + waiters(other, "orders", "read") == 2)
    with server_state.redis.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe(CHANNEL)
        listening.get_message(timeout=0.1)
        await write.unlock()
        await near.result()
        await far.result()
        message = listening.get_message(timeout=TIME_LIMIT)
        assert message is not None
        assert message["data"] == b"1"


async def test_one_call_for_each_acquisition_by_writers(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    await cycle(sides(client, 99)[WRITE], 1)
    before = server_state.scripts()
    others = [backend.spawn(lambda: cycle(sides(client)[WRITE], ROUNDS)) for _ in range(32)]
    for other in others:
        await other.result()
    assert server_state.scripts() - before <= 1.15 * 32 * ROUNDS
    await backend.until(lambda: server_state.redis.keys() == [])


async def test_writers_of_one_client_do_not_starve_its_readers(backend: Backend) -> None:
    """However long they may hand the lock on: readers come before the next writer."""
    client = backend.connect(local_hand_over_time=LONG)
    ended = False

    async def write() -> None:
        _, lock = sides(client)
        while not ended:
            await cycle(lock, 1)

    others = [backend.spawn(write) for _ in range(4)]
    read, _ = sides(client, 1)
    for _ in range(20):
        assert await read.try_lock(wait_time=TIME_LIMIT)
        await read.unlock()
    ended = True
    for other in others:
        await other.result()


async def test_readers_of_one_client_do_not_starve_its_writers(backend: Backend) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    ended = False

    async def read() -> None:
        lock, _ = sides(client)
        while not ended:
            await cycle(lock, 1)

    others = [backend.spawn(read) for _ in range(4)]
    _, write = sides(client, 1)
    for _ in range(20):
        assert await write.try_lock(wait_time=TIME_LIMIT)
        await write.unlock()
    ended = True
    for other in others:
        await other.result()


@both_sides
async def test_another_client_gets_its_turn(backend: Backend, side: int) -> None:
    """Beside writers and readers of one client that enter each other."""
    busy, other = backend.connect(), backend.connect()
    ended = False

    async def work(number: int) -> None:
        lock = sides(busy)[number % 2]
        while not ended:
            await cycle(lock, 1)
            await backend.sleep(0)

    others = [backend.spawn(partial(work, number)) for number in range(4)]
    lock = sides(other, 1)[side]
    for _ in range(3):
        assert await lock.try_lock(wait_time=TIME_LIMIT)
        await lock.unlock()
    ended = True
    for each in others:
        await each.result()


async def test_a_writer_that_reads_lets_readers_in(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    write = await write_after_a_wait(backend, client, server_state)
    own, _ = sides(client, 1)
    await own.lock()
    reader = backend.spawn(sides(client, 2)[READ].lock)
    await backend.until(lambda: waiters(client, "orders", "read") == 1)
    await write.unlock()
    await reader.result()
    assert await own.get_hold_count() == 1
    assert len(server_state.holds("orders")) == 3
    await sides(client, 2)[READ].unlock()
    await own.unlock()
    assert server_state.redis.keys() == []


async def test_a_writer_that_reads_hands_the_lock_on_to_no_writer(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    read, write = sides(client, 1)
    await write.lock()
    await read.lock()
    writing = backend.spawn(sides(client, 2)[WRITE].lock)
    await backend.until(lambda: waiters(client, "orders", "write") == 1)
    await write.unlock()
    assert server_state.holds("orders")["mode"] == "read"
    await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
    assert not writing.done()
    assert await read.get_hold_count() == 1
    await read.unlock()
    await writing.result()


async def test_the_leases_of_readers(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(lock_watchdog_timeout=2)
    _, write = sides(client, 1)
    await write.lock(lease_time=100)
    renewed, fixed = sides(client, 2)[READ], sides(client, 3)[READ]
    others = [backend.spawn(renewed.lock), backend.spawn(lambda: fixed.lock(lease_time=20))]
    await backend.until(lambda: waiters(client, "orders", "read") == 2)
    await write.unlock()
    for other in others:
        await other.result()
    assert 15_000 < server_state.redis.pttl("orders") <= 20_000
    await backend.sleep(2.6)
    for lock in (renewed, fixed):
        assert await lock.is_held()
        await lock.lock()
        await lock.unlock()
        await lock.unlock()
    assert server_state.redis.keys() == []


async def wait_behind_a_writer(backend: Backend, client: Any, side: int) -> tuple[Any, Any, Any]:
    """A writer, who waits for it, and the wait."""
    write, waiter = sides(client, 1)[WRITE], sides(client, 2)[side]
    await write.lock()
    waiting = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, "orders", SIDES[side]) == 1)
    return write, waiter, waiting


@both_sides
async def test_the_hold_was_lost(backend: Backend, server_state: ServerState, side: int) -> None:
    """A release that finds its lock gone enters nobody; the waiter gets the lock all the same."""
    write, waiter, waiting = await wait_behind_a_writer(backend, backend.connect(local_hand_over_time=LONG), side)
    server_state.redis.delete("orders")
    with pytest.raises(Exception, match="was lost"):
        await write.unlock()
    await waiting.result()
    await waiter.unlock()
    assert server_state.redis.keys() == []


@both_sides
@pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
async def test_a_lost_reply(backend: Backend, proxy: Proxy, server_state: ServerState, fault: str, side: int) -> None:
    client = backend.connect(proxy.url, local_hand_over_time=LONG, timeout=0.3)
    write, waiter, waiting = await wait_behind_a_writer(backend, client, side)
    getattr(proxy, fault)(HAND_OVER[side])
    await write.unlock()
    await waiting.result()
    assert await waiter.is_held()
    assert len(server_state.holds("orders")) == 2
    await waiter.unlock()
    await backend.until(lambda: server_state.redis.keys() == [])


@both_sides
async def test_a_waiter_that_is_cancelled_while_it_is_entered(
    tasks: Backend, proxy: Proxy, server_state: ServerState, side: int
) -> None:
    client = tasks.connect(proxy.url, local_hand_over_time=LONG)
    write, waiter, waiting = await wait_behind_a_writer(tasks, client, side)
    slow = proxy.hold_reply(HAND_OVER[side])
    releasing = asyncio.ensure_future(write.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    waiting._task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.result()
    slow.deliver()
    await releasing
    await tasks.until(lambda: server_state.redis.keys() == [])
    assert not await waiter.is_held()


@both_sides
async def test_a_release_that_is_cancelled(tasks: Backend, proxy: Proxy, server_state: ServerState, side: int) -> None:
    client = tasks.connect(proxy.url, local_hand_over_time=LONG)
    write, waiter, waiting = await wait_behind_a_writer(tasks, client, side)
    slow = proxy.hold_reply(HAND_OVER[side])
    releasing = asyncio.ensure_future(write.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    slow.deliver()
    await waiting.result()
    assert await waiter.is_held()
    await waiter.unlock()
    await tasks.until(lambda: server_state.redis.keys() == [])


@both_sides
async def test_the_client_is_closed_while_a_waiter_is_entered(
    tasks: Backend, proxy: Proxy, server_state: ServerState, side: int
) -> None:
    client = tasks.connect(proxy.url, local_hand_over_time=LONG)
    write, _, waiting = await wait_behind_a_writer(tasks, client, side)
    slow = proxy.hold_reply(HAND_OVER[side])
    releasing = asyncio.ensure_future(write.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    await client.close()
    with pytest.raises(ClosedError):
        await waiting.result()
    with pytest.raises(ClosedError):
        await releasing
    await tasks.until(lambda: server_state.redis.keys() == [])


@both_sides
async def test_a_waiter_whose_time_is_over(backend: Backend, server_state: ServerState, side: int) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    write, waiter = sides(client, 1)[WRITE], sides(client, 2)[side]
    await write.lock()
    assert not await backend.as_another_owner(lambda: waiter.try_lock(wait_time=0.05))
    await write.unlock()
    assert server_state.redis.keys() == []
    assert getattr(client, "_target", client)._session.lock_queues == {}


@pytest.mark.parametrize("seconds", [0, LONG])
async def test_nothing_is_left_behind(backend: Backend, server_state: ServerState, seconds: float) -> None:
    """Also where nothing is handed on."""
    client = backend.connect(local_hand_over_time=seconds)
    others = [backend.spawn(partial(cycle, sides(client, owner)[owner % 3 == 0], ROUNDS)) for owner in range(1, 13)]
    for other in others:
        await other.result()
    await backend.until(lambda: server_state.redis.keys() == [])
    assert getattr(client, "_target", client)._session.lock_queues == {}
    assert not getattr(client, "_target", client)._session.holds.table
