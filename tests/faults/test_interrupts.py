"""Ctrl-C at any moment, from real signals: no hold, permit, connection or reply is lost."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.server_state import listeners
from tests.support.waiting import TIME_LIMIT, eventually

from .kinds import PERMITS, Start

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
kind, _, mode = mode.rpartition(", ")

def ring(*_):
    raise Alarm

signal.signal(signal.SIGALRM, ring)
sides = ["read_lock", "write_lock"]

def connected():
    return [pyredisson.connect(each, connection_pool_size=4, timeout=5) for each in url.split()]

def the_lock(clients, number):
    client = clients[0]
    # Of a read-write lock all contend for both sides.
    if kind in ("read", "write"):
        side = sides[(number + (kind == "write")) % 2]
        return getattr(client.get_read_write_lock("a"), side)()
    if kind in ("multi", "red"):
        return getattr(client, f"get_{kind}_lock")(*[each.get_lock("a") for each in clients])
    return client.get_fair_lock("a") if kind == "fair" else client.get_lock("a")

clients = connected()
client = clients[0]
lock = the_lock(clients, 0)
over = threading.Event()

def contend(others, number):
    while not over.is_set():
        with the_lock(others, number):
            time.sleep(random.uniform(0, 3e-4))
        time.sleep(random.uniform(0, 3e-4))

def held():
    if kind in ("multi", "red"):
        owners = lock._owner().owners
        return [hold for member, owner in zip(lock._logic.members, owners) if (hold := member.hold_of(owner.id))]
    return lock._logic.hold_of(lock._owner().id)

contenders = []
if mode == "contended":
    contenders = [threading.Thread(target=contend, args=(connected(), 0), daemon=True)]
elif mode == "handed on":
    contenders = [threading.Thread(target=contend, args=(clients, n), daemon=True) for n in range(3)]
if len(clients) > 1:
    with lock:
        longest = 8e-3 if contenders else 2e-3
else:
    longest = 1.5e-3 if contenders else 3.5e-4
for contender in contenders:
    contender.start()
kept, interrupts, other_errors = [], 0, []
for _ in turns(rounds, min(rounds, 51)):
    stage = "lock"
    wait = random.choice([0, 5e-4, None]) if mode == "contended" else None
    try:
        try:
            alarm(longest)
            if wait is None:
                lock.lock()
            elif not lock.try_lock(wait):
                continue
            stage = "unlock"
            lock.unlock()
            stage = "done"
        finally:
            quiet()
    except Alarm as error:
        where = inside(error)
        interrupts += where is not None
        if len(clients) > 1:
            # One that was asked has perhaps just said yes, on a thread that is about to give it back.
            end = time.monotonic() + 1
            while held() and time.monotonic() < end:
                time.sleep(1e-2)
        if not held():
            continue
        # A signal that comes at the very first instruction of a call comes before the call.
        if where is not None and not (stage == "unlock" and where.startswith("unlock:")):
            kept.append(f"{stage} interrupted in {where}")
        while held():
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
MODES = ["free", "contended", "handed on", "fair, contended", "fair, handed on", "read, handed on", "write, handed on"]
CTRL_C = "KeyboardInterrupt"


def report_of(user: Child) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(user.receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    return report


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "error"), [*[(mode, CTRL_C) for mode in MODES], ("handed on", "TimeoutError")])
def test_interrupts_at_random_moments_leave_no_hold_behind(
    server: Server, admin: Redis, child: Start, error: str, mode: str
) -> None:
    """Many programs limit a time by a signal whose handler raises the built-in TimeoutError, which is an OSError."""
    user = child(TAKE_AND_GIVE_BACK, server.url, 1, mode, 500, error)
    report = report_of(user)
    assert report.pop("interrupts") > 50
    assert report == {"kept": [], "errors": [], "waiters": 0}
    # The client lives on: a hold that were still renewed would be there for ever.
    eventually(lambda: not admin.exists("a", "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"), 5)
    user.send()
    assert user.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multi", "red"])
@pytest.mark.parametrize("mode", ["free", "contended"])
def test_interrupts_at_random_moments_leave_no_member_held(
    servers: list[Server], redises: list[Any], child: Start, kind: str, mode: str
) -> None:
    user = child(TAKE_AND_GIVE_BACK, " ".join(each.url for each in servers), 1, f"{kind}, {mode}", 150, CTRL_C)
    report = report_of(user)
    assert report["interrupts"] > 15
    assert report["errors"] == report["kept"] == []
    eventually(lambda: not any(redis.exists("a") for redis in redises), 5)
    user.send()
    assert user.wait() == 0


SEMAPHORES = (
    PRELUDE
    + """
import contextlib
kind, _, mode = sys.argv[3].partition(", ")
client = pyredisson.connect(url, connection_pool_size=3, timeout=5)
renew = kind == "renewed permits"
over = threading.Event()

class Permits:
    # With ids: those of a release that was interrupted before it began are released again.
    def __init__(self, client):
        self.semaphore = client.get_permit_expirable_semaphore("a")
        self.ids = []
    def acquire(self):
        self.ids = self.semaphore.acquire_many(2, renew=renew)
    def release(self):
        self.semaphore.release(self.ids)
        self.ids = []
    def release_again(self, error):
        self.semaphore.try_release(self.ids)
        self.ids = []

class Plain:
    def __init__(self, client):
        self.semaphore = client.get_semaphore("a")
        self.acquire, self.release = self.semaphore.acquire, self.semaphore.release
    def release_again(self, error):
        steps = traceback.walk_tb(error.__traceback__)
        frame, line = [step for step in steps if "/pyredisson/" in step[0].f_code.co_filename][-1]
        if line == frame.f_code.co_firstlineno and "/_api/sync/" in frame.f_code.co_filename:
            # A signal that comes at the very first instruction of a call comes before the call.
            self.semaphore.release()

Kind = Plain if kind == "semaphore" else Permits

def contend():
    with pyredisson.connect(url) if mode == "contended" else contextlib.nullcontext(client) as other:
        theirs = Kind(other)
        while not over.is_set():
            theirs.acquire()
            time.sleep(random.uniform(0, 3e-4))
            theirs.release()
            time.sleep(random.uniform(0, 3e-4))

ours = Kind(client)
count = {"free": 0, "contended": 1, "handed on": 3}[mode]
contenders = [threading.Thread(target=contend, daemon=True) for _ in range(count)]
for contender in contenders:
    contender.start()
interrupts, other_errors = 0, []
for _ in turns(500):
    inside, left = False, False
    try:
        try:
            alarm(1.5e-3 if contenders or kind != "semaphore" else 3.5e-4)
            ours.acquire()
            inside = True
            ours.release()
            left = True
        finally:
            quiet()
    except KeyboardInterrupt as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/pyredisson/" in f.filename]
        interrupts += bool(frames)
        if kind != "semaphore" and ours.ids or frames and inside and not left:
            ours.release_again(error)
    except Exception as error:
        other_errors.append(repr(error))
over.set()
for contender in contenders:
    contender.join()
waiters = sum(len(channel.waiters) for channel in client._session.channels.by_name.values())
print(json.dumps({"interrupts": interrupts, "errors": other_errors, "waiters": waiters}))
sys.stdin.readline()
print(len(client._session.holds.table))
client.close()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["free", "contended", "handed on"])
@pytest.mark.parametrize("kind", ["semaphore", "permits", "renewed permits"])
def test_interrupts_at_random_moments_leave_the_permits_whole(
    server: Server, admin: Redis, child: Start, kind: str, mode: str
) -> None:
    """`handed on`: the others are threads of the same client."""
    permits = b"%d" % (PERMITS if mode == "free" else 1 if kind == "semaphore" else 2)
    admin.set("a", permits)
    user = child(SEMAPHORES, server.url, 1, f"{kind}, {mode}")
    report = report_of(user)
    assert report.pop("interrupts") > 50
    assert report == {"errors": [], "waiters": 0}
    eventually(lambda: admin.get("a") == permits and not admin.zcard("{a}:timeout"), 5)
    user.send()
    assert user.receive() == "0"
    # What its end gave back.
    assert user.wait() == 0
    assert admin.get("a") == permits


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
def test_interrupted_blocks_leave_no_hold_behind(server: Server, child: Start) -> None:
    report = report_of(child(ENTER_AND_LEAVE, server.url, 1, 2000))
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
def test_no_reply_goes_to_another_call_after_an_interrupt(server: Server, admin: Redis, child: Start) -> None:
    admin.hset("endless", "another:1", 1)
    report = report_of(child(ASK_AND_BE_ANSWERED, server.url, 1))
    assert report["interrupts"] > 100
    assert report["wrong"] == []


HANDLER_THAT_JOINS = """
import signal, sys, threading
import pyredisson
client = pyredisson.connect(sys.argv[1])

def work():
    with client.get_lock("b"):
        print("b", flush=True)

worker = threading.Thread(target=work)

def start():
    sys.stdin.readline()
    worker.start()

def stop(*_):
    print("handler", flush=True)
    starting.join()
    worker.join()
    print("joined", flush=True)
    raise SystemExit

starting = threading.Thread(target=start)
starting.start()
signal.signal(signal.SIGTERM, stop)
# After this wait there is a connection, which the next waiter finds.
client.get_lock("first").lock()
client.get_lock("a").lock()
"""


@pytest.mark.parametrize("before", [True, False], ids=["waits before", "waits later"])
def test_a_handler_keeps_messages_from_nobody(server: Server, admin: Redis, child: Start, *, before: bool) -> None:
    """The main thread waits for a lock. Its handler waits for another thread, which waits for another lock."""
    with pyredisson.connect(server.url) as holder:
        first, held, wanted = locks = [holder.get_lock(name) for name in ("first", "a", "b")]
        for lock in locks:
            lock.lock()
        user = child(HANDLER_THAT_JOINS, server.url)
        eventually(lambda: listeners(admin, "first"))
        first.unlock()
        eventually(lambda: listeners(admin, "a"))
        if before:
            user.send()
            eventually(lambda: listeners(admin, "b"))
        user.signal(signal.SIGTERM)
        assert user.receive() == "handler"
        if not before:
            user.send()
            eventually(lambda: listeners(admin, "b"))
        wanted.unlock()
        # Long before the end of the lease, after which the worker would look without a message.
        assert [user.receive(TIME_LIMIT), user.receive(TIME_LIMIT)] == ["b", "joined"]
        assert user.wait() == 0
        held.unlock()
