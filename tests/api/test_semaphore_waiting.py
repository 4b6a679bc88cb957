"""Waiting for permits of the semaphore, also beside Java clients."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson.logic.permits import refusal as logic
from tests.support.backends import WOKEN, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import permit_waiters

from .semaphore import CHANNEL, free, java_release

pytestmark = pytest.mark.asyncio


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


class TestWaiting:
    async def test_a_release_of_another_client_wakes(self, backend: Backend, server_state: ServerState) -> None:
        holder, waiter = backend.connect().get_semaphore("stock"), backend.connect().get_semaphore("stock")
        await holder.try_set_permits(1)
        await holder.acquire()
        other = backend.spawn(waiter.acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        released = time.monotonic()
        await holder.release()
        await other.result()
        assert time.monotonic() - released < WOKEN
        assert free(server_state) == 0

    @pytest.mark.parametrize("free_them", ["try_set_permits", "add_permits", "release"])
    async def test_every_way_to_add_permits_wakes_waiters(
        self, backend: Backend, server_state: ServerState, free_them: str
    ) -> None:
        """Also those who wait for a semaphore that isn't there."""
        other = backend.spawn(lambda: backend.connect().get_semaphore("stock").acquire(2))
        await backend.until(lambda: listeners(server_state) == 1)
        await getattr(backend.connect().get_semaphore("stock"), free_them)(3)
        await other.result()
        assert free(server_state) == 1

    async def test_java_wakes_and_is_waited_for(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("stock", 5)
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.acquire(2)
        server_state.redis.decrby("stock", 3)
        other = backend.spawn(lambda: semaphore.acquire(2))
        await backend.until(lambda: listeners(server_state) == 1)
        java_release(server_state, 3)
        await other.result()
        assert free(server_state) == 1

    async def test_java_is_notified_of_every_permit(self, backend: Backend, server_state: ServerState) -> None:
        """It wakes as many as the message says, and doesn't look again."""
        semaphore = backend.connect().get_semaphore("stock")
        with server_state.redis.pubsub() as ear:
            ear.subscribe(CHANNEL)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await semaphore.try_set_permits(2)
            await semaphore.acquire(2)
            await semaphore.release(2)
            await semaphore.release(3)
            await semaphore.reduce_permits(7)
            await semaphore.add_permits(2)
            await semaphore.drain_permits()
            await semaphore.add_permits(4)
            await semaphore.delete()
            assert [ear.get_message(timeout=5)["data"] for _ in range(4)] == [b"2", b"2", b"5", b"4"]
            assert ear.get_message(timeout=0.05) is None

    async def test_not_acquired_in_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(2)
        started = time.monotonic()
        assert await semaphore.try_acquire(3, wait_time=0.2) is False
        assert 0.2 <= time.monotonic() - started < WOKEN
        assert free(server_state) == 2

    async def test_acquired_in_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        other = backend.spawn(lambda: semaphore.try_acquire(2, timedelta(seconds=30)))
        await backend.until(lambda: listeners(server_state) == 1)
        java_release(server_state, 2)
        assert await other.result() is True

    async def test_no_script_runs_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        before = server_state.scripts()
        other = backend.spawn(semaphore.acquire)
        await backend.until(lambda: server_state.scripts() == before + 2)
        for payload in ("0", "-3", "", "abc", "+1", " 1", "1.0", "9" * 5000):
            server_state.redis.publish(CHANNEL, payload)
        await backend.sleep(0.3)
        assert server_state.scripts() == before + 2
        java_release(server_state, 1)
        await other.result()
        assert server_state.scripts() == before + 3

    async def test_a_message_wakes_as_many_as_it_has_permits_for(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        others = [backend.spawn(client.get_semaphore("stock").acquire) for _ in range(6)]
        await backend.until(lambda: permit_waiters(client, "stock") == 6)
        waiting = server_state.scripts()
        java_release(server_state, 4)
        await backend.until(lambda: sum(other.done() for other in others) == 4)
        assert server_state.scripts() == waiting + 4
        java_release(server_state, 2)
        for other in others:
            await other.result()
        assert free(server_state) == 0

    async def test_a_small_need_does_not_wait_behind_a_large_one(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        before = server_state.scripts()
        large = backend.spawn(lambda: client.get_semaphore("stock").acquire(3))
        await backend.until(lambda: server_state.scripts() >= before + 2)
        small = backend.spawn(lambda: client.get_semaphore("stock").acquire(1))
        await backend.until(lambda: server_state.scripts() >= before + 4)
        java_release(server_state, 1)
        await small.result()
        assert not large.done()
        java_release(server_state, 3)
        await large.result()

    async def test_a_woken_waiter_that_needs_more_wakes_those_that_need_less(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        """Another caller was faster and acquired some of the permits that the message announced."""
        client = backend.connect()
        before = server_state.scripts()
        large = backend.spawn(lambda: client.get_semaphore("stock").acquire(3))
        await backend.until(lambda: server_state.scripts() >= before + 2)
        small = backend.spawn(lambda: client.get_semaphore("stock").acquire(1))
        await backend.until(lambda: server_state.scripts() >= before + 4)
        server_state.redis.set("stock", 1)
        server_state.redis.publish(CHANNEL, "3")
        await small.result()
        assert not large.done()
        java_release(server_state, 3)
        await large.result()

    async def test_a_waiter_that_leaves_with_a_wakeup_passes_it_on(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        before = server_state.scripts()
        other = backend.spawn(client.get_semaphore("stock").acquire)
        await backend.until(lambda: server_state.scripts() >= before + 2)
        channel = client_channel(client)
        leaving = client_shared(client).runtime.wakeup()
        with client_shared(client).channels.mutex:
            # Like an earlier waiter that was woken, and whose time is over before it asks.
            channel.waiters = {leaving: 2, **channel.waiters}
            client_shared(client).channels.waiting.add(leaving)
        server_state.redis.set("stock", 2)
        server_state.redis.publish(CHANNEL, "2")
        await backend.until(leaving.is_set)
        assert not other.done()
        client_shared(client).channels.leave(CHANNEL.encode(), leaving)
        await other.result()

    @pytest.mark.parametrize("wait", [None, 30])
    async def test_a_message_that_was_lost(
        self, backend: Backend, server_state: ServerState, monkeypatch: pytest.MonkeyPatch, wait: float | None
    ) -> None:
        monkeypatch.setattr(logic, "LONGEST_WAIT", 0.1)
        semaphore = backend.connect().get_semaphore("stock")
        other = backend.spawn(semaphore.acquire if wait is None else lambda: semaphore.try_acquire(1, wait))
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.incrby("stock", 1)
        await other.result()
        assert free(server_state) == 0

    async def test_permits_without_a_message_are_seen_at_the_end_of_the_time(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        other = backend.spawn(lambda: semaphore.try_acquire(1, 1))
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.incrby("stock", 1)
        assert await other.result() is True

    async def test_a_deleted_one_is_waited_for(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_semaphore("stock")
        await semaphore.try_set_permits(0)
        other = backend.spawn(semaphore.acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        await semaphore.delete()
        await backend.sleep(0.05)
        assert not other.done()
        await semaphore.try_set_permits(1)
        await other.result()

    async def test_closed_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        other = backend.spawn(client.get_semaphore("stock").acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        await client.close()
        with pytest.raises(pyredisson.ClosedError):
            await other.result()

    async def test_never_more_than_there_are(self, backend: Backend, server_state: ServerState) -> None:
        clients = [backend.connect() for _ in range(3)]
        await clients[0].get_semaphore("stock").try_set_permits(5)
        inside: list[int] = []
        most: list[int] = []

        async def work(number: int) -> None:
            semaphore = clients[number % 3].get_semaphore("stock")
            for _ in range(4):
                async with semaphore:
                    inside.append(number)
                    most.append(len(inside))
                    await backend.sleep(0.001)
                    inside.remove(number)

        others = [backend.spawn(lambda number=number: work(number)) for number in range(50)]  # type: ignore[misc]
        for other in others:
            await other.result()
        assert len(most) == 200
        assert max(most) == 5
        assert free(server_state) == 5


def client_shared(client: Any) -> Any:
    """The inside of a client of either backend."""
    return getattr(client, "_target", client)._session


def client_channel(client: Any) -> Any:
    return client_shared(client).channels.by_name[CHANNEL.encode()]
