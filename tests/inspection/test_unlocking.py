"""A hold that was shown is released as by its holder: its waiters wake, and nobody else's hold is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyredisson.errors import LockLostError
from pyredisson.holder import Holder
from pyredisson.inspection.model import Owner, State
from pyredisson.inspection.unlocking import release_shown
from pyredisson.testing import Server
from tests.support.backends import Backend
from tests.support.inspecting import announce, inspector, session_of, state_of

from .servers import on_every_server

pytestmark = pytest.mark.asyncio


def lock_of(client: Any, kind: str) -> Any:
    match kind:
        case "read":
            return client.get_read_write_lock("orders").read_lock()
        case "write":
            return client.get_read_write_lock("orders").write_lock()
        case _:
            return getattr(client, f"get_{kind}_lock".replace("_plain", ""))("orders")


KINDS = ("plain", "fair", "fenced", "spin", "read", "write")


async def shown(client: Any) -> tuple[State, Owner]:
    state = await state_of(client, "orders")
    return state, state.owners[0]


async def waits(client: Any) -> bool:
    """Whether anybody waits for the lock."""
    state = await state_of(client, "orders")
    return bool(state.waiters or state.waiting_clients)


@pytest.mark.parametrize("kind", KINDS)
class TestLocks:
    @on_every_server
    async def test_a_waiter_is_woken(self, backend: Backend, server: Server, redis: Any, kind: str) -> None:
        holder, other, admin = (backend.connect() for _ in range(3))
        lock = lock_of(holder, kind)
        await lock.lock()
        await lock.lock()
        state, owner = await shown(admin)

        async def wait() -> bool:
            # A writer waits for a reader; else the same kind excludes its holder.
            waiting = lock_of(other, "write" if kind == "read" else kind)
            return bool(await waiting.try_lock(wait_time=10))

        waiter = backend.spawn(wait)
        while kind != "spin" and not await waits(admin):
            await backend.sleep(0.005)
        assert not waiter.done()
        assert await release_shown(session_of(admin), state, owner)
        assert await waiter.result()
        # The other one holds it now.
        assert not await release_shown(session_of(admin), state, owner)
        state = await state_of(admin, "orders")
        assert {each.holder.client_id for each in state.owners} == {other.id}

    async def test_the_holder_finds_out(self, backend: Backend, kind: str) -> None:
        holder, admin = backend.connect(lock_watchdog_timeout=3.0), backend.connect()
        lock = lock_of(holder, kind)
        await lock.lock()
        state, owner = await shown(admin)
        assert await release_shown(session_of(admin), state, owner)
        await backend.until(lock.lost.is_set)
        with pytest.raises(LockLostError):
            await lock.unlock()


async def test_a_fair_lock_whose_holder_has_announced_it(backend: Backend, redis: Any) -> None:
    holder, admin = backend.connect(), backend.connect()
    lock = holder.get_fair_lock("orders")
    await lock.lock()
    [field] = redis.hkeys("orders")
    announce(redis, holder.id, {f"{field.decode().partition(':')[2]} orders": "fair"})
    state, owner = await shown(admin)
    assert (state.kind, state.certain) == ("fair", True)
    assert await release_shown(session_of(admin), state, owner)
    assert not redis.exists("orders")


async def test_one_of_two_readers(backend: Backend, redis: Any) -> None:
    one, two, admin = (backend.connect() for _ in range(3))
    for client in (one, two):
        await lock_of(client, "read").lock()
    state = await state_of(admin, "orders")
    owner = next(each for each in state.owners if each.holder.client_id == one.id)
    assert await release_shown(session_of(admin), state, owner)
    state = await state_of(admin, "orders")
    assert [each.holder.client_id for each in state.owners] == [two.id]


async def test_a_permit(backend: Backend) -> None:
    client, admin = backend.connect(), backend.connect()
    semaphore = client.get_permit_expirable_semaphore("stock")
    await semaphore.try_set_permits(2)
    one, two = await semaphore.acquire(), await semaphore.acquire()
    state = await state_of(admin, "stock")
    owner = next(each for each in state.owners if each.raw == one)
    assert await release_shown(session_of(admin), state, owner)
    assert not await release_shown(session_of(admin), state, owner)
    state = await state_of(admin, "stock")
    assert ([each.raw for each in state.owners], state.free) == ([two], 1)


async def test_what_has_no_holds_of_its_own(backend: Backend, redis: Any) -> None:
    client = backend.connect()
    redis.set("stock", 1)
    state, owner = replace(await state_of(client, "stock"), kind="semaphore"), Owner("x", Holder(), id=b"x")
    with pytest.raises(ValueError, match="can't be released one by one"):
        await release_shown(session_of(client), state, owner)


async def test_the_inspector_changes_nothing(backend: Backend, redis: Any) -> None:
    client = backend.connect()
    lock = client.get_fair_lock("orders")
    await lock.lock()
    before = {key: redis.dump(key) for key in redis.keys("*")}
    await inspector(client).states([b"orders", b"other"])
    assert {key: redis.dump(key) for key in redis.keys("*")} == before
