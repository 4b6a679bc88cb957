"""Both semaphores: acquiring, releasing, counting and arguments; what only the one that counts has, and its doubts."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE
from tests.support.faults import FLAGS, LOSSES, Lose

from .permits import CHANNEL, ID, USED, Stock

pytestmark = pytest.mark.asyncio
counts = pytest.mark.parametrize("stock", ["semaphore"], indirect=True)


async def test_set_and_delete(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.delete() is False
    assert await semaphore.available_permits() == 0
    assert await semaphore.try_set_permits(5) is True
    assert await semaphore.try_set_permits(7) is False
    assert await semaphore.available_permits() == stock.free() == 5
    assert not stock.redis.persist("stock"), "it ends"
    await semaphore.acquire()
    assert await semaphore.delete() is True
    assert not stock.redis.exists("stock", USED)
    assert await semaphore.try_set_permits(4)


async def test_acquire_and_release(stock: Stock) -> None:
    semaphore = await stock.made(5)
    one, three = await semaphore.acquire(), await semaphore.acquire(3)
    assert stock.free() == 1
    assert not await semaphore.try_acquire(2)
    assert await semaphore.try_acquire(1)
    assert not await semaphore.try_acquire()
    await stock.backend.as_another_owner(lambda: stock.open().release(three))
    await semaphore.release(one)
    assert stock.free() == 4


async def test_handles_of_one_name(stock: Stock) -> None:
    client = stock.backend.connect(name_mapper=lambda name: f"app:{name}")
    one, two = stock.of(client), stock.of(client, b"stock")
    await one.try_set_permits(1)
    assert await two.available_permits() == 1
    assert (one.name, two.name) == ("stock", b"stock")
    shown = {"semaphore": "Semaphore 'app:stock'", "permit": "PermitExpirableSemaphore 'app:stock'"}
    assert shown[stock.kind] in repr(one)
    assert await stock.of(stock.backend.connect(), "app:stock").available_permits() == 1


async def test_an_uncontended_pair_is_two_commands_and_leaves_a_key_that_ends(stock: Stock, proxy: Proxy) -> None:
    client = stock.backend.connect(proxy.url)
    semaphore = stock.of(client, "{t}stock")
    await semaphore.try_set_permits(1)
    proxy.forget()
    for _ in range(2):
        await semaphore.release(await semaphore.acquire())
    assert not await semaphore.try_acquire(2)
    assert [words[0] for words in proxy.commands] == [b"EVALSHA"] * 5
    await semaphore.acquire()
    ours = f"pyredisson_once:{{t}}stock:{client.id}:0:{stock.kind}".encode()
    theirs = {b"{t}stock"} if stock.kind == "semaphore" else {b"{t}stock", b"{t}stock:timeout"}
    assert set(stock.redis.keys()) == {*theirs, ours}
    assert 600 < stock.redis.ttl(ours) <= 660


# Calls that do nothing, and others, of which a closed client makes none.
NOTHING: dict[str, list[tuple[Any, ...]]] = {
    "semaphore": [
        *(("acquire", 0, None), ("try_acquire", 0, True), ("release", 0, None), ("release_if_exists", 0, False)),
        *(("add_permits", 0, None), ("reduce_permits", 0, None)),
    ],
    "permit": [
        *(("acquire_many", 0, []), ("try_acquire_many", 0, []), ("release", [], None), ("try_release", [], 0)),
        ("add_permits", 0, None),
    ],
}
SOMETHING: dict[str, list[tuple[Any, ...]]] = {
    "semaphore": [
        *(("acquire",), ("try_set_permits", 1), ("add_permits", 1), ("available_permits",), ("drain_permits",)),
        ("delete",),
    ],
    "permit": [
        *(("acquire",), ("get_permits",), ("release", ID), ("set_permits", 1), ("try_set_permits", 1)),
        *(("update_lease_time", ID, 1), ("get_lease_time", ID), ("delete",)),
    ],
}


async def test_no_permits_at_all(stock: Stock) -> None:
    semaphore: Any = stock.open()._own
    before = stock.commands()
    for name, argument, result in NOTHING[stock.kind]:
        assert await getattr(semaphore, name)(argument) == result
    assert stock.commands() == before
    assert stock.redis.keys() == []


async def test_a_closed_client(stock: Stock) -> None:
    semaphore = await stock.made(3)
    taken = await semaphore.acquire()
    await semaphore.client.close()
    for name, *arguments in [*SOMETHING[stock.kind], *(nothing[:2] for nothing in NOTHING[stock.kind])]:
        with pytest.raises(pyredisson.ClosedError):
            await getattr(semaphore._own, name)(*arguments)
    assert stock.free() == 2
    # It can still release: nobody else would free what never expires.
    with pytest.raises(pyredisson.ClosedError):
        await semaphore.release(taken)
    await stock.backend.until(lambda: stock.free() == 3)


ACQUIRES: dict[str, list[tuple[Any, ...]]] = {
    "semaphore": [("acquire",), ("acquire", 3), ("try_acquire",), ("try_acquire", 1, 30), ("__aenter__",)],
    "permit": [("acquire",), ("try_acquire",), ("acquire_many", 2, 10)],
}


class TestNeverSet:
    async def test_it_is_logged_once(self, stock: Stock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "pyredisson")
        semaphore = stock.open()
        assert not await semaphore.try_acquire()
        waiter = stock.backend.spawn(stock.of(semaphore.client).acquire)
        await stock.listened()
        assert not await semaphore.try_acquire(1, 0.05)
        assert not waiter.done()
        [record] = caplog.records
        assert "'stock'" in record.getMessage()
        assert not await stock.of(semaphore.client, "other").try_acquire()
        assert not await stock.open().try_acquire()
        assert len(caplog.records) == 3
        await semaphore.try_set_permits(1)
        await waiter.result()

    async def test_one_that_must_exist(self, stock: Stock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "pyredisson")
        semaphore = stock.of(stock.backend.connect(), must_exist=True)
        for name, *arguments in ACQUIRES[stock.kind]:
            with pytest.raises(pyredisson.NotSetError, match="'stock'"):
                await getattr(semaphore._own, name)(*arguments)
        assert stock.redis.keys() == []
        # What makes a semaphore needs none. One without permits exists.
        assert await semaphore.try_set_permits(0)
        assert not await semaphore.try_acquire()
        await semaphore.add_permits(20)
        for name, *arguments in ACQUIRES[stock.kind]:
            await getattr(semaphore._own, name)(*arguments)
        assert not caplog.records
        # A waiter that is notified of a permit finds that the semaphore was deleted meanwhile.
        waiter = stock.backend.spawn(lambda: semaphore.acquire(20))
        await stock.listened()
        assert await semaphore.delete()
        stock.redis.publish(CHANNEL, "20")
        with pytest.raises(pyredisson.NotSetError, match="'stock'"):
            await waiter.result()


@counts
async def test_set_for_a_time(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.try_set_permits(5, ttl=timedelta(seconds=50)) is True
    assert 45_000 < stock.redis.pttl("stock") <= 50_000
    await semaphore.delete()
    assert await semaphore.try_set_permits(5, 0.05)
    await stock.backend.until(lambda: not stock.redis.exists("stock"))


@counts
async def test_drain(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.drain_permits() == 0
    assert not stock.redis.exists("stock")
    await semaphore.try_set_permits(5)
    assert await semaphore.drain_permits() == 5
    assert await semaphore.drain_permits() == 0
    assert stock.free() == 0


@counts
async def test_a_block_acquires_one_permit(stock: Stock) -> None:
    semaphore: Any = (await stock.made(2))._own
    async with semaphore as entered:
        assert entered is semaphore
        assert stock.free() == 1
        async with semaphore:
            assert stock.free() == 0
    assert stock.free() == 2


@counts
async def test_the_bodys_own_exception_is_seen(stock: Stock) -> None:
    semaphore: Any = (await stock.made(2))._own
    with pytest.raises(KeyError) as raised:
        async with semaphore:
            raise KeyError
    assert not hasattr(raised.value, "__notes__")
    assert stock.free() == 2
    with pytest.raises(KeyError) as raised:
        async with semaphore:
            stock.redis.set("stock", "text")
            raise KeyError
    assert "not an integer" in raised.value.__notes__[0]
    stock.redis.set("stock", 2)
    with pytest.raises(ResponseError, match="not an integer"):
        async with semaphore:
            stock.redis.set("stock", "text")


SHARED = ("try_set_permits", "add_permits")
NUMBERS = [
    *product(["semaphore"], [*SHARED, "acquire", "try_acquire", "release", "release_if_exists", "reduce_permits"]),
    *product(["permit"], [*SHARED, "acquire_many", "try_acquire_many", "set_permits"]),
]


class TestArguments:
    @pytest.mark.parametrize(("stock", "call"), NUMBERS, indirect=["stock"])
    async def test_numbers_that_cannot_be(self, stock: Stock, call: str) -> None:
        number = getattr(stock.open(NOWHERE)._own, call)
        for permits in (-1, 2**31, 10**30):
            with pytest.raises(ValueError, match="permits"):
                await number(permits)
        for other in (True, 1.0, "1", None):
            with pytest.raises(TypeError, match="permits"):
                await number(other)

    @pytest.mark.parametrize("wait", [-1, math.nan, timedelta(-1)])
    async def test_waits_that_cannot_be(self, stock: Stock, wait: Any) -> None:
        semaphore = stock.open(NOWHERE)
        with pytest.raises(ValueError, match="wait_time"):
            await semaphore.try_acquire(1, wait)
        with pytest.raises(ValueError, match="wait_time"):
            await semaphore._own.try_acquire(wait_time=wait)

    async def test_names_that_cannot_be(self, stock: Stock) -> None:
        with pytest.raises(ValueError, match="name"):
            stock.of(stock.backend.connect(NOWHERE), "")

    @counts
    async def test_ends_that_cannot_be(self, stock: Stock) -> None:
        semaphore = stock.open(NOWHERE)
        for ttl in (0, -1, math.inf, "1"):
            with pytest.raises(TypeError if ttl == "1" else ValueError, match="ttl"):
                await semaphore.try_set_permits(1, ttl)


ACQUIRE, ADD, SET, UNDO, DELETE = (
    script(name, with_shebang=FLAGS).sha
    for name in ("semaphore_acquire", "semaphore_add", "semaphore_set", "semaphore_undo", "exactly_once_delete")
)


@counts
@LOSSES
async def test_each_call_counts_once(stock: Stock, proxy: Proxy, lose: Lose) -> None:
    semaphore = await stock.made(5, proxy.url, timeout=0.3)
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


@counts
async def test_the_server_is_a_new_one(stock: Stock, proxy: Proxy) -> None:
    """Permits that were never acquired are not released."""
    semaphore = await stock.made(5, proxy.url, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=3)
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


@counts
async def test_a_long_pause_while_the_outcome_was_in_doubt(
    stock: Stock, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have forgotten what it did: asked again, it would do it again."""
    monkeypatch.setattr("pyredisson.logic.exactly_once.REMEMBERED", 0.0)
    semaphore = await stock.made(5, proxy.url)
    proxy.cut_reply(ACQUIRE)
    await semaphore.acquire(2)
    # It undid the one in doubt, and asked with a new number.
    proxy.wait_for(UNDO)
    await stock.backend.until(lambda: stock.free() == 3)
    assert proxy.seen(ACQUIRE) == 2
