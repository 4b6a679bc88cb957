"""Handing a lock on inside one client: what an interrupt, a late reply or a refused copy leaves behind.

And a process that is killed, or forked, before it has the reply: only the server knows the next owner.
"""

import asyncio
import signal
import time
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from pyredisson._backends.threads.runtime import ThreadBackend
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson.errors import LockLostError, LockNotHeldError
from pyredisson.testing import Proxy, Server
from tests.support.backends import OtherOwner, _finished
from tests.support.children import CHILD_LIMIT, forked
from tests.support.raw_backends import RawBackend
from tests.support.waiting import asleep

from .kinds import Patch, Start, Used, lock_of

LEASE = 2.0
LONG = 60.0
HAND_OVER = {
    "lock": b":1\r\n$38\r\n",
    "fair": b":1\r\n$6\r\n300000\r\n$38\r\n",
    "write": b":1:write\r\n$44\r\n",
    "read": b":1:write\r\n$40\r\n",
}
"""The end of the holder's name, and the beginning of that of whom its release enters: no other command has both."""
ENTERED = {"lock": [":2"], "fair": [":2"], "write": [":2:write"], "read": [":2", ":3"]}
"""The ends of the names that the server has entered."""


async def contended(
    threads: RawBackend, proxy: Proxy, kind: str = "lock", *args: object
) -> tuple[Any, Any, OtherOwner[Any]]:
    """The lock of owner 1, which holds it, and of owner 2, which acquires it on a thread, and keeps it."""
    client = threads.connect(proxy.url, local_hand_over_time=LONG)
    holder, lock = (lock_of(client, kind, owner) for owner in (1, 2))
    holder.lock()
    return holder, lock, await threads.started(lambda: asleep(client, "a") == 1, lock.lock, *args)


class Striking(ThreadWakeup):
    """Ctrl-C in the thread that sets it, as soon as the thread that it has woken has acquired the lock."""

    __slots__ = ()

    struck: OtherOwner[Any] | None = None

    def set(self) -> None:
        super().set()
        call, Striking.struck = Striking.struck, None
        if call is not None:
            _finished(call.result())
            raise KeyboardInterrupt


async def test_an_interrupt_of_the_holder(threads: RawBackend, proxy: Proxy, admin: Redis, monkeypatch: Patch) -> None:
    """What the waiter has acquired by itself since then isn't undone: its caller relies on it."""
    monkeypatch.setattr(ThreadBackend, "wakeup", lambda _: Striking())
    holder, lock, Striking.struck = await contended(threads, proxy)
    # The hand-over finds neither of both owners.
    admin.delete("a")
    with pytest.raises(KeyboardInterrupt):
        holder.unlock()
    await threads.until(lambda: not threads._clients[0]._session.watchdog.pending_repairs())
    assert lock.is_held()
    lock.force_unlock()


async def test_a_refused_second_copy(threads: RawBackend, admin: Redis, proxy: Proxy) -> None:
    """The first copy has released the lock: the second one says nothing about the hold that was released."""
    holder, _, waiting = await contended(threads, proxy, "fenced")
    slow = proxy.hold_reply(HAND_OVER["lock"])
    lost: list[object] = []
    holder.on_lost(lost.append)
    releasing = await threads.started(slow.held.is_set, holder.unlock)
    admin.set("redisson_lock_token:{a}", "text")
    proxy.cut()
    for call in (releasing, waiting):
        await threads.fails(ResponseError, call.result, match="not an integer")
    assert lost == []
    await threads.until(lambda: not admin.exists("a"))


async def test_the_waiters_owner_acquires_it_by_another_call(threads: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """Two acquires of one owner are two levels, whichever way each of them got the lock."""
    holder, lock, waiting = await contended(threads, proxy)

    calls = lock._owner().calls
    in_flight = calls.in_flight

    def enter(*args: Any) -> Any:
        """Another call comes just before the given one gets the turn."""
        admin.delete("a")
        calls.in_flight = in_flight
        assert lock.try_lock()
        return in_flight.enter(*args)

    calls.in_flight = Mock(wraps=in_flight, enter=enter)
    await threads.fails(LockLostError, holder.unlock)
    await waiting.result()
    for levels in (2, 1):
        assert lock.get_hold_count() == levels
        lock.unlock()
    assert not admin.exists("a")


async def test_no_queue_remains_when_a_lease_ends(threads: RawBackend, proxy: Proxy) -> None:
    """Many programs never release a lock with a lease, and use other names later."""
    holder, _, waiting = await contended(threads, proxy, "lock", 1.5)
    holder.unlock()
    await waiting.result()
    session = threads._clients[0]._session
    assert session.lock_queues
    await threads.until(lambda: not session.lock_queues)


PROGRAM = """
import asyncio, sys
from tests.support.backends import _finished
from tests.support.kinds import KINDS
from tests.support.raw_backends import RawBackend
from tests.support.waiting import asleep
url, kind, lease, world = sys.argv[1:]
backend = RawBackend(world)
client = backend.connect(url, local_hand_over_time=600, lock_watchdog_timeout=float(lease), timeout=30)
holder, *others = [KINDS["write" if owner == 1 and kind == "read" else kind](client, "a", owner) for owner in (1, 2, 3)]

async def main():
    await backend.do(holder.lock())
    for count, lock in enumerate(others, 1):
        backend.start(lock.lock)
        await backend.until(lambda: asleep(client, "a", kind) == count, 60)
    print("waiting", flush=True)
    await backend.run_blocking(sys.stdin.readline)
    await backend.do(holder.unlock())

asyncio.run(main()) if world == "asyncio" else _finished(main())
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

    async def take() -> float:
        await backend.do(lock.lock())
        return time.monotonic()

    waiter = await backend.started(lambda: asleep(client, "a", other), take)
    fault = proxy.drop_reply(HAND_OVER[kind])
    killed.send()
    assert await backend.run_blocking(fault.happened.wait, CHILD_LIMIT)
    killed.signal(signal.SIGKILL)
    await backend.run_blocking(killed.wait)
    check_entered(admin, kind)
    # The clock first: the lease doesn't end before `began + left`.
    began, left = time.monotonic(), admin.pttl("a") / 1000
    assert not waiter.done()
    waited = await waiter.result() - began
    # By itself the waiter would look again after 30 s.
    assert left - 0.01 < waited < left + 3
    [owner] = owners(admin)
    assert owner.startswith(client.id)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", HAND_OVER)
async def test_the_process_is_forked(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    """The child neither ends the hand-over nor undoes it, and has none of the parent's waiters."""
    held, do = "write" if kind == "read" else kind, backend.do
    parent = Used(backend, backend.connect(proxy.url, local_hand_over_time=LONG, timeout=30), held, 1, admin)
    client, holder, parent_id = parent.client, parent.handle, parent.client.id

    async def wait(owner: int) -> None:
        lock = lock_of(client, kind, owner)
        await do(lock.lock())
        await do(lock.unlock())

    async def live() -> bool:
        assert client.id != parent_id
        assert parent.knows_nothing()
        # It is a client of its own.
        own = client.get_lock("own")
        await do(own.lock())
        assert await do(own.is_held())
        await do(own.unlock())
        assert not await do(holder.is_held())
        assert await do(lock_of(client, kind).is_locked())
        for lock in (holder, lock_of(client, kind, 2)):
            await backend.fails(LockNotHeldError, lock.unlock)
        assert not await do(lock_of(client, held).try_lock(0.05))
        await do(client.close())
        return True

    await do(holder.lock())
    calls = [await backend.started(lambda: asleep(client, "a", kind) == 1, wait, 2)]
    calls.append(await backend.started(lambda: asleep(client, "a", kind) == 2, wait, 3))
    slow = proxy.hold_reply(HAND_OVER[kind])
    calls.append(await backend.started(slow.held.is_set, holder.unlock))
    entered = check_entered(admin, kind)
    assert forked(lambda: _finished(live()) if backend.threads else asyncio.run(live()))
    assert owners(admin) == entered
    slow.deliver()
    for call in calls:
        await call.result()
    await backend.until(parent.knows_nothing)
    assert admin.keys() == []
