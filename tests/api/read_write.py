"""Keys of the read-write lock, and what a Java client does there."""

from __future__ import annotations

from typing import Any

from pyredisson.asyncio import ReadLock, WriteLock
from tests.support.server_state import ServerState

CHANNEL = "redisson_rwlock:{orders}"
CLAIM = "pyredisson_rwlock_writer:{orders}"
JAVA = "b983c153-7421-469a-addb-44fb92259a1b:1"


def lease_key(owner: str, hold: int = 1) -> str:
    return f"{{orders}}:{owner}:rwlock_timeout:{hold}"


def java_reads(server_state: ServerState, lease: int) -> None:
    """What Redisson's script leaves."""
    server_state.redis.hset("orders", mapping={"mode": "read", JAVA: 1})
    server_state.redis.set(lease_key(JAVA), "1", px=lease)
    server_state.redis.pexpire("orders", max(lease, server_state.redis.pttl("orders")))


def listeners(server_state: ServerState) -> int:
    [(_, count)] = server_state.redis.pubsub_numsub(CHANNEL)
    return int(count)


def sides(client: Any, owner: int | None = None) -> tuple[ReadLock, WriteLock]:
    pair = client.get_read_write_lock("orders", owner=owner)
    return pair.read_lock(), pair.write_lock()
