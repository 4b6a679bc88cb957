"""The semaphore with expiring permits: the table in the contract, waiting, Java's part, renewal, on both backends."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ResponseError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.logic import watchdog
from pyredisson.logic.permits import expirable_acquire
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, Backend
from tests.support.server_state import ServerState

pytestmark = pytest.mark.asyncio

CHANNEL, USED = "redisson_sc:{stock}", "{stock}:timeout"
FOREVER = 922337203685477
ID = "00112233445566778899aabbccddeeff"


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


def free(server_state: ServerState) -> int:
    """As Redisson reads it."""
    return int(server_state.redis.get("stock") or 0)


def used(server_state: ServerState) -> set[str]:
    """The ids of the permits in use, as Redisson shows them."""
    return {permit.hex() for permit in server_state.redis.zrange(USED, 0, -1)}


def java_acquire(server_state: ServerState, permit: str, left: float) -> None:
    """What Redisson does, whose clock runs as ours."""
    assert server_state.redis.decr("stock") >= 0
    server_state.redis.zadd(USED, {bytes.fromhex(permit): int((time.time() + left) * 1000)})


def java_release(server_state: ServerState, *permits: str) -> None:
    """What Redisson does: of one, it tells how many are free now; of several, how many these were."""
    freed = server_state.redis.zrem(USED, *map(bytes.fromhex, permits))
    total = server_state.redis.incrby("stock", freed)
    server_state.redis.publish(CHANNEL, total if len(permits) == 1 else freed)


class TestPermits:
    async def test_set_once(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        assert await semaphore.get_permits() == 0
        assert await semaphore.available_permits() == 0
        assert await semaphore.acquired_permits() == 0
        assert await semaphore.try_set_permits(5) is True
        assert await semaphore.try_set_permits(7) is False
        assert await semaphore.available_permits() == free(server_state) == 5
        assert server_state.redis.ttl("stock") == -1

    async def test_take_and_give_back(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.try_set_permits(5)
        one = await semaphore.acquire()
        two = await semaphore.try_acquire()
        many = await semaphore.acquire_many(2)
        assert two is not None
        assert len({one, two, *many}) == 4
        assert all(len(permit) == 32 and permit == permit.lower() for permit in (one, two, *many))
        assert used(server_state) == {one, two, *many}
        assert [await semaphore.available_permits(), await semaphore.acquired_permits()] == [1, 4]
        assert await semaphore.get_permits() == 5
        assert await semaphore.try_acquire_many(2) == []
        await semaphore.release(one)
        await semaphore.release([two, many[0]])
        assert used(server_state) == {many[1]}
        assert free(server_state) == 4
        assert await semaphore.try_release(many[1]) is True
        assert await semaphore.try_release(many[1]) is False
        assert await semaphore.try_acquire_many(6) == []
        many = await semaphore.try_acquire_many(5)
        assert await semaphore.try_acquire() is None
        assert await semaphore.try_release(iter(many)) == 5
        assert await semaphore.try_release(many) == 0
        assert free(server_state) == 5

    async def test_on_the_server_as_redisson_has_it(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(3)
        endless, leased = await semaphore.acquire(), await semaphore.acquire(timedelta(seconds=50))
        found = dict(server_state.redis.zrange(USED, 0, -1, withscores=True))
        assert found[bytes.fromhex(endless)] == FOREVER
        ends = found[bytes.fromhex(leased)]
        assert ends == int(ends)
        assert 45_000 < ends - time.time() * 1000 < 50_500
        assert server_state.redis.get("stock") == b"1"
        assert {key for key in server_state.redis.keys("*") if not key.startswith(b"pyredisson_")} == {
            b"stock",
            USED.encode(),
        }

    async def test_a_name_with_a_tag(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_permit_expirable_semaphore("{t}stock")
        await semaphore.set_permits(1)
        await semaphore.acquire()
        ours = f"pyredisson_once:{{t}}stock:{client.id}:0".encode()
        assert set(server_state.redis.keys()) == {b"{t}stock", b"{t}stock:timeout", ours}
        assert 600 < server_state.redis.ttl(ours) <= 660

    async def test_the_lease_ends(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        gone = await semaphore.acquire_many(2, 0.05)
        kept = await semaphore.try_acquire(5)
        assert kept is not None
        # The one was taken over; the other waits for somebody who asks.
        assert len(used(server_state)) == 2
        assert await semaphore.try_release(gone) == 0
        for permit in gone:
            assert await semaphore.try_release(permit) is False
            assert await semaphore.update_lease_time(permit, 5) is False
            with pytest.raises(pyredisson.PermitNotHeldError, match=permit):
                await semaphore.get_lease_time(permit)
        assert await semaphore.available_permits() == free(server_state) == 1
        assert used(server_state) == {kept}

    async def test_release_all_or_none(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(3)
        one, ended = await semaphore.acquire(), await semaphore.acquire(0.001)
        await backend.sleep(0.005)
        with pytest.raises(pyredisson.PermitNotHeldError, match=f"'stock'.*{ended}, {ID}$"):
            await semaphore.release([one, ended, ID])
        assert used(server_state) == {one, ended}
        assert await semaphore.try_release([one, ID]) == 0
        assert free(server_state) == 1
        with pytest.raises(ValueError, match=ID):
            await semaphore.release(ID)

    async def test_an_id_is_all_it_takes(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        one, two = await semaphore.acquire_many(2)
        other = backend.connect().get_permit_expirable_semaphore("stock")
        await backend.as_another_owner(lambda: other.release(one.upper()))
        assert await backend.as_another_owner(lambda: other.try_release([two.upper()])) == 1
        assert free(server_state) == 2

    async def test_of_nothing(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_permit_expirable_semaphore("stock")
        before = server_state.commands()
        assert await semaphore.acquire_many(0) == []
        assert await semaphore.try_acquire_many(0) == []
        await semaphore.release([])
        assert await semaphore.try_release([]) == 0
        await semaphore.add_permits(0)
        assert server_state.commands() == before
        await client.close()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: semaphore.acquire_many(0),
            lambda: semaphore.release([]),
            lambda: semaphore.add_permits(0),
            semaphore.acquire,
            semaphore.get_permits,
            lambda: semaphore.release(ID),
            lambda: semaphore.set_permits(1),
            lambda: semaphore.try_set_permits(1),
            lambda: semaphore.update_lease_time(ID, 1),
            lambda: semaphore.get_lease_time(ID),
            semaphore.delete,
        ]
        for call in calls:
            with pytest.raises(pyredisson.ClosedError):
                await call()

    async def test_lease_times(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire()
        assert await semaphore.get_lease_time(permit) == math.inf
        assert await semaphore.update_lease_time(permit.upper(), timedelta(seconds=50)) is True
        assert 45 < await semaphore.get_lease_time(permit) <= 50
        assert await semaphore.update_lease_time(permit, None) is True
        assert server_state.redis.zscore(USED, bytes.fromhex(permit)) == FOREVER
        assert await semaphore.update_lease_time(permit, 0.02) is True
        await backend.sleep(0.03)
        assert await semaphore.update_lease_time(permit, None) is False
        assert await semaphore.update_lease_time(ID, 1) is False
        with pytest.raises(pyredisson.PermitNotHeldError, match=f"'stock'.*{ID}"):
            await semaphore.get_lease_time(ID)

    async def test_larger_and_smaller(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(3)
        permits = await semaphore.acquire_many(3)
        await semaphore.add_permits(2)
        assert [await semaphore.get_permits(), free(server_state)] == [5, 2]
        await semaphore.set_permits(1)
        assert [await semaphore.get_permits(), await semaphore.available_permits()] == [1, -2]
        await semaphore.release(permits[:2])
        assert await semaphore.try_acquire() is None
        await semaphore.release(permits[2])
        assert await semaphore.try_acquire() is not None
        assert await semaphore.get_permits() == 1

    async def test_delete(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        assert await semaphore.delete() is False
        await semaphore.set_permits(3)
        permit = await semaphore.acquire()
        assert await semaphore.delete() is True
        assert not server_state.redis.exists("stock", USED)
        assert await semaphore.try_release(permit) is False
        assert await semaphore.try_set_permits(4)

    async def test_handles_of_one_name(self, backend: Backend) -> None:
        client = backend.connect(name_mapper=lambda name: f"app:{name}")
        one = client.get_permit_expirable_semaphore("stock")
        two = client.get_permit_expirable_semaphore(b"stock")
        await one.set_permits(1)
        assert await two.available_permits() == 1
        assert (one.name, two.name) == ("stock", b"stock")
        assert "PermitExpirableSemaphore 'app:stock'" in repr(one)

    async def test_an_uncontended_pair_is_two_commands(self, backend: Backend, proxy: Proxy) -> None:
        semaphore = backend.connect(proxy.url).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        proxy.forget()
        await semaphore.release(await semaphore.acquire(5))
        await semaphore.release(await semaphore.acquire_many(1))
        assert [words[0] for words in proxy.commands] == [b"EVALSHA"] * 4

    async def test_the_permits_in_use_end_with_the_semaphore(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("stock", 3, px=50_000)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.acquire()
        assert 45_000 < server_state.redis.pttl(USED) <= 50_000


class TestArguments:
    COUNTS = ("acquire_many", "try_acquire_many", "set_permits", "try_set_permits", "add_permits")

    @pytest.mark.parametrize("call", COUNTS)
    @pytest.mark.parametrize("permits", [-1, 2**31, 10**30])
    async def test_numbers_that_cannot_be(self, backend: Backend, call: str, permits: int) -> None:
        with pytest.raises(ValueError, match="permits"):
            await getattr(backend.connect(NOWHERE).get_permit_expirable_semaphore("stock"), call)(permits)

    @pytest.mark.parametrize("call", COUNTS)
    @pytest.mark.parametrize("permits", [True, 1.0, "1", None])
    async def test_numbers_of_other_types(self, backend: Backend, call: str, permits: Any) -> None:
        with pytest.raises(TypeError, match="permits"):
            await getattr(backend.connect(NOWHERE).get_permit_expirable_semaphore("stock"), call)(permits)

    @pytest.mark.parametrize(
        "permit", ["", ID[:-1], ID + "0", "g" + ID[1:], " " + ID[1:], ID[:16] + " " * 16, "é" * 32]
    )
    async def test_ids_that_cannot_be(self, backend: Backend, permit: str) -> None:
        semaphore = backend.connect(NOWHERE).get_permit_expirable_semaphore("stock")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: semaphore.release(permit),
            lambda: semaphore.release([ID, permit]),
            lambda: semaphore.try_release(permit),
            lambda: semaphore.try_release([permit]),
            lambda: semaphore.update_lease_time(permit, 1),
            lambda: semaphore.get_lease_time(permit),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="32 hex digits"):
                await call()

    @pytest.mark.parametrize("permit", [None, 1, bytes.fromhex(ID), [ID.encode()], [1]])
    async def test_ids_of_other_types(self, backend: Backend, permit: Any) -> None:
        semaphore = backend.connect(NOWHERE).get_permit_expirable_semaphore("stock")
        for call in (semaphore.release, semaphore.try_release, semaphore.get_lease_time):
            with pytest.raises(TypeError):
                await call(permit)

    async def test_an_id_that_is_named_twice(self, backend: Backend) -> None:
        semaphore = backend.connect(NOWHERE).get_permit_expirable_semaphore("stock")
        for call in (semaphore.release, semaphore.try_release):
            with pytest.raises(ValueError, match="twice"):
                await call([ID, ID.upper()])

    @pytest.mark.parametrize("lease", [0, -1, 0.0009, math.nan, math.inf, 2**52])
    async def test_leases_that_cannot_be(self, backend: Backend, lease: float) -> None:
        semaphore = backend.connect(NOWHERE).get_permit_expirable_semaphore("stock")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: semaphore.acquire(lease),
            lambda: semaphore.try_acquire(0, lease),
            lambda: semaphore.acquire_many(1, lease),
            lambda: semaphore.try_acquire_many(1, 0, lease),
            lambda: semaphore.update_lease_time(ID, lease),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="lease_time"):
                await call()

    async def test_a_lease_that_is_both_given_and_renewed(self, backend: Backend) -> None:
        semaphore = backend.connect(NOWHERE).get_permit_expirable_semaphore("stock")
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: semaphore.acquire(1, renew=True),
            lambda: semaphore.try_acquire(0, 1, renew=True),
            lambda: semaphore.acquire_many(1, 1, renew=True),
            lambda: semaphore.try_acquire_many(1, 0, 1, renew=True),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="renew"):
                await call()

    @pytest.mark.parametrize("wait", [-1, math.nan, timedelta(-1)])
    async def test_waits_that_cannot_be(self, backend: Backend, wait: Any) -> None:
        semaphore = backend.connect(NOWHERE).get_permit_expirable_semaphore("stock")
        with pytest.raises(ValueError, match="wait_time"):
            await semaphore.try_acquire(wait)
        with pytest.raises(ValueError, match="wait_time"):
            await semaphore.try_acquire_many(1, wait)

    async def test_names_that_cannot_be(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="name"):
            backend.connect(NOWHERE).get_permit_expirable_semaphore("")

    async def test_many_at_once(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2**31 - 1)
        permits = await semaphore.acquire_many(20_000)
        assert len(set(permits)) == server_state.redis.zcard(USED) == 20_000
        await semaphore.release(permits)
        assert free(server_state) == 2**31 - 1


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
        assert time.monotonic() - released < 1
        assert free(server_state) == 0

    @pytest.mark.parametrize("free_them", ["try_set_permits", "add_permits", "set_permits"])
    async def test_whoever_brings_permits_wakes(
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
        java_acquire(server_state, ID, 0.4)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        before = server_state.scripts()
        started = time.monotonic()
        permit = await semaphore.try_acquire(30)
        assert 0.3 < time.monotonic() - started < 2
        assert used(server_state) == {permit}
        # One try, one when messages were sure to arrive, and one that had it.
        assert server_state.scripts() == before + 3

    async def test_several_that_end_one_after_the_other(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.set("stock", 3)
        for number, left in enumerate((0.1, 0.2, 0.3)):
            java_acquire(server_state, ID[:-1] + str(number), left)
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        started = time.monotonic()
        assert set(await semaphore.acquire_many(3)) == used(server_state)
        assert 0.25 < time.monotonic() - started < 2
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

    async def test_java_gives_back_several_and_tells_only_how_many(
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

    async def test_java_hears_of_every_permit(self, backend: Backend, server_state: ServerState) -> None:
        """It wakes as many as the message says, and doesn't look again."""
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        with server_state.redis.pubsub() as ear:
            ear.subscribe(CHANNEL)
            assert ear.get_message(timeout=5)["type"] == "subscribe"
            await semaphore.try_set_permits(2)
            permits = await semaphore.acquire_many(2)
            await semaphore.release(permits)
            await semaphore.add_permits(3)
            await semaphore.acquire_many(5, 0.02)
            await backend.sleep(0.03)
            await semaphore.acquire_many(1)  # of those that ended
            assert await semaphore.available_permits() == 4
            await semaphore.set_permits(1)
            await semaphore.set_permits(7)
            await semaphore.delete()
            assert [ear.get_message(timeout=5)["data"] for _ in range(5)] == [b"2", b"2", b"5", b"4", b"6"]
            assert ear.get_message(timeout=0.05) is None

    async def test_not_had_in_time(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.try_set_permits(2)
        started = time.monotonic()
        assert await semaphore.try_acquire_many(3, wait_time=0.2) == []
        assert 0.2 <= time.monotonic() - started < 1
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
        monkeypatch.setattr(expirable_acquire, "LOOK_AGAIN", 0.1)
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
        other = backend.spawn(lambda: semaphore.try_acquire(0.4))
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


class TestRenewal:
    async def test_it_outlives_its_lease(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(5)
        one = await semaphore.acquire(renew=True)
        two = await semaphore.try_acquire(renew=True)
        assert two is not None
        three, four = await semaphore.acquire_many(2, renew=True)
        [five] = await semaphore.try_acquire_many(1, renew=True)
        assert 0.6 < await semaphore.get_lease_time(one) <= 1.5
        for _ in range(8):
            await backend.sleep(0.25)
            assert used(server_state) == {one, two, three, four, five}
            assert await semaphore.available_permits() == 0
        await semaphore.release([one, three])
        await semaphore.release(two)
        assert await semaphore.try_release(four) is True
        await backend.sleep(0.5)
        assert await semaphore.get_permits() == 5
        assert used(server_state) == {five}

    async def test_semaphores_are_renewed_together(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # What is taken within half a second falls due at once.
        monkeypatch.setattr(watchdog, "GRAINS_A_ROUND", 2)
        client = backend.connect(proxy.url, lock_watchdog_timeout=3)
        semaphores = [client.get_permit_expirable_semaphore(f"stock{number}") for number in range(5)]
        for semaphore in semaphores:
            await semaphore.set_permits(4)
        permits = [await semaphore.acquire_many(4, renew=True) for semaphore in semaphores]
        proxy.forget()
        await backend.until(lambda: sum(int(words[2]) for words in renewals(proxy)) == 20)
        assert len(renewals(proxy)) < 5
        for semaphore, taken in zip(semaphores, permits, strict=True):
            assert await semaphore.try_release(taken) == 4

    async def test_one_that_is_gone_is_logged_and_not_held(
        self, backend: Backend, server_state: ServerState, caplog: pytest.LogCaptureFixture
    ) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        gone, kept = await semaphore.acquire_many(2, renew=True)
        with caplog.at_level(logging.WARNING, "pyredisson"):
            java_release(server_state, gone)
            await backend.until(lambda: gone in caplog.text)
        assert "'stock'" in caplog.text
        assert kept not in caplog.text
        with pytest.raises(pyredisson.PermitNotHeldError, match=gone):
            await semaphore.release([kept, gone])
        # What was not given back is renewed further.
        await backend.sleep(1.8)
        assert await semaphore.get_lease_time(kept) > 0
        await semaphore.release(kept)
        assert (free(server_state), caplog.text.count("was lost")) == (2, 1)

    async def test_one_that_is_found_gone_by_its_release(
        self, backend: Backend, server_state: ServerState, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(lock_watchdog_timeout=1.5)
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        gone, kept = await semaphore.acquire_many(2, renew=True)
        with caplog.at_level(logging.WARNING, "pyredisson"):
            java_release(server_state, gone)
            assert await semaphore.try_release([gone, kept]) == 0
        assert caplog.text.count("was lost") == 1
        for _ in range(3):
            await backend.sleep(0.6)
            assert await semaphore.get_lease_time(kept) > 0
        assert await semaphore.try_release(kept)

    async def test_a_release_is_no_loss(
        self, backend: Backend, proxy: Proxy, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A renewal that is under way meanwhile finds the permit gone."""
        semaphore = backend.connect(proxy.url, lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        renewal = proxy.hold_request(script("permit_renew", flags=server.version >= (7,)).sha)
        permit = await semaphore.acquire(renew=True)
        await backend.until(renewal.held.is_set)
        with caplog.at_level(logging.WARNING, "pyredisson"):
            await semaphore.release(permit)
            renewal.deliver()
            await semaphore.release(await semaphore.acquire(renew=True))
        assert caplog.text == ""

    @pytest.mark.parametrize("lease", [0.5, None])
    async def test_a_lease_that_is_set_is_not_renewed(
        self, backend: Backend, server_state: ServerState, lease: float | None
    ) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire(renew=True)
        await backend.sleep(0.2)
        assert await semaphore.update_lease_time(permit, lease) is True
        if lease is None:
            await backend.sleep(0.5)
            assert server_state.redis.zscore(USED, bytes.fromhex(permit)) == FOREVER
            await semaphore.release(permit)
        else:
            await backend.sleep(0.7)
            assert await semaphore.available_permits() == 1
            assert await semaphore.try_release(permit) is False

    async def test_a_lease_that_cannot_be_set_is_renewed_further(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire(renew=True)
        server_state.redis.rename(USED, "aside")
        server_state.redis.set(USED, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await semaphore.update_lease_time(permit, 10)
        server_state.redis.rename("aside", USED)
        await backend.sleep(1.8)
        assert 0 < await semaphore.get_lease_time(permit) <= 1.5

    async def test_a_close_gives_back_what_is_renewed(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(4)
        await semaphore.acquire_many(2, renew=True)
        kept = [await semaphore.acquire(), await semaphore.acquire(30)]
        await client.close()
        assert (free(server_state), used(server_state)) == (2, set(kept))

    async def test_a_closed_client_still_gives_back(self, backend: Backend, server_state: ServerState) -> None:
        """Nobody else would free what never expires."""
        client = backend.connect()
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire()
        await client.close()
        with pytest.raises(pyredisson.ClosedError):
            await semaphore.release(permit)
        await backend.until(lambda: free(server_state) == 1)


def renewals(proxy: Proxy) -> list[tuple[bytes, ...]]:
    """The commands that renew, of whatever form of the script."""
    return [
        words
        for words in proxy.commands
        if words[0] == b"EVALSHA" and len(words) > 3 and words[3].endswith(b":timeout")
    ]
