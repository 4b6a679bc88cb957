"""The read-write lock `orders`: its sides, its keys, and what a Java client does there."""

from typing import Any

from pyredisson.asyncio import ReadLock, WriteLock
from tests.support.backends import Backend, OtherOwner, ServerState, waiters

from .kinds import JAVA

CHANNEL = "redisson_rwlock:{orders}"
"""Of Redisson. A client that waits behind one of pyredisson listens to its own channel only."""
CLAIM, TURN = "pyredisson_rwlock_writer:{orders}", "pyredisson_rwlock_turn:{orders}"


def lease_key(owner: str, hold: int = 1) -> str:
    return f"{{orders}}:{owner}:rwlock_timeout:{hold}"


class Orders:
    """Without a client named, a method is of `client`, which `connect` replaces."""

    def __init__(self, backend: Backend, state: ServerState) -> None:
        self.backend, self._state = backend, state
        self.redis, self.scripts = state.redis, state.scripts
        self.connect()

    def connect(self, address: object = None, **fields: Any) -> None:
        self.client: Any = self.backend.connect(address, **fields)

    def sides(self, owner: int | None = None) -> tuple[ReadLock, WriteLock]:
        pair = self.client.get_read_write_lock("orders", owner=owner)
        return pair.read_lock(), pair.write_lock()

    def read(self, owner: int | None = None) -> ReadLock:
        return self.sides(owner)[0]

    def write(self, owner: int | None = None) -> WriteLock:
        return self.sides(owner)[1]

    async def waits(self, side: str, *owners: int) -> list[OtherOwner[None]]:
        """Other callers, who sleep until they have that side, each as one of these owners, and will hear of it."""
        others = [self.backend.spawn(getattr(self, side)(owner).lock) for owner in owners]
        await self.backend.until(lambda: waiters(self.client, "orders", side) == len(owners))
        return others

    async def claimed(self) -> None:
        """Returns when a writer that waits holds back readers."""
        await self.backend.until(lambda: bool(self.redis.exists(CLAIM)))

    def holds(self) -> dict[str, str]:
        return self._state.holds("orders")

    def java_reads(self, lease: int) -> None:
        """What Redisson's script leaves."""
        self.redis.hset("orders", mapping={"mode": "read", JAVA: 1})
        self.redis.set(lease_key(JAVA), "1", px=lease)
        self.redis.pexpire("orders", max(lease, self.redis.pttl("orders")))

    def java_writes(self, lease: int) -> None:
        self.redis.hset("orders", mapping={"mode": "write", JAVA + ":write": 1})
        self.redis.pexpire("orders", lease)
