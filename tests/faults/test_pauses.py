"""A holder that was paused beyond its lease knows that its lock is lost."""

from __future__ import annotations

import signal
from typing import cast

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.waiting import eventually

from .kinds import Start

LEASE = 1.2

HOLD_AND_LOOK = """
import asyncio, inspect, sys
import pyredisson, pyredisson.asyncio
url, backend, lease, fixed = sys.argv[1:]
fixed = float(fixed) or None
connect = pyredisson.asyncio.connect if backend == "asyncio" else pyredisson.connect

async def do(result):
    return await result if inspect.isawaitable(result) else result

async def scenario():
    client = connect(url, lock_watchdog_timeout=float(lease))
    lock = client.get_lock("a")
    await do(lock.lock(fixed))
    await do(client.get_permit_expirable_semaphore("p").acquire_many(3, renew=True))
    lost = lock.lost
    print("held", flush=True)
    # Blocks the event loop, too: nothing of the library runs on it meanwhile.
    sys.stdin.readline()
    print(lost.is_set(), flush=True)
    try:
        await do(lock.unlock())
    except pyredisson.LockLostError:
        print("lost", flush=True)
    else:
        print("given back", flush=True)

if backend == "asyncio":
    asyncio.run(scenario())
else:
    try:
        scenario().send(None)
    except StopIteration:
        pass
"""


@pytest.mark.parametrize("fixed", [0, LEASE])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_beyond_its_lease_knows_first_thing(
    server: Server, admin: Redis, child: Start, kind: str, fixed: float
) -> None:
    """When it goes on, it takes nothing from those to whom its lock and its permits have gone."""
    admin.set("p", 3)
    holder = child(HOLD_AND_LOOK, server.url, kind, LEASE, fixed)
    assert holder.receive() == "held"
    holder.signal(signal.SIGSTOP)
    eventually(lambda: not admin.exists("a"))
    admin.hset("a", "another:1", 1)
    with pyredisson.connect(server.url) as other:
        permits = other.get_permit_expirable_semaphore("p").acquire_many(3)
        holder.send()
        holder.signal(signal.SIGCONT)
        assert holder.receive() == "True"
        assert holder.receive() == "lost"
        assert admin.hgetall("a") == {b"another:1": b"1"}
        assert holder.wait() == 0
        used = cast("list[bytes]", admin.zrange("{p}:timeout", 0, -1))
        assert {permit.hex() for permit in used} == set(permits)
        assert admin.get("p") == b"0"


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_holder_stopped_for_less_than_its_lease_keeps_the_lock(
    server: Server, admin: Redis, child: Start, kind: str
) -> None:
    admin.set("p", 3)
    holder = child(HOLD_AND_LOOK, server.url, kind, 3, 0)
    assert holder.receive() == "held"
    holder.signal(signal.SIGSTOP)
    eventually(lambda: admin.pttl("a") < 1700)
    holder.signal(signal.SIGCONT)
    eventually(lambda: admin.pttl("a") > 2700)
    holder.send()
    assert holder.receive() == "False"
    assert holder.receive() == "given back"


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


def test_a_blocked_event_loop_keeps_its_lock(server: Server, child: Start) -> None:
    holder = child(BLOCK_THE_LOOP, server.url, LEASE)
    assert holder.receive() == "False True"
    assert holder.receive() == "given back"
    assert holder.wait() == 0
