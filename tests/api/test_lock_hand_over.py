"""Handing a lock on inside one client: how many calls that takes, in which order, and what others may rely on."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from pyredisson.asyncio import Lock
from pyredisson.errors import ClosedError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, WORK_LIMIT, Backend, OtherOwner
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

pytestmark = pytest.mark.asyncio
ROUNDS = 20
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
HAND_OVER = b":1\r\n$38\r\n"
"""The end of the holder's name, and the beginning of another name: only hand-overs have two of them."""


async def rounds(lock: Lock, count: int) -> None:
    """Acquires and releases it so many times."""
    for _ in range(count):
        await lock.lock()
        await lock.unlock()


@pytest.mark.parametrize("kind", ["get_lock", "get_fenced_lock", "get_non_reentrant_lock"])
async def test_one_call_for_each_acquisition_in_one_client(
    backend: Backend, server_state: ServerState, kind: str
) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    lock = getattr(client, kind)("orders")
    await rounds(lock, 1)
    before = server_state.scripts()
    others = [backend.spawn(lambda: rounds(lock, ROUNDS)) for _ in range(64)]
    for other in others:
        await other.result(WORK_LIMIT)
    assert server_state.scripts() - before <= 1.1 * 64 * ROUNDS
    assert server_state.redis.hgetall("orders") == {}


async def test_few_calls_for_each_acquisition_of_two_clients(backend: Backend, server_state: ServerState) -> None:
    locks = [backend.connect().get_lock("orders") for _ in range(2)]
    before = server_state.scripts()
    others = [backend.spawn(lambda lock=lock: rounds(lock, ROUNDS)) for lock in locks for _ in range(8)]  # type: ignore[misc]
    for other in others:
        await other.result()
    assert server_state.scripts() - before <= 2.5 * 16 * ROUNDS


async def wait_in_order(
    backend: Backend, lock_client: object, count: int, order: list[int], name: str = "orders"
) -> list[OtherOwner[None]]:
    """So many other owners wait for the lock, one after the other; each notes when it has it."""

    async def take(owner: int) -> None:
        lock = lock_client.get_lock(name, owner=owner)  # type: ignore[attr-defined]
        await lock.lock()
        order.append(owner)
        await lock.unlock()

    others = []
    for owner in range(1, count + 1):
        others.append(backend.spawn(lambda owner=owner: take(owner)))  # type: ignore[misc]
        await backend.until(lambda: waiters(lock_client, name) == owner)  # noqa: B023
    return others


async def test_arrival_order_in_one_client(backend: Backend) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    holder = client.get_lock("orders", owner=100)
    await holder.lock()
    order: list[int] = []
    others = await wait_in_order(backend, client, 8, order)
    await holder.unlock()
    for other in others:
        await other.result()
    assert order == list(range(1, 9))


@pytest.mark.parametrize(("seconds", "messages"), [(LONG, 1), (0, 5)])
async def test_messages(backend: Backend, server_state: ServerState, seconds: float, messages: int) -> None:
    """A lock that is handed on publishes nothing; the last release does."""
    client = backend.connect(local_hand_over_time=seconds)
    holder = client.get_lock("orders", owner=100)
    await holder.lock()
    order: list[int] = []
    with server_state.redis.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe("redisson_lock__channel:{orders}")
        others = await wait_in_order(backend, client, 4, order)
        await holder.unlock()
        for other in others:
            await other.result()
        server_state.redis.publish("redisson_lock__channel:{orders}", "end")
        published = 0
        while True:
            message = listening.get_message(timeout=TIME_LIMIT)
            if message is not None:
                if message["data"] == b"end":
                    break
                published += 1
    assert published == messages


async def test_another_client_gets_its_turn(backend: Backend) -> None:
    """However long the callers of one client hand the lock on, another client gets it."""
    busy, other = backend.connect(), backend.connect()
    ended = False

    async def cycle() -> None:
        lock = busy.get_lock("orders")
        while not ended:
            await rounds(lock, 1)

    others = [backend.spawn(cycle) for _ in range(4)]
    lock = other.get_lock("orders")
    for _ in range(3):
        assert await lock.try_lock(wait_time=TIME_LIMIT)
        await lock.unlock()
    ended = True
    for each in others:
        await each.result()


async def test_the_lease_of_the_next_owner(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock(lease_time=1000)
    other = backend.spawn(lambda: waiter.lock(lease_time=20))
    await backend.until(lambda: waiters(client, "orders") == 1)
    await holder.unlock()
    await other.result()
    assert 15_000 < server_state.redis.pttl("orders") <= 20_000
    assert await waiter.get_hold_count() == 1
    assert list(server_state.holds("orders").values()) == ["1"]
    # A nested level, and both of its releases.
    await waiter.lock()
    await waiter.unlock()
    await waiter.unlock()
    assert server_state.redis.keys() == []


@pytest.mark.parametrize("one_leaves", [False, True])
async def test_a_shorter_lease_of_the_next_owner_that_never_releases(backend: Backend, one_leaves: bool) -> None:
    """The waiters behind it have relied on the lease of an earlier holder, which would have ended much later."""
    client = backend.connect(local_hand_over_time=LONG)
    holder, next_owner, leaving, waiter = (client.get_lock("orders", owner=number) for number in range(1, 5))
    await holder.lock()
    others = [backend.spawn(lambda: next_owner.lock(lease_time=4))]
    await backend.until(lambda: waiters(client, "orders") == 1)
    if one_leaves:
        leaver = backend.spawn(lambda: leaving.try_lock(wait_time=3))
        await backend.until(lambda: waiters(client, "orders") == 2)
    others.append(backend.spawn(waiter.lock))
    await backend.until(lambda: waiters(client, "orders") == 2 + one_leaves)
    await holder.unlock()
    for other in others:
        await other.result()
    if one_leaves:
        assert not await leaver.result()
    await waiter.unlock()


async def test_what_was_handed_on_is_renewed(backend: Backend) -> None:
    client = backend.connect(local_hand_over_time=LONG, lock_watchdog_timeout=2)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, "orders") == 1)
    await holder.unlock()
    await other.result()
    await backend.sleep(2.6)
    assert await waiter.is_held()
    await waiter.unlock()


async def test_tokens_grow(backend: Backend) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    tokens: list[int] = []

    async def take() -> None:
        lock = client.get_fenced_lock("orders")
        for _ in range(ROUNDS):
            tokens.append(await lock.lock_and_get_token())
            await lock.unlock()

    others = [backend.spawn(take) for _ in range(8)]
    for other in others:
        await other.result()
    assert len(tokens) == 8 * ROUNDS
    assert all(before < after for before, after in pairwise(tokens))


async def test_another_kind_of_lock_is_not_entered(backend: Backend) -> None:
    """A waiter for a fenced lock of the same name gets a token: it makes an attempt of its own."""
    client = backend.connect(local_hand_over_time=LONG)
    holder, fenced = client.get_lock("orders", owner=1), client.get_fenced_lock("orders", owner=2)
    await holder.lock()
    other = backend.spawn(fenced.lock_and_get_token)
    await backend.until(lambda: waiters(client, "orders") == 1)
    await holder.unlock()
    assert await other.result() > 0


async def test_a_counter_that_is_no_number_fails_no_release(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    holder, waiter = client.get_fenced_lock("orders", owner=1), client.get_fenced_lock("orders", owner=2)
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, "orders") == 1)
    server_state.redis.set("redisson_lock_token:{orders}", "text")
    await holder.unlock()
    with pytest.raises(Exception, match="not an integer"):
        await other.result()
    assert not server_state.redis.exists("orders")


async def test_the_hold_was_lost(backend: Backend, server_state: ServerState) -> None:
    """A release that finds its lock gone enters nobody; the waiter gets the lock all the same."""
    client = backend.connect(local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, "orders") == 1)
    server_state.redis.delete("orders")
    with pytest.raises(Exception, match="was lost"):
        await holder.unlock()
    await other.result()
    await waiter.unlock()
    assert server_state.redis.keys() == []


@pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
async def test_a_lost_reply(backend: Backend, proxy: Proxy, server_state: ServerState, fault: str) -> None:
    client = backend.connect(proxy.url, local_hand_over_time=LONG, timeout=0.3)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, "orders") == 1)
    getattr(proxy, fault)(HAND_OVER)
    await holder.unlock()
    await other.result()
    assert await waiter.is_held()
    assert list(server_state.holds("orders").values()) == ["1"]
    await waiter.unlock()
    await backend.until(lambda: server_state.redis.keys() == [])


async def test_a_waiter_that_is_cancelled_while_it_is_entered(
    tasks: Backend, proxy: Proxy, server_state: ServerState
) -> None:
    client = tasks.connect(proxy.url, local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    waiting = asyncio.ensure_future(waiter.lock())
    await tasks.until(lambda: waiters(client, "orders") == 1)
    slow = proxy.hold_reply(HAND_OVER)
    releasing = asyncio.ensure_future(holder.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slow.deliver()
    await releasing
    await tasks.until(lambda: server_state.redis.keys() == [])
    assert not await waiter.is_held()


async def test_a_release_that_is_cancelled(tasks: Backend, proxy: Proxy, server_state: ServerState) -> None:
    client = tasks.connect(proxy.url, local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    waiting = asyncio.ensure_future(waiter.lock())
    await tasks.until(lambda: waiters(client, "orders") == 1)
    slow = proxy.hold_reply(HAND_OVER)
    releasing = asyncio.ensure_future(holder.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    slow.deliver()
    async with asyncio.timeout(TIME_LIMIT):
        await waiting
    assert await waiter.is_held()
    assert list(server_state.holds("orders").values()) == ["1"]
    await waiter.unlock()
    await tasks.until(lambda: server_state.redis.keys() == [])


async def test_a_release_that_is_cancelled_when_the_waiter_has_gone_on(
    tasks: Backend, server_state: ServerState
) -> None:
    """The waiter goes on as soon as the reply is there, before the task that has sent the command."""
    client = tasks.connect(local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()

    async def wait() -> None:
        await waiter.lock()
        assert not releasing.done()
        releasing.cancel()

    waiting = asyncio.ensure_future(wait())
    await tasks.until(lambda: waiters(client, "orders") == 1)
    releasing = asyncio.ensure_future(holder.unlock())
    await waiting
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert not await holder.is_held()
    assert await waiter.is_held()
    await waiter.unlock()
    assert server_state.redis.keys() == []


async def test_the_client_is_closed_while_a_waiter_is_entered(
    tasks: Backend, proxy: Proxy, server_state: ServerState
) -> None:
    client = tasks.connect(proxy.url, local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    waiting = asyncio.ensure_future(waiter.lock())
    await tasks.until(lambda: waiters(client, "orders") == 1)
    slow = proxy.hold_reply(HAND_OVER)
    releasing = asyncio.ensure_future(holder.unlock())
    assert await asyncio.to_thread(slow.held.wait, TIME_LIMIT)
    await client.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await releasing
    await tasks.until(lambda: server_state.redis.keys() == [])


async def test_a_waiter_whose_time_is_over(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(local_hand_over_time=LONG)
    holder, waiter = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    await holder.lock()
    assert not await backend.as_another_owner(lambda: waiter.try_lock(wait_time=0.05))
    await holder.unlock()
    assert server_state.redis.keys() == []
    assert waiters(client, "orders") == 0
    assert getattr(client, "_target", client)._session.lock_queues == {}
