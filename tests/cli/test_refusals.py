"""What commands refuse: they say why, and nothing has changed on the server."""

from __future__ import annotations

from typing import Any

import pytest

from .objects import JAVA, Run

GUESS = "a number: a semaphore or a latch, if it is one of ours"
HELD = ("HSET", "orders", f"{JAVA}:31", 1)
READERS = ("HSET", "orders", "mode", "read", f"{JAVA}:1", 1, f"{JAVA}:2", 1)
NUMBER = ("SET", "orders", 2)
SEMAPHORE = (NUMBER, ("SET", f"pyredisson_once:{{orders}}:{JAVA}:0:semaphore", "2 1", "PX", 60_000))
LATCH = (NUMBER, ("SET", f"pyredisson_once:{{orders}}:{JAVA}:0:latch", "2 1", "PX", 60_000))
PERMITS = ("ZADD", "{orders}:timeout", 9e15, "0123456789abcdef", 9e15, "0123456789abcdeg")
COUNTER = ("SET", "redisson_lock_token:{orders}", 5)
QUEUE = (
    ("RPUSH", "redisson_lock_queue:{orders}", f"{JAVA}:31"),
    ("ZADD", "redisson_lock_timeout:{orders}", 9 * 10**12, f"{JAVA}:31"),
)
SET = ("--free", "3", "--yes")


@pytest.mark.parametrize(
    ("keys", "arguments", "status", "text"),
    [
        ((), ["unlock", "--yes"], 1, "pyredisson: lock 'orders' is free: there is no such key\n"),
        ((HELD,), ["unlock"], 2, "pyredisson: nobody can be asked here: give --yes; "),
        ((READERS,), ["unlock", "--yes"], 2, "pyredisson: lock 'orders' has 2 readers: --all-readers releases them; "),
        ((PERMITS,), ["unlock", "--yes"], 2, "--permit; 'inspect' lists them"),
        ((PERMITS,), ["unlock", "--yes", "--permit", "ab" * 16], 1, f"'orders' has no permit {'ab' * 16} in use\n"),
        (SEMAPHORE, ["unlock", "--yes"], 2, "of which no single hold can be released"),
        (LATCH, ["unlock", "--yes"], 2, "of which no single hold can be released"),
        ((NUMBER,), ["permits", *SET], 2, f"'orders' may be something else: --yes is refused ({GUESS})"),
        ((("SET", "orders", "x"),), ["permits", *SET], 1, "'orders' is no semaphore: a string that is no number"),
        ((HELD,), ["permits", *SET], 2, "'orders' is a lock, not a semaphore"),
        ((PERMITS,), ["permits", *SET], 2, "'unlock --permit' releases one"),
        ((("SET", "other", 2),), ["permits", *SET], 1, "'orders' is no semaphore: there is no such key"),
        (SEMAPHORE, ["permits", "--free", "3"], 2, "nobody can be asked here: give --yes"),
        ((), ["rm"], 1, "pyredisson: nothing is left of lock 'orders'\n"),
        ((COUNTER, HELD), ["rm"], 1, "lock 'orders' is held"),
        ((COUNTER, *QUEUE), ["rm"], 1, "lock 'orders' is waited for"),
    ],
)
def test_what_is_refused(
    cli: Run, redis: Any, keys: tuple[tuple[Any, ...], ...], arguments: list[str], status: int, text: str
) -> None:
    for key in keys:
        redis.execute_command(*key)
    before = {key: redis.dump(key) for key in redis.scan_iter()}
    ended = cli(arguments[0], "orders", *arguments[1:])
    assert ended.status == status
    assert text in ended.err
    assert {key: redis.dump(key) for key in redis.scan_iter()} == before
