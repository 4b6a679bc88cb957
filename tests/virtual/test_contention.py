"""Clients at one lock, at random: no caller waits while the lock would let it in, and nothing remains.

Each of these schedules has no fault but cancelled calls. Wakeups that are lost show in few of them only, and then as a
wait of many seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyredisson._core import ReleaseCall
from pyredisson.errors import LockNotHeldError
from pyredisson.logic.locks.keeping import KeepingLock
from tests.api.kinds import JAVA, lock_of

from .time import START
from .world import World, in_world

MOST = 1.0
"""Seconds that a caller waits at most. The longest wait of all schedules is about 0.3 s: all take their turns."""
WAITING = b"pyredisson_waiting:{orders}"


@dataclass
class Contention:
    """What the clients of one schedule do, by its seed. They contend for both sides, or for a lock of another kind."""

    seed: int
    both_sides: bool
    holders: Counter[str] = field(default_factory=Counter)
    waited: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        choice = self.random.choice
        self.kind = "write" if self.both_sides else choice(["lock", "fenced", "non-reentrant"])
        self.clients, self.callers = choice([2, 3, 5]), choice([1, 2, 3])
        self.writing = choice([0.1, 0.3, 0.5, 0.9]) if self.both_sides else 1.0
        self.longest_hold = choice([0, 0.0002, 0.002, *([0.02] if self.both_sides else [])])
        self.longest_pause = choice([0.0002, 0.002, 0.02])
        self.cancels, self.forces = choice([True, False]), choice([True, False, False])
        self.hand_over_times = [choice([0, 0.005, 0.005, 0.05]) for _ in range(self.clients)]

    async def acquire(self, lock: Any) -> bool:
        begun, mode = time.monotonic(), self.random.random()
        if mode < 0.25:
            acquired: bool = await lock.try_lock(wait_time=self.random.uniform(0, 0.004) if mode < 0.15 else 0)
        else:
            await lock.lock()
            acquired = True
        self.waited.append(time.monotonic() - begun)
        return acquired

    async def hold(self, lock: Any, kind: str) -> None:
        if not await self.acquire(lock):
            return
        self.holders[kind] += 1
        try:
            alone = self.holders.total() == 1
            assert alone or self.forces or (kind == "read" and not self.holders["write"])
            await asyncio.sleep(self.random.uniform(0, self.longest_hold))
        finally:
            self.holders[kind] -= 1
            try:
                await lock.unlock()
            except LockNotHeldError:
                assert self.forces

    async def work(self, client: Any) -> None:
        for _ in range(40 if self.both_sides else 60):
            kind = "read" if self.both_sides and self.random.random() >= self.writing else self.kind
            lock = lock_of(client, kind)
            if self.cancels and self.random.random() < 0.25:
                task = asyncio.create_task(self.hold(lock, kind))
                await asyncio.sleep(self.random.uniform(0, 0.004 if self.both_sides else 0.002))
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None
            elif self.forces and self.random.random() < 0.05:
                await lock.force_unlock()
            else:
                await self.hold(lock, kind)
            await asyncio.sleep(self.random.uniform(0, self.longest_pause))

    async def run(self, world: World) -> None:
        clients = [world.client(local_hand_over_time=each) for each in self.hand_over_times]
        async with asyncio.TaskGroup() as group:
            for client in clients * self.callers:
                group.create_task(self.work(client))
        # The time to live of what is kept for a client that was woken and did not come.
        await asyncio.sleep(61)
        for client in clients:
            await client.close()


@pytest.mark.parametrize(
    ("both_sides", "seed"), [(both, seed) for both, seeds in ((False, 30), (True, 60)) for seed in range(seeds)]
)
def test_nobody_waits_for_a_lock_that_lets_it_in(world: World, both_sides: bool, seed: int) -> None:
    contention = Contention(seed, both_sides)
    world.run(lambda: contention.run(world))
    assert max(contention.waited) < MOST
    left = world.server.keys.keyspace.do_keys(b"*")
    assert [key for key in left if key != b"redisson_lock_token:{orders}"] == []


async def listed(world: World) -> None:
    """Until a client waits on the server."""
    while not world.server.keys.keyspace.do_keys(WAITING):  # noqa: ASYNC110 (in virtual time, nothing else tells)
        await asyncio.sleep(0.01)


@in_world
async def test_a_kept_lock_that_is_released_in_the_background(world: World) -> None:
    """The next caller of the same client gets it, although no call of the holder is there to tell."""
    async with world.client() as other, world.client() as client:
        holder = other.get_lock("orders")
        await holder.lock()
        session = client.get_lock("orders")._logic.session
        first, second = (KeepingLock(session, b"orders", 2000) for _ in range(2))
        owner = session.owners.new()
        acquiring = asyncio.create_task(first.acquire(owner, None, None))
        await listed(world)
        waiting = asyncio.create_task(second.acquire(session.owners.new(), None, None))
        await asyncio.sleep(0.1)
        await holder.unlock()
        await acquiring
        hold = first.hold_of(owner.id)
        assert hold
        first.release_in_background(owner, hold, ReleaseCall())
        begun = world.clock()
        await waiting
        assert 2.0 <= world.clock() - begun <= 3.0
    assert world.clock() < START + 60


@in_world
async def test_woken_at_the_deadline(world: World) -> None:
    """The caller that was woken gives up, and the next one of its client is woken as soon as the lock is free."""
    async with world.client() as other, world.client() as client:
        holder = other.get_lock("orders")
        await holder.lock()
        first = asyncio.create_task(client.get_lock("orders").try_lock(wait_time=1.0))
        await listed(world)
        await asyncio.sleep(0.1)
        second = asyncio.create_task(client.get_lock("orders").lock())
        await asyncio.sleep(0.85)
        releasing = asyncio.create_task(holder.unlock())
        await asyncio.sleep(0)
        # The process is busy, and the deadline passes. Another owner acquires the lock.
        time.sleep(0.1)
        keyspace: Any = world.server.keys.keyspace
        assert keyspace.do_keys(b"orders") == []
        keyspace.do_hset(b"orders", JAVA.encode(), b"1")
        keyspace.do_pexpire(b"orders", b"30000")
        await releasing
        assert not await first
        await asyncio.sleep(0.4)
        await other.get_lock("orders").force_unlock()
        begun = world.clock()
        await second
        assert world.clock() - begun <= MOST
    assert world.clock() < START + 60
