"""Turns at a lock or a semaphore, in the same words for each kind."""

import time
from contextlib import AsyncExitStack
from typing import Any

from tests.support.server_state import listeners

from .kinds import PERMITS, left, lock_of


def handle_of(client: Any, kind: str, owner: Any = None) -> Any:
    """The lock or the semaphore "orders"."""
    if kind == "semaphore":
        return client.get_semaphore("orders")
    return client.get_permit_expirable_semaphore("orders") if kind == "permit" else lock_of(client, kind, owner=owner)


def turn_of(client: Any, kind: str, owner: Any = None) -> Any:
    """A block in which its caller has the lock, or a permit."""
    handle = handle_of(client, kind, owner)
    return handle.permit() if kind == "permit" else handle


async def take(turn: Any, times: int = 1) -> float:
    """Has its turn so many times. Returns when the last one began."""
    for _ in range(times):
        async with turn:
            begun = time.monotonic()
    return begun


async def set_permits(client: Any, kind: str, permits: int) -> None:
    """There is nothing to do for a lock."""
    if kind in PERMITS:
        assert await handle_of(client, kind).try_set_permits(permits)


async def held(client: Any, kind: str = "lock", permits: int = 1) -> AsyncExitStack:
    """The caller has the lock, or all permits, until this is closed."""
    await set_permits(client, kind, permits)
    stack = AsyncExitStack()
    for _ in range(permits):
        await stack.enter_async_context(turn_of(client, kind))
    return stack


def listening(redis: Any, kind: str) -> int:
    """How many clients hear of a release: for permits those that listen to Redisson's channel after their own one."""
    return redis.pubsub_numsub("redisson_sc:{orders}")[0][1] if kind in PERMITS else listeners(redis, "orders")


def whole(redis: Any, kind: str, permits: int = 1) -> bool:
    """Nobody has the lock, or one of so many permits."""
    return int(redis.get("orders")) == permits if kind in PERMITS else left(redis) == set()
