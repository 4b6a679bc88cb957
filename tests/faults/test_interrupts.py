"""Ctrl-C at any moment, from real signals: no hold, permit, connection or reply is lost."""

import json
from typing import Any

import pytest

from pyredisson.testing import Server
from tests.support.backends import eventually
from tests.support.children import CHILD_LIMIT
from tests.support.faults import handlers_may_raise

from .kinds import PERMITS, Start

TAKE_AND_GIVE_BACK = """
import builtins, faulthandler, json, random, signal, sys, threading, time, traceback
from concurrent.futures import ThreadPoolExecutor
import pyredisson
from tests.support.kinds import LOCKS
# Who hangs says where.
faulthandler.dump_traceback_later(100, exit=True)
url, mode, rounds, error = sys.argv[1:]
kind, _, mode = mode.rpartition(", ")
rounds, Alarm = int(rounds), getattr(builtins, error)
random.seed(1)

def ring(*_):
    raise Alarm

signal.signal(signal.SIGALRM, ring)

def turns():
    # So many, and more until enough were interrupted: how many are, depends on the speed of the machine.
    turn = 0
    while turn < rounds or (interrupts < min(rounds, 51) and turn < 20 * rounds):
        yield turn
        turn += 1

def inside(error):
    # The innermost frame of the library that was interrupted, and its line; None: it was the user's own line.
    steps = traceback.walk_tb(error.__traceback__)
    return ([step for step in steps if "/pyredisson/" in step[0].f_code.co_filename] or [None])[-1]

def before(frame, line):
    # A signal that comes at the very first instruction of a call comes before the call.
    return line == frame.f_code.co_firstlineno and "/_api/sync/" in frame.f_code.co_filename

class Locks:
    # Of a read-write lock all contend for both sides.
    def __init__(self, clients, number):
        self.several = len(clients) > 1
        if self.several:
            self.lock = getattr(clients[0], f"get_{kind}_lock")(*[each.get_lock("a") for each in clients])
        else:
            other = {"read": "write", "write": "read"}.get(kind)
            self.lock = LOCKS.get(other if other and number % 2 else kind, LOCKS["lock"])(clients[0], "a")

    def held(self):
        logic, owner = self.lock._logic, self.lock._owner()
        pairs = zip(logic.members, owner.owners) if self.several else [(logic, owner)]
        return [member for member, each in pairs if member.hold_of(each.id)]

    def acquire(self, wait=None):
        return self.lock.lock() is None if wait is None else self.lock.try_lock(wait)

    def release(self):
        self.lock.unlock()

    def settle(self, stage, where):
        # Of several members, one that was asked has perhaps just said yes, on a thread that is about to give it back.
        end = time.monotonic() + self.several
        while self.held() and time.monotonic() < end:
            time.sleep(1e-2)
        if self.held() and where and not (stage == "release" and where[0].f_code.co_name == "unlock"):
            kept.append(f"{stage} interrupted at {where}")
        while self.held():
            self.lock.unlock()

class Blocks(Locks):
    def __init__(self, *args):
        super().__init__(*args)
        self.scopes = [self.lock, self.lock.hold(wait_time=5)]

    def acquire(self, wait=None):
        self.scopes.reverse()
        with self.scopes[0]:
            return False

    def settle(self, stage, where):
        begun = not (where and before(*where))
        if begun and (self.held() or any(each._blocks for each in self.scopes)):
            kept.append(f"a block interrupted at {where}")
        while self.held():
            self.lock.unlock()
        for each in self.scopes:
            for caller, _ in each._blocks:
                each._blocks[caller]

class Permits:
    # With ids: those of a release that was interrupted before it began are released again.
    def __init__(self, clients, number):
        self.semaphore = clients[0].get_permit_expirable_semaphore("a")
        self.ids = []

    def acquire(self, wait=None):
        self.ids = self.semaphore.acquire_many(2, renew=kind == "renewed permits")
        return True

    def release(self):
        self.semaphore.release(self.ids)
        self.ids = []

    def settle(self, stage, where):
        if self.ids:
            self.semaphore.try_release(self.ids)
            self.ids = []

class Semaphore:
    def __init__(self, clients, number):
        self.semaphore = clients[0].get_semaphore("a")
        self.release = self.semaphore.release

    def acquire(self, wait=None):
        self.semaphore.acquire()
        return True

    def settle(self, stage, where):
        if stage == "release" and where and before(*where):
            self.release()

Kind = {"block": Blocks, "semaphore": Semaphore, "permits": Permits, "renewed permits": Permits}.get(kind, Locks)

def connected():
    return [pyredisson.connect(each, connection_pool_size=4, timeout=5) for each in url.split()]

def contend(others, number):
    theirs = Kind(others, number)
    while not over.is_set():
        theirs.acquire()
        time.sleep(random.uniform(0, 3e-4))
        theirs.release()
        time.sleep(random.uniform(0, 3e-4))

clients = connected()
client, ours, over = clients[0], Kind(clients, 0), threading.Event()
places = {"free": [], "contended": [connected()], "handed on": [clients] * 3}[mode]
contenders = [threading.Thread(target=contend, args=each, daemon=True) for each in zip(places, range(3))]
if len(clients) > 1:
    ours.acquire()
    ours.release()
    longest = 8e-3 if contenders else 2e-3
else:
    longest = 1.5e-3 if contenders or Kind is Permits else 3.5e-4
for contender in contenders:
    contender.start()
kept, interrupts, other_errors = [], 0, []
for _ in turns():
    stage = "acquire"
    wait = random.choice([0, 5e-4, None]) if mode == "contended" else None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest))
            if not ours.acquire(wait):
                continue
            stage = "release"
            ours.release()
            stage = "done"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm as error:
        where = inside(error)
        interrupts += where is not None
        ours.settle(stage, where)
    except Exception as error:
        other_errors.append(f"{stage}: {error!r}")
over.set()
for contender in contenders:
    contender.join()

def use(name):
    with client.get_lock(name):
        inside_all.wait(10)

inside_all = threading.Barrier(3)
with ThreadPoolExecutor(3) as pool:
    list(pool.map(use, "xyz"))
waiters = sum(len(channel.waiters) for channel in client._session.channels.by_name.values())
waiters += len(client._session.lock_queues) + len(client._session.fair_queues)
print(json.dumps({"interrupts": interrupts, "kept": kept, "errors": other_errors, "waiters": waiters}))
sys.stdin.readline()
print(len(client._session.holds.table))
client.close()
"""
CTRL_C = "KeyboardInterrupt"
LOCKS = ["free", "contended", "handed on", "fair, contended", "fair, handed on", "read, handed on", "write, handed on"]
GROUPS = [f"{kind}, {mode}" for kind in ("multi", "red") for mode in ("free", "contended")]
SEMAPHORES = ("semaphore", "permits", "renewed permits")
MODES = [f"{kind}, {mode}" for kind in SEMAPHORES for mode in ("free", "contended", "handed on")]


@handlers_may_raise
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "rounds", "least", "error"),
    [
        *[(mode, 500, 50, CTRL_C) for mode in LOCKS],
        # Many programs limit a time by a signal whose handler raises the built-in TimeoutError, which is an OSError.
        ("handed on", 500, 50, "TimeoutError"),
        ("block, free", 2000, 50, CTRL_C),
        *[(mode, 150, 15, CTRL_C) for mode in GROUPS],
        *[(mode, 500, 50, CTRL_C) for mode in MODES],
    ],
)
def test_interrupts_at_random_moments_leave_nothing_behind(
    servers: list[Server], redises: list[Any], child: Start, mode: str, rounds: int, least: int, error: str
) -> None:
    """`handed on`: the others are threads of the same client."""
    kind, _, beside = mode.rpartition(", ")
    permits = b"%d" % (PERMITS if beside == "free" else 1 if kind == "semaphore" else 2) if mode in MODES else None
    if permits:
        redises[0].set("a", permits)

    def is_whole() -> bool:
        if permits:
            return redises[0].get("a") == permits and not redises[0].zcard("{a}:timeout")
        return not any(each.exists("a", "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}") for each in redises)

    urls = [each.url for each in (servers if mode in GROUPS else servers[:1])]
    user = child(TAKE_AND_GIVE_BACK, " ".join(urls), mode, rounds, error)
    report: dict[str, Any] = json.loads(user.receive(CHILD_LIMIT) or "{}")
    assert report, "the child failed"
    assert report.pop("interrupts") > least
    assert report == {"kept": [], "errors": [], "waiters": 0}
    # The client lives on: a hold that were still renewed would be there for ever.
    eventually(is_whole, 5)
    user.send()
    assert user.receive() == "0"
    # What its end gave back.
    assert user.wait() == 0
    assert is_whole()
