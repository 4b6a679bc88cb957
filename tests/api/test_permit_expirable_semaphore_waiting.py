"""Waiting for expiring permits, also beside Java clients."""

from __future__ import annotations

import time

import pytest

import pyredisson
from pyredisson.logic.permits import expirable_acquire
from tests.support.backends import WOKEN, Backend
from tests.support.server_state import ServerState

from .expirable_permits import CHANNEL, ID, USED, free, java_release, used

pytestmark = pytest.mark.asyncio


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


def java_acquire(server_state: ServerState, permit: str, left: float) -> None:
    """What Redisson does, whose clock runs as ours."""
    assert server_state.redis.decr("stock") >= 0
    server_state.redis.zadd(USED, {bytes.fromhex(permit): int((time.time() + left) * 1000)})


class TestWaiting:
    async def test_a_release_of_another_client_wakes(self, backend: Backend, server_state: ServerState) -> None:
        holder = backend.connect().get_permit_expirable_semaphore("stock")
        waiter = backend.connect().get_permit_expirable_semaphore("stock")
        await holder.set_permits(1)
        permit = await holder.acquire()
        other = backend.spawn(waiter.acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        released = time.monotonic()
        await holder.release(permit)
        assert used(server_state) <= {await other.result()}
        assert time.monotonic() - released < WOKEN
        assert free(server_state) == 0

    @pytest.mark.parametrize("free_them", ["try_set_permits", "add_permits", "set_permits"])
    async def test_every_way_to_add_permits_wakes_waiters(
        self, backend: Backend, server_state: ServerState, free_them: str
    ) -> None:
        """Also those who wait for a semaphore that isn't there."""
        waiter = backend.connect().get_permit_expirable_semaphore("stock")
        other = backend.spawn(lambda: waiter.acquire_many(2))
        await backend.until(lambda: listeners(server_state) == 1)
        await getattr(backend.connect().get_permit_expirable_semaphore("stock"), free_them)(3)
        assert len(await other.result()) == 2
        assert free(server_state) == 1

    async def test_a_holder_that_died_frees_its_permit_when_the_lease_ends(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        server_state.redis.set("stock", 1)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        before = server_state.scripts()
        started = time.monotonic()
        java_acquire(server_state, ID, 2)
        permit = await semaphore.try_acquire(30)
        assert 1.9 < time.monotonic() - started < 2 + WOKEN
        assert used(server_state) == {permit}
        # One try, one when messages were sure to arrive, and one that had it.
        assert server_state.scripts() == before + 3

    async def test_several_that_end_one_after_the_other(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("stock", 3)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        started = time.monotonic()
        for number, left in enumerate((0.1, 0.2, 0.3)):
            java_acquire(server_state, ID[:-1] + str(number), left)
        assert set(await semaphore.acquire_many(3)) == used(server_state)
        assert 0.25 < time.monotonic() - started < WOKEN
        assert free(server_state) == 0

    async def test_java_wakes_and_is_waited_for(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("stock", 2)
        java_acquire(server_state, ID, 600)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        assert await semaphore.try_acquire_many(2) == []
        other = backend.spawn(lambda: semaphore.acquire_many(2))
        await backend.until(lambda: listeners(server_state) == 1)
        java_release(server_state, ID)
        assert set(await other.result()) == used(server_state)

    async def test_java_releases_several_and_publishes_only_their_number(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        server_state.redis.set("stock", 4)
        theirs = [ID[:-1] + str(number) for number in range(3)]
        for permit in theirs:
            java_acquire(server_state, permit, 600)
        client = backend.connect()
        before = server_state.scripts()
        other = backend.spawn(lambda: client.get_permit_expirable_semaphore("stock").acquire_many(3))
        await backend.until(lambda: server_state.scripts() == before + 2)
        java_release(server_state, *theirs[:2])
        assert len(await other.result()) == 3
        assert server_state.scripts() == before + 3

    async def test_java_releases_ours_and_we_release_javas(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        permit = await semaphore.acquire()
        java_acquire(server_state, ID, 600)
        java_release(server_state, permit)
        assert await semaphore.try_release(permit) is False
        await semaphore.release(ID)
        assert (free(server_state), used(server_state)) == (2, set())

    async def test_java_is_notified_of_every_permit(self, backend: Backend, server_state: ServerState) -> None:
        """It wakes as many as the message says, and doesn't look again."""
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        with server_state.redis.pubsub() as ear:
            ear.subscribe(CHANNEL)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await semaphore.try_set_permits(2)
            permits = await semaphore.acquire_many(2)
            await semaphore.release(permits)
            await semaphore.add_permits(3)
            ended = await semaphore.acquire_many(5, 60)
            server_state.redis.zadd(USED, {bytes.fromhex(permit): 1 for permit in ended})
            await semaphore.acquire_many(1)  # of those that ended
            assert await semaphore.available_permits() == 4
            await semaphore.set_permits(1)
            await semaphore.set_permits(7)
            await semaphore.delete()
            assert [ear.get_message(timeout=5)["data"] for _ in range(5)] == [b"2", b"2", b"5", b"4", b"6"]
            assert ear.get_message(timeout=0.05) is None

    async def test_not_acquired_in_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.try_set_permits(2)
        started = time.monotonic()
        assert await semaphore.try_acquire_many(3, wait_time=0.2) == []
        assert 0.2 <= time.monotonic() - started < WOKEN
        assert (free(server_state), used(server_state)) == (2, set())
        # Giving up left nothing to be undone.
        assert not server_state.redis.keys("pyredisson_permit*")

    async def test_no_script_runs_while_waiting(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        before = server_state.scripts()
        other = backend.spawn(semaphore.acquire)
        await backend.until(lambda: server_state.scripts() == before + 2)
        for payload in ("0", "-3", "", "abc", "+", " 1", "1.0", "9" * 5000):
            server_state.redis.publish(CHANNEL, payload)
        await backend.sleep(0.3)
        assert server_state.scripts() == before + 2
        server_state.redis.publish(CHANNEL, server_state.redis.incr("stock"))
        await other.result()
        assert server_state.scripts() == before + 3

    async def test_a_message_wakes_as_many_as_it_has_permits_for(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        before = server_state.scripts()
        others = [backend.spawn(client.get_permit_expirable_semaphore("stock").acquire) for _ in range(6)]
        await backend.until(lambda: server_state.scripts() >= before + 12)
        waiting = server_state.scripts()
        server_state.redis.publish(CHANNEL, server_state.redis.incrby("stock", 4))
        await backend.until(lambda: sum(other.done() for other in others) == 4)
        assert server_state.scripts() == waiting + 4
        server_state.redis.publish(CHANNEL, server_state.redis.incrby("stock", 2))
        assert len({await other.result() for other in others}) == 6

    async def test_a_small_need_does_not_wait_behind_a_large_one(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        client = backend.connect()
        before = server_state.scripts()
        large = backend.spawn(lambda: client.get_permit_expirable_semaphore("stock").acquire_many(3))
        await backend.until(lambda: server_state.scripts() >= before + 2)
        small = backend.spawn(client.get_permit_expirable_semaphore("stock").acquire)
        await backend.until(lambda: server_state.scripts() >= before + 4)
        server_state.redis.set("stock", 1)
        # Somebody was quicker and took two.
        server_state.redis.publish(CHANNEL, "3")
        await small.result()
        assert not large.done()
        server_state.redis.publish(CHANNEL, server_state.redis.incrby("stock", 3))
        assert len(await large.result()) == 3

    async def test_a_message_that_was_lost(
        self, backend: Backend, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(expirable_acquire, "LONGEST_WAIT", 0.1)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        other = backend.spawn(semaphore.acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.incrby("stock", 1)
        await other.result()
        assert free(server_state) == 0

    async def test_permits_without_a_message_are_seen_at_the_end_of_the_time(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        other = backend.spawn(lambda: semaphore.try_acquire(1))
        await backend.until(lambda: listeners(server_state) == 1)
        server_state.redis.incrby("stock", 1)
        assert await other.result() is not None

    async def test_a_close_ends_waiting(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        other = backend.spawn(client.get_permit_expirable_semaphore("stock").acquire)
        await backend.until(lambda: listeners(server_state) == 1)
        await client.close()
        with pytest.raises(pyredisson.ClosedError):
            await other.result()

    async def test_never_more_than_there_are(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await client.get_permit_expirable_semaphore("stock").set_permits(3)
        inside: list[str] = []
        most: list[int] = []

        async def work() -> None:
            semaphore = client.get_permit_expirable_semaphore("stock")
            for _ in range(5):
                permit = await semaphore.acquire(30)
                inside.append(permit)
                most.append(len(inside))
                await backend.sleep(0.001)
                inside.remove(permit)
                await semaphore.release(permit)

        for other in [backend.spawn(work) for _ in range(12)]:
            await other.result()
        assert 1 < max(most) <= 3
        assert (free(server_state), used(server_state)) == (3, set())
