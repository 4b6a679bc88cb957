"""Calls of asyncio that are cancelled at whichever await leave nothing; and several calls of one owner at a time."""

import asyncio
import time
from typing import Any

import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson import LockLostError, LockNotHeldError
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._core import ReleaseCall
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend, cancel_after, eventually, finished, in_turn
from tests.support.children import CHILD_LIMIT
from tests.support.faults import ACQUIRE, AtSteps, ctrl_c, sha
from tests.support.kinds import LOCKS

from .kinds import KINDS, Output, Start, Used, excluding, kinds, lock_of, prepare, used

STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""
OF_ONE_OWNER = ["lock", "fair", "fenced", "spin", "non-reentrant"]
reentrant = pytest.mark.parametrize("kind", OF_ONE_OWNER[:4])


@pytest.fixture
def one(tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> Used:
    return used(tasks, proxy, admin, kind)


async def whole(one: Used, levels: int = 0) -> None:
    """So much is taken, and that doesn't change any more."""
    await one.backend.until(lambda: one.taken() == levels * one.each, 5)
    # All that was posted has run, as it came before this.
    await one.connect()
    assert one.taken() == levels * one.each
    assert levels or one.knows_nothing()
    assert one.client._session.permits.in_doubt == {}


async def use(one: Used) -> None:
    """A user's block."""
    await one.acquire()
    try:
        await asyncio.sleep(0)
    finally:
        await one.release()


@kinds
async def test_each_call_at_any_turn(one: Used, kind: str) -> None:
    """A nested acquire keeps the outer one, and a release is done all the same."""
    struck = 0
    for turns in range(STEPS):
        await one.acquire()
        if kind != "non-reentrant":
            if not await cancel_after(turns, asyncio.ensure_future(one.acquire())):
                await one.release()
            await whole(one, 1)
            assert not one.is_lock or await one.handle.get_hold_count() == 1
        # A task that never ran has not called it.
        struck += await cancel_after(1 + turns, asyncio.ensure_future(one.release()))
        await whole(one)
        if kind == "semaphore":
            drain = asyncio.ensure_future(one.handle.drain_permits())
            if not await cancel_after(turns, drain):
                await one.handle.release(drain.result())
            await whole(one)
    assert struck


@kinds
async def test_at_any_turn_of_a_contended_wait(tasks: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    one = used(tasks, proxy, admin, kind, 2)
    holder = Used(tasks, one.client, {"read": "write", "write": "read"}.get(kind, kind), 1)
    if kind not in LOCKS:
        admin.set("a", 2)
    for turns in range(STEPS):
        await holder.acquire()
        waiter = asyncio.ensure_future(use(one))
        # Half of them are struck while the release is on its way to them.
        release = asyncio.ensure_future(holder.release()) if turns % 2 else None
        struck = await cancel_after(turns, waiter)
        assert struck or release is not None
        await (release or holder.release())
        await tasks.until(one.knows_nothing, 5)
        await tasks.until(lambda: not admin.exists("a") if kind in LOCKS else admin.get("a") == b"2", 5)


@pytest.mark.parametrize(
    ("kind", "outer"), [(kind, outer) for kind in KINDS for outer in ((0,) if kind == "non-reentrant" else (0, 1))]
)
@pytest.mark.parametrize("what", ["request", "reply", "reply, then cut"])
async def test_an_acquire_on_its_way(one: Used, tasks: RawBackend, proxy: Proxy, outer: int, what: str) -> None:
    await one.connect()
    for _ in range(outer):
        await one.acquire()
    late = proxy.hold_request(one.acquiring) if what == "request" else proxy.hold_reply(one.acquiring)
    if what == "reply, then cut":
        # What undoes it is lost with the connection, and sent again by another.
        proxy.cut_request(one.undoing)
    task = asyncio.ensure_future(one.acquire())
    await tasks.until(late.held.is_set)
    assert one.taken() == (outer + (what != "request")) * one.each
    assert await cancel_after(0, task)
    if what == "request":
        late.deliver()
    await tasks.until(lambda: one.taken() == outer * one.each, 5)
    if what == "reply":
        late.deliver()
        # The reply that nobody waits for any more is no other call's.
        assert await one.client.get_lock("other").remain_time_to_live() is None
    await whole(one, outer)
    for _ in range(outer):
        await one.release()
    await whole(one)


async def test_a_wait_by_a_timeout(tasks: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """Nothing is to be undone."""
    one = used(tasks, proxy, admin, "permits")
    await excluding(tasks, one.client, "permits")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await one.acquire()
    # It must be asleep by then: an attempt in flight would have to be undone.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.acquire(), 0.5)
    assert (one.client._session.watchdog.pending_repairs(), admin.keys("pyredisson_permit*")) == ([], [])


async def test_a_background_release_above_a_lost_hold(tasks: RawBackend, server: Server, admin: Redis) -> None:
    """Both have the same name on the server."""
    client = tasks.connect(server.url)
    lock, holds = client.get_lock("a", owner=7), client._session.holds
    await lock.lock()
    admin.delete("a")
    holds.declare_lost(*holds.table.values())
    await lock.lock()
    lock._logic.release_in_background(lock._owner(), *holds.table.values(), ReleaseCall())
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


@pytest.mark.parametrize("ends", ["loop", "exit"])
async def test_a_loop_ends_in_an_acquire(proxy: Proxy, admin: Redis, child: Start, capfd: Output, ends: str) -> None:
    """asyncio.run cancels what is left and closes the loop: nobody is there to wait for a reply.

    Where only the exit ends the tasks, nothing can be sent and no thread started: it is as if the process was killed.
    """
    prepare(admin, "semaphore")
    for name in ("lock_acquire", "semaphore_acquire"):
        proxy.hold_reply(sha(name))
    user = child(ENDS_IN_THE_MIDDLE, proxy.url, ends)
    if ends == "exit":
        assert user.wait(CHILD_LIMIT) == 0
        assert "Exception ignored" not in capfd.readouterr().err
        return
    assert user.receive() == "loop ended"
    for name in ("lock_acquire", "lock_release", "semaphore_acquire", "semaphore_finish"):
        proxy.wait_for(sha(name))
    # The process must live: its end would release everything.
    eventually(lambda: not admin.exists("lock") and admin.get("a") == b"5", 5)


async def released(backend: RawBackend, server: Server, lock: Any, levels: int, kind: str = "lock") -> None:
    """The owner has so many levels, and nobody else gets the lock before the last one is released."""
    # What runs in the background has run by then.
    await backend.sleep(0.05)
    assert not await backend.do(lock_of(backend.connect(server.url), kind).try_lock())
    assert await backend.do(lock.get_hold_count()) == levels
    for _ in range(levels):
        await backend.do(lock.unlock())
    assert not await backend.do(lock.is_locked())


@pytest.mark.parametrize("kind", OF_ONE_OWNER)
async def test_a_cancelled_call_leaves_what_another_one_got(tasks: RawBackend, server: Server, kind: str) -> None:
    client = tasks.connect(server.url)
    for turns in (0, 1, 2, 3, 5, 8):
        lock = lock_of(client, kind, turns)
        first, second = (asyncio.create_task(lock.lock()) for _ in range(2))
        await cancel_after(turns, first)
        await asyncio.wait([second])
        # The one is refused where the other has it and the lock isn't reentrant.
        had = [call for call in (first, second) if not call.cancelled() and call.exception() is None]
        assert had
        await released(tasks, server, lock, len(had), kind)


@reentrant
async def test_one_releases_what_the_other_acquires(tasks: RawBackend, server: Server, admin: Redis, kind: str) -> None:
    """Each release takes one level, also of two at once, and one that finds none is told so."""
    lock = lock_of(tasks.connect(server.url), kind, 7)

    async def take_and_give_back() -> None:
        async with lock:
            pass

    await asyncio.gather(take_and_give_back(), lock.lock())
    await released(tasks, server, lock, 1, kind)
    for levels, expected in ((2, [type(None)] * 2), (1, [type(None), LockNotHeldError])):
        await in_turn([lock.lock] * levels)
        outcomes = await asyncio.gather(lock.unlock(), lock.unlock(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == expected
        assert not admin.exists("a")
    # A lost hold is released while the lock is acquired again.
    await lock.lock(lease_time=0.03)
    await lock.lost.wait()
    anew = asyncio.create_task(lock.lock())
    await asyncio.sleep(0)
    with pytest.raises(LockLostError):
        await lock.unlock()
    await anew
    await released(tasks, server, lock, 1, kind)


async def test_a_cancelled_group_leaves_what_a_call_for_its_member_got(tasks: RawBackend, server: Server) -> None:
    client = tasks.connect(server.url)
    one, two = client.get_lock("a", owner=7), client.get_lock("b", owner=7)
    await tasks.connect(server.url).get_lock("b").lock()
    both = asyncio.create_task(client.get_multi_lock(one, two).lock())
    await asyncio.sleep(0.05)
    call = asyncio.create_task(one.lock())
    await cancel_after(1, both)
    await call
    await released(tasks, server, one, 1)


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_release_interrupted_in_turn(threads: RawBackend, server: Server, proxy: Proxy, levels: int) -> None:
    """It waited behind a nested acquire of the same owner in another thread, which succeeded."""
    lock = threads.connect(proxy.url).get_lock("a", owner=7)
    for _ in range(levels):
        lock.lock()
    late = proxy.hold_reply(ACQUIRE)
    other = await threads.started(late.held.is_set, lock.lock)
    steps = AtSteps((ThreadRuntime.wait, lambda: threads.start(late.deliver)), (LockCommands.release, ctrl_c))
    with pytest.raises(KeyboardInterrupt), steps:
        lock.unlock()
    assert steps.happened
    await other.result()
    await released(threads, server, lock, levels)


@reentrant
@pytest.mark.parametrize("exit_of_a_block", [False, True])
async def test_a_release_that_is_cancelled_before_its_turn_releases_its_level(
    tasks: RawBackend, server: Server, proxy: Proxy, admin: Redis, kind: str, exit_of_a_block: bool
) -> None:
    lock = lock_of(tasks.connect(proxy.url), kind, 7)
    await lock.is_locked()
    leaves = asyncio.Event()

    async def use() -> None:
        if exit_of_a_block:
            async with lock:
                await leaves.wait()
        else:
            await in_turn([lock.lock, leaves.wait, lock.unlock])

    user = asyncio.create_task(use())
    await tasks.until(lambda: admin.exists("a"))
    await lock.get_hold_count()
    late = proxy.hold_reply(b"EVALSHA")
    nested = asyncio.create_task(lock.lock())
    await tasks.until(late.held.is_set)
    leaves.set()
    assert await cancel_after(3, user)
    late.deliver()
    await nested
    await released(tasks, server, lock, 1, kind)


async def test_many_calls_of_one_owner_are_served_in_order(tasks: RawBackend, server: Server, admin: Redis) -> None:
    lock = tasks.connect(server.url).get_lock("a", owner=7)
    order: list[int] = []

    async def take(number: int) -> None:
        assert await lock.try_lock(60)
        order.append(number)

    began = time.monotonic()
    async with asyncio.timeout(20):
        await asyncio.gather(*[asyncio.create_task(take(number)) for number in range(1000)])
    taken = time.monotonic()
    assert order == list(range(1000))
    await in_turn([lock.unlock] * 1000)
    assert taken - began < 5 * (time.monotonic() - taken) + 1
    assert not admin.exists("a")


async def test_threads_of_one_owner_have_turns(threads: RawBackend, client: pyredisson.Client, admin: Redis) -> None:
    lock = client.get_lock("a", owner=7)

    def use() -> None:
        for _ in range(20):
            with lock:
                continue

    await finished([threads.start(use) for _ in range(16)], 20)
    assert not admin.exists("a")


@reentrant
async def test_a_block_is_collected(threads: RawBackend, server: Server, client: pyredisson.Client, kind: str) -> None:
    """On the same thread, and for the same owner: it can't wait for the end of that call."""
    lock = lock_of(client, kind)

    def block() -> Any:
        with lock:
            yield

    open_block = block()
    next(open_block)
    with AtSteps((type(lock._logic.commands).acquire, open_block.close)) as step:
        lock.lock()
    assert step.happened
    await released(threads, server, lock, 1, kind)


def test_a_lock_that_is_asked_for_in_the_middle_of_a_call_for_it(client: pyredisson.Client, admin: Redis) -> None:
    lock = client.get_lock("a")
    middle = pytest.raises(RuntimeError, match="'a' was asked for in the middle of a call")
    with middle, AtSteps((LockCommands.acquire, lock.lock)):
        lock.lock()
    eventually(lambda: not admin.exists("a"), 5)
    lock.lock()
    lock.unlock()
