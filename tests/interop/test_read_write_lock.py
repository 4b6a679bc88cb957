"""Readers and writers of both sides on one read-write lock."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backends import Backend, OtherOwner
from tests.support.waiting import waiters

from .jvm import JavaClient, Jvm, Pending, now
from .targets import BEFORE_SLEEP, WOKEN, Target, timed, wakes

pytestmark = pytest.mark.asyncio

NAME = "orders"


def reader(client: Any) -> Any:
    return client.get_read_write_lock(NAME).read_lock()


def writer(client: Any) -> Any:
    return client.get_read_write_lock(NAME).write_lock()


def start(backend: Backend, lock: Any) -> OtherOwner[float]:
    """Another owner acquires the lock; its result is when."""

    async def acquire() -> float:
        await lock.lock()
        return now()

    return backend.spawn(acquire)


@pytest.mark.parametrize("last", ["java", "python"])
async def test_readers_of_both(last: str, backend: Backend, java: JavaClient, target: Target) -> None:
    """A writer waits for the last of them, which wakes a writer of the other side."""
    client = backend.connect()
    java.bob.call(java.get("ReadLock", NAME), "lock")
    await reader(client).lock()
    assert len(target.holds(NAME)) == 2
    assert not java.ann.call(java.get("WriteLock", NAME), "tryLock")
    assert not await backend.as_another_owner(writer(client).try_lock)
    if last == "java":
        waiter = start(backend, writer(client))
        done, first = waiter.done, "python"
    else:
        in_java = java.ann.begin(java.get("WriteLock", NAME), "lock")
        done, first = in_java.done, "java"
    await backend.until(target.waiting("WriteLock", NAME))
    await timed(first, java.bob, java.get("ReadLock", NAME), reader(client), "unlock")
    # Redisson counts only readers whose lease keys it finds: without them it would remove the whole lock.
    assert len(target.holds(NAME)) == 1
    await backend.sleep(0.1)
    assert not done()
    began, ended = await timed(last, java.bob, java.get("ReadLock", NAME), reader(client), "unlock")
    assert began < (await waiter.result() if last == "java" else in_java.answer().ended) < ended + WOKEN


@pytest.mark.parametrize("side", ["python", "java"])
async def test_a_writer_wakes_readers(side: str, backend: Backend, java: JavaClient, jvm: Jvm, target: Target) -> None:
    client, other = backend.connect(), backend.connect()
    await timed(side, java.ann, java.get("WriteLock", NAME), writer(client), "lock")
    threads = [jvm.thread() for _ in range(3)]
    in_java = [thread.begin(java.get("ReadLock", NAME), "lock") for thread in threads]
    in_python = [start(backend, reader(other)) for _ in range(3)]
    # Behind a writer of Java, Python's client listens to Redisson's channel, too.
    await target.until_java_waits(backend, "ReadLock", NAME, 2 if side == "java" else 1, threads=threads)
    await backend.until(lambda: waiters(other, NAME, "read") == 3)
    began, ended = await timed(side, java.ann, java.get("WriteLock", NAME), writer(client), "unlock")
    for waiter in in_java:
        await backend.until(waiter.done)
        assert began < waiter.answer().ended < ended + WOKEN
    for other_owner in in_python:
        assert began < await other_owner.result() < ended + WOKEN
    assert len(target.holds(NAME)) == 6


async def test_downgrades(backend: Backend, java: JavaClient, target: Target) -> None:
    """A downgrade lets readers of the other side in. One in Python wakes them; Redisson's own publishes nothing."""
    client = backend.connect()
    await writer(client).lock()
    await reader(client).lock()
    waiter = java.ann.begin(java.get("ReadLock", NAME), "lock")
    await target.until_java_waits(backend, "ReadLock", NAME, threads=[java.ann])
    await wakes(waiter, writer(client).unlock)
    assert len(target.holds(NAME)) == 2
    await reader(client).unlock()
    java.ann.call(java.get("ReadLock", NAME), "unlock")

    java.ann.call(java.get("WriteLock", NAME), "lock")
    java.ann.call(java.get("ReadLock", NAME), "lock")
    assert not await reader(client).try_lock()
    java.ann.call(java.get("WriteLock", NAME), "unlock")
    assert await reader(client).try_lock()
    assert not await backend.as_another_owner(writer(client).try_lock)


async def test_a_short_lease_of_a_reader_beside_a_long_one(backend: Backend, java: JavaClient, target: Target) -> None:
    """It ends neither the other one nor the lock, on whichever side it is."""
    client, in_java = backend.connect(), java.get("ReadLock", NAME)
    assert await reader(client).try_lock(lease_time=20)
    java.ann.call(in_java, "lock", 300, "MILLISECONDS")
    await backend.sleep(0.4)
    java.bob.call(in_java, "lock")
    # This release removes readers whose leases have ended.
    java.bob.call(in_java, "unlock")
    assert await reader(client).is_held()
    assert 10_000 < target.redis.pttl(NAME) <= 20_000
    assert not java.bob.call(java.get("WriteLock", NAME), "tryLock")
    await reader(client).unlock()

    java.ann.call(in_java, "lock", 20, "SECONDS")
    assert await backend.as_another_owner(lambda: reader(client).try_lock(lease_time=1))
    await backend.sleep(1.1)
    assert await reader(client).try_lock()
    await reader(client).unlock()
    assert java.ann.call(in_java, "isHeldByCurrentThread")
    assert 10_000 < target.redis.pttl(NAME) <= 20_000
    assert not await writer(client).try_lock()
    java.ann.call(in_java, "unlock")
    assert await writer(client).try_lock()


async def test_writers_in_turn(backend: Backend, java: JavaClient, target: Target) -> None:
    """A writer that waits in Python doesn't keep Java out for ever, nor the other way round."""
    client = backend.connect()
    java.ann.call(java.get("WriteLock", NAME), "lock")

    async def write() -> None:
        await writer(client).lock()
        # Until the thread of Java that came second sleeps again: see `until_java_waits`.
        await backend.sleep(BEFORE_SLEEP)
        await backend.until(lambda: waiting[0].done() or java.bob.sleeps())
        await writer(client).unlock()

    waiting: list[Pending] = [java.bob.begin(java.get("WriteLock", NAME), "lock")]
    waiting.append(java.bob.begin(java.get("WriteLock", NAME), "unlock"))
    in_python = backend.spawn(write)
    await target.until_java_waits(backend, "WriteLock", NAME, 2, threads=[java.bob])
    java.ann.call(java.get("WriteLock", NAME), "unlock")
    await in_python.result()
    for each in waiting:
        await backend.until(each.done)
        each.result()
    assert not target.holds(NAME)
