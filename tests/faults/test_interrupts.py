"""Ctrl-C at any moment, from real signals: no hold, connection or reply is lost."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from pyredisson._backends.thread_start import start_thread
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.faults import ACQUIRE, InterruptAt
from tests.support.server_state import listeners
from tests.support.waiting import eventually

PRELUDE = """
import faulthandler, json, random, signal, sys, threading, time, traceback
import pyredisson
# Who hangs says where.
faulthandler.dump_traceback_later(100, exit=True)
signal.signal(signal.SIGALRM, signal.default_int_handler)
url, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)

def alarm(longest):
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest))

def quiet():
    signal.setitimer(signal.ITIMER_REAL, 0)

def turns(number, enough=51):
    # So many, and more until enough were interrupted: how many are, depends on the speed of the machine.
    turn = 0
    while turn < number or (interrupts < enough and turn < 20 * number):
        yield turn
        turn += 1

def inside(error):
    # The innermost function of the library that was interrupted; None: it was the user's own line.
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/pyredisson/" in f.filename]
    return f"{frames[-1].name}:{frames[-1].lineno}" if frames else None
"""

TAKE_AND_GIVE_BACK = (
    PRELUDE
    + """
mode, rounds = sys.argv[3], int(sys.argv[4])
Alarm = {"KeyboardInterrupt": KeyboardInterrupt, "TimeoutError": TimeoutError}[sys.argv[5]]

def ring(*_):
    raise Alarm

signal.signal(signal.SIGALRM, ring)
client = pyredisson.connect(url, connection_pool_size=4, timeout=5)
sides = ["read_lock", "write_lock"]

def the_lock(client, number):
    # Of a read-write lock all contend for both sides.
    if mode.startswith(("read", "write")):
        side = sides[(number + mode.startswith("write")) % 2]
        return getattr(client.get_read_write_lock("a"), side)()
    return client.get_fair_lock("a") if mode.startswith("fair") else client.get_lock("a")

lock = the_lock(client, 0)
over = threading.Event()

def contend(other, number):
    while not over.is_set():
        with the_lock(other, number):
            time.sleep(random.uniform(0, 3e-4))
        time.sleep(random.uniform(0, 3e-4))

contenders = []
if mode == "contended":
    contenders = [threading.Thread(target=contend, args=(pyredisson.connect(url), 0), daemon=True)]
elif mode.endswith("handed on"):
    contenders = [threading.Thread(target=contend, args=(client, n), daemon=True) for n in range(3)]
for contender in contenders:
    contender.start()
kept, interrupts, other_errors = [], 0, []
for _ in turns(rounds):
    stage = "lock"
    try:
        try:
            alarm(1.5e-3 if contenders else 3.5e-4)
            lock.lock()
            stage = "unlock"
            lock.unlock()
            stage = "done"
        finally:
            quiet()
    except Alarm as error:
        where = inside(error)
        interrupts += where is not None
        hold = lock._logic.hold_of(lock._owner().id)
        if hold is None:
            continue
        # A signal that comes at the very first instruction of a call comes before the call.
        if where is not None and not (stage == "unlock" and where.startswith("unlock:")):
            kept.append(f"{stage} interrupted in {where}")
        while lock._logic.hold_of(lock._owner().id) is not None:
            lock.unlock()
    except Exception as error:
        other_errors.append(f"{stage}: {error!r}")
over.set()
for contender in contenders:
    contender.join()

def use():
    with client.get_lock(threading.current_thread().name):
        inside_all.wait(10)

inside_all = threading.Barrier(3)
users = [threading.Thread(target=use) for _ in range(3)]
for user in users:
    user.start()
for user in users:
    user.join()
waiters = sum(len(channel.waiters) for channel in client._session.channels.by_name.values())
waiters += len(client._session.lock_queues) + len(client._session.local_queues)
print(json.dumps({"interrupts": interrupts, "kept": kept, "errors": other_errors, "waiters": waiters}))
sys.stdin.readline()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "mode", ["free", "contended", "handed on", "fair, handed on", "read, handed on", "write, handed on"]
)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
def test_interrupts_at_random_moments_leave_no_hold_behind(
    server: Server, admin: Redis, child: Callable[..., Child], error: str, mode: str, seed: int
) -> None:
    """Many programs limit a time by a signal whose handler raises the built-in TimeoutError, which is an OSError."""
    user = child(TAKE_AND_GIVE_BACK, server.url, seed, mode, 500, error)
    report: dict[str, Any] = json.loads(user.receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    assert report["interrupts"] > 50
    assert report["errors"] == []
    assert report["kept"] == []
    assert report["waiters"] == 0
    # The client lives on: a hold that were still renewed would be there for ever.
    eventually(lambda: not admin.exists("a"), 5)
    user.send()
    assert user.wait() == 0


ENTER_AND_LEAVE = (
    PRELUDE
    + """
client = pyredisson.connect(url, timeout=5)
lock = client.get_lock("a")
scopes = [lock, lock.hold(wait_time=5)]
first = {code.co_name + ":" + str(code.co_firstlineno) for code in
         (pyredisson.Lock.__exit__.__code__, type(scopes[1]).__exit__.__code__, pyredisson.Lock.unlock.__code__)}
kept, interrupts = [], 0
for turn in turns(int(sys.argv[3])):
    scope = scopes[turn % 2]
    try:
        try:
            alarm(3.5e-4)
            with scope:
                pass
        finally:
            quiet()
    except KeyboardInterrupt as error:
        where = inside(error)
        interrupts += where is not None
        # A signal that comes at the very first instruction of a call comes before the call.
        if lock._logic.hold_of(lock._owner().id) is not None and where not in first:
            kept.append(f"interrupted in {where}")
        while lock._logic.hold_of(lock._owner().id) is not None:
            lock.unlock()
        if where not in first and any(each._blocks is not None for each in scopes):
            kept.append(f"a block after {where}")
        for each in scopes:
            each._blocks = None
print(json.dumps({"interrupts": interrupts, "kept": kept}))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_interrupted_blocks_leave_no_hold_behind(
    server: Server, admin: Redis, child: Callable[..., Child], seed: int
) -> None:
    report: dict[str, Any] = json.loads(child(ENTER_AND_LEAVE, server.url, seed, 2000).receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    assert report["interrupts"] > 50
    assert report["kept"] == []


ASK_AND_BE_ANSWERED = (
    PRELUDE
    + """
client = pyredisson.connect(url, connection_pool_size=3, timeout=5)
free, endless, ours = (client.get_lock(name) for name in ("free", "endless", "ours"))
for _ in range(4):
    ours.lock()
questions = [
    (free.is_locked, False),
    (endless.is_locked, True),
    (free.remain_time_to_live, None),
    (endless.remain_time_to_live, float("inf")),
    (ours.get_hold_count, 4),
    (free.get_hold_count, 0),
    (endless.try_lock, False),
]
wrong, interrupts = [], 0
for _ in turns(1500, 101):
    ask, right = random.choice(questions)
    try:
        try:
            alarm(2e-4)
            answer = ask()
        finally:
            quiet()
    except KeyboardInterrupt:
        interrupts += 1
        continue
    except Exception as error:
        answer = error
    if answer != right:
        wrong.append(f"{ask.__name__}: {answer!r}, not {right!r}")
print(json.dumps({"interrupts": interrupts, "wrong": wrong}))
"""
)


@pytest.mark.timeout(2 * CHILD_LIMIT)
def test_no_reply_goes_to_another_call_after_an_interrupt(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    admin.hset("endless", "another:1", 1)
    report: dict[str, Any] = json.loads(child(ASK_AND_BE_ANSWERED, server.url, 1).receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    assert report["interrupts"] > 100
    assert report["wrong"] == []


INTERRUPTED_ONCE = (
    PRELUDE
    + """
client = pyredisson.connect(url, timeout=20, lock_watchdog_timeout=20)
lock = client.get_lock("a")
for _ in range(int(sys.argv[3])):
    lock.lock()
client.get_lock("other").is_locked()
print("go")
sys.stdin.readline()
signal.signal(signal.SIGINT, signal.default_int_handler)
print("start_thread")
try:
    lock.lock()
except KeyboardInterrupt:
    print("interrupted", lock._logic.hold_of(lock._owner().id) and lock._logic.hold_of(lock._owner().id).count)
else:
    print("taken")
sys.stdin.readline()
print(lock.get_hold_count())
sys.stdin.readline()
"""
)


def test_an_interrupted_acquire_whose_request_comes_late_leaves_nothing(
    proxy: Proxy, admin: Redis, child: Callable[..., Child]
) -> None:
    user = child(INTERRUPTED_ONCE, proxy.url, 1, 0)
    assert user.receive() == "go"
    late = proxy.hold_request(ACQUIRE)
    user.send()
    assert user.receive() == "start_thread"
    assert late.held.wait(10)
    # The client can't reach the server and have that connection dropped: the late request runs.
    proxy.refuse(True)
    user.signal(signal.SIGINT)
    assert user.receive() == "interrupted None"
    late.deliver()
    assert admin.exists("a")
    proxy.refuse(False)
    eventually(lambda: not admin.exists("a"), 5)
    user.send()
    assert user.receive() == "0"


def test_an_interrupted_acquire_whose_reply_was_on_its_way_leaves_nothing(
    proxy: Proxy, admin: Redis, child: Callable[..., Child]
) -> None:
    user = child(INTERRUPTED_ONCE, proxy.url, 1, 0)
    assert user.receive() == "go"
    late = proxy.hold_reply(ACQUIRE)
    user.send()
    assert user.receive() == "start_thread"
    assert late.held.wait(10)
    assert admin.exists("a")
    user.signal(signal.SIGINT)
    assert user.receive() == "interrupted None"
    eventually(lambda: not admin.exists("a"), 5)


@pytest.mark.parametrize("depth", [1, 3])
def test_an_interrupted_reentrant_acquire_keeps_the_outer_holds(
    proxy: Proxy, admin: Redis, child: Callable[..., Child], depth: int
) -> None:
    user = child(INTERRUPTED_ONCE, proxy.url, 1, depth)
    assert user.receive() == "go"
    late = proxy.hold_reply(ACQUIRE)
    user.send()
    assert user.receive() == "start_thread"
    assert late.held.wait(10)
    assert admin.hvals("a") == [b"%d" % (depth + 1)]
    user.signal(signal.SIGINT)
    assert user.receive() == f"interrupted {depth}"
    eventually(lambda: admin.hvals("a") == [b"%d" % depth], 5)
    user.send()
    assert user.receive() == f"{depth}"


ALARMED = (
    PRELUDE
    + """
def ring(*_):
    raise TimeoutError("the time of the job is over")

signal.signal(signal.SIGALRM, ring)
client = pyredisson.connect(url, timeout=20)
lock = client.get_lock("a")
if sys.argv[3] == "connected":
    client.get_lock("other").is_locked()
print("go")
sys.stdin.readline()
signal.setitimer(signal.ITIMER_REAL, 0.2)
began = time.monotonic()
try:
    lock.lock()
except TimeoutError as error:
    print(error, time.monotonic() - began < 5)
"""
)


@pytest.mark.parametrize("moment", ["connect", "reply", "message"])
def test_a_handler_may_raise_what_a_socket_raises(
    proxy: Proxy, admin: Redis, child: Callable[..., Child], moment: str
) -> None:
    """It is no failure of the connection, after which the call would try again without an end."""
    user = child(ALARMED, proxy.url, 1, "connect" if moment == "connect" else "connected")
    assert user.receive() == "go"
    if moment == "connect":
        proxy.hold_reply(b"")
    elif moment == "reply":
        proxy.hold_reply(ACQUIRE)
    else:
        admin.hset("a", "another:1", 1)
    user.send()
    assert user.receive(10) == "the time of the job is over True"


def test_an_interrupted_wait_ends_at_once_and_leaves_no_claim(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    admin.hset("a", "another:1", 1)
    user = child(INTERRUPTED_ONCE, server.url, 1, 0)
    assert user.receive() == "go"
    user.send()
    assert user.receive() == "start_thread"
    eventually(lambda: listeners(admin, "a") == 1)
    user.signal(signal.SIGINT)
    assert user.receive(3) == "interrupted None"
    admin.delete("a")
    admin.publish("redisson_lock__channel:{a}", "0")
    user.send()
    assert user.receive() == "0"
    assert not admin.exists("a")


def test_an_interrupted_start_of_a_thread_is_an_interrupt() -> None:
    """And not what becomes of it inside `threading`."""
    with InterruptAt(threading.Condition._acquire_restore), pytest.raises(KeyboardInterrupt):  # type: ignore[attr-defined]
        while True:
            # One that is there at once isn't waited for.
            start_thread(threading.Thread(target=int))
