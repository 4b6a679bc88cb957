"""The fair lock's queue as the server has it, and waiters for the tests."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tests.support.backends import Backend, OtherOwner
from tests.support.server_state import ServerState

from .kinds import lock_of

WAITERS = "pyredisson_fair_waiters:{orders}"
CLIENTS = "pyredisson_fair_clients:{orders}"
QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
KEYS = ("orders", QUEUE, SCORES, WAITERS, CLIENTS)


class Queue:
    """The queue as Redisson reads it."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def __len__(self) -> int:
        return int(self.redis.llen(QUEUE))

    def enter(self, *owners: str) -> None:
        """What a Java client does that begins to wait."""
        self.redis.rpush(QUEUE, *owners)
        self.redis.zadd(SCORES, dict.fromkeys(owners, 10**13))

    def leave(self, owner: str) -> None:
        self.redis.lrem(QUEUE, 1, owner)
        self.redis.zrem(SCORES, owner)

    def owners(self) -> list[str]:
        owners = [owner.decode() for owner in self.redis.lrange(QUEUE, 0, -1)]
        scored = self.redis.zrange(SCORES, 0, -1)
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

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


async def start_waiter(backend: Backend, queue: Queue, work: Callable[[], Awaitable[Any]]) -> OtherOwner[Any]:
    """Starts another owner that waits for the lock, and returns when it is the last in the queue."""
    before = len(queue)
    return await backend.begin(work, lambda: len(queue) == before + 1)


async def start_waiters(
    backend: Backend, queue: Queue, clients: list[Any], count: int, kinds: Sequence[str] = ("fair",)
) -> tuple[list[OtherOwner[None]], list[int]]:
    """So many owners of these clients in turn that enter the queue one after the other, and leave the lock at once.

    Returns their calls, and the list to which each appends its number when it has the lock.
    """
    served: list[int] = []

    async def wait(number: int) -> None:
        async with lock_of(clients[number % len(clients)], kinds[number % len(kinds)]):
            served.append(number)

    return [await start_waiter(backend, queue, partial(wait, number)) for number in range(count)], served
