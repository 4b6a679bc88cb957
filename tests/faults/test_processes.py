"""Processes: a forked child holds nothing, an exit releases locks, and what a killed or paused holder held expires."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis

import pyredisson
from pyredisson._protocol.scripts import script_name
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.faults import ACQUIRE
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners
from tests.support.waiting import eventually

from .kinds import Start

FORK = """
import os, sys
import pyredisson
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1)
lock = client.get_lock("a")
statuses = []

def release():
    try:
        lock.unlock()
    except pyredisson.LockNotHeldError:
        os._exit(0)
    os._exit(1)

def close():
    client.close()
    os._exit(0)

with lock:
    lock.lock()
    lock.unlock()
    for leave in (lambda: os._exit(0), sys.exit, lambda: 1 / 0, release, close):
        if os.fork() == 0:
            sys.stderr = open(os.devnull, "w")
            leave()
        statuses.append(os.waitstatus_to_exitcode(os.wait()[1]))
    print("children left", statuses, lock.get_hold_count(), lock.lost.is_set(), flush=True)
    sys.stdin.readline()
    print("still", lock.get_hold_count(), lock.lost.is_set(), flush=True)
print("given back", flush=True)
"""


def test_forked_children_that_leave_the_block_do_not_release(server: Server, admin: Redis, child: Start) -> None:
    parent = child(FORK, server.url)
    assert parent.receive() == "children left [0, 0, 1, 0, 0] 1 False"
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


FORK_AND_LIVE = """
import os, sys, threading
import pyredisson
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1.2)
lock, semaphore = client.get_lock("a"), client.get_semaphore("stock")
lock.lock()
semaphore.acquire()
got = []

def wait():
    with client.get_lock("w"):
        got.append(1)

waiters = [threading.Thread(target=wait) for _ in range(3)]
for waiter in waiters:
    waiter.start()
print("waiting", flush=True)
sys.stdin.readline()
parent_id = client.id
pid = os.fork()
if pid == 0:
    assert client.id != parent_id
    assert not lock.is_held() and lock.get_hold_count() == 0 and not lock.lost.is_set()
    assert lock.is_locked() and not lock.try_lock(0.05) and not client.get_lock("w").try_lock(0.05)
    own = client.get_lock("b")
    with own:
        print("child holds", client.id, flush=True)
        sys.stdin.readline()
        assert own.is_held() and not own.lost.is_set()
    for _ in range(200):
        with own, semaphore:
            pass
    own.lock()
    sys.exit(0)
assert client.id == parent_id
for _ in range(200):
    with client.get_lock("c"), semaphore:
        pass
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print("child left", status, lock.is_held(), flush=True)
for waiter in waiters:
    waiter.join()
semaphore.release()
print("got", len(got), flush=True)
"""


def owners(admin: Redis, name: str) -> list[bytes]:
    """The ids of the clients that hold it, as the server knows."""
    found: Any = admin.hkeys(name)
    return [owner.partition(b":")[0] for owner in found]


def test_a_forked_child_is_a_client_of_its_own(server: Server, admin: Redis, child: Start) -> None:
    """Neither side harms the other one, beside waiting threads, too."""
    admin.hset("w", "another:1", 1)
    admin.set("stock", 5)
    parent = child(FORK_AND_LIVE, server.url)
    assert parent.receive() == "waiting"
    eventually(lambda: listeners(admin, "w") == 1)
    parent.send()
    holds, identity = parent.receive().rsplit(" ", 1)
    assert holds == "child holds"
    assert owners(admin, "b") == [identity.encode()]
    assert owners(admin, "a") != [identity.encode()]
    # Its own watchdog renews.
    eventually(lambda: admin.pttl("b") < 900, 3)
    eventually(lambda: admin.pttl("b") > 1000, 3)
    parent.send()
    assert parent.receive() == "child left 0 True"
    # It gave back what it held when it ended, and the parent does so now.
    assert not admin.exists("b")
    admin.delete("w")
    admin.publish("redisson_lock__channel:{w}", "0")
    assert parent.receive() == "got 3"
    assert parent.wait() == 0
    assert not admin.exists("a")
    # With the same session slots the calls of one process would count as late copies of the other's.
    assert admin.get("stock") == b"5"


FORK_AMONG_HAND_OVERS = """
import os, sys, threading, time
import pyredisson
url, *kinds = sys.argv[1:]
client = pyredisson.connect(url)
over = False
counts = [0] * len(kinds)

def lock_of(kind):
    if kind == "lock":
        return client.get_lock("a")
    pair = client.get_read_write_lock("a")
    return pair.write_lock() if kind == "write" else pair.read_lock()

def contend(place):
    lock = lock_of(kinds[place])
    while not over:
        with lock:
            counts[place] += 1

def live():
    # The child has no waiters of the parent, and its own threads hand the lock on to each other.
    assert not client._session.lock_queues and not client._session.channels.waiting
    done = []

    def take(kind):
        for _ in range(20):
            lock = lock_of(kind)
            assert lock.try_lock(wait_time=30)
            lock.unlock()
        done.append(1)

    takers = [threading.Thread(target=take, args=(kind,)) for kind in kinds[:3]]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert len(done) == 3

contenders = [threading.Thread(target=contend, args=(place,)) for place in range(len(kinds))]
for contender in contenders:
    contender.start()
statuses = []
for _ in range(5):
    before = list(counts)
    pid = os.fork()
    if pid == 0:
        try:
            live()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    while any(now <= count for now, count in zip(counts, before)):
        time.sleep(0.001)
over = True
for contender in contenders:
    contender.join()
print("ended", statuses, len(client._session.lock_queues), len(client._session.channels.waiting), flush=True)
"""


@pytest.mark.parametrize(
    ("script", "kinds"),
    [
        ("lock_hand_over", ["lock"] * 4),
        ("write_hand_over", ["write"] * 4),
        ("write_let_readers_in", ["write", "read", "read", "read"]),
    ],
)
def test_a_fork_while_threads_hand_a_lock_on(
    proxy: Proxy, admin: Redis, child: Start, script: str, kinds: list[str]
) -> None:
    """At any moment: the threads have any mutex. `script`: what they have the server run."""
    parent = child(FORK_AMONG_HAND_OVERS, proxy.url, *kinds)
    assert parent.receive(CHILD_LIMIT) == "ended [0, 0, 0, 0, 0] 0 0"
    assert parent.wait() == 0
    assert not admin.exists("a")
    assert any(script_name(words) == script for words in proxy.commands)


HOLD = """
import asyncio, sys, threading
import pyredisson, pyredisson.asyncio
url, backend, lease, end = sys.argv[1:]
fields = {"lock_watchdog_timeout": float(lease), "timeout": 30, "connect_timeout": 30}

def said():
    print("held", flush=True)
    sys.stdin.readline()

def all_of(client, number):
    yield from (client.get_lock(name + number).lock() for name in "ab")
    yield client.get_fair_lock("fair" + number).lock()
    yield client.get_permit_expirable_semaphore("p" + number).try_set_permits(3)
    yield client.get_permit_expirable_semaphore("p" + number).acquire_many(3, renew=True)

def take(number):
    while True:
        client.get_lock(f"d{number}").lock()
        client.get_lock(f"d{number}").unlock()

async def main():
    for call in all_of(pyredisson.asyncio.connect(url, **fields), ""):
        await call
    await asyncio.to_thread(said)

if backend == "asyncio":
    asyncio.run(main())
else:
    clients = [pyredisson.connect(url, **fields) for _ in range(1 if end != "many" else 8)]
    for number, client in enumerate(clients):
        list(all_of(client, str(number or "")))
    if end == "daemons":
        # They are acquiring and releasing when the process ends.
        for number in range(20):
            threading.Thread(target=take, args=(number,), daemon=True).start()
    said()
if end == "raise":
    sys.stderr = None
    raise ZeroDivisionError
if end == "exit":
    sys.exit(3)
"""


def holder_of(child: Start, url: str, kind: str, lease: float = 30, end: str = "return") -> Child:
    holder = child(HOLD, url, kind, lease, end)
    assert holder.receive() == "held"
    return holder


def held(admin: Redis) -> list[str]:
    """What is left of the locks, and semaphores that are not whole."""
    found: Any = admin.keys()
    names = [key.decode() for key in found if not key.startswith(b"pyredisson_once:{p")]
    return [name for name in names if name[0] != "p" or admin.get(name) != b"3"]


@pytest.mark.parametrize(
    ("kind", "end", "status"),
    [
        ("threads", "return", 0),
        ("threads", "raise", 1),
        ("threads", "exit", 3),
        ("threads", "many", 0),
        ("asyncio", "return", 0),
        ("asyncio", "raise", 1),
    ],
)
def test_the_end_of_the_interpreter_releases_what_is_held(
    server: Server, admin: Redis, child: Start, kind: str, end: str, status: int
) -> None:
    holder = holder_of(child, server.url, kind, end=end)
    assert admin.exists("a", "b", "fair", "{p}:timeout") == 4
    holder.send()
    assert holder.wait() == status
    assert held(admin) == []


@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_the_end_of_the_interpreter_releases_what_daemon_threads_are_acquiring(
    proxy: Proxy, admin: Redis, child: Start, latency: float
) -> None:
    user = holder_of(child, proxy.url, "threads", end="daemons")
    proxy.latency(latency)
    proxy.wait_for(lambda: proxy.seen(ACQUIRE) > 200, 30)
    user.send()
    assert user.wait() == 0
    assert held(admin) == []


@pytest.mark.parametrize(
    ("kind", "end", "trouble"),
    [
        ("threads", "return", "hung"),
        ("asyncio", "return", "hung"),
        ("threads", "many", "hung"),
        ("threads", "many", "dead"),
    ],
)
def test_the_end_of_the_interpreter_is_not_held_up_by_a_server(
    own_server: Server, child: Start, kind: str, end: str, trouble: str
) -> None:
    holder = holder_of(child, own_server.url, kind, end=end)
    if trouble == "dead":
        own_server.kill()
    else:
        own_server.pause()
    begin = time.monotonic()
    holder.send()
    assert holder.wait(20) == 0
    # About a second, however many clients there are, and whatever the timeout of a call is.
    assert time.monotonic() - begin < 6
    if trouble == "hung":
        own_server.resume()


@pytest.mark.asyncio
async def test_what_a_killed_process_held_goes_to_the_next_when_its_lease_ends(
    backend: RawBackend, server: Server, admin: Redis, child: Start
) -> None:
    holder = await backend.run_blocking(holder_of, child, server.url, backend.name, 1)
    client = backend.connect(server.url)
    semaphore = client.get_permit_expirable_semaphore("p")

    async def take(call: Callable[[], Any]) -> float:
        await backend.do(call())
        return time.monotonic()

    calls = [client.get_lock("a").lock, client.get_fair_lock("fair").lock, lambda: semaphore.acquire_many(2)]
    waiters = [backend.start(functools.partial(take, call)) for call in calls]
    await backend.until(lambda: listeners(admin, "a") == 1 and admin.exists("redisson_lock_queue:{fair}"))
    # It is renewed while the process lives.
    await backend.sleep(1.5)
    assert not any(waiter.done for waiter in waiters)
    holder.signal(signal.SIGKILL)
    await backend.run_blocking(holder.wait)
    # The clock first: no lease ends before `killed` and what is left then.
    killed = time.monotonic()
    left = [admin.pttl(name) / 1000 for name in ("a", "fair")]
    # No message announces it. By itself a waiter would look again after 30 s.
    for waiter, least in zip(waiters, [*left, 0], strict=True):
        assert least - 0.01 < await waiter.result() - killed < least + 3
    assert admin.get("p") == b"0"  # one of which has ended
    assert await backend.do(semaphore.available_permits()) == 1


LEASE = 1.2
HOLD_AND_LOOK = """
import asyncio, inspect, sys
import pyredisson, pyredisson.asyncio
url, backend, lease, fixed = sys.argv[1:]
fixed = float(fixed) or None
connect = pyredisson.asyncio.connect if backend == "asyncio" else pyredisson.connect

async def do(result):
    return await result if inspect.isawaitable(result) else result

async def scenario():
    client = connect(url, lock_watchdog_timeout=float(lease))
    lock = client.get_lock("a")
    await do(lock.lock(fixed))
    await do(client.get_permit_expirable_semaphore("p").acquire_many(3, renew=True))
    lost = lock.lost
    print("held", flush=True)
    # Blocks the event loop, too: nothing of the library runs on it meanwhile.
    sys.stdin.readline()
    print(lost.is_set(), flush=True)
    try:
        await do(lock.unlock())
    except pyredisson.LockLostError:
        print("lost", flush=True)
    else:
        print("given back", flush=True)

if backend == "asyncio":
    asyncio.run(scenario())
else:
    try:
        scenario().send(None)
    except StopIteration:
        pass
"""


@pytest.mark.parametrize("fixed", [0, LEASE])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_beyond_its_lease_knows_first_thing(
    server: Server, admin: Redis, child: Start, kind: str, fixed: float
) -> None:
    """When it goes on, it takes nothing from those to whom its lock and its permits have gone."""
    admin.set("p", 3)
    holder = child(HOLD_AND_LOOK, server.url, kind, LEASE, fixed)
    assert holder.receive() == "held"
    holder.signal(signal.SIGSTOP)
    eventually(lambda: not admin.exists("a"))
    admin.hset("a", "another:1", 1)
    with pyredisson.connect(server.url) as other:
        permits = other.get_permit_expirable_semaphore("p").acquire_many(3)
        holder.send()
        holder.signal(signal.SIGCONT)
        assert holder.receive() == "True"
        assert holder.receive() == "lost"
        assert admin.hgetall("a") == {b"another:1": b"1"}
        assert holder.wait() == 0
        used = cast("list[bytes]", admin.zrange("{p}:timeout", 0, -1))
        assert {permit.hex() for permit in used} == set(permits)
        assert admin.get("p") == b"0"


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_for_less_than_its_lease_keeps_the_lock(
    server: Server, admin: Redis, child: Start, kind: str
) -> None:
    admin.set("p", 3)
    holder = child(HOLD_AND_LOOK, server.url, kind, 3, 0)
    assert holder.receive() == "held"
    holder.signal(signal.SIGSTOP)
    eventually(lambda: admin.pttl("a") < 1700)
    holder.signal(signal.SIGCONT)
    eventually(lambda: admin.pttl("a") > 2700)
    holder.send()
    assert holder.receive() == "False"
    assert holder.receive() == "given back"
