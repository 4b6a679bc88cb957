"""Waiting for permits of both semaphores, also beside Java clients; and claims of waiters that want several permits."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest

from pyredisson.logic.permits import permit_wait
from tests.support.backends import TIME_LIMIT, WOKEN, OtherOwner, finished, lasting

from .kinds import PERMITS
from .permits import CHANNEL, CLAIM, ID, TURN, Permits, Stock

OFTEN = 0.1
OTHERS_TURN = 5_000
ONE_BY_ONE = [ID[:-1] + str(number) for number in range(3)]
expirable = pytest.mark.parametrize("stock", ["permit"], indirect=True)


@pytest.fixture(autouse=True)
def only_messages_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usually a waiter makes an attempt every five seconds, also if it misses a message."""
    monkeypatch.setattr(permit_wait, "LONGEST_WAIT", 60)


@pytest.mark.parametrize(
    ("stock", "call"),
    [*product(PERMITS, ("try_set_permits", "add_permits", "release")), ("permit", "set_permits")],
    indirect=["stock"],
)
async def test_every_way_to_add_permits_wakes_waiters_of_other_clients(stock: Stock, call: str) -> None:
    """Also those who wait for a semaphore that isn't there, or was deleted meanwhile."""
    holder = stock.open()
    added: Any = 3
    if call == "release":
        await holder.try_set_permits(3)
        added = await holder.acquire(3)
    other = await stock.waiter(stock.open())
    if call == "try_set_permits":
        stock.redis.set("stock", 0)
        assert await holder.delete()
    await getattr(holder, call)(added)
    assert await other.result()
    assert stock.free() == 2


async def test_the_time_to_wait(stock: Stock) -> None:
    semaphore = await stock.made(2)
    with lasting(0.2, WOKEN):
        assert not await semaphore.try_acquire(3, 0.2)
    assert (stock.free(), stock.used()) == (2, set())
    # Giving up left nothing to be undone.
    assert not stock.redis.keys("pyredisson_permit*")
    other = await stock.backend.begin(lambda: semaphore.try_acquire(3, timedelta(seconds=30)), stock.is_heard)
    stock.java_adds(1)
    assert await other.result()


@pytest.mark.parametrize(("stock", "messages"), [("semaphore", 1), ("semaphore", 4), ("permit", 1)], indirect=["stock"])
async def test_messages_wake_as_many_as_there_are_permits(stock: Stock, messages: int) -> None:
    """One message says that four permits are free; or four in a row say how many there are: 1, 2, 3, 4."""
    semaphore = stock.open()
    others = [await stock.waiter(semaphore) for _ in range(12)]
    before = stock.scripts()
    with stock.redis.pipeline(transaction=True) as together:
        for number in range(1, messages + 1):
            together.incrby("stock", 4 // messages)
            together.publish(CHANNEL, number * (4 // messages))
        together.execute()
    await stock.backend.until(lambda: sum(other.done() for other in others) == 4)
    # One more, which enters the others in the list. On a busy machine some look again after a quarter of a second.
    assert stock.scripts() <= before + 5 + 3
    stock.java_adds(8)
    await finished(others)
    assert stock.free() == 0


@pytest.mark.parametrize(("wait", "longest"), [(None, OFTEN), (30, OFTEN), (1, 60)])
async def test_a_message_that_was_lost(
    stock: Stock, monkeypatch: pytest.MonkeyPatch, wait: float | None, longest: float
) -> None:
    """A waiter makes an attempt from time to time, and when its time is over."""
    monkeypatch.setattr(permit_wait, "LONGEST_WAIT", longest)
    semaphore = stock.open()
    call = semaphore.acquire if wait is None else partial(semaphore.try_acquire, 1, wait)
    other = await stock.backend.begin(call, stock.is_heard)
    stock.redis.incrby("stock", 1)
    await other.result()
    assert stock.free() == 0


@expirable
async def test_a_holder_that_died_frees_its_permit_when_the_lease_ends(stock: Stock) -> None:
    stock.redis.set("stock", 1)
    semaphore, before, started = stock.open(), stock.scripts(), time.monotonic()
    stock.java_acquires(ID, 2)
    assert set(await semaphore.try_acquire(1, 30)) == stock.used()
    assert 1.9 < time.monotonic() - started < 2 + WOKEN
    # One try, one when messages were sure to arrive, and one that had it.
    assert stock.scripts() == before + 3


@expirable
async def test_java_releases_by_id(stock: Stock) -> None:
    """Of several it publishes only their number, and not how many are free."""
    stock.redis.set("stock", 4)
    for permit in ONE_BY_ONE:
        stock.java_acquires(permit, 600)
    semaphore = stock.open()
    other, before = await stock.waiter(semaphore, 3), stock.scripts()
    stock.java_releases(*ONE_BY_ONE[:2])
    permits = await other.result()
    assert (len(permits), stock.scripts()) == (3, before + 1)
    other = await stock.waiter(semaphore)
    stock.java_releases(ONE_BY_ONE[2])
    permits += await other.result()
    assert stock.used() == set(permits)


async def test_java_wakes_one_after_the_other(stock: Stock) -> None:
    """The first one hears Java's message. Each one that has come wakes the next one, as long as permits are free.

    The second one hears Java when the first one has left.
    """
    holder = await stock.made(1)
    await holder.acquire()
    first = stock.open()
    leaver = stock.backend.spawn(lambda: first.try_acquire(1, 1))
    await stock.backend.until(lambda: stock.redis.zcard("pyredisson_waiting:{stock}") == 1)
    others = [await stock.waiter(stock.open()) for _ in range(6)]
    assert not await leaver.result()
    await stock.backend.until(lambda: stock.redis.zcard("pyredisson_waiting:{stock}") == 6)
    for number in range(3):
        stock.java_adds(1)
        await stock.backend.until(lambda: sum(other.done() for other in others) == number + 1)  # noqa: B023
    stock.java_adds(3)
    await finished(others)
    assert stock.free() == 0


def spawn(stock: Stock, semaphore: Permits, permits: int = 1, wait: float = TIME_LIMIT) -> OtherOwner[object]:
    return stock.backend.spawn(lambda: semaphore.try_acquire(permits, wait))


async def take(semaphore: Permits, permits: int) -> None:
    taken = await semaphore.try_acquire(permits, TIME_LIMIT)
    assert taken
    await semaphore.release(taken)


async def beside_singles(stock: Stock, semaphores: list[Permits], work: Callable[[], Awaitable[None]]) -> None:
    """While `work` runs, callers acquire single permits again and again, so that all four are never free at once."""
    stop = False
    rounds = [0] * 12
    inside: list[int] = []

    async def single(number: int) -> None:
        semaphore = semaphores[number % len(semaphores)]
        while not stop:
            taken = await semaphore.try_acquire(1, TIME_LIMIT)
            assert taken
            inside.append(number)
            assert len(inside) <= 4
            rounds[number] += 1
            await stock.backend.sleep(0.01 + 0.003 * number)
            inside.remove(number)
            await semaphore.release(taken)
            # A caller that releases a permit must not always be the first to ask again.
            await stock.backend.sleep(0.002)

    others = [stock.backend.spawn(partial(single, number)) for number in range(len(rounds))]
    try:
        await stock.backend.until(lambda: min(rounds) > 0)
        await work()
        before = list(rounds)
        await stock.backend.until(lambda: all(now > then for now, then in zip(rounds, before, strict=True)))
    finally:
        stop = True
    await finished(others)


async def test_a_claim_begins_after_a_second(stock: Stock) -> None:
    began = time.monotonic()
    # For permits that there will never be.
    waiter = spawn(stock, await stock.made(3), 9, 2)
    await stock.claimed()
    assert time.monotonic() - began >= 1
    assert 0 < stock.redis.pttl(CLAIM) <= 2_000
    assert OTHERS_TURN < stock.redis.pttl(TURN) <= 5_000 + OTHERS_TURN
    # Also callers without time to wait: otherwise a caller that asks again and again would get all permits.
    assert not await stock.open().try_acquire(1)
    assert not await waiter.result()
    await stock.backend.until(lambda: not stock.redis.exists(CLAIM))
    assert await stock.open().try_acquire(3)


class TestClaims:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They begin after a fifth of their usual time."""
        monkeypatch.setattr(permit_wait, "CLAIM_DELAY", 0.2)

    @pytest.mark.parametrize("clients", ["the same client", "other clients"])
    async def test_a_waiter_for_several_permits_succeeds_beside_single_ones(self, stock: Stock, clients: str) -> None:
        """However long the callers of its own client may hand permits on; and several of them, one after the other."""
        large = await stock.made(4, local_hand_over_time=60)
        singles = [large] if clients == "the same client" else [stock.open(), stock.open()]

        async def work() -> None:
            await take(large, 4)
            await finished([stock.backend.spawn(partial(take, each, 3)) for each in (large, stock.open(), large)])

        await beside_singles(stock, singles, work)

    async def test_what_a_claimant_leaves_wakes_others(self, stock: Stock) -> None:
        semaphore, holder = await stock.made(4), stock.open()
        held = await holder.try_acquire(2)
        claimant = spawn(stock, semaphore, 3)
        await stock.claimed()
        # A claim keeps it out for long.
        single = spawn(stock, stock.open(), wait=4 * TIME_LIMIT)
        await stock.backend.sleep(0.1)
        assert not single.done()
        stock.redis.pexpire(CLAIM, 60_000)
        await holder.release(held)
        assert await claimant.result()
        assert await single.result(WOKEN)

    async def test_a_dead_claimant_holds_up_others_until_its_claim_ends(self, stock: Stock) -> None:
        semaphore = await stock.made(3)
        with lasting(0.2, WOKEN):
            stock.redis.set(CLAIM, "3 dead", px=400)
            assert await semaphore.try_acquire(1, TIME_LIMIT)
