"""Names on the server, which Redisson shares: keys, channels and owners; explicit owners, and several calls of one."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

import pyredisson
from pyredisson import LockAlreadyHeldError, LockNotHeldError, new_owner
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, TIME_LIMIT, Backend
from tests.support.server_state import ServerState
from tests.support.waiting import waiters

pytestmark = pytest.mark.asyncio
MANY = 20_000


async def test_owners_are_distinguished(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    fresh, other = new_owner(), new_owner()
    assert len({fresh, other, fresh}) == 2
    assert 2**48 <= fresh.id < other.id < 2**62
    assert repr(fresh) == f"<pyredisson.ExplicitOwner {fresh.id}>"
    owners: list[Any] = [fresh, other, "alice", "7", "07", 7]
    locks = [client.get_lock("orders", owner=owner) for owner in owners]
    for owner, lock in zip(owners, locks, strict=True):
        await lock.lock()
        assert [await lock.is_held_by(each) for each in owners] == [each is owner for each in owners]
        assert await lock.is_held_by(fresh.id) == (owner is fresh)
        for another in {client.get_lock("orders"), *locks} - {lock}:
            assert not await another.try_lock()
            with pytest.raises(LockNotHeldError):
                await another.unlock()
        # Ids on the server are decimal.
        [(client_id, _, number)] = [name.partition(":") for name in server_state.holds("orders")]
        assert client_id == client.id
        assert not isinstance(owner, str) or 2**62 <= int(number) < 2**63
        assert owner is not fresh or int(number) == fresh.id
        await lock.unlock()


async def test_owners_that_are_kept_in_memory(backend: Backend) -> None:
    """A question makes no owner."""
    client = backend.connect()
    lock = client.get_lock("orders", owner=1)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(MANY):
        await lock.is_held_by(2 + number)
    gc.collect()
    assert sys.getallocatedblocks() - before < MANY / 2
    known = client._session.owners._explicit
    assert len(known) == 1
    # Owners are forgotten with their handles.
    handles = [client.get_lock("orders", owner=2 + number) for number in range(1000)]
    assert len(known) == 1001
    del handles
    for number in range(MANY):
        client.get_lock("orders", owner=f"request {number}")
    assert len(known) == 1


async def test_a_hold_outlives_its_handle(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    for count in ("1", "2"):
        await client.get_lock("orders", owner="alice").lock()
        gc.collect()
        assert list(server_state.holds("orders").values()) == [count]
    for _ in range(2):
        await client.get_lock("orders", owner="alice").unlock()
    assert not server_state.holds("orders")
    gc.collect()
    assert not client._session.owners._explicit


@pytest.mark.parametrize("owner", [7, "alice"])
async def test_no_name_in_doubt_recurs(backend: Backend, proxy: Proxy, server_state: ServerState, owner: Any) -> None:
    """Also when the owner was forgotten meanwhile: a late copy of the command must not meet a later hold."""
    client = backend.connect(proxy.url, timeout=0.5)
    proxy.drop_reply(b"orders")
    names: set[str] = set()
    for _ in range(3):
        await client.get_lock("orders", owner=owner).lock()
        async with client.get_lock("stock", owner=owner):
            names.update(server_state.holds("stock"))
        await client.get_lock("orders", owner=owner).unlock()
        gc.collect()  # the error that told of the doubt refers to the call
        assert not client._session.owners._explicit
    assert len(names) == 3
    assert client._session.id + ":7" not in names


async def test_threads_that_make_the_same_owner_at_once_get_one() -> None:
    with pyredisson.connect(NOWHERE) as client:
        made: list[list[Any]] = [[] for _ in range(4)]
        begin = threading.Barrier(4)

        def make_owners(mine: list[Any]) -> None:
            begin.wait(5)
            mine.extend(client.get_lock("orders", owner=number)._owner() for number in range(2000))

        threads = [threading.Thread(target=make_owners, args=(mine,)) for mine in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for same in zip(*made, strict=True):
            assert len(set(map(id, same))) == 1


async def outcome(call: Callable[[], Awaitable[None]]) -> str:
    try:
        await call()
    except LockAlreadyHeldError:
        return "refused"
    return "taken"


async def test_a_waiter_that_is_refused_leaves_the_hold_alone(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    holder, lock = client.get_lock("orders", owner=1), client.get_non_reentrant_lock("orders", owner=7)
    await holder.lock()
    others = [backend.spawn(lambda: outcome(lock.lock)) for _ in range(3)]
    await backend.until(lambda: waiters(client, "orders") == 3)
    await holder.unlock()
    await backend.until(lambda: any(other.done() for other in others))
    # The others are woken one by one, by messages that mean nothing.
    for _ in range(2):
        server_state.redis.publish("redisson_lock__channel:{orders}", "0")
    assert sorted([await other.result() for other in others]) == ["refused", "refused", "taken"]
    assert await lock.get_hold_count() == 1
    assert list(server_state.holds("orders").values()) == ["1"]
    await lock.unlock()


@pytest.mark.parametrize("kind", ["get_lock", "get_non_reentrant_lock"])
async def test_no_level_is_released_twice(threads: Backend, proxy: Proxy, server_state: ServerState, kind: str) -> None:
    lock = getattr(threads.connect(proxy.url), kind)("orders", owner=7)
    await lock.lock()
    slow = proxy.hold_reply(b"orders")
    other = threads.spawn(lock.unlock)
    assert slow.held.wait(TIME_LIMIT)
    await threads.until(lambda: not server_state.redis.exists("orders"))
    again = threads.spawn(lock.try_lock)
    slow.deliver()
    await other.result()
    assert await again.result() is True
    assert await lock.is_held()
    await lock.unlock()
    with pytest.raises(LockNotHeldError):
        await lock.unlock()


NAMES: list[tuple[str | bytes, bytes, bytes]] = [
    ("foo", b"foo", b"redisson_lock__channel:{foo}"),
    ("{t}foo", b"{t}foo", b"redisson_lock__channel:{t}foo"),
    ("a b", b"a b", b"redisson_lock__channel:{a b}"),
    ("a}b", b"a}b", b"redisson_lock__channel:{a}b}"),
    ("a{b", b"a{b", b"redisson_lock__channel:a{b"),
    ("'\"\r\n", b"'\"\r\n", b"redisson_lock__channel:{'\"\r\n}"),
    ("Schlüssel☃", "Schlüssel☃".encode(), "redisson_lock__channel:{Schlüssel☃}".encode()),
    (b"\x00\xff", b"\x00\xff", b"redisson_lock__channel:{\x00\xff}"),
    (b"foo", b"foo", b"redisson_lock__channel:{foo}"),
]


@pytest.mark.parametrize("mapped", [False, True])
async def test_keys_and_channels(backend: Backend, server_state: ServerState, mapped: bool) -> None:
    """Any client hears every lock's messages."""
    client = backend.connect(name_mapper=(lambda name: f"{{t}}foo:{name}") if mapped else None)
    names = [(name, b"{t}foo:orders", b"redisson_lock__channel:{t}foo:orders") for name in ("orders", b"orders")]
    with server_state.redis.pubsub() as ear:
        ear.psubscribe("*")
        assert ear.get_message(timeout=TIME_LIMIT)["type"] == "psubscribe"
        for name, key, channel in names if mapped else NAMES:
            lock = client.get_lock(name)
            assert lock.name == name
            assert type(lock.name) is type(name)
            await lock.lock()
            assert server_state.redis.keys() == [key]
            await lock.unlock()
            message = ear.get_message(timeout=TIME_LIMIT)
            assert (message["channel"], message["data"]) == (channel, b"0")
            assert server_state.redis.keys() == []


async def test_the_hash(backend: Backend, server_state: ServerState) -> None:
    """Threads' and tasks' own ids are used again as soon as they have ended; those of owners are not."""
    client = backend.connect()
    assert client.id == str(UUID(client.id))
    assert UUID(client.id).version == 4
    found = set()
    for number in range(20):
        await backend.as_another_owner(client.get_lock(f"orders{number}").lock)
        assert server_state.redis.type(f"orders{number}") == b"hash"
        [(owner, holds)] = server_state.holds(f"orders{number}").items()
        assert re.fullmatch(re.escape(client.id) + r":[0-9]+", owner)
        assert int(owner.rpartition(":")[2]) >= 2**32
        assert holds == "1"
        found.add(owner)
    assert len(found) == 20
    for explicit in (0, 2**32 - 1):
        async with client.get_lock("explicit", owner=explicit):
            assert server_state.holds("explicit") == {f"{client.id}:{explicit}": "1"}
