"""What the logic asks of its world: time, commands, signals. Threads, asyncio and the simulator each give one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from redis.exceptions import RedisError

from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import ScriptSet


class Wakeup(Protocol):
    """Says "look again" to one waiter; may be set from any thread of its world."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...


class Runtime(Protocol):
    """One world. In the thread world these coroutines block and never suspend."""

    scripts: ScriptSet
    """The scripts as the server at hand takes them."""

    blocking: bool
    """Whether a call keeps its thread until it ends, so that nothing else goes on there."""

    def clock(self) -> float:
        """Seconds, monotonic; counts the time in which the machine was suspended, where the system can."""

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        """One command, one reply. Raises what Redis reports, or `NoReply`.

        With `new_connection`, over a connection made after every earlier `NoReply`, and after the server dropped the
        connections that were cut: what they carried can't run any more once this command has run.
        """

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        """As `send`; also gives the identity of the server that replied, None where it isn't known."""

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        """Several commands in one write; an error reply stands in the list, `NoReply` is raised."""

    def post(self, payload: bytes) -> None:
        """Sends an idempotent command in the background, after whatever this world sent before.

        Never waits and never raises. It is repeated until it has run or has become pointless.
        """

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Has an operation run beside the caller's own, to its end, whatever becomes of the caller."""

    def on_command_failed(self, error: RedisError) -> None:
        """Takes note that a command was not served, and is tried again."""

    def on_command_served(self) -> None:
        """Takes note that a command was served after others had failed."""

    async def wait(self, wakeup: Wakeup, seconds: float) -> None:
        """Until the signal is set or the time is over."""

    async def sleep(self, seconds: float) -> None:
        """Ends early when the runtime is closed: what is sent after that raises `ClosedError`."""

    def wakeup(self) -> Wakeup: ...

    def jitter(self) -> float:
        """A random number in [0, 1)."""

    async def close(self) -> None: ...
