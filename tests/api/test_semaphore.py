"""Both semaphores: acquiring, releasing, arguments; what only one that counts has; ids, leases, renewal of permits."""

import logging
import math
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ResponseError

import pyredisson
from pyredisson.logic import renewer
from pyredisson.testing import Proxy
from tests.support.backends import fails, in_turn
from tests.support.faults import sha

from .kinds import FOREVER, ID, PERMIT_CHANNEL, USED, Stock

counts = pytest.mark.parametrize("stock", ["semaphore"], indirect=True)
expirable = pytest.mark.parametrize("stock", ["permit"], indirect=True)


async def made(stock: Stock, permits: int, address: object = None, **fields: Any) -> Any:
    """A semaphore with so many permits, with the calls that it has itself."""
    return (await stock.made(permits, address, **fields))._own


async def test_set_and_delete(stock: Stock) -> None:
    semaphore = stock.open()
    assert (await semaphore.delete(), await semaphore.available_permits()) == (False, 0)
    assert (await semaphore.try_set_permits(5), await semaphore.try_set_permits(7)) == (True, False)
    assert await semaphore.available_permits() == stock.free() == 5
    assert not stock.redis.persist("stock"), "it ends"
    await semaphore.acquire()
    assert await semaphore.delete() is True
    assert not stock.redis.exists("stock", USED)
    if stock.kind == "semaphore":
        assert (await semaphore.drain_permits(), stock.redis.exists("stock")) == (0, 0)
    assert await semaphore.try_set_permits(4)
    if stock.kind == "semaphore":
        assert (await semaphore.drain_permits(), await semaphore.drain_permits(), stock.free()) == (4, 0, 0)


@counts
async def test_set_for_a_time(stock: Stock) -> None:
    semaphore = stock.open()
    assert await semaphore.try_set_permits(5, ttl=timedelta(seconds=50)) is True
    assert 45_000 < stock.redis.pttl("stock") <= 50_000
    await semaphore.delete()
    assert await semaphore.try_set_permits(5, 0.05)
    await stock.backend.until(lambda: not stock.redis.exists("stock"))


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
        ("reduce_permits", 0, None),
    ],
    "permit": [("acquire_many", 0, []), ("try_acquire_many", 0, []), ("release", [], None), ("try_release", [], 0)],
}
SOMETHING: dict[str, list[tuple[Any, ...]]] = {
    "semaphore": [("add_permits", 1), ("available_permits",), ("drain_permits",)],
    "permit": [
        *(("get_permits",), ("release", ID), ("set_permits", 1), ("update_lease_time", ID, 1), ("get_lease_time", ID)),
    ],
}


async def test_no_permits_at_all_and_a_closed_client(stock: Stock) -> None:
    semaphore = stock.open()
    before = stock.commands()
    nothing: list[tuple[Any, ...]] = [*NOTHING[stock.kind], ("add_permits", 0, None)]
    for name, argument, result in nothing:
        assert await getattr(semaphore._own, name)(argument) == result
    assert (stock.commands(), stock.redis.keys()) == (before, [])
    await semaphore.try_set_permits(3)
    taken = await semaphore.acquire()
    await semaphore.client.close()
    something: list[tuple[Any, ...]] = [("acquire",), ("try_set_permits", 1), ("delete",), *SOMETHING[stock.kind]]
    for name, *arguments in [*something, *(call[:2] for call in nothing)]:
        await fails(pyredisson.ClosedError, getattr(semaphore._own, name), *arguments)
    assert stock.free() == 2
    # It can still release: nobody else would free what never expires.
    await fails(pyredisson.ClosedError, semaphore.release, taken)
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
        waiter = await stock.backend.begin(stock.of(semaphore.client).acquire, stock.is_heard)
        assert not await semaphore.try_acquire(1, 0.05)
        assert not waiter.done()
        [record] = caplog.records
        assert "'stock'" in record.getMessage()
        for another in (stock.of(semaphore.client, "other"), stock.open()):
            assert not await another.try_acquire()
        assert len(caplog.records) == 3
        await semaphore.try_set_permits(1)
        await waiter.result()

    async def test_one_that_must_exist(self, stock: Stock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "pyredisson")
        semaphore = stock.of(stock.backend.connect(), must_exist=True)
        for name, *arguments in ACQUIRES[stock.kind]:
            await fails(pyredisson.NotSetError, getattr(semaphore._own, name), *arguments, match="'stock'")
        assert stock.redis.keys() == []
        # What makes a semaphore needs none. One without permits exists.
        assert await semaphore.try_set_permits(0)
        assert not await semaphore.try_acquire()
        await semaphore.add_permits(20)
        for name, *arguments in ACQUIRES[stock.kind]:
            await getattr(semaphore._own, name)(*arguments)
        assert not caplog.records
        # A waiter that is notified of a permit finds that the semaphore was deleted meanwhile.
        waiter = await stock.backend.begin(lambda: semaphore.acquire(20), stock.is_heard)
        assert await semaphore.delete()
        stock.redis.publish(PERMIT_CHANNEL, "20")
        await fails(pyredisson.NotSetError, waiter.result, match="'stock'")


@counts
async def test_a_block(stock: Stock) -> None:
    semaphore = await made(stock, 2)
    async with semaphore as entered:
        assert (entered is semaphore, stock.free()) == (True, 1)
        async with semaphore:
            assert stock.free() == 0
    # The body's own exception is seen.
    with pytest.raises(KeyError) as raised:
        async with semaphore:
            raise KeyError
    assert (hasattr(raised.value, "__notes__"), stock.free()) == (False, 2)
    with pytest.raises(KeyError) as raised:
        async with semaphore:
            stock.redis.set("stock", "text")
            raise KeyError
    assert "not an integer" in raised.value.__notes__[0]
    stock.redis.set("stock", 2)
    with pytest.raises(ResponseError, match="not an integer"):
        async with semaphore:
            stock.redis.set("stock", "text")


@expirable
async def test_permits_have_ids(stock: Stock) -> None:
    semaphore = await made(stock, 5)
    one, two, many = await semaphore.acquire(), await semaphore.try_acquire(), await semaphore.acquire_many(2)
    permits = {one, two, *many}
    assert (len(permits), stock.used()) == (4, permits)
    assert all(len(permit) == 32 and permit == permit.lower() for permit in permits)
    assert [await semaphore.available_permits(), await semaphore.acquired_permits()] == [1, 4]
    assert (await semaphore.get_permits(), await semaphore.try_acquire_many(2)) == (5, [])
    await semaphore.release(one)
    await semaphore.release([two, many[0]])
    assert (stock.used(), stock.free()) == ({many[1]}, 4)
    assert (await semaphore.try_release(many[1]), await semaphore.try_release(many[1])) == (True, False)
    assert await semaphore.try_acquire_many(6) == []
    many = await semaphore.try_acquire_many(5)
    assert (await semaphore.try_acquire(), await semaphore.try_release(iter(many))) == (None, 5)
    assert (await semaphore.try_release(many), stock.free()) == (0, 5)
    await semaphore.delete()
    assert [await semaphore.get_permits(), await semaphore.acquired_permits()] == [0, 0]
    assert await semaphore.try_set_permits(2**31 - 1)
    many = await semaphore.acquire_many(20000)
    assert len(set(many)) == stock.redis.zcard(USED) == 20000
    await semaphore.release(many)
    assert stock.free() == 2**31 - 1


@expirable
async def test_release_all_or_none(stock: Stock) -> None:
    semaphore = await made(stock, 3)
    one, ended = await semaphore.acquire(), await semaphore.acquire(60)
    stock.redis.zadd(USED, {bytes.fromhex(ended): 1})
    await fails(pyredisson.PermitNotHeldError, semaphore.release, [one, ended, ID], match=f"'stock'.*{ended}, {ID}$")
    assert (stock.used(), await semaphore.try_release([one, ID]), stock.free()) == ({one, ended}, 0, 1)
    await fails(ValueError, semaphore.release, ID, match=ID)
    # Its id alone is enough, in any client and for any owner.
    other = stock.open()._own
    await stock.backend.as_another_owner(lambda: other.release(one.upper()))
    assert (await stock.backend.as_another_owner(lambda: other.try_release([one])), stock.free()) == (0, 2)


@expirable
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
    assert (await semaphore.update_lease_time(permit, None), await semaphore.update_lease_time(ID, 1)) == (False, False)
    await fails(pyredisson.PermitNotHeldError, semaphore.get_lease_time, ID, match=f"'stock'.*{ID}")


@expirable
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
            assert (stock.used(), await semaphore.available_permits()) == ({one, two, three, four, five}, 0)
        await semaphore.release([one, three])
        await semaphore.release(two)
        assert await semaphore.try_release(four) is True
        await stock.backend.sleep(0.5)
        assert (await semaphore.get_permits(), stock.used()) == (5, {five})

    async def test_they_are_renewed_together(self, stock: Stock, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
        # What is taken within half a second falls due at once.
        monkeypatch.setattr(renewer, "STEPS_PER_ROUND", (2, 2))
        client = stock.backend.connect(proxy.url, lock_watchdog_timeout=3)
        semaphores = [client.get_permit_expirable_semaphore(f"stock{number}") for number in range(5)]
        await in_turn(partial(semaphore.set_permits, 4) for semaphore in semaphores)
        permits = [await semaphore.acquire_many(4, renew=True) for semaphore in semaphores]
        proxy.forget()

        def renewals() -> list[int]:
            """How many permits each command renews, of whatever form of the script."""
            scripts = [words for words in proxy.commands if words[0] == b"EVALSHA" and len(words) > 3]
            return [int(words[2]) for words in scripts if words[3].endswith(b":timeout")]

        await stock.backend.until(lambda: sum(renewals()) == 20)
        assert len(renewals()) < 5
        for semaphore, taken in zip(semaphores, permits, strict=True):
            assert await semaphore.try_release(taken) == 4

    @pytest.mark.parametrize("found_by", ["the watchdog", "its release"])
    async def test_one_that_is_gone(self, stock: Stock, caplog: pytest.LogCaptureFixture, found_by: str) -> None:
        """It is logged once, and not held."""
        semaphore = await made(stock, 2, lock_watchdog_timeout=1.5)
        gone, kept = await semaphore.acquire_many(2, renew=True)
        caplog.set_level(logging.WARNING, "pyredisson")
        stock.java_releases(gone)
        if found_by == "the watchdog":
            await stock.backend.until(lambda: gone in caplog.text)
            await fails(pyredisson.PermitNotHeldError, semaphore.release, [kept, gone], match=gone)
        else:
            assert await semaphore.try_release([gone, kept]) == 0
        assert ("'stock'" in caplog.text, kept in caplog.text) == (True, False)
        # A permit that was not released is renewed further.
        for _ in range(3):
            await stock.backend.sleep(0.6)
            assert await semaphore.get_lease_time(kept) > 0
        await semaphore.release(kept)
        assert (stock.free(), caplog.text.count("was lost")) == (2, 1)

    async def test_a_release_is_no_loss(self, stock: Stock, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
        """A renewal that is under way meanwhile finds the permit gone."""
        semaphore = await made(stock, 1, proxy.url, lock_watchdog_timeout=1.5)
        renewal = proxy.hold_request(sha("permit_renew"))
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
        await fails(ResponseError, semaphore.update_lease_time, renewed, 10, match="WRONGTYPE")
        stock.redis.rename("aside", USED)
        await stock.backend.sleep(1.8)
        assert (stock.redis.zscore(USED, bytes.fromhex(endless)), await semaphore.available_permits()) == (FOREVER, 1)
        assert await semaphore.try_release(short) is False
        assert 0 < await semaphore.get_lease_time(renewed) <= 1.5
        await semaphore.release(endless)

    async def test_a_close_releases_renewed_permits(self, stock: Stock) -> None:
        semaphore = await stock.made(4)
        await semaphore.acquire_many(2, renew=True)
        kept = {*await semaphore.acquire(), *await semaphore.acquire_many(1, 30)}
        await semaphore.client.close()
        assert (stock.free(), stock.used()) == (2, kept)
