"""Chores of a watchdog that tests ask for."""

import threading

from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.logic.ports import Runtime


class Append:
    def __init__(self, key: bytes, *, fails: bool = False) -> None:
        """`fails`: it raises in the end, although a chore must not."""
        self.key, self.fails = key, fails
        self.replies: list[Reply] = []
        self.failed = threading.Event()
        self.done = threading.Event()

    async def run(self, runtime: Runtime) -> None:
        try:
            self.replies.append(await runtime.send(command(b"APPEND", self.key, b"x")))
            self.done.set()
        except (NoReply, RedisError):
            self.failed.set()
        if self.fails:
            raise LookupError("a bug in a chore")
