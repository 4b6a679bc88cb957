"""Whatever somebody else has written into the companions of a free lock, whoever keeps asking for it acquires it."""

from __future__ import annotations

from random import Random

import pytest
from redis.exceptions import ResponseError

from pyredisson._core import command
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import NAMES, script
from tests.support.damage import commands, state
from tests.support.script_headers import header

from .simulator.server import Server

EXAMPLES = 20
STEP = 1.0
"""Seconds between two calls. A heartbeat of the fair lock is sent as often."""
STEPS = 2_000
"""A dead waiter of Redisson keeps its turn for 300 s."""
KEPT_OUT = ("pyredisson_once:", "pyredisson_permit_withdrawn:")
"""These keys say what became of one call, so they have no other content that a later call could meet."""


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_acquire")])
def test_it_is_acquired(name: str) -> None:
    for seed in range(EXAMPLES):
        assert _is_acquired(name, Random(f"{name} {seed}")), seed


def _is_acquired(name: str, random: Random) -> bool:
    now = 1_763_720_000.0
    server = Server(lambda: now, lambda *_: 0)
    server.load_all()
    lock, *_ = header(name).keys
    is_number = header(name).types[0] == "string"
    for words in commands(state(name, random)):
        if words[1] != lock and not str(words[1]).startswith(KEPT_OUT):
            server.execute(command(*[word.encode() if isinstance(word, str) else word for word in words]))
    if is_number:
        server.execute(command(b"SET", lock.encode(), 5))
    for _ in range(STEPS):
        if name.startswith("fair"):
            _run(server, "fair_heartbeat")
        reply = _run(server, name)
        if isinstance(reply, ResponseError):
            # A companion of another type, or a counter that isn't one: an error, not a wait.
            return True
        if (
            reply is None
            or (isinstance(reply, int) and reply > 0 and is_number)
            or (name.startswith("fenced") and isinstance(reply, list))
        ):
            return True
        now += STEP
    return False


def _run(server: Server, name: str) -> Reply:
    known = header(name)
    words = [word.encode() for word in (*known.keys, *known.args)]
    return server.execute(command(b"EVALSHA", script(name, with_shebang=True).sha, len(known.keys), *words))
