"""Leases of locks, of fixed length and renewed, and of nested holds."""

from __future__ import annotations

import time

import pytest

from pyredisson import LockLostError
from tests.support.backends import Backend
from tests.support.kinds import KINDS
from tests.support.server_state import ServerState

from .kinds import GROUPS, lock_of

pytestmark = pytest.mark.asyncio

WATCHDOG = 1.2


async def test_the_watchdog_keeps_every_kind(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(lock_watchdog_timeout=1.5)
    locks = {kind: lock_of(client, kind, kind) for kind in [*KINDS, *GROUPS]}
    for lock in locks.values():
        await lock.lock()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        for kind in locks:
            assert 0 < server_state.redis.pttl(kind) <= 1500, kind
        await backend.sleep(0.05)
    for lock in locks.values():
        assert await lock.is_held()
        await lock.unlock()
    assert server_state.redis.keys() == [b"redisson_lock_token:{fenced}"]


async def test_a_fixed_lease_of_any_kind_is_not_renewed(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(lock_watchdog_timeout=1.5)
    renewed = client.get_lock("renewed")
    await renewed.lock()
    locks = {kind: lock_of(client, kind, kind) for kind in [*KINDS, *GROUPS]}
    started = time.monotonic()
    for lock in locks.values():
        assert await lock.try_lock(lease_time=1.8)
    await backend.until(lambda: not server_state.redis.exists(*locks))
    assert 1.7 < time.monotonic() - started < 3.5
    for lock in locks.values():
        assert lock.lost.is_set()
        assert not await lock.is_held()
        with pytest.raises(LockLostError):
            await lock.unlock()
        # One that isn't re-entrant doesn't refuse its owner for that.
        assert await lock.try_lock()
    assert await renewed.is_held()


async def test_the_watchdog_does_not_renew_a_released_lock(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(lock_watchdog_timeout=1.5)
    async with client.get_lock("orders"):
        pass
    await client.get_lock("stock").lock()
    scripts = server_state.scripts()
    await backend.until(lambda: server_state.scripts() >= scripts + 2)
    assert server_state.redis.keys() == [b"stock"]


class TestNested:
    @pytest.mark.parametrize("again", [0.05, None])
    async def test_an_inner_hold_does_not_shorten_the_outer_lease(
        self, backend: Backend, server_state: ServerState, again: float | None
    ) -> None:
        lock = backend.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
        await lock.lock(60)
        await lock.lock(again)
        assert server_state.redis.pttl("orders") > 50_000
        await backend.sleep(WATCHDOG / 2)
        # The watchdog has looked at it, if it was asked to.
        assert server_state.redis.pttl("orders") > 50_000
        await lock.unlock()
        assert server_state.redis.pttl("orders") > 50_000
        assert await lock.is_held()
        assert not lock.lost.is_set()
        await lock.unlock()

    async def test_a_short_inner_hold_does_not_stop_the_renewal(self, backend: Backend) -> None:
        lock = backend.connect(lock_watchdog_timeout=WATCHDOG).get_lock("orders")
        await lock.lock()
        await lock.lock(0.1)
        await backend.sleep(0.2)
        assert await lock.get_hold_count() == 2
        await lock.unlock()
        await backend.sleep(WATCHDOG * 1.3)
        assert await lock.get_hold_count() == 1
        await lock.unlock()

    async def test_a_renewed_inner_hold_ends_its_renewal_with_itself(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        lock = backend.connect(lock_watchdog_timeout=1.5).get_lock("orders")
        await lock.lock(1)
        await lock.lock()
        await backend.sleep(2)
        assert await lock.get_hold_count() == 2
        await lock.unlock()
        assert await lock.is_held()
        await backend.until(lambda: not server_state.redis.exists("orders"))

    async def test_a_longer_inner_lease_counts(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_lock("orders")
        await lock.lock(1)
        await lock.lock(60)
        await lock.unlock()
        assert server_state.redis.pttl("orders") > 50_000
        await backend.sleep(1.05)
        assert await lock.is_held()
