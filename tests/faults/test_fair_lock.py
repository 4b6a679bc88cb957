"""The fair lock: a waiter's place in the queue when processes die or are paused, and when replies are lost."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.backends import OtherOwner
from tests.support.children import Child
from tests.support.faults import LOSSES, Lose
from tests.support.raw_backends import RawBackend
from tests.support.waiting import TIME_LIMIT

from .kinds import Start, sha

pytestmark = pytest.mark.asyncio
ACQUIRE, LEAVE, HEARTBEAT = (sha(f"fair_{name}") for name in ("acquire", "leave", "heartbeat"))
QUEUE, SCORES = "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"

WAIT = """
import sys, threading
import pyredisson
client = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=30)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=client.get_fair_lock("a").lock, daemon=True).start()
try:
    if sys.argv[2] == "0":
        with client.get_fair_lock("a"):
            print("has it", flush=True)
            sys.stdin.readline()
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
print("goes on", flush=True)
sys.stdin.readline()
"""


def waiting(admin: Redis) -> int:
    return int(admin.llen(QUEUE))


async def in_line(backend: RawBackend, admin: Redis, client: Any, owner: int | None = None) -> OtherOwner[Any]:
    """Another owner that has the lock for a moment, once it is its turn; its result is when."""
    before, lock = waiting(admin), client.get_fair_lock("a", owner=owner)

    async def wait() -> float:
        await backend.do(lock.lock())
        acquired_at = time.monotonic()
        await backend.do(lock.unlock())
        return acquired_at

    begun = backend.start(wait)
    await backend.until(lambda: waiting(admin) == before + 1)
    return begun


async def held(backend: RawBackend, url: str) -> Any:
    """The lock, held by another client than those that wait for it."""
    lock = backend.connect(url).get_fair_lock("a", owner=9)
    await backend.do(lock.lock())
    return lock


async def waits_elsewhere(backend: RawBackend, admin: Redis, process: Child, count: int = 1) -> None:
    """The process waits. It sends heartbeats: no command is on its way, and it notices what happens to its place."""
    await backend.until(lambda: waiting(admin) == count, 4 * TIME_LIMIT)
    await backend.until(lambda: admin.zcard("pyredisson_fair_clients:{a}") == 1)


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_head_that_is_killed_or_paused_is_passed_over(
    backend: RawBackend, server: Server, admin: Redis, child: Start, comes_back: bool
) -> None:
    holder = await held(backend, server.url)
    head = child(WAIT, server.url, 0)
    await waits_elsewhere(backend, admin, head)
    following = await in_line(backend, admin, backend.connect(server.url))
    head.signal(signal.SIGSTOP if comes_back else signal.SIGKILL)
    struck = time.monotonic()
    await backend.do(holder.unlock())
    assert await following.result() - struck < 3
    if comes_back:
        await backend.do(holder.lock())
        head.signal(signal.SIGCONT)
        await backend.until(lambda: waiting(admin) == 1)
        await backend.do(holder.unlock())
        assert head.receive() == "has it"
        head.send()
        head.send()
        assert head.receive() == "goes on"
    await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))


@pytest.mark.parametrize("threads", [0, 3], ids=["ctrl-c", "exit"])
async def test_a_process_that_ends_its_waits_leaves_the_queue(
    backend: RawBackend, server: Server, admin: Redis, child: Start, threads: int
) -> None:
    holder = await held(backend, server.url)
    waiter = child(WAIT, server.url, threads)
    await waits_elsewhere(backend, admin, waiter, max(threads, 1))
    if not threads:
        waiter.signal(signal.SIGINT)
        assert waiter.receive() == "interrupted"
    else:
        waiter.send()
        waiter.send()
        assert waiter.wait() == 0
        assert waiting(admin) == 0
    await backend.until(lambda: waiting(admin) == 0)
    await backend.do(holder.unlock())
    assert not admin.exists("a", QUEUE, SCORES)
    # If a reply was on its way to it, a late copy of what it had sent is refused for a while.
    assert all(admin.ttl(key) > 0 for key in admin.scan_iter())


@LOSSES
@pytest.mark.parametrize("moment", ["enters the queue", "its turn has come"])
async def test_a_waiter_whose_acquire_is_lost_keeps_its_place(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, lose: Lose, moment: str
) -> None:
    holder = await held(backend, server.url)
    waiter, client = backend.connect(proxy.url, timeout=0.8), backend.connect(server.url)
    # So that a connection is there.
    await backend.do(waiter.get_fair_lock("a").is_locked())
    enters = moment == "enters the queue"
    fault = lose(proxy, ACQUIRE) if enters else None
    first = await in_line(backend, admin, waiter)
    # It hears that its turn has come, or has looked again.
    await backend.until(lambda: len(admin.pubsub_channels("redisson_lock__channel:{a}:*")) == 1)
    second = await in_line(backend, admin, client)
    if fault is None:
        fault = lose(proxy, ACQUIRE)
    else:
        await backend.until(lambda: fault.happened.is_set() and proxy.seen(ACQUIRE) >= 2)
        assert waiting(admin) == 2
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()
    assert fault.happened.is_set()
    await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))


async def test_a_heartbeat_or_a_subscription_that_is_lost_costs_no_turn(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Any
) -> None:
    holder = await held(backend, server.url)
    fault = proxy.drop_reply(HEARTBEAT)
    first = await in_line(backend, admin, backend.connect(proxy.url, timeout=0.8))
    await backend.until(fault.happened.is_set)
    second = await in_line(backend, admin, backend.connect(server.url))
    admin.client_kill_filter(_type="pubsub")
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()
