"""How many calls the waiters of a contended lock make: none while they sleep, and one for each message at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyredisson.asyncio import Client
from pyredisson.logic.handed_waiter import WAITING
from tests.support.backends import Backend, OtherOwner
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
CHANNEL = "redisson_lock__channel:{orders}"
WAITERS = 8
MESSAGES = 10


def hold_elsewhere(server_state: ServerState) -> None:
    """Another client holds the lock, without an end."""
    server_state.redis.hset("orders", "another client:1", 1)


def release_elsewhere(server_state: ServerState) -> None:
    server_state.redis.delete("orders")
    server_state.redis.publish(CHANNEL, "0")


def asleep(client: Any, count: int) -> Callable[[], bool]:
    """A condition: so many calls sleep, messages arrive, and nobody is about to wake up."""
    session = getattr(client, "_target", client)._session

    def condition() -> bool:
        queue = session.lock_queues.get(b"orders")
        if queue is None or queue.channel is None or not queue.channel.confirmed:
            return False
        found = list(queue.waiters)
        return len(found) == count and all(each.state is WAITING and not each.wakeup.is_set() for each in found)

    return condition


async def start_waiters(backend: Backend, client: Client, count: int, present: int = 0) -> list[OtherOwner[None]]:
    """So many waiters, beside those that are `present`."""

    async def work() -> None:
        lock = client.get_lock("orders")
        await lock.lock()
        await lock.unlock()

    others = [backend.spawn(work) for _ in range(count)]
    await backend.until(asleep(client, present + count))
    return others


async def test_one_call_for_each_message(backend: Backend, server_state: ServerState) -> None:
    """Each message wakes one waiter, which finds the lock taken again and sleeps after one call."""
    hold_elsewhere(server_state)
    client = backend.connect(local_hand_over_time=LONG)
    others = await start_waiters(backend, client, WAITERS)
    before = server_state.scripts()
    for number in range(1, MESSAGES + 1):
        server_state.redis.publish(CHANNEL, "0")
        await backend.until(lambda: server_state.scripts() >= before + number)  # noqa: B023
        await backend.until(asleep(client, WAITERS))
        assert server_state.scripts() == before + number
    release_elsewhere(server_state)
    for other in others:
        await other.result()
    # One acquire, and the release of each owner, which enters the next one.
    assert server_state.scripts() == before + MESSAGES + 1 + WAITERS


async def test_messages_at_once(backend: Backend, server_state: ServerState) -> None:
    """Those that come while a waiter makes its attempt wake others; none of them makes more than one call."""
    hold_elsewhere(server_state)
    client = backend.connect(local_hand_over_time=LONG)
    others = await start_waiters(backend, client, WAITERS)
    before = server_state.scripts()
    with server_state.redis.pipeline(transaction=False) as pipeline:
        for _ in range(MESSAGES):
            pipeline.publish(CHANNEL, "0")
        pipeline.execute()
    await backend.until(lambda: server_state.scripts() > before)
    await backend.until(asleep(client, WAITERS))
    after = server_state.scripts()
    assert 1 <= after - before <= MESSAGES
    release_elsewhere(server_state)
    for other in others:
        await other.result()
    assert server_state.scripts() <= before + MESSAGES + 1 + WAITERS


async def test_one_call_of_each_client_for_a_message(backend: Backend, server_state: ServerState) -> None:
    hold_elsewhere(server_state)
    clients = [backend.connect(local_hand_over_time=LONG) for _ in range(3)]
    others = [other for client in clients for other in await start_waiters(backend, client, 4)]
    before = server_state.scripts()
    for number in range(1, MESSAGES + 1):
        server_state.redis.publish(CHANNEL, "0")
        await backend.until(lambda: server_state.scripts() >= before + 3 * number)  # noqa: B023
        for client in clients:
            await backend.until(asleep(client, 4))
        assert server_state.scripts() == before + 3 * number
    release_elsewhere(server_state)
    for other in others:
        await other.result()


async def test_a_waiter_behind_others_makes_no_call(backend: Backend, server_state: ServerState) -> None:
    hold_elsewhere(server_state)
    client = backend.connect(local_hand_over_time=LONG)
    first = await start_waiters(backend, client, 1)
    before = server_state.scripts()
    others = await start_waiters(backend, client, WAITERS, present=1)
    assert server_state.scripts() == before
    release_elsewhere(server_state)
    for other in [*first, *others]:
        await other.result()


async def test_no_second_attempt_where_messages_arrive_already(backend: Backend, server_state: ServerState) -> None:
    """A client that listens since before its first attempt has missed nothing."""
    hold_elsewhere(server_state)
    client = backend.connect(local_hand_over_time=LONG)
    channels = getattr(client, "_target", client)._session.channels
    while channels.confirmed_channel(CHANNEL.encode()) is None:
        assert not await client.get_lock("orders").try_lock(wait_time=0.1)
    before = server_state.scripts()
    others = await start_waiters(backend, client, 1)
    assert server_state.scripts() == before + 1
    release_elsewhere(server_state)
    for other in others:
        await other.result()
    # The attempt that the message has caused, and the release.
    assert server_state.scripts() == before + 3
