"""Waiters are woken by a message or at the end of the holder's lease; they don't poll."""

from __future__ import annotations

import time

import pytest

from pyredisson.testing import Proxy
from tests.support.backends import WOKEN, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_lock__channel:{orders}"


async def test_a_release_wakes_a_waiter_of_another_client(backend: Backend, server_state: ServerState) -> None:
    holder, waiter = backend.connect().get_lock("orders"), backend.connect().get_lock("orders")
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    released = time.monotonic()
    await holder.unlock()
    await other.result()
    assert time.monotonic() - released < WOKEN
    assert await waiter.is_locked()


async def test_a_partial_release_wakes_no_waiter(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    await holder.unlock()
    await backend.sleep(0.05)
    assert not other.done()
    await holder.unlock()
    await other.result()


async def test_force_unlock_wakes_a_waiter(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner=1).lock()
    other = backend.spawn(client.get_lock("orders", owner=2).lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    assert await client.get_lock("orders").force_unlock()
    await other.result()


async def test_no_script_runs_while_waiting(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    before = server_state.scripts()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: server_state.scripts() == before + 2)
    # One try, and one more when messages were sure to arrive; then silence.
    await backend.sleep(0.4)
    assert server_state.scripts() == before + 2
    await holder.unlock()
    await other.result()
    # The release, which has entered the waiter.
    assert server_state.scripts() == before + 3


async def test_one_message_makes_one_waiter_try(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(local_hand_over_time=0)
    holder = client.get_lock("orders", owner=0)
    await holder.lock()
    before = server_state.scripts()

    def waiter(owner: int) -> None:
        lock = client.get_lock("orders", owner=owner)

        async def work() -> None:
            await lock.lock()
            turns.append(owner)
            await lock.unlock()

        others.append(backend.spawn(work))

    turns: list[int] = []
    others: list[object] = []
    for owner in range(1, 9):
        waiter(owner)
    await backend.until(lambda: server_state.scripts() >= before + 9)
    await backend.sleep(0.1)
    waiting = server_state.scripts()
    await holder.unlock()
    await backend.until(lambda: len(turns) == 8)
    assert sorted(turns) == list(range(1, 9))
    await backend.until(lambda: server_state.redis.keys() == [])
    # Each hand-off is a release and an acquire; the lead-in and a late confirmation are allowed for.
    assert server_state.scripts() - waiting <= 2 * 9 + 4


async def test_the_end_of_the_holders_lease_wakes(backend: Backend, server_state: ServerState) -> None:
    """A dead holder sends no message."""
    server_state.redis.hset("orders", "dead:1", 1)
    lock = backend.connect().get_lock("orders")
    started = time.monotonic()
    server_state.redis.pexpire("orders", 300)
    await lock.lock()
    took = time.monotonic() - started
    assert 0.25 < took < WOKEN
    await lock.unlock()


async def test_a_lease_that_was_extended_is_waited_for(backend: Backend, server_state: ServerState) -> None:
    server_state.redis.hset("orders", "somebody:1", 1)
    server_state.redis.pexpire("orders", 700)
    other = backend.spawn(backend.connect().get_lock("orders").lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    started = time.monotonic()
    server_state.redis.pexpire("orders", 1_000)
    await other.result()
    assert time.monotonic() - started > 0.9


async def test_a_holder_without_a_ttl_is_waited_for(backend: Backend, server_state: ServerState) -> None:
    server_state.redis.hset("orders", "somebody:1", 1)
    other = backend.spawn(backend.connect().get_lock("orders").lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    await backend.sleep(0.05)
    assert not other.done()
    server_state.redis.delete("orders")
    server_state.redis.publish(CHANNEL, "0")
    await other.result()


async def test_messages_of_other_locks_wake_no_waiter(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    await client.get_lock("orders", owner=1).lock()
    before = server_state.scripts()
    other = backend.spawn(client.get_lock("orders", owner=2).lock)
    await backend.until(lambda: server_state.scripts() == before + 2)
    for payload in ("2", "-1", "", "abc", " 0", "00"):
        server_state.redis.publish(CHANNEL, payload)
    server_state.redis.publish("redisson_lock__channel:{stock}", "0")
    await backend.sleep(0.1)
    assert server_state.scripts() == before + 2
    assert not other.done()
    await client.get_lock("orders", owner=1).unlock()
    await other.result()


async def test_a_wait_ends_in_time_under_steady_contention(backend: Backend, server_state: ServerState) -> None:
    """Other clients hand the lock on all the time: each message wakes the waiter, and the deadline is still one."""
    holder = backend.connect().get_lock("orders", owner=1)
    waiter = backend.connect().get_lock("orders", owner=2)
    stop = False

    async def contend() -> None:
        await holder.lock()
        while not stop:
            # A message without a release: the waiter looks again, and the lock is never free.
            server_state.redis.publish(CHANNEL, "0")
            await backend.sleep(0.005)
        await holder.unlock()

    other = backend.spawn(contend)
    await backend.until(lambda: bool(server_state.redis.exists("orders")))
    before = server_state.scripts()
    started = time.monotonic()
    assert await waiter.try_lock(wait_time=1) is False
    took = time.monotonic() - started
    assert 1 <= took < 1 + WOKEN
    assert server_state.scripts() > before + 5
    stop = True
    await other.result()


async def test_a_waiter_that_gives_up_leaves_nothing(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    assert not await waiter.try_lock(wait_time=0.05)
    await holder.unlock()
    await backend.sleep(0.05)
    assert server_state.redis.keys() == []
    assert await waiter.try_lock()


async def test_an_uncontended_lock_is_one_command(backend: Backend, proxy: Proxy) -> None:
    lock = backend.connect(proxy.url).get_lock("orders")
    await lock.lock()
    await lock.unlock()
    proxy.forget()
    await lock.lock()
    await lock.unlock()
    assert [words[0] for words in proxy.commands] == [b"EVALSHA", b"EVALSHA"]
