"""What the server has of a semaphore, and what a Java client does there."""

from __future__ import annotations

from tests.support.server_state import ServerState

CHANNEL = "redisson_sc:{stock}"


def free(server_state: ServerState) -> int:
    """As Redisson reads it."""
    return int(server_state.redis.get("stock") or 0)


def java_release(server_state: ServerState, permits: int) -> None:
    """What Redisson does."""
    server_state.redis.publish(CHANNEL, server_state.redis.incrby("stock", permits))
