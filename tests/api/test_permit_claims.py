"""Waiters that want several permits: they are not starved, and don't hold up others for long. Both semaphores."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from pyredisson.logic.permits import permit_queue
from tests.support.backends import TIME_LIMIT, WOKEN, Backend, OtherOwner
from tests.support.server_state import ServerState

from .permits import CLAIM, KINDS, TURN, Permits, Stock

pytestmark = pytest.mark.asyncio
OTHERS_TURN = 5_000


@pytest.fixture(autouse=True)
def soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims begin after a fifth of their usual time, but where that is what is tested."""
    if request.node.originalname != "test_a_claim_begins_after_a_second":
        monkeypatch.setattr(permit_queue, "CLAIM_DELAY", 0.2)


def spawn(stock: Stock, semaphore: Permits, permits: int = 1, wait: float = TIME_LIMIT) -> OtherOwner[object]:
    return stock.backend.spawn(lambda: semaphore.try_acquire(permits, wait))


async def claim(stock: Stock, wait: float) -> OtherOwner[object]:
    """A waiter of that many permits that there will never be."""
    waiter = spawn(stock, await stock.made(3), 9, wait)
    await stock.claimed()
    return waiter


async def held_back(stock: Stock) -> OtherOwner[object]:
    """A waiter for one permit, which a claim keeps out for long."""
    single = spawn(stock, stock.open(), wait=4 * TIME_LIMIT)
    await stock.backend.sleep(0.1)
    assert not single.done()
    stock.redis.pexpire(CLAIM, 60_000)
    return single


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
    for other in others:
        await other.result()


@pytest.mark.parametrize("clients", ["the same client", "other clients"])
async def test_a_waiter_for_several_permits_succeeds_beside_single_ones(stock: Stock, clients: str) -> None:
    """However long the callers of its own client may hand permits on."""
    large = await stock.made(4, local_hand_over_time=60)
    singles = [large] if clients == "the same client" else [stock.open(), stock.open()]
    await beside_singles(stock, singles, partial(take, large, 4))


async def test_two_waiters_for_several_permits_succeed_one_after_the_other(stock: Stock) -> None:
    first, second = await stock.made(4), stock.open()

    async def three() -> None:
        for other in [stock.backend.spawn(partial(take, each, 3)) for each in (first, second, first)]:
            await other.result()

    await beside_singles(stock, [stock.open()], three)


async def test_a_claim_begins_after_a_second(stock: Stock) -> None:
    began = time.monotonic()
    waiter = await claim(stock, 2)
    assert time.monotonic() - began >= 1
    assert 0 < stock.redis.pttl(CLAIM) <= 2_000
    assert OTHERS_TURN < stock.redis.pttl(TURN) <= 5_000 + OTHERS_TURN
    # Also callers without time to wait: otherwise a caller that asks again and again would get all permits.
    assert not await stock.open().try_acquire(1)
    assert not await waiter.result()
    await stock.backend.until(lambda: not stock.redis.exists(CLAIM))
    assert await stock.open().try_acquire(3)


async def test_others_have_a_turn_after_a_row_of_claims(stock: Stock) -> None:
    waiter = await claim(stock, 2.2)
    assert stock.redis.pexpire(TURN, OTHERS_TURN + 400)
    other = stock.open()
    began = time.monotonic()
    stock.redis.pexpire(CLAIM, 400)
    taken = await other.try_acquire(1, 2)
    assert taken
    assert 0.2 < time.monotonic() - began < 1.5
    # And so it stays for some seconds.
    await other.release(taken)
    await stock.backend.sleep(1.1)
    assert await other.try_acquire(3)
    assert not stock.redis.exists(CLAIM)
    assert not await waiter.result()


async def test_a_claimant_that_gives_up_lets_others_in_at_once(stock: Stock) -> None:
    claimant = await claim(stock, 1.5)
    single = await held_back(stock)
    assert not await claimant.result()
    assert await single.result(WOKEN)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_claimant_lets_others_in_at_once(
    tasks: Backend, server_state: ServerState, kind: str
) -> None:
    stock = Stock(tasks, server_state, kind)
    claimant = await claim(stock, TIME_LIMIT)
    single = await held_back(stock)
    await claimant.end()
    assert await single.result(WOKEN)


async def test_what_a_claimant_leaves_wakes_others(stock: Stock) -> None:
    semaphore, holder = await stock.made(4), stock.open()
    held = await holder.try_acquire(2)
    claimant = spawn(stock, semaphore, 3)
    await stock.claimed()
    single = await held_back(stock)
    await holder.release(held)
    assert await claimant.result()
    assert await single.result(WOKEN)


async def test_a_dead_claimant_holds_up_others_until_its_claim_ends(stock: Stock) -> None:
    semaphore = await stock.made(3)
    began = time.monotonic()
    stock.redis.set(CLAIM, "3 dead", px=400)
    assert await semaphore.try_acquire(1, TIME_LIMIT)
    assert 0.2 < time.monotonic() - began < WOKEN
