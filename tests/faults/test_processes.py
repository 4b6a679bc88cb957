"""Processes: a forked child holds nothing, an exit releases what is held, and what a killed holder held expires."""

import gc
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.logic import holds
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, RawBackend, eventually, listeners, within
from tests.support.children import CHILD_LIMIT, Child, forked
from tests.support.faults import ACQUIRE
from tests.support.kinds import LOCKS

from .kinds import Start, taken_by_another

FORK = """
import os, sys
import pyredisson
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1.2)
lock, semaphore = client.get_lock("a"), client.get_semaphore("stock")

def fork(work):
    pid = os.fork()
    if pid == 0:
        work()
    return pid

def left(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def fail():
    sys.stderr = open(os.devnull, "w")
    raise ZeroDivisionError

def live():
    assert client.id != parent_id
    assert not lock.is_held() and lock.get_hold_count() == 0 and not lock.lost.is_set()
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

with lock:
    lock.lock()
    lock.unlock()
    statuses = [left(fork(leave)) for leave in (lambda: os._exit(0), sys.exit, fail)]
    print("children left", statuses, lock.get_hold_count(), lock.lost.is_set(), flush=True)
    semaphore.acquire()
    sys.stdin.readline()
    parent_id = client.id
    child = fork(live)
    assert client.id == parent_id
    for _ in range(200):
        with client.get_lock("c"), semaphore:
            pass
    print("child left", left(child), lock.get_hold_count(), lock.lost.is_set(), flush=True)
    semaphore.release()
"""


def owners(admin: Any, name: str) -> list[bytes]:
    """The ids of the clients that hold it, as the server knows."""
    return [owner.partition(b":")[0] for owner in admin.hkeys(name)]


def is_renewed(admin: Redis, name: str) -> None:
    """Its remaining lease grows again."""
    left = admin.pttl(name)
    eventually(lambda: admin.pttl(name) < left - 100 or admin.pttl(name) > left, 3)
    eventually(lambda: admin.pttl(name) > 1000, 3)


def test_a_forked_child_is_a_client_of_its_own(server: Server, admin: Redis, child: Start) -> None:
    """Neither side harms the other one. A child that leaves the block releases nothing."""
    admin.set("stock", 5)
    parent = child(FORK, server.url)
    assert parent.receive() == "children left [0, 0, 1] 1 False"
    owner = admin.hgetall("a")
    # The parent's watchdog continues.
    for _ in range(2):
        is_renewed(admin, "a")
    assert admin.hgetall("a") == owner
    parent.send()
    holds, identity = parent.receive().rsplit(" ", 1)
    assert (holds, owners(admin, "b")) == ("child holds", [identity.encode()])
    assert owners(admin, "a") != [identity.encode()]
    # Its own watchdog renews.
    is_renewed(admin, "b")
    parent.send()
    assert parent.receive() == "child left 0 1 False"
    # It gave back what it held when it ended, and the parent does so now.
    assert not admin.exists("b")
    assert (parent.wait(), admin.exists("a")) == (0, 0)
    # With the same session slots the calls of one process would count as late copies of the other's.
    assert admin.get("stock") == b"5"


def mutexes_of(client: pyredisson.Client) -> list[Any]:
    """All that the objects of a client have, and the one of all holds."""
    found, seen, left = list[Any](), set[int](), [client, holds._listening]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, (type(threading.Lock()), type(threading.RLock()))):
            found.append(each)
        elif isinstance(each, (dict, list, tuple, set)) or type(each).__module__.startswith("pyredisson."):
            left += gc.get_referents(each)
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_a_thread_has_all_mutexes(server: Server, client: pyredisson.Client) -> None:
    """Those of the child are new. Its own threads hand the lock on to each other."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        free = [mutex for mutex in mutexes_of(client) if mutex.acquire(blocking=False)]
        assert len(free) >= 5
        held.set()
        over.wait(CHILD_LIMIT)
        for mutex in free:
            mutex.release()

    def take(kind: str) -> bool:
        for _ in range(20):
            lock = LOCKS[kind](client, "a" if kind == "lock" else "rw")
            assert lock.try_lock(TIME_LIMIT)
            lock.unlock()
        return True

    def live() -> bool:
        with ThreadPoolExecutor(4) as pool:
            return all([*pool.map(take, ["lock"] * 4), *pool.map(take, ["write", "read", "read", "read"])])

    assert live()
    with ThreadPoolExecutor(1) as other:
        other.submit(hold)
        assert held.wait(TIME_LIMIT)
        try:
            assert forked(live)
        finally:
            over.set()
    assert live()


HOLD = """
import asyncio, signal, sys, threading, time
import pyredisson
from pyredisson._client import process
from tests.support.backends import _finished
from tests.support.kinds import LOCKS
from tests.support.backends import RawBackend
url, name, lease, end, fixed = sys.argv[1:]
backend = RawBackend(name)
clients = []

async def hold(number):
    client = backend.connect(url, lock_watchdog_timeout=float(lease), timeout=30, connect_timeout=30)
    clients.append(client)
    semaphore = client.get_permit_expirable_semaphore("p" + number)
    await backend.do(client.get_lock("a" + number).lock(float(fixed) or None))
    await backend.do(client.get_lock("b" + number).lock())
    await backend.do(client.get_fair_lock("fair" + number).lock())
    await backend.do(semaphore.try_set_permits(3))
    await backend.do(semaphore.acquire_many(3, renew=True))
    return client.get_lock("a" + number)

def take(number):
    while True:
        clients[0].get_lock(f"d{number}").lock()
        clients[0].get_lock(f"d{number}").unlock()

def handle(number, frame):
    print("handled", number, clients[0].closed)
    sys.exit(5)

def tell():
    while not process._releasing:
        time.sleep(0.01)
    print("releasing")

async def stay():
    ended = asyncio.Event()
    if end == "handles":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        pyredisson.release_on_signals()
    print("held", flush=True)
    await ended.wait()
    print("ended", clients[0].closed)

async def main():
    lock = await hold("")
    for number in range(1, 8 if end == "many" else 1):
        await hold(str(number))
    if end == "daemons":
        # They are acquiring and releasing when the process ends.
        for number in range(20):
            threading.Thread(target=take, args=(number,), daemon=True).start()
    if name == "asyncio" and end in ("signal", "handles"):
        return await stay()
    lost = lock.lost
    print("held", flush=True)
    if end == "waits":
        await backend.do(clients[0].get_lock("other").lock())
    # Blocks the event loop, too: nothing of the library runs on it meanwhile.
    wait_for_line()
    if end == "look":
        print(lost.is_set(), flush=True)
        try:
            await backend.do(lock.unlock())
        except pyredisson.LockLostError:
            print("lost", flush=True)
        else:
            print("given back", flush=True)

if end == "handles" and name == "threads":
    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if end == "slow":
    process.CLOSE_TIMEOUT = 60
    threading.Thread(target=tell, daemon=True).start()
if end in ("signal", "waits", "slow", "daemons") or (end, name) == ("handles", "threads"):
    pyredisson.release_on_signals()
    # One that is ignored stays so.
    assert end != "handles" or signal.getsignal(signal.SIGINT) == signal.SIG_IGN
try:
    asyncio.run(main()) if name == "asyncio" else _finished(main())
except KeyboardInterrupt:
    if name == "threads":
        print("interrupted", clients[0].closed)
    sys.exit(7)
if end == "raise":
    sys.stderr = None
    raise ZeroDivisionError
if end == "exit":
    sys.exit(3)
"""
CLOSES_WITHIN = 10.0
"""Seconds. It takes about one, however many clients there are, and not the 30 of a call's timeout."""


def holder_of(child: Start, url: str, kind: str, lease: float = 30, end: str = "return", fixed: float = 0) -> Child:
    holder = child(HOLD, url, kind, lease, end, fixed)
    assert holder.receive() == "held"
    return holder


def ended(holder: Child, number: signal.Signals | None) -> int:
    """The exit status of a process that comes to its end, or gets this signal."""
    with within(CLOSES_WITHIN):
        holder.send() if number is None else holder.signal(number)
        return holder.wait()


TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("kind", "end", "number", "status", "says", "latency"),
    [
        *[(kind, end, None, end == "raise", "", 0.0) for kind in ("threads", "asyncio") for end in ("return", "raise")],
        *[("threads", end, None, status, "", 0.0) for end, status in (("exit", 3), ("many", 0))],
        *[("threads", "daemons", each, -(each or 0), "", latency) for each in (None, TERM) for latency in (0.0, 0.05)],
        *[(kind, end, TERM, -TERM, "", 0.0) for kind in ("threads", "asyncio") for end in ("signal", "waits")],
        *[("asyncio", end, INT, 7, "", 0.0) for end in ("signal", "waits")],
        ("threads", "signal", INT, 7, "interrupted True", 0.0),
        ("threads", "handles", TERM, 5, "handled 15 True", 0.0),
        ("asyncio", "handles", TERM, 0, "ended True", 0.0),
    ],
)
def test_the_end_of_a_process_releases_what_is_held(
    proxy: Proxy, admin: Any, child: Start, kind: str, end: str, number: Any, status: int, says: str, latency: float
) -> None:
    """And what daemon threads are acquiring. With `release_on_signals` a signal ends it as it would have without."""
    if end == "waits":
        taken_by_another(admin, "other")
    holder = holder_of(child, proxy.url, kind, end=end, fixed=60 if number else 0)
    assert admin.exists("a", "b", "fair", "{p}:timeout") == 4
    proxy.latency(latency)
    if end == "daemons":
        proxy.wait_for(lambda: proxy.seen(ACQUIRE) > 200, 30)
    if end == "waits":
        eventually(lambda: listeners(admin, "other") == 1)
    if end == "handles" and kind == "threads":
        # It is ignored.
        holder.signal(INT)
    assert (ended(holder, number), holder.receive()) == (status, says)
    if end == "waits":
        # The next release finds out that the client is gone, and takes it out of the list.
        assert admin.pttl("pyredisson_waiting:{other}") <= 60_000
        admin.delete("other", "pyredisson_waiting:{other}")
    # But for whole semaphores.
    names = [key.decode() for key in admin.scan_iter() if not key.startswith(b"pyredisson_once:{p")]
    assert [name for name in names if name[0] != "p" or admin.get(name) != b"3"] == []


def test_a_signal_releases_nothing_unasked(server: Server, admin: Redis, child: Start) -> None:
    assert ended(holder_of(child, server.url, "threads"), TERM) == -TERM
    assert admin.exists("a", "b", "fair", "{p}:timeout") == 4


@pytest.mark.parametrize(
    ("end", "number", "step", "name"),
    [
        *[("waits", TERM, step, b"other") for step in ("hold_request", "hold_reply")],
        *[("daemons", number, "hold_reply", b"d7") for number in (None, TERM)],
    ],
)
def test_an_acquire_without_a_reply(
    proxy: Proxy, admin: Redis, child: Start, end: str, number: signal.Signals | None, step: str, name: bytes
) -> None:
    """That of a daemon thread is aborted, sent no more, and undone."""
    acquiring = getattr(proxy, step)(b"\r\n%b\r\n" % name)
    holder = holder_of(child, proxy.url, "threads", end=end, fixed=60)
    assert acquiring.held.wait(CHILD_LIMIT)
    assert ended(holder, number) == -(number or 0)
    assert not [key for key in admin.scan_iter() if not key.startswith((b"other", b"p", b"{p"))]


@pytest.mark.parametrize(
    ("kind", "end", "number", "trouble"),
    [
        *[(kind, "return", None, "hung") for kind in ("threads", "asyncio")],
        *[("threads", "many", None, trouble) for trouble in ("hung", "dead")],
        *[("threads", end, TERM, "hung") for end in ("signal", "slow")],
    ],
)
def test_the_end_of_a_process_is_not_held_up_by_a_server(
    own_server: Server, child: Start, kind: str, end: str, number: Any, trouble: str
) -> None:
    """A second signal doesn't wait, in the middle of a first one that would take a minute."""
    holder = holder_of(child, own_server.url, kind, end=end)
    (own_server.kill if trouble == "dead" else own_server.pause)()
    if end == "slow":
        holder.signal(TERM)
        assert holder.receive() == "releasing"
    assert ended(holder, number) == (-number if number else 0)
    if trouble == "hung":
        own_server.resume()


SEVERAL = """
import contextlib, sys
from redis import RedisError
import pyredisson
clients = [pyredisson.connect(url, timeout=0.3, connect_timeout=0.3, retry_attempts=0) for url in sys.argv[1:]]
for number, client in enumerate(clients):
    client.get_lock(f"a{number}").lock()
print("held", flush=True)
sys.stdin.readline()
for client in clients[:2]:
    with contextlib.suppress(RedisError):
        client.get_lock("b").try_lock()
"""


def test_servers_that_are_known_to_hang_use_up_no_time_of_others(proxy: Proxy, server: Server, child: Start) -> None:
    with Proxy(server.host, server.port) as slow, server.redis() as admin:
        user = child(SEVERAL, proxy.url, proxy.url, slow.url)
        assert user.receive() == "held"
        proxy.stall()
        # Two that hang leave less time than a round trip takes.
        slow.latency(0.05)
        user.send()
        assert (user.wait(), admin.exists("a0", "a1"), admin.exists("a2")) == (0, 2, 0)


def test_signals_that_cannot_be_handled_change_nothing() -> None:
    before = signal.getsignal(TERM)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="main thread"):
        pool.submit(pyredisson.release_on_signals).result()
    for other, error in ((9999, ValueError), (signal.SIGKILL, OSError)):
        with pytest.raises(error):
            pyredisson.release_on_signals([TERM, other])
    assert signal.getsignal(TERM) is before


async def test_the_end_of_a_killed_holder(backend: RawBackend, server: Server, admin: Redis, child: Start) -> None:
    holder = await backend.run_blocking(holder_of, child, server.url, backend.name, 1)
    client = backend.connect(server.url)
    semaphore = client.get_permit_expirable_semaphore("p")

    async def take(call: Callable[[], Any]) -> float:
        await backend.do(call())
        return time.monotonic()

    calls = [client.get_lock("a").lock, client.get_fair_lock("fair").lock, lambda: semaphore.acquire_many(2)]
    waiters = [backend.start(take, call) for call in calls]
    await backend.until(lambda: listeners(admin, "a") == 1 and admin.exists("redisson_lock_queue:{fair}"))
    # It is renewed while the process lives.
    await backend.sleep(1.5)
    assert not any(waiter.done() for waiter in waiters)
    holder.signal(signal.SIGKILL)
    await backend.run_blocking(holder.wait)
    # The clock first: no lease ends before `killed` and what is left then.
    killed = time.monotonic()
    left = [admin.pttl(name) / 1000 for name in ("a", "fair")]
    # No message announces it. By itself a waiter would look again after 30 s.
    for waiter, least in zip(waiters, [*left, 0], strict=True):
        assert least - 0.01 < await waiter.result() - killed < least + 3
    assert await backend.do(semaphore.available_permits()) == 1


@pytest.mark.parametrize("fixed", [0, 1.2])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_for_more_knows(server: Server, admin: Any, child: Start, kind: str, fixed: float) -> None:
    """When it goes on, it takes nothing from those to whom its lock and its permits have gone."""
    holder = holder_of(child, server.url, kind, 1.2, "look", fixed)
    holder.signal(signal.SIGSTOP)
    eventually(lambda: not admin.exists("a"))
    taken_by_another(admin)
    with pyredisson.connect(server.url) as other:
        permits = other.get_permit_expirable_semaphore("p").acquire_many(3)
        holder.send()
        holder.signal(signal.SIGCONT)
        assert [holder.receive(), holder.receive()] == ["True", "lost"]
        assert (admin.hgetall("a"), holder.wait()) == ({b"another:1": b"1"}, 0)
        assert {permit.hex() for permit in admin.zrange("{p}:timeout", 0, -1)} == set(permits)
        assert admin.get("p") == b"0"


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_for_less_keeps_the_lock(server: Server, admin: Redis, child: Start, kind: str) -> None:
    holder = holder_of(child, server.url, kind, 3, "look")
    holder.signal(signal.SIGSTOP)
    eventually(lambda: admin.pttl("a") < 1700)
    holder.signal(signal.SIGCONT)
    eventually(lambda: admin.pttl("a") > 2700)
    holder.send()
    assert [holder.receive(), holder.receive()] == ["False", "given back"]
