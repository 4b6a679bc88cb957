"""Processes whose threads hand a lock on: one is forked meanwhile, one is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest
from redis import Redis

import pyredisson
from pyredisson._protocol.scripts import script_name
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.waiting import TIME_LIMIT, eventually, waiters

LOCKS = """
def lock_of(client, kind):
    if kind == "lock":
        return client.get_lock("a")
    pair = client.get_read_write_lock("a")
    return pair.write_lock() if kind == "write" else pair.read_lock()
"""
CONTENDERS = {
    "lock_hand_over": ["lock"] * 4,
    "write_hand_over": ["write"] * 4,
    "write_let_readers_in": ["write", "read", "read", "read"],
}
"""For each script that hands a lock on, the threads that have it run."""
scripts = pytest.mark.parametrize("script", CONTENDERS)


def hands_on(proxy: Proxy, script: str) -> bool:
    return any(script_name(words) == script for words in proxy.commands)


FORK = (
    LOCKS
    + """
import os, sys, threading, time
import pyredisson
url, *kinds = sys.argv[1:]
client = pyredisson.connect(url)
over = False
counts = [0] * len(kinds)

def contend(place):
    lock = lock_of(client, kinds[place])
    while not over:
        with lock:
            counts[place] += 1

def live():
    # The child has no waiters of the parent, and its own threads hand the lock on to each other.
    assert not client._session.lock_queues and not client._session.channels.waiting
    done = []

    def take(kind):
        for _ in range(20):
            lock = lock_of(client, kind)
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
    print("child left", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    while any(now <= count for now, count in zip(counts, before)):
        time.sleep(0.001)
over = True
for contender in contenders:
    contender.join()
print("ended", len(client._session.lock_queues), len(client._session.channels.waiting), flush=True)
"""
)


@scripts
def test_a_fork_while_threads_hand_a_lock_on(
    proxy: Proxy, admin: Redis, child: Callable[..., Child], script: str
) -> None:
    parent = child(FORK, proxy.url, *CONTENDERS[script])
    for _ in range(5):
        assert parent.receive(CHILD_LIMIT) == "child left 0"
    assert parent.receive(CHILD_LIMIT) == "ended 0 0"
    assert parent.wait() == 0
    assert not admin.exists("a")
    assert hands_on(proxy, script)


HAND_ON = (
    LOCKS
    + """
import sys, threading
import pyredisson
# It hands the lock on for as long as it lives.
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1, local_hand_over_time=600)
taken = threading.Semaphore(0)

def contend():
    lock = lock_of(client, sys.argv[2])
    while True:
        with lock:
            taken.release()

for _ in range(4):
    threading.Thread(target=contend, daemon=True).start()
for _ in range(200):
    taken.acquire()
print("handed on", flush=True)
sys.stdin.readline()
"""
)


@pytest.mark.parametrize("kind", ["lock", "write"])
def test_a_process_is_killed_whose_threads_hand_a_lock_on(
    server: Server, proxy: Proxy, admin: Redis, child: Callable[..., Child], kind: str
) -> None:
    """No message announces it: its lease ends, and then all waiters of another process get the lock."""
    with pyredisson.connect(server.url) as client:
        killed = child(HAND_ON, proxy.url, kind)
        assert killed.receive(CHILD_LIMIT) == "handed on"
        assert hands_on(proxy, f"{kind}_hand_over")
        pair = client.get_read_write_lock("a")
        acquired = threading.Semaphore(0)

        def wait() -> None:
            with client.get_lock("a") if kind == "lock" else pair.write_lock():
                acquired.release()

        for _ in range(3):
            threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: waiters(client, "a", None if kind == "lock" else kind) == 3)
        assert not acquired.acquire(blocking=False)
        killed.signal(signal.SIGKILL)
        for _ in range(3):
            assert acquired.acquire(timeout=TIME_LIMIT)
        eventually(lambda: not admin.exists("a"))
