"""Every script that is registered ends soon on keys that somebody else has written, and raises nothing of its own."""

import re
from random import Random
from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import NAMES, Script
from tests.properties.servers import Memory
from tests.support.damage import Key, commands, state
from tests.support.script_headers import Header, header

from .scripted import Scripted, outcome

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


def values(scripts: Scripted) -> dict[str, Any]:
    return {key: value for key, (value, _) in scripts.contents(scores=True).items()}


def numbers_in(reply: Any) -> list[int]:
    if isinstance(reply, list):
        return [number for item in reply for number in numbers_in(item)]
    return [reply] if isinstance(reply, int) else []


def may_stay(key: str, known: Header) -> bool:
    """Whether Redisson defines this key without a TTL."""
    is_number = key == known.keys[0] and known.types[0] == "string"
    return is_number or key.startswith("redisson_lock_") or key.endswith(":timeout")


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_and_raises_nothing_of_its_own(scripts: Scripted, name: str) -> None:
    known = header(name)
    text = Script(name, with_shebang=scripts.with_shebang).text
    shebang, newline, body = text.partition(b"\n") if text.startswith(b"#!") else (b"", b"", text)
    counted = shebang + newline + COUNTED % MOST_CALLS + body
    for seed in range(EXAMPLES):
        made = state(name, Random(f"{name} {seed}"))
        write(scripts.redis, made)
        before = scripts.contents(scores=True)
        # A second copy comes to what the first one has left.
        for _ in range(2):
            found = values(scripts)
            reply = outcome(scripts.redis.eval, counted, len(known.keys), *known.keys, *known.args)
            if isinstance(reply, ResponseError):
                assert ALLOWED.search(str(reply)), (reply, made)
                assert values(scripts) == found, made
            # What Lua makes of an infinite number, or of none, is the least integer.
            assert min(numbers_in(reply), default=0) > -(2**62), made
        for key, (value, ttl) in scripts.contents(scores=True).items():
            value_before, ttl_before = before.get(key, ({}, 0))
            assert ttl is not None or ttl_before is None or may_stay(key, known), (key, made)
            scores_before = value_before.items() if isinstance(value_before, dict) else ()
            for member, score in value.items() if isinstance(value, dict) else ():
                if isinstance(score, float) and (member, score) not in scores_before:
                    # Redisson reads no fraction and no infinite score.
                    assert score == int(score), (member, made)
                    assert abs(score) <= 2**53, (member, made)


STEP = 1_000
"""Milliseconds between two calls. A heartbeat of the fair lock is sent as often."""
STEPS = 2_000
"""A dead waiter of Redisson keeps its turn for 300 s."""
KEPT_OUT = ("pyredisson_once:", "pyredisson_permit_withdrawn:")
"""These keys say what became of one call, so they have no other content that a later call could meet."""


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_acquire")])
def test_it_is_acquired(name: str) -> None:
    """Whatever somebody else has written into the companions of a free lock, whoever keeps asking acquires it."""
    for seed in range(EXAMPLES // 2):
        assert _is_acquired(name, Random(f"{name} {seed}")), seed


def _is_acquired(name: str, random: Random) -> bool:
    memory = Memory()

    def run(script: str) -> Any:
        return outcome(memory.script, script, *header(script).keys, args=header(script).args)

    lock, *_ = header(name).keys
    is_number = header(name).types[0] == "string"
    for words in commands(state(name, random)):
        if words[1] != lock and not str(words[1]).startswith(KEPT_OUT):
            memory.command(*words)
    if is_number:
        memory.command("SET", lock, 5)
    for _ in range(STEPS):
        if name.startswith("fair"):
            run("fair_heartbeat")
        reply = run(name)
        # A companion of another type, or a counter that isn't one: an error, not a wait.
        if reply is None or isinstance(reply, ResponseError):
            return True
        if (is_number and isinstance(reply, int) and reply > 0) or (
            name.startswith("fenced") and isinstance(reply, list)
        ):
            return True
        memory.advance_time(STEP)
    return False
