"""A Java client of the fair lock: Redisson's steps in plain commands, in the same queue."""

from __future__ import annotations

from .fair_model import CHANNEL, LOCK, QUEUE, SCORES, WAIT, FairServer


def acquire(server: FairServer, owner: bytes, lease: int, *, queues: bool) -> bool:
    """True: acquired. `queues`: otherwise it enters the queue."""
    now = server.now
    drop_stale(server, now)
    free = not server.command("EXISTS", LOCK)
    if free and _head(server) in (None, owner):
        server.command("LPOP", QUEUE)
        server.command("ZREM", SCORES, owner)
        for other in server.command("ZRANGE", SCORES, 0, -1):
            server.command("ZINCRBY", SCORES, -WAIT, other)
        server.command("HSET", LOCK, owner, 1)
        server.command("PEXPIRE", LOCK, lease)
        return True
    if server.command("HEXISTS", LOCK, owner):
        server.command("HINCRBY", LOCK, owner, 1)
        server.command("PEXPIRE", LOCK, lease)
        return True
    if queues and server.command("ZSCORE", SCORES, owner) is None:
        last = server.command("LINDEX", QUEUE, -1)
        score = None if last in (None, owner) else server.command("ZSCORE", SCORES, last)
        left = server.command("PTTL", LOCK) if score is None else int(float(score)) - now
        if server.command("ZADD", SCORES, left + WAIT + now, owner):
            server.command("RPUSH", QUEUE, owner)
    return False


def release(server: FairServer, owner: bytes, lease: int) -> None:
    """Releases one level. (A lock that doesn't exist isn't changed: see Redisson's quirk Q3.)"""
    drop_stale(server, server.now)
    if not server.command("HEXISTS", LOCK, owner):
        return
    if server.command("HINCRBY", LOCK, owner, -1) > 0:
        server.command("PEXPIRE", LOCK, lease)
        return
    server.command("DEL", LOCK)
    _tell_head(server)


def force_release(server: FairServer) -> None:
    """Removes the lock, whoever holds it."""
    drop_stale(server, server.now)
    if server.command("DEL", LOCK):
        _tell_head(server)


def give_up(server: FairServer, owner: bytes) -> None:
    """The step of a timed wait when its time is over."""
    queue = server.command("LRANGE", QUEUE, 0, -1)
    if owner in queue:
        for other in queue[queue.index(owner) + 1 :]:
            server.command("ZINCRBY", SCORES, -WAIT, other)
    server.command("ZREM", SCORES, owner)
    server.command("LREM", QUEUE, 0, owner)


def drop_stale(server: FairServer, now: int) -> None:
    """The beginning of each of these scripts: heads whose scores have run out lose their places."""
    while (head := _head(server)) is not None:
        score = server.command("ZSCORE", SCORES, head)
        if score is None or float(score) > now:
            return
        server.command("ZREM", SCORES, head)
        server.command("LPOP", QUEUE)


def _head(server: FairServer) -> bytes | None:
    head: bytes | None = server.command("LINDEX", QUEUE, 0)
    return head


def _tell_head(server: FairServer) -> None:
    head = _head(server)
    if head is not None:
        server.command("PUBLISH", CHANNEL + b":" + head, 0)
