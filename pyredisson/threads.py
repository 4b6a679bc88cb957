"""The thread world: every coroutine of the logic runs to its end on the caller's own thread."""

from __future__ import annotations

import _thread
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pyredisson.runtime import Reply, Signal
from pyredisson.wire.blocking import Connection, Pool
from pyredisson.wire.node import Node

T = TypeVar("T")

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts on while the machine is suspended, as the server's clock does."""


def clock() -> float:
    """Seconds since some moment in the past, never set back."""
    return time.clock_gettime(CLOCK)


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Runs an operation of the logic: in this world it blocks where others would suspend."""
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an operation suspended in the thread world")


class ThreadSignal:
    """A lock that is free while the signal is set: waiting for it costs no polling, setting it is one call."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # It was set already.
            return

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        return not self._lock.locked()

    def wait(self, seconds: float) -> bool:
        """Until it is set, or the time is over. It stays set."""
        if self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            self._lock.release()
            return True
        return False


class ThreadRuntime:
    """A `Runtime` over a pool of blocking connections."""

    clock = staticmethod(clock)

    def __init__(self, node: Node, post: Callable[[bytes], None], size: int) -> None:
        self.scripts = node.scripts
        self._pool = Pool(node, size)
        self.post = post
        self._closed = False

    async def send(self, payload: bytes, *, fresh: bool = False) -> Reply:
        if fresh:
            return self._pool.call_fresh(lambda connection: connection.call(payload))
        return self._pool.call(payload)

    async def send_all(self, payloads: Sequence[bytes]) -> list[Reply]:
        def exchange(connection: Connection) -> list[Reply]:
            return connection.call_all(payloads)

        replies: list[Reply] = self._pool.call_any(exchange)
        return replies

    async def wait(self, signal: Signal, seconds: float) -> None:
        if not isinstance(signal, ThreadSignal):
            raise TypeError("a signal of another world")
        signal.wait(seconds)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    def jitter(self) -> float:
        return random.random()

    async def close(self) -> None:
        self._pool.close()


def start(operation: Coroutine[Any, Any, None], name: str) -> threading.Thread:
    """Runs an operation on a thread of its own, which ends with the process."""
    thread = threading.Thread(target=run, args=(operation,), name=name, daemon=True)
    thread.start()
    return thread
