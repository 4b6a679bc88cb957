"""What Redisson does with a fair lock, step by step in plain commands: a foreign client in the same queue."""

from __future__ import annotations

from .fair_worlds import CHANNEL, LOCK, QUEUE, SCORES, World

WAIT = 300_000
"""Redisson's fairLockWaitTimeout, ms."""


def acquire(world: World, owner: bytes, lease: int, *, queues: bool) -> bool:
    """True: taken. `queues`: one that isn't served stands in line."""
    now = world.now()
    drop_stale(world, now)
    free = not world.command("EXISTS", LOCK)
    if free and _head(world) in (None, owner):
        world.command("LPOP", QUEUE)
        world.command("ZREM", SCORES, owner)
        for other in world.command("ZRANGE", SCORES, 0, -1):
            world.command("ZINCRBY", SCORES, -WAIT, other)
        world.command("HSET", LOCK, owner, 1)
        world.command("PEXPIRE", LOCK, lease)
        return True
    if world.command("HEXISTS", LOCK, owner):
        world.command("HINCRBY", LOCK, owner, 1)
        world.command("PEXPIRE", LOCK, lease)
        return True
    if queues and world.command("ZSCORE", SCORES, owner) is None:
        last = world.command("LINDEX", QUEUE, -1)
        score = None if last in (None, owner) else world.command("ZSCORE", SCORES, last)
        left = world.command("PTTL", LOCK) if score is None else int(float(score)) - now
        if world.command("ZADD", SCORES, left + WAIT + now, owner):
            world.command("RPUSH", QUEUE, owner)
    return False


def release(world: World, owner: bytes, lease: int) -> None:
    """Gives back one hold. (A lock that isn't there is left alone: see Redisson's quirk Q3.)"""
    drop_stale(world, world.now())
    if not world.command("HEXISTS", LOCK, owner):
        return
    if world.command("HINCRBY", LOCK, owner, -1) > 0:
        world.command("PEXPIRE", LOCK, lease)
        return
    world.command("DEL", LOCK)
    _tell_head(world)


def force_release(world: World) -> None:
    """Removes the lock, whoever holds it."""
    drop_stale(world, world.now())
    if world.command("DEL", LOCK):
        _tell_head(world)


def give_up(world: World, owner: bytes) -> None:
    """What a timed wait ends with, when its time is over."""
    queue = world.command("LRANGE", QUEUE, 0, -1)
    if owner in queue:
        for other in queue[queue.index(owner) + 1 :]:
            world.command("ZINCRBY", SCORES, -WAIT, other)
    world.command("ZREM", SCORES, owner)
    world.command("LREM", QUEUE, 0, owner)


def drop_stale(world: World, now: int) -> None:
    """What each of these begins with: heads whose time is over lose their place."""
    while (head := _head(world)) is not None:
        score = world.command("ZSCORE", SCORES, head)
        if score is None or float(score) > now:
            return
        world.command("ZREM", SCORES, head)
        world.command("LPOP", QUEUE)


def _head(world: World) -> bytes | None:
    head: bytes | None = world.command("LINDEX", QUEUE, 0)
    return head


def _tell_head(world: World) -> None:
    head = _head(world)
    if head is not None:
        world.command("PUBLISH", CHANNEL + b":" + head, 0)
