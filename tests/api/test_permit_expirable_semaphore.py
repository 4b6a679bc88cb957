"""The semaphore whose permits have ids: their leases, release by id, renewal by the watchdog, and the arguments."""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from redis.exceptions import ResponseError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.logic import renewer
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, Backend
from tests.support.faults import FLAGS
from tests.support.server_state import ServerState

from .permits import FOREVER, ID, USED, Stock

pytestmark = pytest.mark.asyncio


@pytest.fixture
def stock(backend: Backend, server_state: ServerState) -> Stock:
    return Stock(backend, server_state, "permit")


async def made(stock: Stock, permits: int, address: object = None, **fields: Any) -> Any:
    return (await stock.made(permits, address, **fields))._own


async def test_acquire_and_release(stock: Stock) -> None:
    semaphore = await made(stock, 5)
    one = await semaphore.acquire()
    two = await semaphore.try_acquire()
    many = await semaphore.acquire_many(2)
    assert len({one, two, *many}) == 4
    assert all(len(permit) == 32 and permit == permit.lower() for permit in (one, two, *many))
    assert stock.used() == {one, two, *many}
    assert [await semaphore.available_permits(), await semaphore.acquired_permits()] == [1, 4]
    assert await semaphore.get_permits() == 5
    assert await semaphore.try_acquire_many(2) == []
    await semaphore.release(one)
    await semaphore.release([two, many[0]])
    assert stock.used() == {many[1]}
    assert stock.free() == 4
    assert await semaphore.try_release(many[1]) is True
    assert await semaphore.try_release(many[1]) is False
    assert await semaphore.try_acquire_many(6) == []
    many = await semaphore.try_acquire_many(5)
    assert await semaphore.try_acquire() is None
    assert await semaphore.try_release(iter(many)) == 5
    assert await semaphore.try_release(many) == 0
    assert stock.free() == 5
    await semaphore.delete()
    assert [await semaphore.get_permits(), await semaphore.acquired_permits()] == [0, 0]


async def test_release_all_or_none(stock: Stock) -> None:
    semaphore = await made(stock, 3)
    one, ended = await semaphore.acquire(), await semaphore.acquire(60)
    stock.redis.zadd(USED, {bytes.fromhex(ended): 1})
    with pytest.raises(pyredisson.PermitNotHeldError, match=f"'stock'.*{ended}, {ID}$"):
        await semaphore.release([one, ended, ID])
    assert stock.used() == {one, ended}
    assert await semaphore.try_release([one, ID]) == 0
    assert stock.free() == 1
    with pytest.raises(ValueError, match=ID):
        await semaphore.release(ID)
    # Its id alone is enough, in any client and for any owner.
    other = stock.open()._own
    await stock.backend.as_another_owner(lambda: other.release(one.upper()))
    assert await stock.backend.as_another_owner(lambda: other.try_release([one])) == 0
    assert stock.free() == 2


async def test_lease_times(stock: Stock) -> None:
    semaphore = await made(stock, 1)
    permit = await semaphore.acquire()
    assert await semaphore.get_lease_time(permit) == math.inf
    assert await semaphore.update_lease_time(permit.upper(), timedelta(seconds=50)) is True
    assert 45 < await semaphore.get_lease_time(permit) <= 50
    assert await semaphore.update_lease_time(permit, None) is True
    assert stock.redis.zscore(USED, bytes.fromhex(permit)) == FOREVER
    assert await semaphore.update_lease_time(permit, 0.02) is True
    await stock.backend.sleep(0.03)
    assert await semaphore.update_lease_time(permit, None) is False
    assert await semaphore.update_lease_time(ID, 1) is False
    with pytest.raises(pyredisson.PermitNotHeldError, match=f"'stock'.*{ID}"):
        await semaphore.get_lease_time(ID)


async def test_many_at_once(stock: Stock) -> None:
    semaphore = await made(stock, 2**31 - 1)
    permits = await semaphore.acquire_many(20_000)
    assert len(set(permits)) == stock.redis.zcard(USED) == 20_000
    await semaphore.release(permits)
    assert stock.free() == 2**31 - 1


class TestArguments:
    @pytest.fixture
    def semaphore(self, stock: Stock) -> Any:
        return stock.open(NOWHERE)._own

    async def test_ids_that_cannot_be(self, semaphore: Any) -> None:
        releases = (semaphore.release, semaphore.try_release)
        for wrong in ("", ID[:-1], ID + "0", "g" + ID[1:], " " + ID[1:], ID[:16] + " " * 16, "é" * 32):
            with pytest.raises(ValueError, match="32 hex digits"):
                await semaphore.update_lease_time(wrong, 1)
            for call, permit in (*product(releases, (wrong, [ID, wrong])), (semaphore.get_lease_time, wrong)):
                with pytest.raises(ValueError, match="32 hex digits"):
                    await call(permit)
        for other in (None, 1, bytes.fromhex(ID), [ID.encode()], [1]):
            for call in (*releases, semaphore.get_lease_time):
                with pytest.raises(TypeError):
                    await call(other)
        for call in releases:
            with pytest.raises(ValueError, match="twice"):
                await call([ID, ID.upper()])

    async def test_leases_that_cannot_be(self, semaphore: Any) -> None:
        acquires: list[tuple[Any, tuple[Any, ...]]] = [
            *((semaphore.acquire, ()), (semaphore.try_acquire, (0,)), (semaphore.acquire_many, (1,))),
            (semaphore.try_acquire_many, (1, 0)),
        ]
        for lease in (0, -1, 9e-4, math.nan, math.inf, 2**52):
            for call, arguments in (*acquires, (semaphore.update_lease_time, (ID,))):
                with pytest.raises(ValueError, match="lease_time"):
                    await call(*arguments, lease)
        for call, arguments in acquires:
            with pytest.raises(ValueError, match="renew"):
                await call(*arguments, 1, renew=True)


class TestRenewal:
    async def test_it_outlives_its_lease(self, stock: Stock) -> None:
        semaphore = await made(stock, 5, lock_watchdog_timeout=1.5)
        one = await semaphore.acquire(renew=True)
        two = await semaphore.try_acquire(renew=True)
        three, four = await semaphore.acquire_many(2, renew=True)
        [five] = await semaphore.try_acquire_many(1, renew=True)
        assert 0.6 < await semaphore.get_lease_time(one) <= 1.5
        for _ in range(8):
            await stock.backend.sleep(0.25)
            assert stock.used() == {one, two, three, four, five}
            assert await semaphore.available_permits() == 0
        await semaphore.release([one, three])
        await semaphore.release(two)
        assert await semaphore.try_release(four) is True
        await stock.backend.sleep(0.5)
        assert await semaphore.get_permits() == 5
        assert stock.used() == {five}

    async def test_semaphores_are_renewed_together(
        self, backend: Backend, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # What is taken within half a second falls due at once.
        monkeypatch.setattr(renewer, "STEPS_PER_ROUND", (2, 2))
        client = backend.connect(proxy.url, lock_watchdog_timeout=3)
        semaphores = [client.get_permit_expirable_semaphore(f"stock{number}") for number in range(5)]
        for semaphore in semaphores:
            await semaphore.set_permits(4)
        permits = [await semaphore.acquire_many(4, renew=True) for semaphore in semaphores]
        proxy.forget()

        def renewals() -> list[int]:
            """How many permits each command renews, of whatever form of the script."""
            scripts = [words for words in proxy.commands if words[0] == b"EVALSHA" and len(words) > 3]
            return [int(words[2]) for words in scripts if words[3].endswith(b":timeout")]

        await backend.until(lambda: sum(renewals()) == 20)
        assert len(renewals()) < 5
        for semaphore, taken in zip(semaphores, permits, strict=True):
            assert await semaphore.try_release(taken) == 4

    @pytest.mark.parametrize("found_by", ["the watchdog", "its release"])
    async def test_one_that_is_gone_is_logged_once_and_not_held(
        self, stock: Stock, caplog: pytest.LogCaptureFixture, found_by: str
    ) -> None:
        semaphore = await made(stock, 2, lock_watchdog_timeout=1.5)
        gone, kept = await semaphore.acquire_many(2, renew=True)
        caplog.set_level(logging.WARNING, "pyredisson")
        stock.java_releases(gone)
        if found_by == "the watchdog":
            await stock.backend.until(lambda: gone in caplog.text)
            with pytest.raises(pyredisson.PermitNotHeldError, match=gone):
                await semaphore.release([kept, gone])
        else:
            assert await semaphore.try_release([gone, kept]) == 0
        assert "'stock'" in caplog.text
        assert kept not in caplog.text
        # A permit that was not released is renewed further.
        for _ in range(3):
            await stock.backend.sleep(0.6)
            assert await semaphore.get_lease_time(kept) > 0
        await semaphore.release(kept)
        assert (stock.free(), caplog.text.count("was lost")) == (2, 1)

    async def test_a_release_is_no_loss(self, stock: Stock, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
        """A renewal that is under way meanwhile finds the permit gone."""
        semaphore = await made(stock, 1, proxy.url, lock_watchdog_timeout=1.5)
        renewal = proxy.hold_request(script("permit_renew", with_shebang=FLAGS).sha)
        permit = await semaphore.acquire(renew=True)
        await stock.backend.until(renewal.held.is_set)
        caplog.set_level(logging.WARNING, "pyredisson")
        await semaphore.release(permit)
        renewal.deliver()
        await semaphore.release(await semaphore.acquire(renew=True))
        assert caplog.text == ""

    async def test_a_lease_that_is_set_is_not_renewed(self, stock: Stock) -> None:
        semaphore = await made(stock, 3, lock_watchdog_timeout=1.5)
        endless, short, renewed = await semaphore.acquire_many(3, renew=True)
        await stock.backend.sleep(0.2)
        assert await semaphore.update_lease_time(endless, None) is True
        assert await semaphore.update_lease_time(short, 0.5) is True
        stock.redis.rename(USED, "aside")
        stock.redis.set(USED, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await semaphore.update_lease_time(renewed, 10)
        stock.redis.rename("aside", USED)
        await stock.backend.sleep(1.8)
        assert stock.redis.zscore(USED, bytes.fromhex(endless)) == FOREVER
        assert await semaphore.available_permits() == 1
        assert await semaphore.try_release(short) is False
        assert 0 < await semaphore.get_lease_time(renewed) <= 1.5
        await semaphore.release(endless)

    async def test_a_close_releases_renewed_permits(self, stock: Stock) -> None:
        semaphore = await stock.made(4)
        await semaphore.acquire_many(2, renew=True)
        kept = {*await semaphore.acquire(), *await semaphore.acquire_many(1, 30)}
        await semaphore.client.close()
        assert (stock.free(), stock.used()) == (2, kept)
