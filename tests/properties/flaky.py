"""The logic on a real server, over a network that handles each request as the test demands."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.clock import clock
from pyredisson._backends.runtime import ReplyApplier
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.loops import Loop
from pyredisson.logic.session import Resources, Session


class Fate(Enum):
    """What becomes of one request."""

    FINE = auto()
    NOT_SENT = auto()
    REPLY_LOST = auto()
    REQUEST_LOST = auto()
    """Not run now; it may run late."""
    INTERRUPTED_BEFORE = auto()
    INTERRUPTED_AFTER = auto()
    OVERTAKEN = auto()
    """Run after another complete call."""


CUTS = (Fate.NOT_SENT, Fate.REPLY_LOST, Fate.REQUEST_LOST)
INTERRUPTS = (Fate.INTERRUPTED_BEFORE, Fate.INTERRUPTED_AFTER)
ATTEMPTS = 2
MOST_CUTS = ATTEMPTS
"""After this many fates a call still gets a reply."""


class Interrupted(BaseException):
    """Ctrl-C, or a cancellation."""


class Flaky(ReplyApplier):
    """The part of a `Runtime` that calls without waiting need. Each request meets one of `fates`, if any remain."""

    def __init__(self, url: str) -> None:
        node = Node(Config.of(url))
        self.scripts = node.scripts
        self._connection = Connection(node)
        self._connection.open()
        self.clock: Callable[[], float] = clock
        self.fates: list[Fate] = []
        self.copies: list[bytes] = []
        """Requests that may arrive again, or late: those without a reply, and all from the background."""
        self.posted: list[bytes] = []
        """Commands that are still to run in the background."""
        self.overtake: Callable[[], None] = lambda: None
        self.session = Session(Config(retry_attempts=ATTEMPTS), self)

    sharded = False

    def shard_of(self, key: bytes) -> str:
        return "the only one"

    def shard_of_command(self, payload: bytes) -> str:
        return "the only one"

    def slot_of(self, key: bytes) -> int:
        return 0

    def has_handed_over(self, server_id: bytes, payload: bytes) -> bool:
        return False

    def on_topology_change(self, listener: object) -> None:
        """One server has no topology."""

    def open(self, _: object) -> Resources:
        """For the session."""
        runtime: Any = self
        return Resources(str(uuid.uuid4()), runtime, runtime, ChannelRegistry(clock))

    def start_loop(self, loop: Loop) -> None: ...

    def run_callback(self, callback: Callable[[], object]) -> None: ...

    def send_last(self, payload: bytes) -> None:
        self.post(payload)

    def execute(self, payload: bytes) -> Reply:
        """What the server does when a request arrives."""
        return self._connection.call(payload)

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        fate = self.fates.pop(0) if self.fates else Fate.FINE
        if fate not in {Fate.FINE, Fate.OVERTAKEN, Fate.NOT_SENT}:
            self.copies.append(payload)
        if fate is Fate.OVERTAKEN:
            self.overtake()
        if fate is Fate.INTERRUPTED_BEFORE:
            raise Interrupted
        if fate in {Fate.NOT_SENT, Fate.REQUEST_LOST}:
            raise NoReply(
                ConnectionError("cut"), may_have_run=fate is Fate.REQUEST_LOST, server_id=self._connection.server_id
            )
        reply = self.execute(payload)
        if fate is Fate.REPLY_LOST:
            raise NoReply(ConnectionError("cut"), may_have_run=True, server_id=self._connection.server_id)
        if fate is Fate.INTERRUPTED_AFTER:
            raise Interrupted
        return reply

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        try:
            return await self.send(payload, new_connection=new_connection), self._connection.server_id
        except RedisError as error:
            return error, self._connection.server_id

    def post(self, payload: bytes) -> None:
        self.copies.append(payload)
        self.posted.append(payload)

    def run_posted(self, number: int) -> None:
        """One command of the background runs."""
        self.execute(self.posted.pop(number % len(self.posted)))

    def on_command_failed(self, payload: bytes, error: Exception) -> None: ...

    def on_command_served(self, payload: bytes) -> None: ...

    def located(self, payload: bytes, error: RedisError) -> RedisError:
        return error

    async def sleep(self, seconds: float) -> None: ...

    async def pause(self, seconds: float, payload: bytes, shard: object) -> None: ...

    def wakeup(self) -> ThreadWakeup:
        return ThreadWakeup()

    def jitter(self) -> float:
        return 0.0

    async def close(self) -> None:
        self._connection.close()
