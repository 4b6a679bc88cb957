"""What the server has of a semaphore with expiring permits, and what a Java client does there."""

from __future__ import annotations

from tests.support.server_state import ServerState

CHANNEL, USED = "redisson_sc:{stock}", "{stock}:timeout"
FOREVER = 922337203685477
ID = "00112233445566778899aabbccddeeff"


def free(server_state: ServerState) -> int:
    """As Redisson reads it."""
    return int(server_state.redis.get("stock") or 0)


def used(server_state: ServerState) -> set[str]:
    """The ids of the permits in use, as Redisson shows them."""
    return {permit.hex() for permit in server_state.redis.zrange(USED, 0, -1)}


def java_release(server_state: ServerState, *permits: str) -> None:
    """What Redisson does. For one permit it publishes how many are free now; for several, how many were released."""
    freed = server_state.redis.zrem(USED, *map(bytes.fromhex, permits))
    total = server_state.redis.incrby("stock", freed)
    server_state.redis.publish(CHANNEL, total if len(permits) == 1 else freed)
