"""Processes whose threads hand a lock on: one is forked meanwhile, one is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.waiting import TIME_LIMIT, eventually, waiters

FORK = """
import os, sys, threading, time
import pyredisson
client = pyredisson.connect(sys.argv[1])
over = False
counts = [0] * 4

def contend(place):
    lock = client.get_lock("a")
    while not over:
        with lock:
            counts[place] += 1

def live():
    # The child has no waiters of the parent, and its own threads hand the lock on to each other.
    assert not client._session.lock_queues and not client._session.channels.waiting
    done = []

    def take():
        for _ in range(20):
            assert client.get_lock("a").try_lock(wait_time=30)
            client.get_lock("a").unlock()
        done.append(1)

    takers = [threading.Thread(target=take) for _ in range(3)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert len(done) == 3

contenders = [threading.Thread(target=contend, args=(place,)) for place in range(4)]
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


def test_a_fork_while_threads_hand_a_lock_on(server: Server, admin: Redis, child: Callable[..., Child]) -> None:
    parent = child(FORK, server.url)
    for _ in range(5):
        assert parent.receive(CHILD_LIMIT) == "child left 0"
    assert parent.receive(CHILD_LIMIT) == "ended 0 0"
    assert parent.wait() == 0
    assert not admin.exists("a")


HAND_ON = """
import sys, threading
import pyredisson
# It hands the lock on for as long as it lives.
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1, local_hand_over_time=600)
taken = threading.Semaphore(0)

def contend():
    lock = client.get_lock("a")
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


def test_a_process_is_killed_whose_threads_hand_a_lock_on(
    server: Server, admin: Redis, child: Callable[..., Child]
) -> None:
    """No message announces it: its lease ends, and then all waiters of another process get the lock."""
    with pyredisson.connect(server.url) as client:
        killed = child(HAND_ON, server.url)
        assert killed.receive(CHILD_LIMIT) == "handed on"
        acquired = threading.Semaphore(0)

        def wait() -> None:
            with client.get_lock("a"):
                acquired.release()

        for _ in range(3):
            threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: waiters(client, "a") == 3)
        assert not acquired.acquire(blocking=False)
        killed.signal(signal.SIGKILL)
        for _ in range(3):
            assert acquired.acquire(timeout=TIME_LIMIT)
        eventually(lambda: not admin.exists("a"))
