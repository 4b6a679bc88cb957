"""What is said of owners, waiters and clients, where there are many."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson.inspection.model import AnnouncedHold, State
from pyredisson.inspection.states import LIMIT, MOST_LISTED
from pyredisson.testing import Server
from tests.support.backends import Backend
from tests.support.inspecting import announce, inspector, state_of
from tests.support.waiting import TIME_LIMIT

pytestmark = pytest.mark.asyncio

CLIENTS = [str(uuid.UUID(int=number)) for number in range(3)]


async def shown_with_queue(client: Any, redis: Any, limit: int) -> tuple[State, list[str]]:
    """The state of a lock with 200 waiters, all alive, and its queue.

    On a busy machine a waiter shows no sign of life now and then, and leaves the queue until its next attempt.
    """

    def queue() -> list[str]:
        return [name.decode() for name in redis.lrange("redisson_lock_queue:{orders}", 0, -1)]

    async with asyncio.timeout(TIME_LIMIT):
        while True:
            before = queue()
            [state], _ = await inspector(client).states([b"orders"], limit=limit)
            if len(before) == 200 and queue() == before and all(waiter.alive for waiter in state.waiters):
                return state, before
            await asyncio.sleep(0.05)


async def test_a_queue_of_200_waiters_of_three_clients(backend: Backend, server: Server, redis: Any) -> None:
    holder = backend.connect()
    lock = holder.get_fair_lock("orders")
    await lock.lock()
    clients = [pyredisson.asyncio.connect(server.url) for _ in range(3)]
    tasks = []
    try:
        for number in range(200):
            waiting = clients[number % 3].get_fair_lock("orders", owner=number)
            tasks.append(asyncio.create_task(waiting.lock()))
        state, in_queue = await shown_with_queue(holder, redis, limit=300)
        assert [waiter.owner.raw for waiter in state.waiters] == in_queue
        assert [waiter.place for waiter in state.waiters] == list(range(1, 201))
        assert {waiter.owner.holder.client_id for waiter in state.waiters} == {client.id for client in clients}
        assert {waiter.owner.holder.owner_id for waiter in state.waiters} == set(range(200))
        assert state.waiter_count == 200
        state, in_queue = await shown_with_queue(holder, redis, limit=LIMIT)
        assert [waiter.owner.raw for waiter in state.waiters] == in_queue[:100]
        assert state.waiter_count == 200
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()


async def test_waiters_that_have_left_or_are_silent(backend: Backend, redis: Any) -> None:
    waiters = [f"{client}:1" for client in CLIENTS]
    redis.hset("orders", f"{CLIENTS[0]}:9", 1)
    redis.rpush("redisson_lock_queue:{orders}", *waiters, "java:1")
    redis.zadd("redisson_lock_timeout:{orders}", dict.fromkeys(waiters[1:], 1))
    now = redis.time()[0] * 1000
    redis.hset("pyredisson_fair_waiters:{orders}", mapping={waiters[0]: -5, waiters[1]: 5, waiters[2]: 5})
    redis.zadd("pyredisson_fair_clients:{orders}", {CLIENTS[1]: 5, CLIENTS[2]: now + 100_000})
    state = await state_of(backend.connect(), "orders")
    assert [(waiter.owner.raw, waiter.place, waiter.alive, waiter.place_lasts) for waiter in state.waiters] == [
        (waiters[1], 1, False, 0),
        (waiters[2], 2, True, 0),
        ("java:1", 3, None, None),
    ]
    # The first one is silent.
    assert state.waiter_count == 2


async def test_many_readers(backend: Backend, redis: Any) -> None:
    redis.hset("orders", mapping={"mode": "read", **{f"{CLIENTS[0]}:{number}": 1 for number in range(3000)}})
    redis.pexpire("orders", 30_000)
    client = backend.connect()
    state = await state_of(client, "orders")
    assert (state.kind, state.owner_count, len(state.owners)) == ("read-write", 3000, 100)
    [state], _ = await inspector(client).states([b"orders"], limit=10 * MOST_LISTED)
    assert MOST_LISTED - 1 <= len(state.owners) <= MOST_LISTED
    assert len({owner.raw for owner in state.owners}) == len(state.owners)


async def test_many_permits(backend: Backend, redis: Any) -> None:
    redis.set("stock", 0)
    ends = redis.time()[0] * 1000 + 60_000
    redis.zadd("{stock}:timeout", {number.to_bytes(16, "big"): ends + number for number in range(300)})
    state = await state_of(backend.connect(), "stock")
    assert (state.owner_count, state.permits, state.free) == (300, 300, 0)
    assert [owner.raw for owner in state.owners] == [number.to_bytes(16, "big").hex() for number in range(100)]


async def test_many_objects(backend: Backend, redis: Any) -> None:
    """They are read in several batches, each in one write."""
    for number in range(250):
        redis.hset(f"lock-{number}", f"{CLIENTS[0]}:{number}", 1)
    keys = [b"lock-%d" % number for number in range(250)]
    known, failed = await inspector(backend.connect()).states(keys)
    assert [state.key for state in known] == keys
    assert [state.owners[0].holder.owner_id for state in known] == list(range(250))
    assert not failed


async def test_the_address_of_the_server(backend: Backend, server: Server) -> None:
    state = await state_of(backend.connect(), "orders")
    assert state.server == f"{server.host}:{server.port}"


async def test_a_name_that_is_no_text(backend: Backend, redis: Any) -> None:
    redis.hset(b"\xff{}", f"{CLIENTS[0]}:1", 1)
    state = await state_of(backend.connect(), b"\xff{}")
    assert (state.name, state.owner_count) == ("\\xff{}", 1)


async def test_clients(backend: Backend, redis: Any) -> None:
    announce(redis, CLIENTS[0], {"4294967296 cron: nightly": "fair", f"{'ab' * 16} stock": "permit"})
    announce(redis, CLIENTS[1], {f"{number} orders": "lock" for number in range(1000)}, more=90_000)
    redis.hset(f"pyredisson_client:{{{CLIENTS[2]}}}", "pid", "no number")
    client = backend.connect()
    one, many, odd = await inspector(client).clients([*CLIENTS, client.id])
    assert (one.id, one.name, one.host, one.pid) == (CLIENTS[0], "billing@web-3:812", "web-3", 812)
    assert (one.program, one.version) == ("billing", "0.2.0")
    assert (one.waits, one.waited, one.lost, one.hold_count) == (12, 8.311, 1, 2)
    assert one.since is not None
    assert one.since.timestamp() == pytest.approx(1_795_167_377.228)
    assert 20 < one.time_to_live <= 30
    since = one.holds[0].since
    assert since.timestamp() == pytest.approx(1_795_167_377.9)
    assert one.holds == (
        AnnouncedHold("fair", "cron: nightly", "4294967296", since),
        AnnouncedHold("permit", "stock", "ab" * 16, since),
    )
    assert (many.hold_count, len(many.holds)) == (91_000, 100)
    assert (odd.pid, odd.name, odd.since, odd.time_to_live) == (None, "", None, float("inf"))


async def test_no_script_is_known(backend: Backend, redis: Any) -> None:
    client = backend.connect()
    await state_of(client, "orders")
    redis.script_flush()
    redis.hset("orders", f"{CLIENTS[0]}:1", 1)
    known, failed = await inspector(client).states([b"orders", b"other"])
    assert [state.held for state in known] == [True, False]
    assert not failed


async def test_without_the_right_to_pubsub(backend: Backend, server: Server, redis: Any) -> None:
    """Only the number of waiting clients is unknown then."""
    redis.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">x", "~*", "+@all", "-pubsub")
    client = backend.connect(f"redis://reader:x@{server.host}:{server.port}")
    redis.hset("orders", f"{CLIENTS[0]}:1", 1)
    state = await state_of(client, "orders")
    assert (state.owner_count, state.waiting_clients) == (1, None)


async def test_without_a_right_that_is_needed(backend: Backend, server: Server, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">x", "~allowed", "~*{allowed}*", "+@all")
    client = backend.connect(f"redis://reader:x@{server.host}:{server.port}")
    known, failed = await inspector(client).states([b"allowed", b"other"])
    assert [state.name for state in known] == ["allowed"]
    assert [*failed] == [b"other"]
    assert "permission" in str(failed[b"other"])
