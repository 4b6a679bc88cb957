"""A cancelled asyncio call leaves no lock and no permit taken, whichever await the cancellation hits."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from pyredisson import LockLostError
from pyredisson._core import ReleaseCall
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT
from tests.support.kinds import LOCKS
from tests.support.raw_backends import RawBackend
from tests.support.waiting import cancel_after, eventually

from .kinds import KINDS, Start, Used, excluding, kinds, prepare, sha, taken

pytestmark = pytest.mark.asyncio
STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""


def used(tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str, owner: int | None = 1) -> Used:
    prepare(admin, kind)
    return Used(tasks, tasks.connect(proxy.url), kind, owner)


async def whole(admin: Redis, one: Used, levels: int = 0) -> None:
    """So much is taken, and that doesn't change any more."""
    backend, client = one.backend, one.client
    await backend.until(lambda: taken(admin, one.kind) == levels * one.each, 5)
    # All that was posted has run, as it came before this.
    await one.connect()
    assert taken(admin, one.kind) == levels * one.each
    assert levels or one.knows_nothing()
    assert client._session.permits.in_doubt == {}


async def use(one: Used, seconds: float) -> None:
    """A user's block, that lasts `seconds`."""
    await one.acquire()
    try:
        await asyncio.sleep(seconds)
    finally:
        await one.release()


@kinds
@pytest.mark.parametrize("connected", [True, False])
async def test_a_block_at_any_turn(tasks: RawBackend, proxy: Proxy, admin: Redis, connected: bool, kind: str) -> None:
    struck = 0
    for turns in range(STEPS):
        one = used(tasks, proxy, admin, kind, None)
        if connected:
            await one.connect()
        # Twice as late from some turn on: real input and output come between the turns.
        struck += await cancel_after(turns, asyncio.ensure_future(use(one, 2e-4 * max(0, turns - 20))))
        await whole(admin, one)
        await one.client.close()
    assert struck


@kinds
async def test_each_call_at_any_turn(tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    """A nested acquire keeps the outer one, and a release is done all the same."""
    one = used(tasks, proxy, admin, kind)
    struck = 0
    for turns in range(STEPS):
        await one.acquire()
        if kind != "non-reentrant":
            if not await cancel_after(turns, asyncio.ensure_future(one.acquire())):
                await one.release()
            await whole(admin, one, 1)
            assert not one.is_lock or await one.handle.get_hold_count() == 1
        # A task that never ran has not called it.
        struck += await cancel_after(1 + turns, asyncio.ensure_future(one.release()))
        await whole(admin, one)
        if kind == "semaphore":
            drain = asyncio.ensure_future(one.handle.drain_permits())
            if not await cancel_after(turns, drain):
                await one.handle.release(drain.result())
            await whole(admin, one)
    assert struck


@kinds
async def test_at_any_turn_of_a_contended_wait(tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    one = used(tasks, proxy, admin, kind, 2)
    holder = Used(tasks, one.client, {"read": "write", "write": "read"}.get(kind, kind), 1)
    if kind not in LOCKS:
        admin.set("a", 2)
    for turns in range(STEPS):
        await holder.acquire()
        waiter = asyncio.ensure_future(use(one, 0))
        # Half of them are struck while the release is on its way to them.
        release = asyncio.ensure_future(holder.release()) if turns % 2 else None
        struck = await cancel_after(turns, waiter)
        assert struck or release is not None
        await (release or holder.release())
        await tasks.until(one.knows_nothing, 5)
        await tasks.until(lambda: not admin.exists("a") if kind in LOCKS else admin.get("a") == b"2", 5)
    assert not any(channel.waiters for channel in one.client._session.channels.by_name.values())


@pytest.mark.parametrize(
    ("kind", "outer"), [(kind, outer) for kind in KINDS for outer in ((0,) if kind == "non-reentrant" else (0, 1))]
)
@pytest.mark.parametrize("what", ["request", "reply", "reply, then cut"])
async def test_an_acquire_on_its_way(
    tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str, outer: int, what: str
) -> None:
    one = used(tasks, proxy, admin, kind)
    await one.connect()
    for _ in range(outer):
        await one.acquire()
    late = proxy.hold_request(one.acquiring) if what == "request" else proxy.hold_reply(one.acquiring)
    if what == "reply, then cut":
        # What undoes it is lost with the connection, and sent again by another.
        proxy.cut_request(one.undoing)
    task = asyncio.ensure_future(one.acquire())
    await tasks.until(late.held.is_set)
    assert taken(admin, kind) == (outer + (what != "request")) * one.each
    assert await cancel_after(0, task)
    if what == "request":
        late.deliver()
    await tasks.until(lambda: taken(admin, kind) == outer * one.each, 5)
    if what == "reply":
        late.deliver()
        # The reply that nobody waits for any more is no other call's.
        assert await one.client.get_lock("other").remain_time_to_live() is None
    await whole(admin, one, outer)
    for _ in range(outer):
        await one.release()
    await whole(admin, one)


@kinds
async def test_a_wait_by_a_timeout(tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    one = used(tasks, proxy, admin, kind)
    other = await excluding(tasks, one.client, kind)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await one.acquire()
    # It must be asleep by then: an attempt in flight would have to be undone.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.acquire(), 0.8)
    if kind == "permits":
        assert one.client._session.watchdog.repairs.pending() == []
        assert admin.keys("pyredisson_permit*") == []
        admin.set("a", 5)
    elif kind == "semaphore":
        await one.handle.release(5)
    else:
        await other.release()
    await tasks.until(lambda: taken(admin, kind) in (0, 5 * (kind == "permits")), 5)


async def test_a_release_in_the_background_reaches_a_hold_above_a_lost_one(
    tasks: RawBackend, server: Server, admin: Redis
) -> None:
    """Both have the same name on the server."""
    client = tasks.connect(server.url)
    lock, holds = client.get_lock("a", owner=7), client._session.holds
    await lock.lock()
    admin.delete("a")
    [lost] = holds.table.values()
    holds.declare_lost(lost)
    await lock.lock()
    [hold] = holds.table.values()
    lock._logic.release_in_background(lock._owner(), hold, ReleaseCall())
    await tasks.until(lambda: not admin.exists("a"))
    with pytest.raises(LockLostError):
        await lock.unlock()


ENDS_IN_THE_MIDDLE = """
import asyncio, sys
import pyredisson.asyncio

async def begin():
    await client.get_lock("other").is_locked()
    calls = [client.get_lock("lock").lock(), client.get_semaphore("a").acquire(2)]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    return tasks

client = pyredisson.asyncio.connect(sys.argv[1])
if sys.argv[2] == "loop":
    tasks = asyncio.run(begin())
    print("loop ended", flush=True)
    sys.stdin.readline()
else:
    # The loop is closed without the tasks. The interpreter ends them when it exits.
    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(begin())
    loop.close()
sys.stderr = None
"""


async def test_a_loop_that_ends_in_the_middle_of_an_acquire(proxy: Proxy, admin: Redis, child: Start) -> None:
    """asyncio.run cancels what is left and closes the loop: nobody is there to wait for a reply."""
    prepare(admin, "semaphore")
    for name in ("lock_acquire", "semaphore_acquire"):
        proxy.hold_reply(sha(name))
    user = child(ENDS_IN_THE_MIDDLE, proxy.url, "loop")
    assert user.receive() == "loop ended"
    for name in ("lock_acquire", "lock_release", "semaphore_acquire", "semaphore_undo"):
        proxy.wait_for(sha(name))
    # The process must live: its end would release everything.
    eventually(lambda: not admin.exists("lock") and admin.get("a") == b"5", 5)


async def test_a_task_that_only_the_exit_ends(proxy: Proxy, child: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing can be sent any more, and no thread started. The process ends at once, as if it had been killed."""
    proxy.hold_reply(sha("lock_acquire"))
    assert child(ENDS_IN_THE_MIDDLE, proxy.url, "exit").wait(CHILD_LIMIT) == 0
    assert "Exception ignored" not in capfd.readouterr().err
