"""What the runtimes of both backends have in common: the clock, threads, pauses; and the runtime of a single server."""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Protocol

from redis.exceptions import RedisError, ResponseError

from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import Answer, Answers, Redirected, Reply
from pyredisson._protocol.routing import Changes
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.ports import Granted, Sender, Wakeup


class NodeConnections(Protocol):
    """The connections of one client to one server: a pool in the threads backend, a pipeline in asyncio."""

    @property
    def connected(self) -> bool:
        """Whether a connection exists that is not closed."""

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        """Sends one command and returns its reply. Raises an error reply, or `NoReply`."""

    async def exchange(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> Answers:
        """Sends several commands in one write on one connection. Raises `NoReply`."""


CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It also counts the time in which the machine is suspended, as the server's clock does."""
clock: Callable[[], float] = functools.partial(time.clock_gettime, CLOCK)
"""Seconds since some moment in the past; never set back. A partial instead of a function, because every call reads the
clock, and calling a Python function would cost more."""


def start_thread(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Starts a thread. RuntimeError: no thread can be started, for example because the interpreter exits.

    Before 3.12 CPython would wait for ever while it exits, as no other thread runs any more.

    An exception of a signal's handler is raised unchanged. If it strikes while CPython waits for the thread, CPython
    releases a lock that it doesn't hold, and raises "release unlocked lock" in its place.
    """
    if sys.is_finalizing():
        raise RuntimeError("can't start a thread while the interpreter exits")
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        if str(error) == "release unlocked lock" and error.__context__ is not None:
            raise error.__context__ from None
        raise
    return thread


class BackendRuntime(ABC):
    """The part of `logic.ports.Runtime` that depends neither on the backend nor on the number of servers."""

    clock = staticmethod(clock)
    jitter = staticmethod(random.random)

    def __init__(self, scripts: ScriptSet) -> None:
        self.scripts = scripts
        self._pauses: dict[Wakeup, None] = {}
        self._closed = False

    @abstractmethod
    def _all_connections(self) -> Sequence[Any]: ...

    @abstractmethod
    def wakeup(self) -> Wakeup: ...

    @abstractmethod
    def wait(self, wakeup: Wakeup, seconds: float) -> Coroutine[Any, Any, object]: ...

    @property
    def connected(self) -> bool:
        return any(connections.connected for connections in self._all_connections())

    async def send_then(self: Sender, payload: bytes, apply: Callable[[Reply], object]) -> Reply:
        reply = await self.send(payload)
        apply(reply)
        return reply

    async def sleep(self, seconds: float) -> None:
        await self._wait_unless_closed(self.wakeup(), seconds)

    async def _wait_unless_closed(self, wakeup: Wakeup, seconds: float) -> None:
        """Waits until the wakeup is set, the time is over, or the runtime is closed."""
        try:
            self._pauses[wakeup] = None
            # Read after the pause is registered: `_end_pauses` sets it before it reads the pauses.
            if not self._closed:
                await self.wait(wakeup, seconds)
        finally:
            self._pauses.pop(wakeup, None)

    def _end_pauses(self) -> None:
        """Ends every `sleep`, also one that begins later."""
        self._closed = True
        for wakeup in list(self._pauses):
            wakeup.set()


class DirectRuntime(BackendRuntime):
    """The part of a runtime with a single server, which serves all slots, that doesn't depend on the backend."""

    sharded = False

    def __init__(self, node: Node, connections: NodeConnections) -> None:
        super().__init__(node.scripts)
        self._node = node
        self._connections = connections
        self.send = connections.send

    def _all_connections(self) -> Sequence[NodeConnections]:
        return (self._connections,)

    def slot_of(self, key: bytes) -> int:
        return 0

    def shard_of(self, key: bytes) -> Hashable:
        return self._node

    def shard_of_command(self, payload: bytes) -> Hashable:
        return self._node

    def on_topology_change(self, listener: Callable[[Changes], None]) -> None:
        pass

    def located(self, payload: bytes, error: RedisError) -> RedisError:
        return error

    def acquiring(self, granted: Granted) -> DirectRuntime:
        # Here no replica confirms them.
        return self

    def is_open(self) -> bool:
        return self.connected

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> Answer:
        (reply,), server_id = await self._connections.exchange((payload,), new_connection=new_connection)
        return reply, server_id

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        replies, _ = await self._connections.exchange(payloads, new_connection=new_connection)
        return replies

    async def follow(self, redirect: Redirected, payload: bytes, *, new_connection: bool = False) -> Answer:
        # The user has given one server. Another one, which that server names, may be meant for other clients only.
        raise ResponseError(str(redirect))

    def continues(self, redirect: Redirected) -> bool:
        return False

    def has_handed_over(self, server_id: bytes, payload: bytes) -> bool:
        return False

    def replaced_at(self, payload: bytes) -> float:
        return self._node.availability.replaced_at

    def on_command_failed(self, payload: bytes, error: RedisError) -> None:
        self._node.availability.on_command_failed(error)

    def on_command_served(self, payload: bytes) -> None:
        self._node.availability.on_command_served()

    async def pause(self, seconds: float, payload: bytes, shard: Hashable) -> None:
        await self.sleep(seconds)

    async def masters(self) -> list[Node]:
        return [self._node]

    async def ask(self, node: Node, payloads: Sequence[bytes]) -> list[Reply]:
        assert node is self._node, "there is one server"
        return await self.send_all(payloads)
