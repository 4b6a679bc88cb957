"""The fair lock's queue as the server has it, and waiters for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.backends import Backend, OtherOwner
from tests.support.server_state import ServerState

CHANNEL = "redisson_lock__channel:{orders}"
WAITERS = "pyredisson_fair_waiters:{orders}"
CLIENTS = "pyredisson_fair_clients:{orders}"
QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
KEYS = ("orders", QUEUE, SCORES, WAITERS, CLIENTS)


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

    def heartbeats(self) -> int:
        """How many heartbeats the server has received: only they use this command."""
        return int(self.redis.info("commandstats").get("cmdstat_zremrangebyscore", {"calls": 0})["calls"])

    def scripts(self) -> int:
        """How many scripts have run, without heartbeats: their number depends on time only."""
        while True:
            heartbeats = self.heartbeats()
            scripts = ServerState(self.redis).scripts()
            if self.heartbeats() == heartbeats:
                return scripts - heartbeats

    def listening(self, count: int) -> bool:
        """Whether so many waiters have a channel on which somebody listens."""
        channels = self.redis.pubsub_channels(f"{CHANNEL}:*")
        return len(channels) == count

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


async def start_waiter(backend: Backend, queue: Queue, work: Callable[[], Awaitable[Any]]) -> OtherOwner[Any]:
    """Starts another owner that waits for the lock, and returns when it is the last in the queue."""
    before = len(queue)
    other = backend.spawn(work)
    await backend.until(lambda: len(queue) == before + 1)
    return other


@asynccontextmanager
async def held(lock: Any) -> AsyncIterator[None]:
    """The lock is held by its owner inside the block."""
    await lock.lock()
    try:
        yield
    finally:
        await lock.unlock()
