"""The fair lock when processes die or are paused, replies are lost, and waits are interrupted."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import TimeoutError

from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.faults import FLAGS, LOSSES, Lose
from tests.support.raw_backends import BackgroundCall, RawBackend
from tests.support.waiting import eventually

ACQUIRE, RELEASE, LEAVE, HEARTBEAT = (
    script(f"fair_{name}", with_shebang=FLAGS).sha for name in ("acquire", "release", "leave", "heartbeat")
)
QUEUE, SCORES = "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"

WAIT = """
import sys
import pyredisson
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=float(sys.argv[2]))
print("ready", flush=True)
try:
    with client.get_fair_lock("a"):
        print("has it", flush=True)
        sys.stdin.readline()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.readline()
print("gave it back", flush=True)
sys.stdin.readline()
"""


def waiting(admin: Redis) -> int:
    return int(admin.llen(QUEUE))


async def in_line(backend: RawBackend, admin: Redis, lock: Any) -> BackgroundCall:
    """Another owner that has the lock for a moment, once it is its turn."""
    before = waiting(admin)

    async def wait() -> float:
        await backend.do(lock.lock())
        acquired_at = time.monotonic()
        await backend.do(lock.unlock())
        return acquired_at

    begun = backend.start(wait)
    await backend.until(lambda: waiting(admin) == before + 1)
    return begun


@pytest.mark.asyncio
class TestProcesses:
    async def test_a_killed_head_is_passed_over(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        client = backend.connect(server.url)
        holder = client.get_fair_lock("a")
        await backend.do(holder.lock())
        head = child(WAIT, server.url, 30)
        assert await backend.run_blocking(head.receive) == "ready"
        await backend.until(lambda: waiting(admin) == 1)
        following = await in_line(backend, admin, client.get_fair_lock("a", owner=1))
        head.signal(signal.SIGKILL)
        killed = time.monotonic()
        await backend.do(holder.unlock())
        acquired_at = await following.result()
        assert acquired_at - killed < 3
        await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))

    async def test_a_killed_holder_keeps_the_lock_until_its_lease_ends(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        holder = child(WAIT, server.url, 1)
        assert [holder.receive(), holder.receive()] == ["ready", "has it"]
        following = await in_line(backend, admin, backend.connect(server.url).get_fair_lock("a"))
        holder.signal(signal.SIGKILL)
        holder.wait()
        killed = time.monotonic()
        left = admin.pttl("a") / 1000
        acquired_at = await following.result()
        assert left - 0.1 < acquired_at - killed < left + 3

    async def test_a_paused_head_is_passed_over_and_comes_back(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        client = backend.connect(server.url)
        holder = client.get_fair_lock("a")
        await backend.do(holder.lock())
        head = child(WAIT, server.url, 30)
        await backend.until(lambda: waiting(admin) == 1)
        # It sends heartbeats: that is how it will notice.
        await backend.until(lambda: admin.zcard("pyredisson_fair_clients:{a}") == 1)
        following = await in_line(backend, admin, client.get_fair_lock("a", owner=1))
        head.signal(signal.SIGSTOP)
        await backend.do(holder.unlock())
        await following.result()
        await backend.do(holder.lock())
        head.signal(signal.SIGCONT)
        await backend.until(lambda: waiting(admin) == 1)
        await backend.do(holder.unlock())
        assert [head.receive(), head.receive()] == ["ready", "has it"]
        head.send()
        assert head.receive() == "gave it back"
        assert not admin.exists("a", QUEUE, SCORES)

    async def test_ctrl_c_leaves_the_queue(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        holder = backend.connect(server.url).get_fair_lock("a")
        await backend.do(holder.lock())
        waiter = child(WAIT, server.url, 30)
        await backend.until(lambda: waiting(admin) == 1)
        waiter.signal(signal.SIGINT)
        assert [waiter.receive(), waiter.receive()] == ["ready", "interrupted"]
        await backend.until(lambda: waiting(admin) == 0)
        await backend.do(holder.unlock())
        assert not admin.exists("a", QUEUE, SCORES)
        # If a reply was on its way to it, a late copy of what it had sent is refused for a while.
        assert all(admin.ttl(key) > 0 for key in admin.scan_iter())

    async def test_an_exit_removes_waiters_from_the_queue(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        program = """
import sys, threading
import pyredisson
client = pyredisson.connect(sys.argv[1])
for _ in range(3):
    threading.Thread(target=client.get_fair_lock("a").lock, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
"""
        holder = backend.connect(server.url).get_fair_lock("a")
        await backend.do(holder.lock())
        waiter = child(program, server.url)
        assert await backend.run_blocking(waiter.receive) == "ready"
        await backend.until(lambda: waiting(admin) == 3)
        # It sends heartbeats: so no command is on its way that only its lease would end.
        await backend.until(lambda: admin.zcard("pyredisson_fair_clients:{a}") == 1)
        waiter.send()
        assert waiter.wait() == 0
        assert waiting(admin) == 0
        assert not admin.exists(SCORES)


@pytest.mark.asyncio
class TestLostReplies:
    @LOSSES
    async def test_of_a_waiter_that_enters_the_queue(
        self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, lose: Lose
    ) -> None:
        """It has one place, and keeps it."""
        waiter, client = backend.connect(proxy.url, timeout=0.8), backend.connect(server.url)
        holder = client.get_fair_lock("a")
        await backend.do(holder.lock())
        # So that a connection is there.
        await backend.do(waiter.get_fair_lock("a").is_locked())
        fault = lose(proxy, ACQUIRE)
        first = await in_line(backend, admin, waiter.get_fair_lock("a"))
        second = await in_line(backend, admin, client.get_fair_lock("a", owner=1))
        await backend.until(fault.happened.is_set)
        await backend.sleep(0.5)
        assert waiting(admin) == 2
        await backend.do(holder.unlock())
        assert await first.result() < await second.result()
        await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))

    @LOSSES
    async def test_of_one_whose_turn_it_is(
        self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, lose: Lose
    ) -> None:
        waiter, client = backend.connect(proxy.url, timeout=0.8), backend.connect(server.url)
        holder = client.get_fair_lock("a")
        await backend.do(holder.lock())
        first = await in_line(backend, admin, waiter.get_fair_lock("a"))
        await backend.until(lambda: len(admin.pubsub_channels("redisson_lock__channel:{a}:*")) == 1)
        await backend.sleep(0.1)
        second = await in_line(backend, admin, client.get_fair_lock("a", owner=1))
        fault = lose(proxy, ACQUIRE)
        await backend.do(holder.unlock())
        assert await first.result() < await second.result()
        assert fault.happened.is_set()
        await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))

    @LOSSES
    async def test_of_a_release(
        self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, lose: Lose
    ) -> None:
        client, other = backend.connect(proxy.url, timeout=0.8), backend.connect(server.url)
        lock = client.get_fair_lock("a")
        await backend.do(lock.lock())
        following = await in_line(backend, admin, other.get_fair_lock("a"))
        fault = lose(proxy, RELEASE)
        await backend.do(lock.unlock())
        assert fault.happened.is_set()
        await following.result()
        assert not admin.exists("a", QUEUE, SCORES)

    async def test_of_a_try_that_gives_up(
        self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis
    ) -> None:
        """It is unknown whether it has entered the queue; in the end it isn't in the queue."""
        client, other = backend.connect(proxy.url, timeout=0.8, retry_attempts=0), backend.connect(server.url)
        holder = other.get_fair_lock("a")
        await backend.do(holder.lock())
        lock = client.get_fair_lock("a")
        await backend.do(lock.is_locked())
        fault = proxy.drop_reply(ACQUIRE, times=2)
        with pytest.raises(TimeoutError):
            await backend.do(lock.try_lock(1))
        assert fault.happened.is_set()
        await backend.until(lambda: not admin.exists(QUEUE, SCORES))
        await backend.do(holder.unlock())
        assert await backend.do(lock.try_lock(5)) is True
        await backend.do(lock.unlock())

    async def test_of_heartbeats(self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis) -> None:
        waiter, client = backend.connect(proxy.url, timeout=0.8), backend.connect(server.url)
        holder = client.get_fair_lock("a")
        await backend.do(holder.lock())
        fault = proxy.drop_reply(HEARTBEAT)
        first = await in_line(backend, admin, waiter.get_fair_lock("a"))
        await backend.until(fault.happened.is_set)
        second = await in_line(backend, admin, client.get_fair_lock("a", owner=1))
        await backend.do(holder.unlock())
        assert await first.result() < await second.result()

    async def test_of_a_waiter_that_leaves(
        self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis
    ) -> None:
        waiter, client = backend.connect(proxy.url, timeout=0.8), backend.connect(server.url)
        holder = client.get_fair_lock("a")
        await backend.do(holder.lock())
        fault = proxy.cut_request(LEAVE)
        assert await backend.do(waiter.get_fair_lock("a").try_lock(0.1)) is False
        await backend.until(lambda: not admin.exists(QUEUE, SCORES))
        assert fault.happened.is_set()


@pytest.mark.asyncio
async def test_a_lost_subscription_costs_no_turn(backend: RawBackend, server: Server, admin: Redis) -> None:
    waiter, client = backend.connect(server.url), backend.connect(server.url)
    holder = client.get_fair_lock("a")
    await backend.do(holder.lock())
    first = await in_line(backend, admin, waiter.get_fair_lock("a"))
    second = await in_line(backend, admin, client.get_fair_lock("a", owner=1))
    killer: Any = admin
    killer.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()


INTERRUPTED = """
import random, signal, sys, threading, time
import pyredisson
signal.signal(signal.SIGALRM, signal.default_int_handler)
random.seed(int(sys.argv[2]))
client = pyredisson.connect(sys.argv[1], connection_pool_size=3)
lock = client.get_fair_lock("a")
over = threading.Event()

def contend():
    with pyredisson.connect(sys.argv[1]) as other:
        while not over.is_set():
            with other.get_fair_lock("a"):
                time.sleep(random.uniform(0, 3e-4))
            time.sleep(random.uniform(0, 3e-4))

contender = threading.Thread(target=contend, daemon=True)
contender.start()
interrupts = 0
for _ in range(int(sys.argv[3])):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1.5e-3))
            lock.try_lock(random.choice([0, 5e-4, 5]))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        # Perhaps when the lock was released already.
        interrupts += 1
    while lock.get_hold_count():
        lock.unlock()
over.set()
client.close()
contender.join()
print(interrupts, flush=True)
"""


@pytest.mark.timeout(2 * CHILD_LIMIT)
def test_interrupts_at_any_moment(server: Server, admin: Redis, child: Callable[..., Child]) -> None:
    """Nothing of those who were interrupted stays behind, and nobody waits for them."""
    process = child(INTERRUPTED, server.url, 7, 400)
    interrupts = json.loads(process.receive(CHILD_LIMIT))
    assert interrupts > 20
    assert process.wait() == 0
    eventually(lambda: not admin.exists("a", QUEUE, SCORES))
