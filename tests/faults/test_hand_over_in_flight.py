"""A process is killed, or forked, before it has the reply to a hand-over: only the server knows the next owner."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.raw_backends import RawBackend
from tests.support.waiting import fair_waiters, waiters

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

LOCKS = """
def lock_of(client, kind, owner=None):
    if kind in ("lock", "fair"):
        return (client.get_lock if kind == "lock" else client.get_fair_lock)("a", owner=owner)
    pair = client.get_read_write_lock("a", owner=owner)
    return pair.write_lock() if kind == "write" else pair.read_lock()

def holder_of(client, kind, owner=None):
    return lock_of(client, "write" if kind == "read" else kind, owner)

def sleeps(waiter):
    return waiter.state.value == "waiting" and not waiter.wakeup.is_set()

def sleeping(client, kind):
    if kind == "fair":
        queue = client._session.local_queues.get(b"a")
        tickets = list(queue.tickets) if queue else []
        return sum(t.channel is not None and t.channel.confirmed and sleeps(t.waiter) for t in tickets)
    queue = client._session.lock_queues.get(b"a" if kind == "lock" else (b"a", kind.encode()))
    if queue is None or queue.channel is None or not queue.channel.confirmed:
        return 0
    with client._session.channels.mutex:
        return sum(map(sleeps, list(queue.waiters)))

def knows_nothing(client):
    session = client._session
    return not (session.lock_queues or session.local_queues or session.channels.waiting or session.holds.table)
"""

THREADS = (
    LOCKS
    + """
import os, sys, threading, time
import pyredisson
url, kind, lease = sys.argv[1:]
client = pyredisson.connect(url, local_hand_over_time=600, lock_watchdog_timeout=float(lease), timeout=30)
holder = holder_of(client, kind, 1)
holder.lock()

def wait(owner):
    with lock_of(client, kind, owner):
        pass

def live():
    assert knows_nothing(client)
    for handle in (holder, lock_of(client, kind, 2)):
        try:
            handle.unlock()
        except pyredisson.LockNotHeldError:
            pass
        else:
            raise AssertionError("it has released what its parent holds")
    assert not holder_of(client, kind).try_lock(0.05)
    client.close()

waiting = [threading.Thread(target=wait, args=(owner,)) for owner in (2, 3)]
for number, thread in enumerate(waiting, start=1):
    thread.start()
    while sleeping(client, kind) < number:
        time.sleep(0.001)
print("waiting", flush=True)
sys.stdin.readline()
releasing = threading.Thread(target=holder.unlock)
releasing.start()
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    try:
        live()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)
print("child left", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
for thread in (releasing, *waiting):
    thread.join()
print("ended", knows_nothing(client), flush=True)
"""
)

TASKS = (
    LOCKS
    + """
import asyncio, os, sys
import pyredisson.asyncio
url, kind, lease = sys.argv[1:]

async def wait(client, owner):
    async with lock_of(client, kind, owner):
        pass

async def live(client, holder):
    assert knows_nothing(client)
    for handle in (holder, lock_of(client, kind, 2)):
        try:
            await handle.unlock()
        except pyredisson.LockNotHeldError:
            pass
        else:
            raise AssertionError("it has released what its parent holds")
    assert not await holder_of(client, kind).try_lock(0.05)
    await client.close()

async def main():
    client = pyredisson.asyncio.connect(
        url, local_hand_over_time=600, lock_watchdog_timeout=float(lease), timeout=30
    )
    holder = holder_of(client, kind, 1)
    await holder.lock()
    waiting = []
    for owner in (2, 3):
        waiting.append(asyncio.ensure_future(wait(client, owner)))
        while sleeping(client, kind) < len(waiting):
            await asyncio.sleep(0.001)
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    releasing = asyncio.ensure_future(holder.unlock())
    await asyncio.to_thread(sys.stdin.readline)
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(live(client, holder))
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print("child left", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    await asyncio.gather(releasing, *waiting)
    print("ended", knows_nothing(client), flush=True)
    await client.close()

asyncio.run(main())
"""
)
PROGRAMS = {"threads": THREADS, "asyncio": TASKS}


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
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, child: Callable[..., Child], kind: str, other: str
) -> None:
    """Nobody knows any more that the next owners have the lock: another process gets it when their leases end."""
    killed = child(PROGRAMS[backend.name], proxy.url, kind, LEASE)
    assert await backend.run_blocking(killed.receive, CHILD_LIMIT) == "waiting"
    client = backend.connect(server.url)
    pair = client.get_read_write_lock("a")
    lock = {
        "lock": client.get_lock("a"),
        "fair": client.get_fair_lock("a"),
        "write": pair.write_lock(),
        "read": pair.read_lock(),
    }[other]
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
@pytest.mark.parametrize("world", PROGRAMS)
async def test_the_process_is_forked(
    proxy: Proxy, admin: Redis, child: Callable[..., Child], kind: str, world: str
) -> None:
    """The child neither ends the hand-over nor undoes it, and has none of the parent's waiters."""
    parent = child(PROGRAMS[world], proxy.url, kind, 30)
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
