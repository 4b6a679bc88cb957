"""Clients: their identity, and what closing a client does to its locks and waiters."""

from __future__ import annotations

import time

import pytest

from pyredisson import ClosedError
from tests.support.backends import NOWHERE, WOKEN, Backend
from tests.support.kinds import KINDS
from tests.support.server_state import ServerState

from .kinds import GROUPS, kinds, left, lock_of, one_waits

pytestmark = pytest.mark.asyncio


async def test_every_client_has_an_id(backend: Backend) -> None:
    one, other = backend.connect(), backend.connect()
    assert one.id != other.id
    assert one.id == one.id
    assert one.id in repr(one)


async def test_closing_it(backend: Backend) -> None:
    async with backend.connect() as client:
        assert client.closed is False
        assert await client.get_lock("orders").try_lock()
    assert client.closed is True
    await client.close()
    assert client.closed
    # One that never talked.
    started = time.monotonic()
    await backend.connect(NOWHERE).close()
    assert time.monotonic() - started < WOKEN


async def test_nothing_works_in_a_closed_client(backend: Backend) -> None:
    client = backend.connect()
    lock = client.get_lock("orders")
    await lock.lock()
    await client.close()
    for call in (
        *(lock.lock, lock.try_lock, lock.acquire, lock.unlock, lock.release, lock.force_unlock, lock.delete),
        *(lock.is_locked, lock.locked, lock.is_held, lock.is_held_by_current_thread, lambda: lock.is_held_by(1)),
        *(lock.get_hold_count, lock.remain_time_to_live),
        *(lock.__aenter__, lock.hold().__aenter__, lock.hold(wait_time=1).__aenter__),
    ):
        with pytest.raises(ClosedError, match=client.id):
            await call()
    with pytest.raises(RuntimeError):
        await client.get_lock("orders").lock()


async def test_closing_releases_held_locks(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    for kind in [*KINDS, *GROUPS]:
        await lock_of(client, kind, kind).lock()
    await lock_of(client, "lock", "lock").lock()
    await client.get_lock("stock", owner=1).lock(60)
    # Waiters of another client are notified.
    waiting = [await one_waits(backend, client, kind, backend.connect(), f"{kind}:2") for kind in ("lock", "fair")]
    await client.close()
    for _, _, other in waiting:
        await other.result()
    assert left(server_state.redis) == {"lock:2", "fair:2", "redisson_lock_token:{fenced}"}


async def test_closing_does_not_touch_what_others_hold(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    await client.get_lock("orders").lock(60)
    server_state.redis.delete("orders")
    server_state.redis.hset("orders", "somebody:1", 1)
    await client.close()
    assert server_state.holds("orders") == {"somebody:1": "1"}


@kinds
async def test_waiters_are_notified_at_once(backend: Backend, kind: str) -> None:
    client = backend.connect()
    _, _, other = await one_waits(backend, backend.connect(), kind, client)

    async def enter() -> None:
        async with lock_of(client, kind).hold(60):
            pytest.fail("got what another one holds")

    another = backend.spawn(enter)
    started = time.monotonic()
    await client.close()
    for waiter in (other, another):
        with pytest.raises(ClosedError, match="closed"):
            await waiter.result()
    assert time.monotonic() - started < WOKEN


async def test_no_connection_remains(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect(client_name="to-be-closed", lock_watchdog_timeout=0.9)
    ours = [client.get_lock("orders", owner=owner) for owner in (1, 2)]
    await ours[0].lock()
    assert not await ours[1].try_lock(wait_time=0.2)

    def connections() -> int:
        return sum(entry["name"] == "to-be-closed" for entry in server_state.redis.client_list())

    await backend.until(lambda: connections() >= 2)
    await client.close()
    await backend.until(lambda: connections() == 0)
