"""Commands of the semaphore in doubt: lost replies, late requests, callers that are gone.

Permits are neither lost nor made.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend
from tests.support.faults import FLAGS, LOSSES, Lose
from tests.support.server_state import ServerState

from .permits import Permits, Stock

pytestmark = pytest.mark.asyncio
ACQUIRE, ADD, SET, UNDO, DELETE = (
    script(name, with_shebang=FLAGS).sha
    for name in ("semaphore_acquire", "semaphore_add", "semaphore_set", "semaphore_undo", "exactly_once_delete")
)


@pytest.fixture
def stock(backend: Backend, server_state: ServerState) -> Stock:
    return Stock(backend, server_state, "semaphore")


async def made(stock: Stock, address: str, permits: int = 5, **fields: Any) -> Permits:
    return await stock.made(permits, address, timeout=0.8, **fields)


@LOSSES
async def test_each_call_counts_once(stock: Stock, proxy: Proxy, lose: Lose) -> None:
    semaphore = await made(stock, proxy.url)
    for sha, call, arguments, result, free in (
        (ACQUIRE, "try_acquire", [2], True, 3),
        (ACQUIRE, "try_acquire", [2], True, 1),
        (ADD, "release", [2], None, 3),
        (ADD, "release", [1], None, 4),
        (ADD, "release_if_exists", [2], True, 6),
        (ADD, "add_permits", [3], None, 9),
        (ADD, "reduce_permits", [1], None, 8),
        (ACQUIRE, "drain_permits", [], 8, 0),
        (DELETE, "delete", [], True, 0),
        (SET, "try_set_permits", [6], True, 6),
        (SET, "try_set_permits", [7], False, 6),
    ):
        fault = lose(proxy, sha)
        assert await getattr(semaphore._own, call)(*arguments) == result, call
        assert fault.happened.is_set(), call
        assert stock.free() == free, call


async def test_the_result_is_false_and_a_late_copy_acquires_nothing(stock: Stock, proxy: Proxy) -> None:
    semaphore = await made(stock, proxy.url, 1)
    late = proxy.hold_request(ACQUIRE)
    assert not await semaphore.try_acquire(2)
    assert late.held.is_set()
    proxy.wait_for(UNDO)
    stock.java_adds(1)
    # The server was asked to drop that connection before the call was repeated.
    with pytest.raises(OSError, match="closed the connection"):
        await asyncio.to_thread(late.deliver)
    assert await semaphore.try_acquire(2)


@pytest.mark.parametrize("call", ["acquire", "release"])
async def test_a_late_copy_that_the_server_could_not_be_told_to_drop(stock: Stock, call: str) -> None:
    """The user has no right to do so: the copy arrives, and is not executed."""
    with (
        Server(users=["app on >x ~* &* +@all -client"]) as server,
        server.redis() as redis,
        Proxy(server.host, server.port) as proxy,
    ):
        semaphore = await made(stock, f"redis://app:x@{proxy.host}:{proxy.port}/0")
        text = script("semaphore_acquire" if call == "acquire" else "semaphore_add", with_shebang=FLAGS)
        redis.script_load(text.text)
        late = proxy.hold_request(text.sha)
        await getattr(semaphore, call)(2)
        assert late.held.is_set()
        expected = b"3" if call == "acquire" else b"7"
        assert redis.get("stock") == expected
        # Another call on the same session slot, and then the late one.
        await semaphore.release(await semaphore.try_acquire())
        await asyncio.to_thread(late.deliver)
        assert redis.get("stock") == expected


async def test_a_late_request_of_an_abandoned_acquire_acquires_nothing(stock: Stock, proxy: Proxy) -> None:
    semaphore = await made(stock, proxy.url, connect_timeout=0.8, lock_watchdog_timeout=3)
    late = proxy.hold_request(ACQUIRE)
    proxy.refuse(True)
    with pytest.raises((ConnectionError, TimeoutError)):
        await semaphore.try_acquire(2, 0.1)
    await asyncio.to_thread(late.deliver)
    assert stock.free() == 3
    proxy.refuse(False)
    await stock.backend.until(lambda: stock.free() == 5)


@pytest.mark.parametrize("ran", [True, False])
async def test_a_release_that_failed_is_done_in_the_background(stock: Stock, proxy: Proxy, ran: bool) -> None:
    semaphore = await made(stock, proxy.url, retry_attempts=0, lock_watchdog_timeout=3)
    await semaphore.acquire(2)
    fault = proxy.drop_reply(ADD, 2) if ran else proxy.cut_request(ADD, 2)
    with pytest.raises((ConnectionError, TimeoutError)):
        await semaphore.release(2)
    assert fault.happened.is_set()
    await stock.backend.until(lambda: proxy.seen(ADD) >= 3)
    await stock.backend.until(lambda: stock.free() == 5)
    await semaphore.release(await semaphore.acquire(2))
    assert stock.free() == 5


async def test_the_server_is_a_new_one(stock: Stock, proxy: Proxy) -> None:
    """Permits that were never acquired are not released."""
    semaphore = await made(stock, proxy.url, retry_attempts=0, lock_watchdog_timeout=3)
    late = proxy.hold_reply(ACQUIRE)
    other = stock.backend.spawn(lambda: semaphore.try_acquire(2))
    await stock.backend.until(late.held.is_set)
    stock.redis.flushall()
    stock.redis.set("stock", 5)
    proxy.cut_request(ACQUIRE)
    with pytest.raises((ConnectionError, TimeoutError)):
        await other.result()
    await stock.backend.until(lambda: proxy.seen(UNDO) > 0)
    await stock.backend.until(
        lambda: any(b" 0" in stock.redis.get(key) for key in stock.redis.keys("pyredisson_once*"))
    )
    assert stock.free() == 5


async def test_a_block_of_a_client_that_was_closed(stock: Stock) -> None:
    """The permit would be lost for ever."""
    semaphore = await stock.made(2)
    with pytest.raises(pyredisson.ClosedError):
        async with semaphore._own:
            await semaphore.client.close()
    await stock.backend.until(lambda: stock.free() == 2)


async def test_a_long_pause_while_the_outcome_was_in_doubt(
    stock: Stock, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have forgotten what it did: asked again, it would do it again."""
    monkeypatch.setattr("pyredisson.logic.exactly_once.REMEMBERED", 0.0)
    semaphore = await made(stock, proxy.url)
    proxy.cut_reply(ACQUIRE)
    await semaphore.acquire(2)
    # It undid the one in doubt, and asked with a new number.
    proxy.wait_for(UNDO)
    await stock.backend.until(lambda: stock.free() == 3)
    assert proxy.seen(ACQUIRE) == 2
