"""Waiters that want several permits: they are not starved, and don't hold up others for long. Both semaphores."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pyredisson.logic.permits import claims
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

NAME, CHANNEL = "stock", "redisson_sc:{stock}"
CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
OTHERS_TURN = 5_000


@pytest.fixture(autouse=True)
def soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims begin after a fifth of their usual time, but where that is what is tested."""
    if request.node.originalname != "test_a_claim_begins_after_a_second":
        monkeypatch.setattr(claims, "CLAIM_DELAY", 0.2)


class Permits:
    """A semaphore of either kind."""

    def __init__(self, client: Any, kind: str) -> None:
        self._plain = kind == "plain"
        self._all = client.get_semaphore(NAME) if self._plain else client.get_permit_expirable_semaphore(NAME)

    async def make(self, permits: int) -> None:
        assert await self._all.try_set_permits(permits)

    async def take(self, permits: int, wait: float = 0) -> Any:
        """What to release; empty: not acquired in time."""
        if self._plain:
            return permits if await self._all.try_acquire(permits, wait) else 0
        return await self._all.try_acquire_many(permits, wait)

    async def back(self, taken: Any) -> None:
        await self._all.release(taken)


Open = Callable[[], Permits]


@pytest.fixture(params=["plain", "expirable"])
def permits(request: pytest.FixtureRequest, backend: Backend) -> Open:
    """The same semaphore, each time through another client."""
    return lambda: Permits(backend.connect(), request.param)


async def busy_singles(backend: Backend, semaphores: list[Permits], work: Callable[[], Awaitable[None]]) -> None:
    """While `work` runs, callers acquire single permits again and again, so that four are never free at once."""
    stop = False
    rounds = [0] * 12

    async def single(number: int) -> None:
        semaphore = semaphores[number % len(semaphores)]
        while not stop:
            taken = await semaphore.take(1, TIME_LIMIT)
            assert taken
            rounds[number] += 1
            await backend.sleep(0.01 + 0.003 * number)
            await semaphore.back(taken)
            # A caller that releases a permit must not always be the first to ask again.
            await backend.sleep(0.002)

    others = [backend.spawn(partial(single, number)) for number in range(len(rounds))]
    try:
        await backend.until(lambda: min(rounds) > 0)
        await work()
        before = list(rounds)
        await backend.until(lambda: all(now > then for now, then in zip(rounds, before, strict=True)))
    finally:
        stop = True
    for other in others:
        await other.result()


@pytest.mark.parametrize("clients", ["the same client", "other clients"])
async def test_a_waiter_for_several_permits_succeeds_beside_single_ones(
    backend: Backend, permits: Open, server_state: ServerState, clients: str
) -> None:
    large = permits()
    await large.make(4)

    async def take_four() -> None:
        taken = await large.take(4, TIME_LIMIT)
        assert taken
        assert not server_state.redis.exists(CLAIM)
        await large.back(taken)

    await busy_singles(backend, [large] if clients == "the same client" else [permits(), permits()], take_four)


async def test_two_waiters_for_several_permits_succeed_one_after_the_other(
    backend: Backend, permits: Open, server_state: ServerState
) -> None:
    first, second = permits(), permits()
    await first.make(4)

    async def take(semaphore: Permits) -> None:
        taken = await semaphore.take(3, TIME_LIMIT)
        assert taken
        await semaphore.back(taken)

    async def both() -> None:
        others = [backend.spawn(partial(take, each)) for each in (first, second, first)]
        for other in others:
            await other.result()

    await busy_singles(backend, [permits()], both)


async def claim(backend: Backend, server_state: ServerState, semaphore: Permits, wait: float = TIME_LIMIT) -> Any:
    """A waiter of that many permits that there will never be."""
    other = backend.spawn(lambda: semaphore.take(9, wait))
    await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
    return other


async def test_a_claim_begins_after_a_second(backend: Backend, permits: Open, server_state: ServerState) -> None:
    semaphore = permits()
    await semaphore.make(3)
    began = time.monotonic()
    waiter = await claim(backend, server_state, semaphore, 2)
    assert time.monotonic() - began >= 1
    assert 0 < server_state.redis.pttl(CLAIM) <= 2_000
    assert OTHERS_TURN < server_state.redis.pttl(TURN) <= 5_000 + OTHERS_TURN
    # Also callers without time to wait: otherwise a caller that asks again and again would get all permits.
    assert not await permits().take(1)
    assert not await semaphore.take(1)
    assert not await waiter.result()
    await backend.until(lambda: not server_state.redis.exists(CLAIM))
    assert await permits().take(3)


async def test_permits_beyond_the_claim_can_be_acquired(
    backend: Backend, permits: Open, server_state: ServerState
) -> None:
    semaphore = permits()
    await semaphore.make(3)
    server_state.redis.set(CLAIM, "2 somebody", px=60_000)
    other = permits()
    assert await other.take(1)
    assert not await other.take(1)
    server_state.redis.delete(CLAIM)
    assert await other.take(2)


async def test_others_have_a_turn_after_a_row_of_claims(
    backend: Backend, permits: Open, server_state: ServerState
) -> None:
    semaphore = permits()
    await semaphore.make(3)
    waiter = await claim(backend, server_state, semaphore, 2.2)
    assert server_state.redis.pexpire(TURN, OTHERS_TURN + 400)
    other = permits()
    began = time.monotonic()
    server_state.redis.pexpire(CLAIM, 400)
    taken = await other.take(1, 2)
    assert taken
    assert 0.2 < time.monotonic() - began < 1.5
    # And so it stays for some seconds.
    await other.back(taken)
    await backend.sleep(1.1)
    assert await other.take(3)
    assert not server_state.redis.exists(CLAIM)
    assert not await waiter.result()


async def test_a_claimant_that_gives_up_lets_others_in_at_once(
    backend: Backend, permits: Open, server_state: ServerState
) -> None:
    semaphore = permits()
    await semaphore.make(3)
    waiter = await claim(backend, server_state, semaphore, 1.5)
    other = backend.spawn(partial(permits().take, 1, TIME_LIMIT))
    await backend.sleep(0.1)
    assert not other.done()
    assert not await waiter.result()
    began = time.monotonic()
    assert await other.result()
    assert time.monotonic() - began < WOKEN


async def test_what_a_claimant_leaves_wakes_others(backend: Backend, permits: Open, server_state: ServerState) -> None:
    semaphore, holder = permits(), permits()
    await semaphore.make(4)
    held = await holder.take(2)
    claimant = backend.spawn(lambda: semaphore.take(3, TIME_LIMIT))
    await backend.until(lambda: bool(server_state.redis.exists(CLAIM)))
    server_state.redis.pexpire(CLAIM, 60_000)
    single = backend.spawn(partial(permits().take, 1, TIME_LIMIT))
    await backend.sleep(0.1)
    assert not single.done()
    began = time.monotonic()
    await holder.back(held)
    assert await claimant.result()
    assert await single.result()
    assert time.monotonic() - began < WOKEN


async def test_a_dead_claimant_holds_up_others_until_its_claim_ends(
    backend: Backend, permits: Open, server_state: ServerState
) -> None:
    semaphore = permits()
    await semaphore.make(3)
    began = time.monotonic()
    server_state.redis.set(CLAIM, "3 dead", px=400)
    assert await semaphore.take(1, TIME_LIMIT)
    assert 0.2 < time.monotonic() - began < WOKEN


async def test_a_cancelled_claimant_lets_others_in_at_once(tasks: Backend, server_state: ServerState) -> None:
    for kind in ("plain", "expirable"):
        semaphore = Permits(tasks.connect(), kind)
        await semaphore.make(3)
        waiter = await claim(tasks, server_state, semaphore)
        other = tasks.spawn(partial(Permits(tasks.connect(), kind).take, 1, TIME_LIMIT))
        await tasks.sleep(0.1)
        assert not other.done()
        began = time.monotonic()
        waiter._task.cancel()
        assert await other.result()
        assert time.monotonic() - began < WOKEN
        server_state.redis.flushall()


async def test_drain_also_acquires_claimed_permits(backend: Backend, server_state: ServerState) -> None:
    semaphore = backend.connect().get_semaphore(NAME)
    await semaphore.try_set_permits(3)
    server_state.redis.set(CLAIM, "3 somebody", px=60_000)
    assert await semaphore.drain_permits() == 3
