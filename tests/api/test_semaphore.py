"""Both semaphores: acquiring, releasing, counting, and the arguments; and what only the one that counts has."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ResponseError

import pyredisson
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, Backend
from tests.support.server_state import ServerState

from .permits import ID, KINDS, USED, Stock

pytestmark = pytest.mark.asyncio
counts = pytest.mark.parametrize("stock", ["semaphore"], indirect=True)


@pytest.fixture(params=KINDS)
def stock(request: pytest.FixtureRequest, backend: Backend, server_state: ServerState) -> Stock:
    return Stock(backend, server_state, request.param)


async def test_set_once(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.available_permits() == 0
    assert await semaphore.try_set_permits(5) is True
    assert await semaphore.try_set_permits(7) is False
    assert await semaphore.available_permits() == stock.free() == 5
    assert stock.redis.ttl("stock") == -1


async def test_set_to_none(stock: Stock) -> None:
    semaphore = await stock.made(0)
    assert not await semaphore.try_set_permits(1)
    assert not await semaphore.try_acquire()


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


async def test_delete(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.delete() is False
    await semaphore.try_set_permits(3)
    await semaphore.acquire()
    assert await semaphore.delete() is True
    assert not stock.redis.exists("stock", USED)
    assert await semaphore.try_set_permits(4)


async def test_handles_of_one_name(stock: Stock) -> None:
    client = stock.backend.connect(name_mapper=lambda name: f"app:{name}")
    one, two = stock.of(client), stock.of(client, b"stock")
    await one.try_set_permits(1)
    assert await two.available_permits() == 1
    assert (one.name, two.name) == ("stock", b"stock")
    shown = {"semaphore": "Semaphore 'app:stock'", "permit": "PermitExpirableSemaphore 'app:stock'"}
    assert shown[stock.kind] in repr(one)
    assert await stock.of(stock.backend.connect(), "app:stock").available_permits() == 1


async def test_an_uncontended_pair_is_two_commands(stock: Stock, proxy: Proxy) -> None:
    semaphore = await stock.made(1, proxy.url)
    proxy.forget()
    for _ in range(2):
        await semaphore.release(await semaphore.acquire())
    assert not await semaphore.try_acquire(2)
    assert [words[0] for words in proxy.commands] == [b"EVALSHA"] * 5


async def test_what_is_ours_on_the_server_ends(stock: Stock) -> None:
    client = stock.backend.connect()
    semaphore = stock.of(client, "{t}stock")
    await semaphore.try_set_permits(1)
    for _ in range(5):
        await semaphore.release(await semaphore.acquire())
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
    semaphore = await stock.made(2)
    await semaphore.client.close()
    for name, *arguments in [*SOMETHING[stock.kind], *(nothing[:2] for nothing in NOTHING[stock.kind])]:
        with pytest.raises(pyredisson.ClosedError):
            await getattr(semaphore._own, name)(*arguments)
    assert stock.free() == 2


async def test_a_closed_client_can_still_release(stock: Stock) -> None:
    """Nobody else would free what never expires."""
    semaphore = await stock.made(1)
    taken = await semaphore.acquire()
    await semaphore.client.close()
    with pytest.raises(pyredisson.ClosedError):
        await semaphore.release(taken)
    await stock.backend.until(lambda: stock.free() == 1)


@counts
async def test_set_for_a_time(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.try_set_permits(5, ttl=timedelta(seconds=50)) is True
    assert 45_000 < stock.redis.pttl("stock") <= 50_000
    await semaphore.acquire(2)
    await semaphore.add_permits(1)
    await semaphore.release()
    assert await semaphore.drain_permits() == 5
    assert 45_000 < stock.redis.pttl("stock") <= 50_000
    await semaphore.delete()
    assert await semaphore.try_set_permits(5, 0.05)
    await stock.backend.until(lambda: not stock.redis.exists("stock"))
    assert await semaphore.available_permits() == 0


@counts
async def test_release_makes_a_semaphore(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.release_if_exists() is False
    assert not stock.redis.exists("stock")
    await semaphore.release(2)
    assert await semaphore.release_if_exists(3) is True
    assert stock.free() == 5


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
async def test_larger_and_smaller(stock: Stock) -> None:
    semaphore = await stock.made(3)
    await semaphore.add_permits(2)
    assert stock.free() == 5
    await semaphore.reduce_permits(7)
    assert await semaphore.available_permits() == -2
    assert await semaphore.drain_permits() == 0
    assert stock.free() == -2
    assert not await semaphore.try_acquire()
    await semaphore.release(3)
    assert await semaphore.try_acquire()
    assert not await semaphore.try_acquire()


@counts
async def test_a_block_acquires_one_permit(stock: Stock) -> None:
    semaphore: Any = (await stock.made(2))._own
    async with semaphore as entered:
        assert entered is semaphore
        assert stock.free() == 1
        async with semaphore:
            assert stock.free() == 0
    assert stock.free() == 2
    with pytest.raises(KeyError):
        async with semaphore:
            raise KeyError
    assert stock.free() == 2


@counts
async def test_the_bodys_own_exception_is_seen(stock: Stock) -> None:
    semaphore: Any = (await stock.made(2))._own

    def damage() -> None:
        stock.redis.delete("stock")
        stock.redis.hset("stock", "a", 1)

    with pytest.raises(KeyError) as raised:
        async with semaphore:
            damage()
            raise KeyError
    assert "WRONGTYPE" in raised.value.__notes__[0]
    stock.redis.delete("stock")
    await semaphore.try_set_permits(2)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        async with semaphore:
            damage()


@counts
async def test_the_largest_number(stock: Stock) -> None:
    semaphore = await stock.made(2**31 - 1)
    await semaphore.acquire(2**31 - 1)
    await semaphore.release(2**31 - 1)
    assert stock.free() == 2**31 - 1


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
    @pytest.mark.parametrize(
        ("ttl", "error"), [(0, ValueError), (-1, ValueError), (math.inf, ValueError), ("1", TypeError)]
    )
    async def test_ends_that_cannot_be(self, stock: Stock, ttl: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="ttl"):
            await stock.open(NOWHERE).try_set_permits(1, ttl)
