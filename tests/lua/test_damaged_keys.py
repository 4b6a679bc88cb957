"""Every script that is registered ends soon on keys that somebody else has written, and raises nothing of its own."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import NAMES, Script
from pyredisson.testing import Server
from tests.support.damage import Key, commands, state
from tests.support.script_headers import Header, header

EXAMPLES = 40
"""States of the keys that each script meets: the same ones each time."""
MOST_CALLS = 30_000
"""Commands in one call of a script. No state of a few fields needs more than a third of them."""
COUNTED = b"""local redis = (function(server)
    local calls = 0
    local function counted(name)
        return function(...)
            calls = calls + 1
            if calls > %d then error('ENDLESS', 0) end
            return server[name](...)
        end
    end
    return setmetatable({call = counted('call'), pcall = counted('pcall')}, {__index = server})
end)(redis)
"""
"""Put before a script: it raises an error instead of running on."""
ALLOWED = re.compile(
    "WRONGTYPE|value is not an integer or out of range|increment or decrement would overflow|beyond 2.53"
)
"""What is said of a key that is of another type, or a number as a whole that can't be counted."""


def write(redis: Any, made: list[Key]) -> None:
    with redis.pipeline(transaction=False) as pipe:
        pipe.flushall()
        for words in commands(made):
            pipe.execute_command(*words)
        pipe.execute()


READ = {
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"string": ("GET",),
}


def contents(redis: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """Of each key the value, and the TTL in ms."""
    keys = redis.keys()
    with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key).pttl(key)
        replies = pipe.execute()
        for key, kind in zip(keys, replies[::2], strict=True):
            name, *rest = READ[kind]
            pipe.execute_command(name, key, *rest)
        values = pipe.execute()
    names = [key.decode() for key in keys]
    return dict(zip(names, values, strict=True)), dict(zip(names, replies[1::2], strict=True))


def scores(contents: dict[str, Any], key: str) -> dict[bytes, float]:
    found = contents.get(key)
    is_sorted_set = isinstance(found, list) and found and isinstance(found[0], (list, tuple))
    return dict(found) if is_sorted_set and found else {}


def outcome(redis: Any, text: bytes, known: Header) -> Any:
    try:
        return redis.eval(text, len(known.keys), *known.keys, *known.args)
    except ResponseError as error:
        return error


def numbers_in(reply: Any) -> list[int]:
    if isinstance(reply, list):
        return [number for item in reply for number in numbers_in(item)]
    return [reply] if isinstance(reply, int) else []


def may_stay(key: str, known: Header) -> bool:
    """Whether Redisson defines this key without a TTL."""
    is_number = key == known.keys[0] and known.types[0] == "string"
    return is_number or key.startswith("redisson_lock_") or key.endswith(":timeout")


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_and_raises_nothing_of_its_own(server: Server, admin: Redis, name: str) -> None:
    redis: Any = admin
    known = header(name)
    text = Script(name, with_shebang=server.version >= (7,)).text
    shebang, newline, body = text.partition(b"\n") if text.startswith(b"#!") else (b"", b"", text)
    counted = shebang + newline + COUNTED % MOST_CALLS + body
    for seed in range(EXAMPLES):
        made = state(name, Random(f"{name} {seed}"))
        write(redis, made)
        before, ttls_before = contents(redis)
        # A second copy comes to what the first one has left.
        for _ in range(2):
            found, _ = contents(redis)
            reply = outcome(redis, counted, known)
            if isinstance(reply, ResponseError):
                assert ALLOWED.search(str(reply)), (reply, made)
                assert contents(redis)[0] == found, made
            # What Lua makes of an infinite number, or of none, is the least integer.
            assert min(numbers_in(reply), default=0) > -(2**62), made
        after, ttls = contents(redis)
        for key in after:
            if ttls_before.get(key, 0) >= 0 and not may_stay(key, known):
                assert ttls[key] >= 0, (key, made)
            for member, score in scores(after, key).items():
                if scores(before, key).get(member) != score:
                    # Redisson reads no fraction and no infinite score.
                    assert score == int(score), (member, made)
                    assert abs(score) <= 2**53, (member, made)
