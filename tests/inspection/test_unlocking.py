"""A hold that was shown is released as by its holder: its waiters wake, and nobody else's hold is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyredisson.holder import Holder
from pyredisson.inspection.model import Owner, State
from pyredisson.inspection.unlocking import release_shown
from pyredisson.testing import Server
from tests.support.backends import Backend
from tests.support.inspecting import announce, inspector, listed, session_of, state_of
from tests.support.kinds import KINDS

from .conftest import on_every_server

pytestmark = pytest.mark.asyncio


LOCKS = ("lock", "fair", "fenced", "spin", "read", "write")


async def shown(client: Any, name: str = "orders", raw: str = "") -> tuple[State, Owner]:
    """The state, and its first owner or the one that is named."""
    state = await state_of(client, name)
    return state, next(each for each in state.owners if each.raw.startswith(raw))


@pytest.mark.parametrize("kind", LOCKS)
@on_every_server
async def test_a_waiter_is_woken(backend: Backend, server: Server, redis: Any, kind: str) -> None:
    holder, other, admin = (backend.connect() for _ in range(3))
    lock = KINDS[kind](holder, "orders")
    await lock.lock()
    await lock.lock()
    state, owner = await shown(admin)

    async def wait() -> bool:
        # A writer waits for a reader; else the same kind excludes its holder.
        waiting = KINDS["write" if kind == "read" else kind](other, "orders")
        return bool(await waiting.try_lock(wait_time=10))

    waiter = backend.spawn(wait)
    while kind != "spin" and not (state.waiters or state.waiting_clients):
        await backend.sleep(0.005)
        state, owner = await shown(admin)
    assert not waiter.done()
    assert await release_shown(session_of(admin), state, owner)
    assert await waiter.result()
    # The other one holds it now.
    assert not await release_shown(session_of(admin), state, owner)
    state = await state_of(admin, "orders")
    assert {each.holder.client_id for each in state.owners} == {other.id}


@pytest.mark.parametrize("kind", LOCKS[:4])
async def test_a_lock_whose_holder_has_announced_the_kind(backend: Backend, redis: Any, kind: str) -> None:
    client = backend.connect()
    redis.hset("or ders", f"{client.id}:{2**32}", 1)
    announce(redis, client.id, {f"{2**32} or ders": kind})
    state = (await listed(client))["or ders"]
    assert (state.kind, state.certain) == (kind, True)
    [owner] = state.owners
    assert (owner.holder.client_name, owner.holder.host, owner.holder.pid) == ("billing@web-3:812", "web-3", 812)
    assert owner.holder.since is not None
    assert owner.holder.since.timestamp() == pytest.approx(1_795_167_377.9)
    assert owner.holder.foreign is False
    assert await release_shown(session_of(client), state, owner)
    assert not redis.exists("or ders")


async def test_one_of_several(backend: Backend) -> None:
    one, two, admin = (backend.connect() for _ in range(3))
    for client in (one, two):
        await KINDS["read"](client, "orders").lock()
    assert await release_shown(session_of(admin), *await shown(admin, raw=one.id))
    assert [each.holder.client_id for each in (await state_of(admin, "orders")).owners] == [two.id]
    semaphore = one.get_permit_expirable_semaphore("stock")
    await semaphore.try_set_permits(2)
    first, second = await semaphore.acquire(), await semaphore.acquire()
    permit = await shown(admin, "stock", first)
    assert [await release_shown(session_of(admin), *permit) for _ in range(2)] == [True, False]
    state = await state_of(admin, "stock")
    assert ([each.raw for each in state.owners], state.free) == ([second], 1)


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
