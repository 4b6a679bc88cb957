"""What is said of owners, waiters and clients, where there are many."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from pyredisson.inspection.model import AnnouncedHold
from pyredisson.inspection.states import LIMIT, MOST_LISTED
from pyredisson.testing import Server
from tests.support.backends import Backend
from tests.support.inspecting import announce, inspector, state_of

pytestmark = pytest.mark.asyncio

CLIENTS = [str(uuid.UUID(int=number)) for number in range(3)]


async def test_a_queue_of_200_waiters_of_three_clients(backend: Backend, redis: Any) -> None:
    queue = [f"{CLIENTS[number % 3]}:{number}" for number in range(200)]
    redis.hset("orders", f"{CLIENTS[0]}:200", 1)
    redis.rpush("redisson_lock_queue:{orders}", *queue)
    redis.hset("pyredisson_fair_waiters:{orders}", mapping=dict.fromkeys(queue, 9 * 10**12))
    redis.zadd("pyredisson_fair_clients:{orders}", dict.fromkeys(CLIENTS, 9 * 10**12))
    [state], _ = await inspector(backend.connect()).states([b"orders"], limit=300)
    assert [waiter.owner.raw for waiter in state.waiters] == queue
    assert [waiter.place for waiter in state.waiters] == list(range(1, 201))
    holders = [waiter.owner.holder for waiter in state.waiters]
    assert [f"{holder.client_id}:{holder.owner_id}" for holder in holders] == queue
    assert all(waiter.alive for waiter in state.waiters)
    assert state.waiter_count == 200
    [state], _ = await inspector(backend.connect()).states([b"orders"], limit=LIMIT)
    assert [waiter.owner.raw for waiter in state.waiters] == queue[:100]
    assert state.waiter_count == 200


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


async def test_a_name_that_is_no_text(backend: Backend, server: Server, redis: Any) -> None:
    redis.hset(b"\xff{}", f"{CLIENTS[0]}:1", 1)
    state = await state_of(backend.connect(), b"\xff{}")
    assert (state.name, state.owner_count, state.server) == ("\\xff{}", 1, f"{server.host}:{server.port}")


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


async def test_without_rights(backend: Backend, server: Server, redis: Any) -> None:
    """Without PUBSUB only the number of waiting clients is unknown. What can't be read is named."""
    redis.execute_command(
        "ACL", "SETUSER", "reader", "reset", "on", ">x", "~allowed", "~*{allowed}*", "+@all", "-pubsub"
    )
    client = backend.connect(f"redis://reader:x@{server.host}:{server.port}")
    redis.hset("allowed", f"{CLIENTS[0]}:1", 1)
    known, failed = await inspector(client).states([b"allowed", b"other"])
    assert [(state.name, state.owner_count, state.waiting_clients) for state in known] == [("allowed", 1, None)]
    assert [*failed] == [b"other"]
    assert "permission" in str(failed[b"other"])
