"""Many clients at one lock: a release wakes one of them, a far one gets its turn, one that is gone costs nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy
from tests.support.backends import Backend
from tests.support.faults import FLAGS
from tests.support.server_state import ServerState

from .kinds import JAVA, left, lock_of, sleeping

pytestmark = pytest.mark.asyncio
CHANNEL = "redisson_lock__channel:{orders}"
WAITING = "pyredisson_waiting:{orders}"
ROUNDS = 20
CALLS, MESSAGES = 3.2, 2.0
"""The most for one acquisition, with one caller in each client, however many clients there are."""
HOLD = 0.02
FAR = 0.02
"""Seconds that a far client's commands take, and its replies."""
TURNS = 8
PATIENT = 25.0
LATE = 5.0
"""Seconds, for a busy machine, in place of half a second; much less than a lease."""


async def contend(backend: Backend, locks: list[Any], rounds: int = ROUNDS) -> None:
    """Each of the locks has one caller, which acquires it so many times, and releases it at once."""

    async def work(lock: Any) -> None:
        for _ in range(rounds):
            async with lock:
                pass

    others = [backend.spawn(lambda lock=lock: work(lock)) for lock in locks]  # type: ignore[misc]
    for other in others:
        await other.result(PATIENT)


@pytest.mark.parametrize(
    ("kind", "clients"), [("lock", 2), ("lock", 50), ("fenced", 10), ("non-reentrant", 10), ("write", 50)]
)
async def test_an_acquisition_costs_the_same_among_many_clients(
    backend: Backend, server_state: ServerState, kind: str, clients: int
) -> None:
    locks = [lock_of(backend.connect(), kind) for _ in range(clients)]
    # From here on each client listens, and the server knows the scripts.
    await contend(backend, locks, 1)
    server_state.redis.config_resetstat()
    await contend(backend, locks)
    stats: dict[str, Any] = server_state.redis.info("commandstats")
    acquisitions = ROUNDS * clients
    scripts, published = server_state.scripts(), stats.get("cmdstat_publish", {}).get("calls", 0)
    assert scripts <= CALLS * acquisitions
    # One message of each release goes to Redisson's channel, to which nobody listens.
    assert published <= (MESSAGES + 1) * acquisitions
    await backend.until(lambda: not left(server_state.redis))


@pytest.mark.parametrize(("kind", "near"), [("lock", 20), ("fenced", 3), ("non-reentrant", 3), ("write", 20)])
async def test_a_far_client_gets_its_turn(backend: Backend, proxy: Proxy, kind: str, near: int) -> None:
    far = lock_of(backend.connect(proxy.url), kind)
    async with far:
        pass
    proxy.latency(FAR)
    over, turns = False, [0] * near

    async def work(number: int) -> None:
        lock = lock_of(backend.connect(), kind)
        while not over:
            async with lock:
                await backend.sleep(HOLD)
            turns[number] += 1

    others = [backend.spawn(lambda number=number: work(number)) for number in range(near)]  # type: ignore[misc]
    await backend.until(lambda: min(turns) > 0, PATIENT)
    before = list(turns)
    for _ in range(TURNS):
        async with far:
            pass
    meanwhile = [now - then for now, then in zip(turns, before, strict=True)]
    over = True
    for other in others:
        await other.result(PATIENT)
    # It waits for one turn of each other client, and asks for the next turn two latencies later.
    assert max(meanwhile) <= 2 * TURNS + 2


async def waiting_in_turn(
    backend: Backend, server_state: ServerState, count: int, present: int = 0, **settings: Any
) -> list[Any]:
    """So many clients that wait for the lock, in this order. The result of each is when it has acquired the lock."""
    others = []
    for number in range(present + 1, present + count + 1):

        async def take(lock: Any) -> float:
            async with lock:
                return time.monotonic()

        lock = backend.connect(**settings).get_lock("orders")
        others.append(backend.spawn(lambda lock=lock: take(lock)))  # type: ignore[misc]
        await backend.until(lambda: server_state.listeners("orders") == number)  # noqa: B023
    return others


async def held(backend: Backend) -> Any:
    holder = backend.connect().get_lock("orders")
    await holder.lock()
    return holder


async def test_clients_acquire_the_lock_in_the_order_in_which_they_came(
    backend: Backend, server_state: ServerState
) -> None:
    holder = await held(backend)
    others = await waiting_in_turn(backend, server_state, 5)
    await holder.unlock()
    times = [await other.result() for other in others]
    assert times == sorted(times)


async def test_a_client_that_is_gone_is_passed_over_at_once(backend: Backend, server_state: ServerState) -> None:
    server_state.redis.zadd(WAITING, {"gone:1": 1, "gone too:7": 2})
    holder = await held(backend)
    [waiter] = await waiting_in_turn(backend, server_state, 1)
    await holder.unlock()
    await waiter.result(LATE)
    assert not server_state.redis.exists(WAITING)


async def test_a_client_that_is_frozen_costs_the_others_little(backend: Backend, server_state: ServerState) -> None:
    """It listens, and never comes."""
    with server_state.redis.pubsub() as frozen:
        frozen.subscribe("pyredisson_wake:{orders}:frozen")
        server_state.redis.zadd(WAITING, {"frozen:1": 1})
        holder = await held(backend)
        [waiter] = await waiting_in_turn(backend, server_state, 1, present=1)
        released = time.monotonic()
        await holder.unlock()
        assert 0.2 < await waiter.result() - released < LATE


async def test_a_list_that_is_deleted(backend: Backend, server_state: ServerState) -> None:
    """By an operator, say, or by a server that evicts keys. The clients rely on their timers then."""
    lease = 2.0
    holder = backend.connect(lock_watchdog_timeout=lease).get_lock("orders")
    await holder.lock()
    others = await waiting_in_turn(backend, server_state, 3, lock_watchdog_timeout=lease)
    assert server_state.redis.delete(WAITING)
    await holder.unlock()
    for other in others:
        await other.result(2 * lease + LATE)
    assert not server_state.redis.exists(WAITING)


async def test_a_client_that_is_woken_while_its_next_call_asks(
    backend: Backend, server_state: ServerState, proxy: Proxy
) -> None:
    """No call of it waits at that moment, so it leaves the list. That must not take the next call's place away."""
    holder = await held(backend)
    client = backend.connect(proxy.url)
    lock = client.get_lock("orders")
    assert not await lock.try_lock(wait_time=0.1)
    await backend.until(lambda: not server_state.redis.exists(WAITING))
    refused = proxy.hold_reply(script("lock_acquire", with_shebang=FLAGS).sha)
    other = backend.spawn(lock.lock)
    await backend.until(refused.held.is_set)
    [member] = server_state.redis.zrange(WAITING, 0, -1)
    # As a release does.
    server_state.redis.zrem(WAITING, member)
    server_state.redis.publish(f"pyredisson_wake:{{orders}}:{client.id}", member)
    leaving = server_state.scripts()
    await backend.until(lambda: server_state.scripts() > leaving)
    refused.deliver()
    await backend.until(lambda: server_state.redis.zcard(WAITING) == 1)
    assert server_state.redis.zrange(WAITING, 0, -1) != [member]
    await holder.unlock()
    await other.result()


@pytest.mark.parametrize(("leaves", "message"), [(False, "0"), (True, "1")])
async def test_three_behind_a_client_of_redisson(
    backend: Backend, server_state: ServerState, leaves: bool, message: str
) -> None:
    """The first two listen to both messages of Redisson. `leaves`: the first gives up, so the third has to listen."""
    server_state.redis.hset("orders", JAVA, 1)
    first = backend.connect().get_lock("orders")
    giving_up = backend.spawn(lambda: first.try_lock(wait_time=2 if leaves else PATIENT))
    await backend.until(lambda: server_state.listeners("orders") == 1)
    others = await waiting_in_turn(backend, server_state, 2, present=1)
    await backend.until(lambda: server_state.redis.pubsub_numsub(CHANNEL)[0][1] == 2)
    if leaves:
        assert await giving_up.result() is False
        await backend.until(lambda: server_state.redis.pubsub_numsub(CHANNEL)[0][1] == 3)
    server_state.redis.delete("orders")
    server_state.redis.publish(CHANNEL, message)
    if not leaves:
        assert await giving_up.result()
        assert await backend.connect().get_lock("orders").force_unlock()
    for other in others:
        await other.result()


async def test_a_lock_that_is_taken_away_wakes_the_callers_of_its_holders_client(backend: Backend) -> None:
    client = backend.connect()
    await client.get_lock("orders").lock()
    waiter = backend.spawn(client.get_lock("orders", owner=2).lock)
    await backend.until(lambda: sleeping(client, "lock") == 1)
    assert await backend.connect().get_lock("orders").force_unlock()
    await waiter.result(LATE)
