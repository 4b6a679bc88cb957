"""Waiting: woken by a message or at the end of the holder's time, never by polling."""

from __future__ import annotations

import time

import pytest

from pyredisson.testing import Proxy

from .worlds import Behind, World

pytestmark = pytest.mark.asyncio

CHANNEL = "redisson_lock__channel:{orders}"


async def test_a_release_wakes_a_waiter_of_another_client(world: World, behind: Behind) -> None:
    holder, waiter = world.connect().get_lock("orders"), world.connect().get_lock("orders")
    await holder.lock()
    other = world.spawn(waiter.lock)
    await world.until(lambda: behind.listeners("orders") == 1)
    released = time.monotonic()
    await holder.unlock()
    await other.result()
    assert time.monotonic() - released < 1
    assert await waiter.is_locked()


async def test_a_partial_release_wakes_nobody(world: World, behind: Behind) -> None:
    client = world.connect()
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    await holder.lock()
    other = world.spawn(waiter.lock)
    await world.until(lambda: behind.listeners("orders") == 1)
    await holder.unlock()
    await world.sleep(0.05)
    assert not other.done()
    await holder.unlock()
    await other.result()


async def test_force_unlock_wakes_a_waiter(world: World, behind: Behind) -> None:
    client = world.connect()
    await client.get_lock("orders", owner=1).lock()
    other = world.spawn(client.get_lock("orders", owner=2).lock)
    await world.until(lambda: behind.listeners("orders") == 1)
    assert await client.get_lock("orders").force_unlock()
    await other.result()


async def test_no_script_runs_while_waiting(world: World, behind: Behind) -> None:
    client = world.connect()
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    before = behind.scripts()
    other = world.spawn(waiter.lock)
    await world.until(lambda: behind.scripts() == before + 2)
    # One try, and one more when messages were sure to arrive; then silence.
    await world.sleep(0.4)
    assert behind.scripts() == before + 2
    await holder.unlock()
    await other.result()
    # The release, and the one try that it caused.
    assert behind.scripts() == before + 4


async def test_one_message_makes_one_waiter_try(world: World, behind: Behind) -> None:
    client = world.connect()
    holder = client.get_lock("orders", owner=0)
    await holder.lock()
    before = behind.scripts()

    def waiter(owner: int) -> None:
        lock = client.get_lock("orders", owner=owner)

        async def work() -> None:
            await lock.lock()
            turns.append(owner)
            await lock.unlock()

        others.append(world.spawn(work))

    turns: list[int] = []
    others: list[object] = []
    for owner in range(1, 9):
        waiter(owner)
    await world.until(lambda: behind.scripts() >= before + 9)
    await world.sleep(0.1)
    waiting = behind.scripts()
    await holder.unlock()
    await world.until(lambda: len(turns) == 8)
    assert sorted(turns) == list(range(1, 9))
    await world.until(lambda: behind.redis.keys() == [])
    # Each hand-off is a release and an acquire; the lead-in and a late confirmation are allowed for.
    assert behind.scripts() - waiting <= 2 * 9 + 4


async def test_the_end_of_the_holders_lease_wakes(world: World, behind: Behind) -> None:
    """A dead holder sends no message."""
    behind.redis.hset("orders", "dead:1", 1)
    behind.redis.pexpire("orders", 300)
    lock = world.connect().get_lock("orders")
    started = time.monotonic()
    await lock.lock()
    took = time.monotonic() - started
    assert 0.25 < took < 1
    await lock.unlock()


async def test_a_lease_that_was_extended_is_waited_for(world: World, behind: Behind) -> None:
    behind.redis.hset("orders", "somebody:1", 1)
    behind.redis.pexpire("orders", 150)
    other = world.spawn(world.connect().get_lock("orders").lock)
    await world.until(lambda: behind.listeners("orders") == 1)
    behind.redis.pexpire("orders", 400)
    started = time.monotonic()
    await other.result()
    assert time.monotonic() - started > 0.3


async def test_a_holder_without_a_ttl_is_waited_for(world: World, behind: Behind) -> None:
    behind.redis.hset("orders", "somebody:1", 1)
    other = world.spawn(world.connect().get_lock("orders").lock)
    await world.until(lambda: behind.listeners("orders") == 1)
    await world.sleep(0.05)
    assert not other.done()
    behind.redis.delete("orders")
    behind.redis.publish(CHANNEL, "0")
    await other.result()


async def test_other_locks_messages_wake_nobody(world: World, behind: Behind) -> None:
    client = world.connect()
    await client.get_lock("orders", owner=1).lock()
    before = behind.scripts()
    other = world.spawn(lambda: client.get_lock("orders", owner=2).try_lock(wait_time=0.3))
    await world.until(lambda: behind.scripts() == before + 2)
    for payload in ("2", "-1", "", "abc", " 0", "00"):
        behind.redis.publish(CHANNEL, payload)
    behind.redis.publish("redisson_lock__channel:{stock}", "0")
    await world.sleep(0.1)
    assert behind.scripts() == before + 2
    assert await other.result() is False


async def test_a_wait_ends_in_time_under_steady_contention(world: World, behind: Behind) -> None:
    """Other clients hand the lock on all the time: each message wakes the waiter, and the deadline is still one."""
    holder = world.connect().get_lock("orders", owner=1)
    waiter = world.connect().get_lock("orders", owner=2)
    stop = False

    async def contend() -> None:
        await holder.lock()
        while not stop:
            # A message without a release: the waiter looks again, and the lock is never free.
            behind.redis.publish(CHANNEL, "0")
            await world.sleep(0.005)
        await holder.unlock()

    other = world.spawn(contend)
    await world.until(lambda: bool(behind.redis.exists("orders")))
    before = behind.scripts()
    started = time.monotonic()
    assert await waiter.try_lock(wait_time=0.4) is False
    took = time.monotonic() - started
    assert 0.4 <= took < 1.4
    assert behind.scripts() > before + 5
    stop = True
    await other.result()


async def test_who_gives_up_leaves_nothing(world: World, behind: Behind) -> None:
    client = world.connect()
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    assert not await waiter.try_lock(wait_time=0.05)
    await holder.unlock()
    await world.sleep(0.05)
    assert behind.redis.keys() == []
    assert await waiter.try_lock()


async def test_an_uncontended_lock_is_one_command(world: World, proxy: Proxy) -> None:
    lock = world.connect(proxy.url).get_lock("orders")
    await lock.lock()
    await lock.unlock()
    proxy.forget()
    await lock.lock()
    await lock.unlock()
    assert [words[0] for words in proxy.commands] == [b"EVALSHA", b"EVALSHA"]
