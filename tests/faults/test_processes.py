"""Processes: a forked child holds nothing, an exit releases locks, and the lock of a killed holder expires."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.children import Child
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners
from tests.support.waiting import eventually

FORK = """
import os, sys
import pyredisson
url, how = sys.argv[1:]
client = pyredisson.connect(url, lock_watchdog_timeout=1)
lock = client.get_lock("a")
with lock:
    lock.lock()
    lock.unlock()
    pid = os.fork()
    if pid == 0:
        if how == "os._exit":
            os._exit(0)
        if how == "sys.exit":
            sys.exit(0)
        if how == "raise":
            sys.stderr = open(os.devnull, "w")
            raise ZeroDivisionError
        if how == "unlock":
            try:
                lock.unlock()
            except pyredisson.LockNotHeldError:
                os._exit(0)
            os._exit(1)
        if how == "close":
            client.close()
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print("child left", status, lock.get_hold_count(), lock.lost.is_set(), flush=True)
    sys.stdin.readline()
    print("still", lock.get_hold_count(), lock.lost.is_set(), flush=True)
print("given back", flush=True)
"""


@pytest.mark.parametrize("how", ["os._exit", "sys.exit", "raise", "unlock", "close"])
def test_a_forked_child_that_leaves_the_block_does_not_release(
    server: Server, admin: Redis, child: Callable[..., Child], how: str
) -> None:
    parent = child(FORK, server.url, how)
    assert parent.receive() == f"child left {1 if how == 'raise' else 0} 1 False"
    owner = admin.hgetall("a")
    # The parent's watchdog continues: the remaining lease grows again, twice.
    for _ in range(2):
        left = admin.pttl("a")
        eventually(lambda before=left: admin.pttl("a") < before - 100 or admin.pttl("a") > before, 3)  # type: ignore[misc]
        eventually(lambda: admin.pttl("a") > 850, 3)
    assert admin.hgetall("a") == owner
    parent.send()
    assert parent.receive() == "still 1 False"
    assert parent.receive() == "given back"
    assert parent.wait() == 0
    assert not admin.exists("a")


def owners(admin: Redis, name: str) -> list[bytes]:
    """Who holds it, as the server knows."""
    found: list[Any] = admin.hkeys(name)
    return found


FORK_AND_LIVE = """
import os, sys, time
import pyredisson
url = sys.argv[1]
client = pyredisson.connect(url, lock_watchdog_timeout=1.2)
lock = client.get_lock("a")
lock.lock()
parent_id = client.id
pid = os.fork()
if pid == 0:
    assert client.id != parent_id
    assert not lock.is_held() and lock.get_hold_count() == 0 and not lock.lost.is_set()
    assert lock.is_locked() and not lock.try_lock(0.05)
    own = client.get_lock("b")
    with own:
        print("child holds", client.id, flush=True)
        sys.stdin.readline()
        assert own.is_held() and not own.lost.is_set()
    for _ in range(200):
        with own:
            pass
    own.lock()
    sys.exit(0)
assert client.id == parent_id
for _ in range(200):
    with client.get_lock("c"):
        pass
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print("child left", status, lock.is_held(), flush=True)
"""


def test_a_forked_child_is_a_client_of_its_own(server: Server, admin: Redis, child: Callable[..., Child]) -> None:
    parent = child(FORK_AND_LIVE, server.url)
    holds, identity = parent.receive().rsplit(" ", 1)
    assert holds == "child holds"
    assert [owner.partition(b":")[0] for owner in owners(admin, "b")] == [identity.encode()]
    assert [owner.partition(b":")[0] for owner in owners(admin, "a")] != [identity.encode()]
    # Its own watchdog renews.
    eventually(lambda: admin.pttl("b") < 900, 3)
    eventually(lambda: admin.pttl("b") > 1000, 3)
    parent.send()
    assert parent.receive() == "child left 0 True"
    # It gave back what it held when it ended, and the parent does so now.
    assert not admin.exists("b")
    assert parent.wait() == 0
    assert not admin.exists("a")


FORK_WITH_WAITERS = """
import os, sys, threading
import pyredisson
url = sys.argv[1]
client = pyredisson.connect(url)
got = []

def wait():
    with client.get_lock("a"):
        got.append(1)

waiters = [threading.Thread(target=wait) for _ in range(3)]
for waiter in waiters:
    waiter.start()
print("waiting", flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    with client.get_lock("b"):
        assert not client.get_lock("a").try_lock(0.05)
        assert client.get_lock("b").is_held()
    os._exit(0)
print("child left", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
for waiter in waiters:
    waiter.join()
print("got", len(got), flush=True)
"""


def test_a_fork_beside_waiting_threads_harms_neither_side(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    admin.hset("a", "another:1", 1)
    parent = child(FORK_WITH_WAITERS, server.url)
    assert parent.receive() == "waiting"
    eventually(lambda: listeners(admin, "a") == 1)
    parent.send()
    assert parent.receive() == "child left 0"
    admin.delete("a")
    admin.publish("redisson_lock__channel:{a}", "0")
    assert parent.receive() == "got 3"
    assert parent.wait() == 0


FORK_IN_A_TASK = """
import asyncio, os, sys
import pyredisson.asyncio

async def main():
    client = pyredisson.asyncio.connect(sys.argv[1], lock_watchdog_timeout=1.2)
    lock = client.get_lock("a")
    async with lock:
        parent_id = client.id
        pid = os.fork()
        if pid == 0:
            async def live():
                assert client.id != parent_id
                assert not await lock.is_held() and await lock.is_locked()
                try:
                    await lock.unlock()
                except pyredisson.LockNotHeldError:
                    pass
                async with client.get_lock("b") as own:
                    assert await own.is_held()
                assert not await lock.try_lock(0.05)
            try:
                asyncio.run(live())
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        await asyncio.sleep(2)
        print("child left", status, await lock.is_held(), lock.lost.is_set(), flush=True)
    await client.close()

asyncio.run(main())
"""


def test_a_fork_inside_a_task_leaves_the_lock_to_the_parent(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    parent = child(FORK_IN_A_TASK, server.url)
    assert parent.receive() == "child left 0 True False"
    assert parent.wait() == 0
    assert not admin.exists("a")
    assert not admin.exists("b")


HOLD = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
url, backend, lease, end = sys.argv[1:]
fields = {"lock_watchdog_timeout": float(lease), "timeout": 30, "connect_timeout": 30}

def said():
    print("held", flush=True)
    sys.stdin.readline()

async def main():
    client = pyredisson.asyncio.connect(url, **fields)
    for name in "ab":
        await client.get_lock(name).lock()
    await asyncio.to_thread(said)

if backend == "asyncio":
    asyncio.run(main())
else:
    clients = [pyredisson.connect(url, **fields) for _ in range(1 if end != "many" else 8)]
    for number, client in enumerate(clients):
        for name in "ab":
            client.get_lock(name + str(number or "")).lock()
    said()
if end == "raise":
    sys.stderr = None
    raise ZeroDivisionError
if end == "exit":
    sys.exit(3)
"""


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("raise", 1), ("exit", 3), ("many", 0)])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_end_of_the_interpreter_releases_held_locks(
    server: Server, admin: Redis, child: Callable[..., Child], kind: str, end: str, status: int
) -> None:
    holder = child(HOLD, server.url, kind, 30, end)
    assert holder.receive() == "held"
    assert admin.exists("a", "b") == 2
    holder.send()
    assert holder.wait() == status
    assert admin.dbsize() == 0


@pytest.mark.parametrize(("kind", "end"), [("threads", "return"), ("asyncio", "return"), ("threads", "many")])
def test_the_end_of_the_interpreter_is_not_held_up_by_a_hung_server(
    own_server: Server, child: Callable[..., Child], kind: str, end: str
) -> None:
    holder = child(HOLD, own_server.url, kind, 30, end)
    assert holder.receive() == "held"
    own_server.pause()
    begin = time.monotonic()
    holder.send()
    assert holder.wait(20) == 0
    # About a second, however many clients there are, and whatever the timeout of a call is.
    assert time.monotonic() - begin < 6
    own_server.resume()


def test_the_end_of_the_interpreter_is_not_held_up_by_a_dead_server(
    own_server: Server, child: Callable[..., Child]
) -> None:
    holder = child(HOLD, own_server.url, "threads", 30, "many")
    assert holder.receive() == "held"
    own_server.kill()
    begin = time.monotonic()
    holder.send()
    assert holder.wait(20) == 0
    assert time.monotonic() - begin < 6


@pytest.mark.asyncio
async def test_a_killed_holders_lock_goes_to_the_next_when_its_lease_ends(
    backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    holder = child(HOLD, server.url, backend.name, 1, "return")
    assert await backend.run_blocking(holder.receive) == "held"
    client = backend.connect(server.url)

    async def take() -> float:
        await backend.do(client.get_lock("a").lock())
        return time.monotonic()

    waiter = backend.start(take)
    await backend.until(lambda: listeners(admin, "a") == 1)
    holder.signal(signal.SIGKILL)
    await backend.run_blocking(holder.wait)
    killed = time.monotonic()
    left = admin.pttl("a") / 1000
    waited = await waiter.result() - killed
    # No message announces it. By itself the waiter would look again after 30 s.
    assert left - 0.01 < waited < left + 3
