"""Clients at one read-write lock, at random: nobody waits for a lock that lets it in, and nothing remains."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyredisson.errors import LockNotHeldError

from .world import World

MOST = 1.0
"""Seconds that a caller waits at most: all take their turns."""
ROUNDS = 40


@dataclass
class Contention:
    """What the clients of one schedule do, by its seed."""

    seed: int
    readers: int = 0
    writers: int = 0
    waited: list[tuple[float, str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        choice = self.random.choice
        self.clients, self.callers = choice([2, 3, 5]), choice([1, 2, 3])
        self.writing = choice([0.1, 0.3, 0.5, 0.9])
        self.longest_hold, self.longest_pause = choice([0, 0.0002, 0.002, 0.02]), choice([0.0002, 0.002, 0.02])
        self.cancels, self.forces = choice([True, False]), choice([True, False, False])
        self.hand_over_times = [choice([0, 0.005, 0.005, 0.05]) for _ in range(self.clients)]

    async def acquire(self, lock: Any, side: str) -> bool:
        begun, mode = time.monotonic(), self.random.random()
        if mode < 0.25:
            acquired: bool = await lock.try_lock(wait_time=self.random.uniform(0, 0.004) if mode < 0.15 else 0)
        else:
            await lock.lock()
            acquired = True
        self.waited.append((time.monotonic() - begun, side, begun))
        return acquired

    async def hold(self, lock: Any, side: str) -> None:
        if not await self.acquire(lock, side):
            return
        writes = side == "write"
        self.writers += writes
        self.readers += not writes
        try:
            assert self.forces or (self.writers == 1 and not self.readers if writes else not self.writers)
            await asyncio.sleep(self.random.uniform(0, self.longest_hold))
        finally:
            self.writers -= writes
            self.readers -= not writes
            try:
                await lock.unlock()
            except LockNotHeldError:
                assert self.forces

    async def work(self, client: Any) -> None:
        for _ in range(ROUNDS):
            side = "write" if self.random.random() < self.writing else "read"
            both = client.get_read_write_lock("orders")
            lock = both.write_lock() if side == "write" else both.read_lock()
            if self.cancels and self.random.random() < 0.25:
                task = asyncio.create_task(self.hold(lock, side))
                await asyncio.sleep(self.random.uniform(0, 0.004))
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None
            elif self.forces and self.random.random() < 0.05:
                await lock.force_unlock()
            else:
                await self.hold(lock, side)
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


@pytest.mark.parametrize("seed", range(60))
def test_nobody_waits_for_a_lock_that_lets_it_in(world: World, seed: int) -> None:
    contention = Contention(seed)
    world.run(lambda: contention.run(world))
    assert max(contention.waited) < (MOST,)
    assert world.server.keys.keyspace.do_keys(b"*") == []
