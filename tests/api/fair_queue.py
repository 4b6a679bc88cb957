"""The fair lock's queue as the server has it, and waiters for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.backends import Backend, OtherOwner
from tests.support.server_state import ServerState

CHANNEL = "redisson_lock__channel:{orders}"
WAITERS = "pyredisson_fair_waiters:{orders}"
LINE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
KEYS = ("orders", LINE, SCORES, WAITERS, "pyredisson_fair_clients:{orders}")


class Queue:
    """The queue as Redisson reads it."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def __len__(self) -> int:
        return int(self.redis.llen("redisson_lock_queue:{orders}"))

    def owners(self) -> list[str]:
        owners = [owner.decode() for owner in self.redis.lrange("redisson_lock_queue:{orders}", 0, -1)]
        scored = self.redis.zrange("redisson_lock_timeout:{orders}", 0, -1)
        assert sorted(owners) == sorted(owner.decode() for owner in scored)
        return owners

    def ticks(self) -> int:
        """How often a client has told that its waiters are alive: nothing else uses this command."""
        return int(self.redis.info("commandstats").get("cmdstat_zremrangebyscore", {"calls": 0})["calls"])

    def scripts(self) -> int:
        """How many scripts have run, ticks aside: those go by time, and not by what happens."""
        while True:
            ticks = self.ticks()
            scripts = ServerState(self.redis).scripts()
            if self.ticks() == ticks:
                return scripts - ticks

    def listening(self, count: int) -> bool:
        """Whether so many waiters have a channel on which somebody listens."""
        channels = self.redis.pubsub_channels(f"{CHANNEL}:*")
        return len(channels) == count

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


async def start_waiter(backend: Backend, queue: Queue, work: Callable[[], Awaitable[Any]]) -> OtherOwner[Any]:
    """Another owner at work that waits for the lock as the last in line."""
    before = len(queue)
    other = backend.spawn(work)
    await backend.until(lambda: len(queue) == before + 1)
    return other


@asynccontextmanager
async def held(lock: Any) -> AsyncIterator[None]:
    """The lock, in the hands of somebody else than the test's owner."""
    await lock.lock()
    try:
        yield
    finally:
        await lock.unlock()
