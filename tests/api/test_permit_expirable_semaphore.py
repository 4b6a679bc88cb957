"""The semaphore with expiring permits: acquiring, releasing, counting, and the arguments."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, Backend
from tests.support.server_state import ServerState

from .expirable_permits import FOREVER, ID, USED, free, used

pytestmark = pytest.mark.asyncio


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

    async def test_acquire_and_release(self, backend: Backend, server_state: ServerState) -> None:
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
        ours = f"pyredisson_once:{{t}}stock:{client.id}:0:permit".encode()
        assert set(server_state.redis.keys()) == {b"{t}stock", b"{t}stock:timeout", ours}
        assert 600 < server_state.redis.ttl(ours) <= 660

    async def test_the_lease_ends(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect().get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        gone = await semaphore.acquire_many(2, 0.05)
        kept = await semaphore.try_acquire(5)
        assert kept is not None
        # One was acquired by another caller; the other is freed by the next call that asks.
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
        one, ended = await semaphore.acquire(), await semaphore.acquire(60)
        server_state.redis.zadd(USED, {bytes.fromhex(ended): 1})
        with pytest.raises(pyredisson.PermitNotHeldError, match=f"'stock'.*{ended}, {ID}$"):
            await semaphore.release([one, ended, ID])
        assert used(server_state) == {one, ended}
        assert await semaphore.try_release([one, ID]) == 0
        assert free(server_state) == 1
        with pytest.raises(ValueError, match=ID):
            await semaphore.release(ID)

    async def test_a_permit_can_be_released_by_its_id_alone(self, backend: Backend, server_state: ServerState) -> None:
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
