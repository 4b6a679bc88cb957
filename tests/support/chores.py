"""Chores of a watchdog that tests ask for."""

import contextlib
import threading

from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.logic.ports import Runtime


class Append:
    def __init__(self, key: bytes) -> None:
        self.key = key
        self.replies: list[Reply] = []
        self.failed = threading.Event()
        self.done = threading.Event()

    async def run(self, runtime: Runtime) -> None:
        try:
            self.replies.append(await runtime.send(command(b"APPEND", self.key, b"x")))
            self.done.set()
        except (NoReply, RedisError):
            self.failed.set()


class Failing(Append):
    """Raises, although a chore must not."""

    async def run(self, runtime: Runtime) -> None:
        with contextlib.suppress(NoReply):
            await super().run(runtime)
        raise LookupError("a bug in a chore")
