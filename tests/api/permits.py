"""A semaphore of either kind with the same calls, what the server has of it, and what a Java client does there."""

import time
from typing import Any

from tests.support.backends import Backend, OtherOwner, ServerState, permit_waiters

CHANNEL, USED = "redisson_sc:{stock}", "{stock}:timeout"
CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
FOREVER = 922337203685477
ID = "00112233445566778899aabbccddeeff"


class Permits:
    """A handle of a semaphore. What an acquire returns is what a release takes; it is false if there is nothing."""

    def __init__(self, client: Any, kind: str, name: str | bytes = "stock", **options: Any) -> None:
        self.client = client
        self._counts = kind == "semaphore"
        get = client.get_semaphore if self._counts else client.get_permit_expirable_semaphore
        self._own: Any = get(name, **options)

    async def acquire(self, permits: int = 1) -> Any:
        if self._counts:
            await self._own.acquire(permits)
            return permits
        return await self._own.acquire_many(permits)

    async def try_acquire(self, permits: int = 1, wait: Any = 0) -> Any:
        if self._counts:
            return permits if await self._own.try_acquire(permits, wait) else 0
        return await self._own.try_acquire_many(permits, wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class Stock:
    """The semaphore `stock` of one kind."""

    def __init__(self, backend: Backend, state: ServerState, kind: str) -> None:
        self.backend, self.kind, self.redis = backend, kind, state.redis
        self.scripts, self.commands = state.scripts, state.commands

    def open(self, address: object = None, **fields: Any) -> Permits:
        """A handle of a new client."""
        return self.of(self.backend.connect(address, **fields))

    def of(self, client: Any, name: str | bytes = "stock", **options: Any) -> Permits:
        return Permits(client, self.kind, name, **options)

    async def made(self, permits: int, address: object = None, **fields: Any) -> Permits:
        """A handle of a new client that has set the number of permits."""
        semaphore = self.open(address, **fields)
        assert await semaphore.try_set_permits(permits)
        return semaphore

    async def waiter(self, semaphore: Permits, permits: int = 1) -> OtherOwner[Any]:
        """Another caller, who sleeps until there are so many permits, and will hear of them."""
        sleepers = permit_waiters(semaphore.client, "stock")
        other = self.backend.spawn(lambda: semaphore.acquire(permits))
        await self.backend.until(lambda: permit_waiters(semaphore.client, "stock") == sleepers + 1)
        return other

    def free(self) -> int:
        """As Redisson reads it."""
        return int(self.redis.get("stock") or 0)

    def used(self) -> set[str]:
        """The ids of the permits in use, as Redisson shows them."""
        return {permit.hex() for permit in self.redis.zrange(USED, 0, -1)}

    def is_heard(self) -> bool:
        """Whether a connection is subscribed."""
        return bool(self.redis.pubsub_numsub(CHANNEL)[0][1] == 1)

    async def claimed(self) -> None:
        await self.backend.until(lambda: bool(self.redis.exists(CLAIM)))

    def java_adds(self, permits: int) -> None:
        """What Redisson does for a release by number, or to add permits."""
        self.redis.publish(CHANNEL, self.redis.incrby("stock", permits))

    def java_acquires(self, permit: str, left: float) -> None:
        """What Redisson does, whose clock runs as ours."""
        assert self.redis.decr("stock") >= 0
        self.redis.zadd(USED, {bytes.fromhex(permit): int((time.time() + left) * 1000)})

    def java_releases(self, *permits: str) -> None:
        """What Redisson does. For one permit it publishes how many are free; for several, how many were released."""
        freed = self.redis.zrem(USED, *map(bytes.fromhex, permits))
        total = self.redis.incrby("stock", freed)
        self.redis.publish(CHANNEL, total if len(permits) == 1 else freed)
