"""A holder that was paused beyond its lease knows that its lock is lost."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Callable
from typing import cast

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.children import Child
from tests.support.raw_backends import RawBackend
from tests.support.waiting import eventually

LEASE = 1.2

HOLD_AND_LOOK = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
url, backend, lease, fixed = sys.argv[1:]
fixed = float(fixed) or None

async def scenario():
    client = pyredisson.asyncio.connect(url, lock_watchdog_timeout=float(lease))
    lock = client.get_lock("a")
    await lock.lock(fixed)
    lost = lock.lost
    print("held", flush=True)
    # Blocks the event loop, too: nothing of the library runs on it meanwhile.
    sys.stdin.readline()
    print(lost.is_set(), flush=True)
    try:
        await lock.unlock()
    except pyredisson.LockLostError:
        print("lost", flush=True)
    else:
        print("given back", flush=True)

if backend == "asyncio":
    asyncio.run(scenario())
else:
    client = pyredisson.connect(url, lock_watchdog_timeout=float(lease))
    lock = client.get_lock("a")
    lock.lock(fixed)
    lost = lock.lost
    print("held", flush=True)
    sys.stdin.readline()
    print(lost.is_set(), flush=True)
    try:
        lock.unlock()
    except pyredisson.LockLostError:
        print("lost", flush=True)
    else:
        print("given back", flush=True)
"""


@pytest.mark.parametrize("fixed", [0, LEASE])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_beyond_its_lease_knows_first_thing(
    server: Server, admin: Redis, child: Callable[..., Child], kind: str, fixed: float
) -> None:
    holder = child(HOLD_AND_LOOK, server.url, kind, LEASE, fixed)
    assert holder.receive() == "held"
    holder.signal(signal.SIGSTOP)
    eventually(lambda: not admin.exists("a"))
    admin.hset("a", "another:1", 1)
    holder.send()
    holder.signal(signal.SIGCONT)
    assert holder.receive() == "True"
    assert holder.receive() == "lost"
    assert admin.hgetall("a") == {b"another:1": b"1"}


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_for_less_than_its_lease_keeps_the_lock(
    server: Server, admin: Redis, child: Callable[..., Child], kind: str
) -> None:
    holder = child(HOLD_AND_LOOK, server.url, kind, 3, 0)
    assert holder.receive() == "held"
    holder.signal(signal.SIGSTOP)
    eventually(lambda: admin.pttl("a") < 1700)
    holder.signal(signal.SIGCONT)
    eventually(lambda: admin.pttl("a") > 2700)
    holder.send()
    assert holder.receive() == "False"
    assert holder.receive() == "given back"


BELIEVE = """
import json, sys, threading, time
import pyredisson
url, lease = sys.argv[1], float(sys.argv[2])
clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
client = pyredisson.connect(url, lock_watchdog_timeout=lease, timeout=1)
lock = client.get_lock("a")
beliefs = []
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
print(client.id, flush=True)
while not ended.is_set():
    if not lock.try_lock(0.5):
        continue
    lost, first = lock.lost, None
    until = time.clock_gettime(clock_id) + 0.08
    while True:
        # Read before the question: what is true at the answer was true at the reading.
        now = time.clock_gettime(clock_id)
        if lost.is_set() or now > until:
            break
        first = first or now
        last = now
    if first:
        beliefs.append((first, last))
    try:
        lock.unlock()
    except pyredisson.LockLostError:
        print("lost", flush=True)
print(json.dumps(beliefs), flush=True)
"""


def pause(each: Child, seconds: float) -> None:
    each.signal(signal.SIGSTOP)
    time.sleep(seconds)
    each.signal(signal.SIGCONT)


@pytest.mark.slow
def test_paused_holders_never_hold_at_the_same_time(server: Server, admin: Redis, child: Callable[..., Child]) -> None:
    lease, pauses = 0.25, 8
    both = [child(BELIEVE, server.url, lease) for _ in range(2)]
    by_id = {each.receive(): each for each in both}

    def holder() -> Child | None:
        owners = cast("list[bytes]", admin.hkeys("a"))
        return by_id[owners[0].decode().partition(":")[0]] if owners else None

    chance = random.Random(7)
    for _ in range(pauses):
        # A pause within the lease, of either of them, and one beyond the lease of the one that holds now.
        pause(chance.choice(both), chance.uniform(0.2 * lease, 0.8 * lease))
        time.sleep(chance.uniform(0, lease / 4))
        eventually(lambda: holder() is not None)
        if (each := holder()) is not None:
            pause(each, chance.uniform(1.2 * lease, 2 * lease))
    losses = 0
    beliefs = []
    for which, each in enumerate(both):
        each.send()
        while (line := each.receive()) == "lost":
            losses += 1
        beliefs += [(first, last, which) for first, last in json.loads(line)]
    assert losses, "no pause struck a holder: the test shows nothing"
    assert len({which for _, _, which in beliefs}) == 2
    beliefs.sort()
    for (_, last, one), (first, _, other) in itertools.pairwise(beliefs):
        assert one == other or last < first


BLOCK_THE_LOOP = """
import asyncio, sys, time
import pyredisson.asyncio

async def scenario():
    lease = float(sys.argv[2])
    client = pyredisson.asyncio.connect(sys.argv[1], lock_watchdog_timeout=lease)
    async with client.get_lock("a") as lock:
        time.sleep(1.5 * lease)
        print(lock.lost.is_set(), await lock.is_held(), flush=True)
    await client.close()
    print("given back", flush=True)

asyncio.run(scenario())
"""


def test_a_blocked_event_loop_keeps_its_lock(server: Server, child: Callable[..., Child]) -> None:
    holder = child(BLOCK_THE_LOOP, server.url, LEASE)
    assert holder.receive() == "False True"
    assert holder.receive() == "given back"
    assert holder.wait() == 0


@pytest.mark.asyncio
async def test_a_server_paused_beyond_the_lease_ends_the_hold(backend: RawBackend, own_server: Server) -> None:
    """The holder knows before the server can give the lock to anybody else."""
    first = backend.connect(own_server.url, lock_watchdog_timeout=LEASE, timeout=0.5)
    lock = first.get_lock("a")
    await backend.do(lock.lock())
    lost = lock.lost
    own_server.pause()
    await backend.do(lost.wait(5))
    assert lost.is_set()
    own_server.resume()
    second = backend.connect(own_server.url)
    assert await backend.do(second.get_lock("a").try_lock(2 * LEASE))
