"""A lock that one client hands on among its callers isn't kept from others. The bounds are numbers of acquisitions.

Each hold lasts for at least `HOLD`. So a slow machine makes fewer acquisitions in the same time, and never more.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from pyredisson._protocol.scripts import NAMES, script
from pyredisson.asyncio import Client
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.children import Child
from tests.support.server_state import ServerState

from .kinds import lock_of

pytestmark = pytest.mark.asyncio
OTHERS_FIRST = 0.3
"""Seconds that a client leaves to others after a series. The usual millisecond is too short on a busy machine."""
HOLD = 0.002
"""Seconds for which each owner holds the lock."""
SERIES = 0.02
"""The hand-over time of these tests."""
IN_SERIES = round(SERIES / HOLD) + 2
"""The most hand-overs between two messages: those in the time, and a spare one at each end."""
OWNERS = 4
LONG = 60.0
HAND_OVERS = [name for name in NAMES if "hand_over" in name]
KINDS = ("lock", "fair", "fenced", "non-reentrant", "write", "semaphore")
CHANNEL = "redisson_lock__channel:{orders}"
COUNTER = "acquisitions"


async def contend(backend: Backend, client: Client, kind: str, rounds: int, hold: float = 0.0) -> None:
    """Some owners acquire and release it so many times each."""

    async def work() -> None:
        lock = client.get_semaphore("orders") if kind == "semaphore" else lock_of(client, kind)
        for _ in range(rounds):
            await lock.acquire()
            if hold:
                await backend.sleep(hold)
            await lock.release()

    for other in [backend.spawn(work) for _ in range(OWNERS)]:
        await other.result()


@pytest.mark.usefixtures("no_scripts")
@pytest.mark.parametrize(("kind", "seconds"), [*((kind, 0) for kind in KINDS), ("lock", LONG)])
async def test_no_hand_over_without_time(
    backend: Backend, server: Server, server_state: ServerState, kind: str, seconds: float
) -> None:
    client = backend.connect(local_hand_over_time=seconds)
    await client.get_semaphore("orders" if kind == "semaphore" else "unused").try_set_permits(1)
    await contend(backend, client, kind, 20)
    scripts = [script(name, with_shebang=server.version >= (7,)) for name in HAND_OVERS]
    assert any(server_state.redis.script_exists(*(each.sha for each in scripts))) == bool(seconds)


def executed(monitor: Any, sha: str) -> str:
    """What the server has executed until an ECHO: 'h' for a hand-over, 'm' for a message on the channel of the lock."""
    seen = ""
    for line in monitor.listen():
        command = line["command"].split(" ")
        if command[0].lower() == "echo":
            return seen
        if command[0].lower() == "publish" and command[1] == CHANNEL:
            seen += "m"
        elif command[:2] == ["EVALSHA", sha]:
            seen += "h"
    raise AssertionError("the connection has ended")


async def test_a_series_of_hand_overs_is_bounded(backend: Backend, server: Server, server_state: ServerState) -> None:
    """Between two messages a lock is handed on a limited number of times, although waiters are always there."""
    client = backend.connect(local_hand_over_time=SERIES)
    with server_state.redis.monitor() as monitor:
        await contend(backend, client, "lock", 40, HOLD)
        server_state.redis.echo("end")
        seen = executed(monitor, script("lock_hand_over", with_shebang=server.version >= (7,)).sha.decode())
    series = [len(part) for part in seen.split("m")]
    assert 1 <= max(series) <= IN_SERIES
    # The last owner leaves no waiter behind, so its release publishes, too.
    assert seen.endswith("m")
    assert seen.count("m") >= sum(series) / IN_SERIES


BUSY = """
import sys, threading, time
import pyredisson, redis
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks import queued_wait
url, threads, series, hold, others_first = sys.argv[1], *map(float, sys.argv[2:])
hand_over.OTHERS_FIRST = queued_wait.OTHERS_FIRST = others_first
counter = redis.Redis.from_url(url)
end = threading.Event()
with pyredisson.connect(url, local_hand_over_time=series) as client:
    lock = client.get_lock("orders")
    with lock:
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    def work():
        while not end.is_set():
            with lock:
                counter.incr("acquisitions")
                time.sleep(hold)
    workers = [threading.Thread(target=work) for _ in range(int(threads))]
    for worker in workers:
        worker.start()
    sys.stdin.readline()
    end.set()
    for worker in workers:
        worker.join()
    print("done", flush=True)
"""


async def test_a_waiter_is_passed_over_a_limited_number_of_times(
    backend: Backend, server: Server, server_state: ServerState, child: Callable[..., Child]
) -> None:
    """Threads of another process always want the lock. However slow the machine, they don't keep it."""
    redis = server_state.redis
    busy = child(BUSY, server.url, 8, SERIES, HOLD, OTHERS_FIRST)
    assert busy.receive() == "ready"
    lock = backend.connect().get_lock("orders")
    busy.send()
    passed = []
    for _ in range(21):
        await backend.until(lambda: redis.exists("orders") == 1)
        before = int(redis.get(COUNTER) or 0)
        assert await lock.try_lock(wait_time=TIME_LIMIT)
        passed.append(int(redis.get(COUNTER)) - before)
        await lock.unlock()
    # The first time it still had to subscribe.
    del passed[0]
    busy.send()
    assert busy.receive() == "done"
    # The rest of one series, and sometimes more: a waiter that is woken late finds the lock taken again.
    assert median(passed) <= 3 * IN_SERIES
    assert max(passed) <= 20 * IN_SERIES
