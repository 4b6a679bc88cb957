"""Waiters are woken by a message or at the end of the holder's lease; they don't poll. A message costs one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyredisson.asyncio import Client
from tests.support.backends import WOKEN, Backend, OtherOwner
from tests.support.kinds import KINDS
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

from .kinds import lock_of, one_waits

pytestmark = pytest.mark.asyncio
LONG = 60.0
"""A hand-over time that doesn't end in a test: then the number of calls doesn't depend on the machine."""
CHANNEL = "redisson_lock__channel:{orders}"
WAITERS = 8
MESSAGES = 10


def hold_elsewhere(server_state: ServerState, lease: int | None = None) -> None:
    """Another client holds the lock, for so many milliseconds or without an end."""
    server_state.redis.hset("orders", "another client:1", 1)
    if lease is not None:
        server_state.redis.pexpire("orders", lease)


def release_elsewhere(server_state: ServerState) -> None:
    server_state.redis.delete("orders")
    server_state.redis.publish(CHANNEL, "0")


def asleep(client: Any, count: int) -> Callable[[], bool]:
    """A condition: so many calls wait, and all of them sleep."""

    def condition() -> bool:
        queue = getattr(client, "_target", client)._session.lock_queues.get(b"orders")
        return queue is not None and len(list(queue.waiters)) == waiters(client, "orders") == count

    return condition


async def start_waiters(backend: Backend, client: Client, count: int, present: int = 0) -> list[OtherOwner[None]]:
    """So many waiters, beside those that are `present`."""

    async def work() -> None:
        async with client.get_lock("orders"):
            pass

    others = [backend.spawn(work) for _ in range(count)]
    await backend.until(asleep(client, present + count))
    return others


async def finish(server_state: ServerState, others: list[OtherOwner[None]]) -> None:
    release_elsewhere(server_state)
    for other in others:
        await other.result()


class TestCalls:
    async def test_none_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        before = server_state.scripts()
        holder, _, other = await one_waits(backend, backend.connect())
        # The holder's; one try, and one more when messages were sure to arrive; then silence.
        await backend.until(lambda: server_state.scripts() == before + 3)
        # Messages that are no release of this lock.
        for payload in ("2", "-1", "", "abc", " 0", "00"):
            server_state.redis.publish(CHANNEL, payload)
        server_state.redis.publish("redisson_lock__channel:{stock}", "0")
        await backend.sleep(0.4)
        assert server_state.scripts() == before + 3
        assert not other.done()
        await holder.unlock()
        await other.result()
        # The release, which has entered the waiter.
        assert server_state.scripts() == before + 4

    @pytest.mark.parametrize("clients", [1, 3])
    async def test_one_of_two_clients_each_for_a_message_of_redisson(
        self, backend: Backend, server_state: ServerState, clients: int
    ) -> None:
        """Each message wakes one waiter, which finds the lock taken again and sleeps after one call.

        Of the clients that wait, the first two listen to Redisson's messages.
        """
        hold_elsewhere(server_state)
        connected = [backend.connect(local_hand_over_time=LONG) for _ in range(clients)]
        others = [other for client in connected for other in await start_waiters(backend, client, WAITERS)]
        before, listening = server_state.scripts(), min(clients, 2)
        for number in range(1, MESSAGES + 1):
            assert server_state.redis.publish(CHANNEL, "0") == listening
            await backend.until(lambda: server_state.scripts() >= before + listening * number)  # noqa: B023
            for client in connected:
                await backend.until(asleep(client, WAITERS))
            assert server_state.scripts() == before + listening * number
        await finish(server_state, others)
        # One acquire, and the release of each owner, which enters the next one.
        assert clients > 1 or server_state.scripts() == before + MESSAGES + 1 + WAITERS

    async def test_messages_at_once(self, backend: Backend, server_state: ServerState) -> None:
        """Those that come while a waiter makes its attempt wake others; none of them makes more than one call."""
        hold_elsewhere(server_state)
        client = backend.connect(local_hand_over_time=LONG)
        others = await start_waiters(backend, client, 1)
        before = server_state.scripts()
        others += await start_waiters(backend, client, WAITERS - 1, present=1)
        # None behind another waiter.
        assert server_state.scripts() == before
        with server_state.redis.pipeline(transaction=False) as pipeline:
            for _ in range(MESSAGES):
                pipeline.publish(CHANNEL, "0")
            pipeline.execute()
        await backend.until(lambda: server_state.scripts() > before)
        await backend.until(asleep(client, WAITERS))
        assert 1 <= server_state.scripts() - before <= MESSAGES
        await finish(server_state, others)
        assert server_state.scripts() <= before + MESSAGES + 1 + WAITERS

    async def test_no_second_attempt_where_messages_arrive_already(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        """A client that listens since before its first attempt has missed nothing."""
        holder = backend.connect().get_lock("orders")
        await holder.lock()
        client = backend.connect(local_hand_over_time=LONG)
        while not server_state.listeners("orders"):
            assert not await client.get_lock("orders").try_lock(wait_time=0.1)
        # It leaves the list in the background.
        await backend.until(lambda: not server_state.redis.exists("pyredisson_waiting:{orders}"))
        before = server_state.scripts()
        others = await start_waiters(backend, client, 1)
        assert server_state.scripts() == before + 1
        await holder.unlock()
        for other in others:
            await other.result()
        # The release, the attempt that its message has caused, and the release of the waiter.
        assert server_state.scripts() == before + 4


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("read", "write")])
async def test_the_end_of_the_holders_lease_wakes(backend: Backend, server_state: ServerState, kind: str) -> None:
    """A dead holder sends no message."""
    started = time.monotonic()
    hold_elsewhere(server_state, 300)
    await lock_of(backend.connect(), kind).lock()
    assert 0.25 < time.monotonic() - started < WOKEN


async def test_a_lease_that_was_extended_is_waited_for(backend: Backend, server_state: ServerState) -> None:
    hold_elsewhere(server_state, 700)
    other = backend.spawn(backend.connect().get_lock("orders").lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    started = time.monotonic()
    server_state.redis.pexpire("orders", 1_000)
    await other.result()
    assert time.monotonic() - started > 0.9


async def test_a_wait_ends_in_time_under_steady_contention(backend: Backend, server_state: ServerState) -> None:
    """Messages wake the waiter all the time, as where other clients hand the lock on. The deadline is still one."""
    hold_elsewhere(server_state)
    stop = False

    async def contend() -> None:
        while not stop:
            server_state.redis.publish(CHANNEL, "0")
            await backend.sleep(0.005)

    other = backend.spawn(contend)
    before = server_state.scripts()
    started = time.monotonic()
    assert await backend.connect().get_lock("orders").try_lock(wait_time=1) is False
    assert 1 <= time.monotonic() - started < 1 + WOKEN
    assert server_state.scripts() > before + 5
    stop = True
    await other.result()
