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

ACQUIRES: dict[str, tuple[str, Callable[[Any], Awaitable[Any]]]] = {
    "acquire": ("get_semaphore", lambda semaphore: semaphore.acquire()),
    "acquire several": ("get_semaphore", lambda semaphore: semaphore.acquire(3)),
    "try_acquire": ("get_semaphore", lambda semaphore: semaphore.try_acquire()),
    "try_acquire with time": ("get_semaphore", lambda semaphore: semaphore.try_acquire(1, 30)),
    "block": ("get_semaphore", lambda semaphore: semaphore.__aenter__()),
    "expirable acquire": ("get_permit_expirable_semaphore", lambda semaphore: semaphore.acquire()),
    "expirable try_acquire": ("get_permit_expirable_semaphore", lambda semaphore: semaphore.try_acquire()),
    "expirable acquire_many": ("get_permit_expirable_semaphore", lambda semaphore: semaphore.acquire_many(2, 10)),
}
SEMAPHORES = pytest.mark.parametrize("factory", ["get_semaphore", "get_permit_expirable_semaphore"])


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@SEMAPHORES
async def test_a_semaphore_that_was_never_set_is_logged_once(
    backend: Backend, server_state: ServerState, caplog: pytest.LogCaptureFixture, factory: str
) -> None:
    client = backend.connect()
    semaphore = getattr(client, factory)("stock")
    with caplog.at_level(logging.INFO, "pyredisson"):
        assert not await semaphore.try_acquire()
        waiter = backend.spawn(getattr(client, factory)("stock").acquire)
        await backend.until(lambda: server_state.redis.pubsub_numsub("redisson_sc:{stock}")[0][1] == 1)
        assert not await semaphore.try_acquire(wait_time=0.05)
        assert not waiter.done()
        [text] = logged(caplog, logging.WARNING)
        assert "'stock'" in text
        assert not await getattr(client, factory)("other").try_acquire()
        assert not await getattr(backend.connect(), factory)("stock").try_acquire()
        assert len(logged(caplog, logging.WARNING)) == 3
    await semaphore.try_set_permits(1)
    await waiter.result()


@SEMAPHORES
async def test_no_permits_are_not_no_semaphore(
    backend: Backend, caplog: pytest.LogCaptureFixture, factory: str
) -> None:
    semaphore = getattr(backend.connect(), factory)("stock", must_exist=True)
    assert await semaphore.try_set_permits(0)
    with caplog.at_level(logging.INFO, "pyredisson"):
        assert not await semaphore.try_acquire()
        assert not await semaphore.try_acquire(wait_time=0.05)
    assert not logged(caplog, logging.WARNING)


@pytest.mark.parametrize("call", ACQUIRES)
async def test_a_semaphore_that_must_exist(
    backend: Backend, server_state: ServerState, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    factory, acquire = ACQUIRES[call]
    client = backend.connect()
    semaphore = getattr(client, factory)("stock", must_exist=True)
    with caplog.at_level(logging.INFO, "pyredisson"), pytest.raises(pyredisson.NotSetError, match="'stock'"):
        await acquire(semaphore)
    assert not logged(caplog, logging.WARNING)
    assert server_state.redis.keys() == []
    # What makes a semaphore needs none.
    assert await semaphore.try_set_permits(3)
    await acquire(semaphore)


@SEMAPHORES
async def test_a_semaphore_that_is_deleted_during_a_wait(
    backend: Backend, server_state: ServerState, factory: str
) -> None:
    client = backend.connect()
    semaphore = getattr(client, factory)("stock", must_exist=True)
    assert await semaphore.try_set_permits(0)
    waiter = backend.spawn(semaphore.acquire)
    await backend.until(lambda: server_state.redis.pubsub_numsub("redisson_sc:{stock}")[0][1] == 1)
    assert await semaphore.delete()
    # It tries again when it is notified of a permit.
    server_state.redis.publish("redisson_sc:{stock}", "1")
    with pytest.raises(pyredisson.NotSetError, match="'stock'"):
        await waiter.result()


async def test_a_latch_that_is_not_counting_is_named_once(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    client = backend.connect()
    latch = client.get_count_down_latch("done")
    with caplog.at_level(logging.INFO, "pyredisson"):
        for timeout in (None, 0, TIME_LIMIT):
            assert await latch.wait(timeout)
        [text] = [text for text in logged(caplog, logging.INFO) if "latch" in text]
        assert "'done'" in text
        assert await client.get_count_down_latch("other").wait()
        assert len([text for text in logged(caplog, logging.INFO) if "latch" in text]) == 2
    assert not logged(caplog, logging.WARNING)


async def test_a_latch_that_must_exist(backend: Backend, server_state: ServerState) -> None:
    latch = backend.connect().get_count_down_latch("done", must_exist=True)
    with pytest.raises(pyredisson.NotSetError, match="'done'"):
        await latch.wait()
    assert await latch.try_set_count(1)
    assert not await latch.wait(0)
    waiter = backend.spawn(latch.wait)
    await backend.until(lambda: server_state.redis.pubsub_numsub("redisson_countdownlatch__channel__{done}")[0][1] == 1)
    await latch.count_down()
    # A caller that waited before is released; a later caller can't know the earlier count.
    assert await waiter.result() is True
    with pytest.raises(pyredisson.NotSetError, match="'done'"):
        await latch.wait(1)
