"""A semaphore or a latch that was never set: one log message, or an error on request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pyredisson
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio
ACQUIRES: dict[str, list[Callable[[Any], Awaitable[Any]]]] = {
    "get_semaphore": [
        lambda semaphore: semaphore.acquire(),
        lambda semaphore: semaphore.acquire(3),
        lambda semaphore: semaphore.try_acquire(),
        lambda semaphore: semaphore.try_acquire(1, 30),
        lambda semaphore: semaphore.__aenter__(),
    ],
    "get_permit_expirable_semaphore": [
        lambda semaphore: semaphore.acquire(),
        lambda semaphore: semaphore.try_acquire(),
        lambda semaphore: semaphore.acquire_many(2, 10),
    ],
}
semaphores = pytest.mark.parametrize("factory", ACQUIRES)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[int, str], list[str]]:
    """The messages of a level that name something."""
    caplog.set_level(logging.INFO, "pyredisson")

    def messages(level: int, what: str) -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.levelno == level]
        return [text for text in found if what in text]

    return messages


def listens(server_state: ServerState, channel: str) -> bool:
    [(_, count)] = server_state.redis.pubsub_numsub(channel)
    return bool(count)


@semaphores
async def test_a_semaphore_that_was_never_set_is_logged_once(
    backend: Backend, server_state: ServerState, logged: Callable[[int, str], list[str]], factory: str
) -> None:
    client = backend.connect()
    semaphore = getattr(client, factory)("stock")
    assert not await semaphore.try_acquire()
    waiter = backend.spawn(getattr(client, factory)("stock").acquire)
    await backend.until(lambda: listens(server_state, "redisson_sc:{stock}"))
    assert not await semaphore.try_acquire(wait_time=0.05)
    assert not waiter.done()
    assert len(logged(logging.WARNING, "'stock'")) == len(logged(logging.WARNING, "")) == 1
    assert not await getattr(client, factory)("other").try_acquire()
    assert not await getattr(backend.connect(), factory)("stock").try_acquire()
    assert len(logged(logging.WARNING, "")) == 3
    await semaphore.try_set_permits(1)
    await waiter.result()


@semaphores
async def test_a_semaphore_that_must_exist(
    backend: Backend, server_state: ServerState, logged: Callable[[int, str], list[str]], factory: str
) -> None:
    client = backend.connect()
    semaphore = getattr(client, factory)("stock", must_exist=True)
    for acquire in ACQUIRES[factory]:
        with pytest.raises(pyredisson.NotSetError, match="'stock'"):
            await acquire(semaphore)
    assert server_state.redis.keys() == []
    # What makes a semaphore needs none. One without permits exists.
    assert await semaphore.try_set_permits(0)
    assert not await semaphore.try_acquire()
    assert not await semaphore.try_acquire(wait_time=0.05)
    await semaphore.add_permits(20)
    for acquire in ACQUIRES[factory]:
        await acquire(semaphore)
    assert not logged(logging.WARNING, "")


@semaphores
async def test_a_semaphore_that_is_deleted_during_a_wait(
    backend: Backend, server_state: ServerState, factory: str
) -> None:
    client = backend.connect()
    semaphore = getattr(client, factory)("stock", must_exist=True)
    assert await semaphore.try_set_permits(0)
    waiter = backend.spawn(semaphore.acquire)
    await backend.until(lambda: listens(server_state, "redisson_sc:{stock}"))
    assert await semaphore.delete()
    # It tries again when it is notified of a permit.
    server_state.redis.publish("redisson_sc:{stock}", "1")
    with pytest.raises(pyredisson.NotSetError, match="'stock'"):
        await waiter.result()


async def test_a_latch_that_is_not_counting_is_named_once(
    backend: Backend, logged: Callable[[int, str], list[str]]
) -> None:
    client = backend.connect()
    latch = client.get_count_down_latch("done")
    for timeout in (None, 0, TIME_LIMIT):
        assert await latch.wait(timeout)
    assert len(logged(logging.INFO, "latch 'done'")) == 1
    assert await client.get_count_down_latch("other").wait()
    assert len(logged(logging.INFO, "latch")) == 2
    assert not logged(logging.WARNING, "")


async def test_a_latch_that_must_exist(backend: Backend, server_state: ServerState) -> None:
    latch = backend.connect().get_count_down_latch("done", must_exist=True)
    with pytest.raises(pyredisson.NotSetError, match="'done'"):
        await latch.wait()
    assert await latch.try_set_count(1)
    assert not await latch.wait(0)
    waiter = backend.spawn(latch.wait)
    await backend.until(lambda: listens(server_state, "redisson_countdownlatch__channel__{done}"))
    await latch.count_down()
    # A caller that waited before is released; a later caller can't know the earlier count.
    assert await waiter.result() is True
    with pytest.raises(pyredisson.NotSetError, match="'done'"):
        await latch.wait(1)
