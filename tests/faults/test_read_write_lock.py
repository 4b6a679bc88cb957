"""The read-write lock under faults: lost replies, and waiters that give up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy, Server
from tests.support.faults import FLAGS, LOSSES, Lose
from tests.support.raw_backends import RawBackend
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio

READ, LEAVE, WRITE, STOP = (
    script(name, with_shebang=FLAGS).sha for name in ("read_acquire", "read_release", "write_acquire", "write_release")
)
SIDES = pytest.mark.parametrize(("side", "acquire", "release"), [("read", READ, LEAVE), ("write", WRITE, STOP)])


def side_of(client: Any, side: str, owner: int | None = None) -> Any:
    pair = client.get_read_write_lock("a", owner=owner)
    return pair.read_lock() if side == "read" else pair.write_lock()


def holds(admin: Redis) -> list[bytes]:
    found: Any = admin.hvals("a")
    return [value for value in found if value.isdigit()]


@LOSSES
@SIDES
async def test_calls_whose_replies_are_lost_count_once(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose, side: str, acquire: bytes, release: bytes
) -> None:
    lock = side_of(backend.connect(proxy.url, timeout=0.8), side)
    for count in (1, 2):
        fault = lose(proxy, acquire)
        await backend.do(lock.lock())
        assert fault.happened.is_set()
        assert await backend.do(lock.get_hold_count()) == count
        assert holds(admin) == [b"%d" % count]
    for count in (1, 0):
        fault = lose(proxy, release)
        await backend.do(lock.unlock())
        assert fault.happened.is_set()
        assert holds(admin) == ([b"1"] if count else [])
    assert admin.keys() == []


@LOSSES
async def test_a_writer_reads_whatever_was_lost_before(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose
) -> None:
    """A loss gives the owner another name; the write side keeps the one that it was taken under."""
    client = backend.connect(proxy.url, timeout=0.8)
    write, read = side_of(client, "write"), side_of(client, "read")
    lose(proxy, WRITE)
    await backend.do(write.lock())
    lose(proxy, READ)
    assert await backend.do(read.try_lock()) is True
    assert await backend.do(read.try_lock()) is True
    assert sorted(holds(admin)) == [b"1", b"2"]
    lose(proxy, STOP)
    await backend.do(write.unlock())
    assert admin.hget("a", "mode") == b"read"
    for _ in range(2):
        await backend.do(read.unlock())
    assert admin.keys() == []


@SIDES
async def test_an_undone_acquire_leaves_what_the_owner_holds(
    proxy: Proxy, admin: Redis, side: str, acquire: bytes, release: bytes
) -> None:
    async with pyredisson.asyncio.connect(proxy.url) as client:
        lock = side_of(client, side, 1)
        await lock.lock()
        late = proxy.hold_reply(acquire)
        task = asyncio.ensure_future(lock.lock())
        assert await asyncio.to_thread(late.held.wait, 5)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.to_thread(eventually, lambda: holds(admin) == [b"1"], 5)
        late.deliver()
        assert await lock.get_hold_count() == 1
        await lock.unlock()
        assert admin.keys() == []


@pytest.mark.parametrize("side", ["read", "write"])
async def test_cancelled_at_any_turn_it_leaves_no_key(proxy: Proxy, admin: Redis, side: str) -> None:
    other = "write" if side == "read" else "read"
    async with pyredisson.asyncio.connect(proxy.url) as client:
        holder, lock = side_of(client, other, 1), side_of(client, side, 2)
        for turns in range(40):
            await holder.lock()
            waiter = asyncio.ensure_future(lock.lock())
            # Half of them are struck while the release is on its way to them.
            release = asyncio.ensure_future(holder.unlock()) if turns % 2 else None
            for _ in range(turns):
                await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
            await (release or holder.unlock())
            if not waiter.cancelled():
                await lock.unlock()
            await asyncio.to_thread(eventually, lambda: admin.keys() == [], 5)
            assert not client._session.holds.table
        assert not any(channel.waiters for channel in client._session.channels.by_name.values())


async def test_a_server_that_forgot_everything_is_noticed(backend: RawBackend, admin: Redis, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, lock_watchdog_timeout=0.9)
    read, write = side_of(client, "read", 1), side_of(client, "write", 1)
    await backend.do(write.lock())
    await backend.do(read.lock())
    admin.flushall()
    assert await backend.do(read.lost.wait(5)) is True
    assert await backend.do(write.lost.wait(5)) is True
    # The next owner is not disturbed by a late release.
    await backend.do(side_of(backend.connect(proxy.url), "write").lock())
    for lock in (read, write):
        with pytest.raises(pyredisson.LockLostError):
            await backend.do(lock.unlock())
    assert holds(admin) == [b"1"]


async def test_the_rights_in_the_readme_are_enough() -> None:
    rights = (
        "app on >secret resetchannels ~a* ~{a}* ~pyredisson_rwlock_* &redisson_rwlock:* +hello +ping +select "
        "+client +info +eval +evalsha +hset +hget +hkeys +hexists +exists +del +pttl +pexpire +publish +subscribe "
        "+unsubscribe +hdel +hgetall +hlen +hrandfield +set +get"
    )
    with Server(users=[rights]) as server:
        url = f"redis://app:secret@{server.host}:{server.port}/0"
        with pyredisson.connect(url, lock_watchdog_timeout=1.5) as client, server.redis() as admin:
            read, write = (side_of(client, side, 1) for side in ("read", "write"))
            with write, read:
                assert read.is_locked()
                assert not side_of(client, "read", 2).try_lock(0.1)
                # Long enough for the watchdog's visit.
                assert not read.lost.wait(2)
                write.lock()
                write.unlock()
            with read:
                side_of(client, "read", 2).lock()
                assert not side_of(client, "write", 3).try_lock(0.1)
                side_of(client, "read", 2).unlock()
            assert not read.force_unlock()
            assert admin.keys() == []
            assert admin.acl_log() == []
