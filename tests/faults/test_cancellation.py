"""A cancelled asyncio acquire leaves no key, whichever await the cancellation hits."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from redis import Redis

import pyredisson.asyncio
from pyredisson import LockLostError
from pyredisson._core import ReleaseCall
from pyredisson.asyncio import Client
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import ACQUIRE, RELEASE
from tests.support.waiting import cancel_after, eventually

pytestmark = pytest.mark.asyncio
STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    async with pyredisson.asyncio.connect(proxy.url, lock_watchdog_timeout=30) as running:
        yield running


async def nothing_left(admin: Redis, client: Client, name: str) -> None:
    await asyncio.to_thread(eventually, lambda: not admin.exists(name), 5)
    assert not [hold for hold in client._session.holds.table.values() if hold.key[0] == name.encode()]


@pytest.mark.parametrize("connected", [True, False])
async def test_cancelled_at_any_turn_of_the_loop_it_leaves_no_key(proxy: Proxy, admin: Redis, connected: bool) -> None:
    struck = taken = 0
    for turns in range(STEPS):
        async with pyredisson.asyncio.connect(proxy.url) as client:
            if connected:
                await client.get_lock("other").is_locked()
            # Twice as late from some turn on: real input and output come between the turns.
            task = asyncio.ensure_future(take_and_end(client, "a", 2e-4 * max(0, turns - 20)))
            if await cancel_after(turns, task):
                struck += 1
            else:
                taken += 1
            await nothing_left(admin, client, "a")
    assert struck


async def take_and_end(client: Client, name: str, seconds: float) -> None:
    """A user's block, that lasts `seconds`."""
    async with client.get_lock(name):
        await asyncio.sleep(seconds)


async def test_cancelled_at_any_turn_of_a_contended_wait_it_leaves_no_key(client: Client, admin: Redis) -> None:
    holder = client.get_lock("a", owner=1)
    for turns in range(STEPS):
        await holder.lock()
        waiter = asyncio.ensure_future(take_and_end(client, "a", 0))
        # Half of them are struck while the release is on its way to them.
        release = asyncio.ensure_future(holder.unlock()) if turns % 2 else None
        struck = await cancel_after(turns, waiter)
        assert struck or release is not None
        await (release or holder.unlock())
        await nothing_left(admin, client, "a")
        assert not any(channel.waiters for channel in client._session.channels.by_name.values())


async def test_cancelled_while_its_request_is_held_up_it_leaves_no_key(
    client: Client, proxy: Proxy, admin: Redis
) -> None:
    lock = client.get_lock("a")
    await lock.is_locked()
    late = proxy.hold_request(ACQUIRE)
    task = asyncio.ensure_future(lock.lock())
    assert await asyncio.to_thread(late.held.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(late.deliver)
    await nothing_left(admin, client, "a")


async def test_cancelled_while_its_reply_is_held_up_it_leaves_no_key(
    client: Client, proxy: Proxy, admin: Redis
) -> None:
    lock = client.get_lock("a")
    await lock.is_locked()
    late = proxy.hold_reply(ACQUIRE)
    task = asyncio.ensure_future(lock.lock())
    assert await asyncio.to_thread(late.held.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_left(admin, client, "a")
    late.deliver()
    # The reply that nobody waits for any more is no other call's.
    assert await lock.is_locked() is False
    assert await lock.remain_time_to_live() is None


async def test_cancelled_and_then_cut_off_it_leaves_no_key(client: Client, proxy: Proxy, admin: Redis) -> None:
    """The release that undoes it is lost with the connection, and sent again by another."""
    lock = client.get_lock("a")
    await lock.is_locked()
    late = proxy.hold_reply(ACQUIRE)
    proxy.cut_request(RELEASE)
    task = asyncio.ensure_future(lock.lock())
    assert await asyncio.to_thread(late.held.wait, 5)
    assert admin.exists("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_left(admin, client, "a")


async def test_a_cancelled_reentrant_acquire_keeps_the_outer_hold(client: Client, proxy: Proxy, admin: Redis) -> None:
    lock = client.get_lock("a", owner=7)
    await lock.lock()
    for turns in range(STEPS):
        if not await cancel_after(turns, asyncio.ensure_future(client.get_lock("a", owner=7).lock())):
            await lock.unlock()
        await asyncio.to_thread(eventually, lambda: admin.hvals("a") == [b"1"], 5)
        assert await lock.get_hold_count() == 1
    await lock.unlock()
    assert not admin.exists("a")


async def test_a_cancelled_release_is_done_all_the_same(client: Client, admin: Redis) -> None:
    for turns in range(STEPS):
        lock = client.get_lock("a", owner=turns)
        await lock.lock()
        await cancel_after(1 + turns % 8, asyncio.ensure_future(started(lock)))
        await nothing_left(admin, client, "a")


async def test_a_release_in_the_background_reaches_a_hold_above_a_lost_one(client: Client, admin: Redis) -> None:
    """Both have the same name on the server."""
    lock, holds = client.get_lock("a", owner=7), client._session.holds
    await lock.lock()
    admin.delete("a")
    [lost] = holds.table.values()
    holds.declare_lost(lost)
    await lock.lock()
    [hold] = holds.table.values()
    lock._logic.release_in_background(lock._owner(), hold, ReleaseCall())
    await asyncio.to_thread(eventually, lambda: not admin.exists("a"))
    with pytest.raises(LockLostError):
        await lock.unlock()


async def started(lock: pyredisson.asyncio.Lock) -> None:
    """A task, as its first turn is what can be cancelled: one that never ran has not called `unlock`."""
    await lock.unlock()


async def test_a_wait_cut_short_by_a_timeout_leaves_no_key(client: Client, admin: Redis) -> None:
    holder = client.get_lock("a", owner=1)
    await holder.lock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.get_lock("a").lock()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.get_lock("a").lock(), 0.05)
    await holder.unlock()
    await nothing_left(admin, client, "a")


LOOP_THAT_ENDS = """
import asyncio, sys
import pyredisson.asyncio

async def stop_halfway():
    client = pyredisson.asyncio.connect(sys.argv[1])
    await client.get_lock("a").is_locked()
    begun.append(asyncio.ensure_future(client.get_lock("a").lock()))
    await asyncio.sleep(0)
    return client

begun = []
client = asyncio.run(stop_halfway())
print("loop ended", flush=True)
sys.stdin.readline()
"""


async def test_a_loop_that_ends_in_the_middle_of_an_acquire_leaves_no_key(
    proxy: Proxy, admin: Redis, child: Callable[..., Child]
) -> None:
    """asyncio.run cancels what is left and closes the loop: nobody is there to wait for a reply."""
    proxy.hold_reply(ACQUIRE)
    user = child(LOOP_THAT_ENDS, proxy.url)
    assert user.receive() == "loop ended"
    proxy.wait_for(ACQUIRE)
    proxy.wait_for(RELEASE)
    # The process must live: its end would release everything.
    eventually(lambda: not admin.exists("a"), 5)


@pytest.mark.parametrize("steps", range(12))
async def test_a_close_at_any_moment_of_connecting_leaves_no_connection(
    server: Server, admin: Redis, steps: int
) -> None:
    """A transport that nobody closes is a ResourceWarning, which is an error here; the server counts it, too."""
    client = pyredisson.asyncio.connect(server.url, client_name="halfway")
    asking = asyncio.ensure_future(client.get_lock("a").is_locked())
    for _ in range(steps):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await client.close()
    gc.collect()
    eventually(lambda: not [peer for peer in admin.client_list() if peer["name"] == "halfway"])
