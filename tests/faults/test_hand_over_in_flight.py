"""A process is killed, or forked, before it has the reply to a hand-over: only the server knows the next owner."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT
from tests.support.raw_backends import RawBackend
from tests.support.waiting import fair_waiters, waiters

from .kinds import Start, lock_of

pytestmark = pytest.mark.asyncio

LEASE = 2.0
HAND_OVER = {
    "lock": b":1\r\n$38\r\n",
    "fair": b":1\r\n$6\r\n300000\r\n$38\r\n",
    "write": b":1:write\r\n$44\r\n",
    "read": b":1:write\r\n$38\r\n",
}
"""The end of the holder's name, and the beginning of that of whom its release enters: no other command has both."""
ENTERED = {"lock": [":2"], "fair": [":2"], "write": [":2:write"], "read": [":2", ":3"]}
"""The ends of the names that the server has entered."""
kinds = pytest.mark.parametrize("kind", HAND_OVER)

PROGRAM = """
import asyncio, os, sys, threading, time
import pyredisson, pyredisson.asyncio
url, kind, lease, world = sys.argv[1:]
connect = pyredisson.connect if world == "threads" else pyredisson.asyncio.connect
client = connect(url, local_hand_over_time=600, lock_watchdog_timeout=float(lease), timeout=30)

async def do(result):
    return await result if asyncio.iscoroutine(result) else result

async def pause(seconds):
    time.sleep(seconds) if world == "threads" else await asyncio.sleep(seconds)

async def told():
    sys.stdin.readline() if world == "threads" else await asyncio.to_thread(sys.stdin.readline)

def run(operation):
    if world == "asyncio":
        return asyncio.run(operation)
    try:
        operation.send(None)
    except StopIteration:
        pass

def start(operation):
    if world == "asyncio":
        return asyncio.ensure_future(operation)
    thread = threading.Thread(target=run, args=(operation,))
    thread.start()
    return thread

def lock_of(kind, owner=None):
    if kind in ("lock", "fair"):
        return (client.get_lock if kind == "lock" else client.get_fair_lock)("a", owner=owner)
    pair = client.get_read_write_lock("a", owner=owner)
    return pair.write_lock() if kind == "write" else pair.read_lock()

def holder_of(owner=None):
    return lock_of("write" if kind == "read" else kind, owner)

def sleeps(waiter):
    return waiter.state.value == "waiting" and not waiter.wakeup.is_set()

def sleeping():
    if kind == "fair":
        queue = client._session.local_queues.get(b"a")
        tickets = list(queue.tickets) if queue else []
        return sum(t.channel is not None and t.channel.confirmed and sleeps(t.waiter) for t in tickets)
    queue = client._session.lock_queues.get(b"a" if kind == "lock" else (b"a", kind.encode()))
    if queue is None or queue.channel is None or not queue.channel.confirmed:
        return 0
    with client._session.channels.mutex:
        return sum(map(sleeps, list(queue.waiters)))

def knows_nothing():
    session = client._session
    return not (session.lock_queues or session.local_queues or session.channels.waiting or session.holds.table)

async def wait(owner):
    lock = lock_of(kind, owner)
    await do(lock.lock())
    await do(lock.unlock())

async def release():
    await do(holder.unlock())

async def live():
    assert client.id != parent_id
    assert knows_nothing()
    # It is a client of its own.
    own = client.get_lock("own")
    await do(own.lock())
    assert await do(own.is_held()) and not await do(holder.is_held()) and await do(lock_of(kind).is_locked())
    await do(own.unlock())
    for handle in (holder, lock_of(kind, 2)):
        try:
            await do(handle.unlock())
        except pyredisson.LockNotHeldError:
            pass
        else:
            raise AssertionError("it has released what its parent holds")
    assert not await do(holder_of().try_lock(0.05))
    await do(client.close())

def in_child():
    try:
        run(live())
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    # The end of a thread's process runs exit handlers, too.
    sys.exit(0) if world == "threads" else os._exit(0)

async def main():
    await do(holder.lock())
    calls = []
    for owner in (2, 3):
        calls.append(start(wait(owner)))
        while sleeping() < len(calls):
            await pause(0.001)
    print("waiting", flush=True)
    await told()
    calls.append(start(release()))
    await told()
    pid = os.fork()
    if pid == 0:
        in_child()
    print("child left", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    for call in calls:
        await call if world == "asyncio" else call.join()
    print("ended", knows_nothing(), flush=True)
    await do(client.close())

holder, parent_id = holder_of(1), client.id
run(main())
"""


def owners(admin: Redis) -> list[str]:
    """Who holds the lock, as the server knows."""
    fields: Any = admin.hkeys("a")
    return sorted(field.decode() for field in fields if field != b"mode")


def check_entered(admin: Redis, kind: str) -> list[str]:
    """The server has entered those that waited, and nobody else."""
    found = owners(admin)
    assert len(found) == len(ENTERED[kind])
    assert all(name.endswith(end) for name, end in zip(found, ENTERED[kind], strict=True))
    return found


@pytest.mark.parametrize(
    ("kind", "other"), [("lock", "lock"), ("fair", "fair"), ("write", "write"), ("write", "read"), ("read", "write")]
)
async def test_the_process_is_killed(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, child: Start, kind: str, other: str
) -> None:
    """Nobody knows any more that the next owners have the lock: another process gets it when their leases end."""
    killed = child(PROGRAM, proxy.url, kind, LEASE, backend.name)
    assert await backend.run_blocking(killed.receive, CHILD_LIMIT) == "waiting"
    client = backend.connect(server.url)
    lock = lock_of(client, other)
    sleeping = {"lock": lambda: waiters(client, "a"), "fair": lambda: fair_waiters(client, "a")}

    async def take() -> float:
        await backend.do(lock.lock())
        return time.monotonic()

    waiter = backend.start(take)
    await backend.until(sleeping.get(other, lambda: waiters(client, "a", other)))
    fault = proxy.drop_reply(HAND_OVER[kind])
    killed.send()
    assert await backend.run_blocking(fault.happened.wait, CHILD_LIMIT)
    killed.signal(signal.SIGKILL)
    await backend.run_blocking(killed.wait)
    check_entered(admin, kind)
    # The clock first: the lease doesn't end before `began + left`.
    began, left = time.monotonic(), admin.pttl("a") / 1000
    assert not waiter.done
    waited = await waiter.result() - began
    # By itself the waiter would look again after 30 s.
    assert left - 0.01 < waited < left + 3
    [owner] = owners(admin)
    assert owner.startswith(client.id)


@kinds
@pytest.mark.parametrize("world", ["threads", "asyncio"])
async def test_the_process_is_forked(proxy: Proxy, admin: Redis, child: Start, kind: str, world: str) -> None:
    """The child neither ends the hand-over nor undoes it, and has none of the parent's waiters."""
    parent = child(PROGRAM, proxy.url, kind, 30, world)
    assert parent.receive(CHILD_LIMIT) == "waiting"
    slow = proxy.hold_reply(HAND_OVER[kind])
    parent.send()
    assert slow.held.wait(CHILD_LIMIT)
    entered = check_entered(admin, kind)
    parent.send()
    assert parent.receive(CHILD_LIMIT) == "child left 0"
    assert owners(admin) == entered
    slow.deliver()
    assert parent.receive(CHILD_LIMIT) == "ended True"
    assert parent.wait() == 0
    assert admin.keys() == []
