"""The interface between the logic and its backend: time, commands, waiting. The tests' simulator is a third backend."""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, Protocol

from redis.exceptions import RedisError

from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import Redirected, Reply
from pyredisson._protocol.routing import Changes
from pyredisson._protocol.scripts import ScriptSet


class Wakeup(Protocol):
    """Makes one waiter look again. In the threads backend any thread may set it, in asyncio the event loop's thread."""

    @property
    def alive(self) -> bool:
        """False: its waiter can't wake up any more. Its event loop was closed, and nothing has ended its task."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...


Operation = Callable[[], Coroutine[Any, Any, None]]

Granted = Callable[[Reply], bool]
"""Whether a reply means that the command has acquired what it asked for."""


class Sender(Protocol):
    """What sends one command, again where needed (`logic.retry`). In the threads backend these coroutines block their
    thread and never suspend."""

    scripts: ScriptSet
    """The scripts in the form that the connected server takes."""

    def clock(self) -> float:
        """Seconds, monotonic. Includes the time in which the machine was suspended, where the system counts it."""

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        """Sends one command and returns its reply. Raises an error reply, or `NoReply`.

        With `new_connection`, the command is sent over a new connection. Before that, the server drops the connections
        that failed, so their commands can't run later.
        """

    def send_then(self, payload: bytes, apply: Callable[[Reply], object]) -> Awaitable[Reply]:
        """As `send`. Calls `apply` with the reply once, in asyncio before any task goes on; raises what that raises."""

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        """As `send`, but returns error replies; also the identity of the server that replied. None: unknown."""

    async def follow(
        self, redirect: Redirected, payload: bytes, *, new_connection: bool = False
    ) -> tuple[Reply, bytes | None]:
        """As `send_identified`, but sends the command to the server that a redirect names."""

    def continues(self, redirect: Redirected) -> bool:
        """Whether the server that a redirect names has the data of the one that has sent it. Asked before `follow`.

        Otherwise it may lack what the other one has executed last, and its reply says nothing about an earlier copy.
        """

    def has_handed_over(self, server_id: bytes, payload: bytes) -> bool:
        """Whether the server that serves the command now has the data of another one, the process with that identity.

        So it is if both are masters: then the slot has moved with its keys.
        """

    def shard_of_command(self, payload: bytes) -> Hashable:
        """The server that serves the command now; always the same object where there is one server. None: unknown."""

    def on_command_failed(self, payload: bytes, error: RedisError) -> None:
        """A command was not served, and is sent again."""

    def on_command_served(self, payload: bytes) -> None:
        """A command was served after others had failed."""

    def located(self, payload: bytes, error: RedisError) -> RedisError:
        """The error to raise for a command that is given up: where there are several servers, it says which failed."""

    async def pause(self, seconds: float, payload: bytes, shard: Hashable) -> None:
        """Pauses before a command is sent again. It ends early when another server than `shard` serves the command, and
        when the client is closed; a command that is sent after that raises `ClosedError`."""

    def jitter(self) -> float:
        """A random number of at least 0 and below 1."""


class Runtime(Sender, Protocol):
    """One backend. As in `Sender`, coroutines block their thread in the threads backend."""

    sharded: bool
    """Whether several servers may be known, now or later. Else `shard_of` always returns the same object."""

    blocking: bool
    """Whether a call occupies its thread until it ends, so that no other call can go on there."""

    def acquiring(self, granted: Granted) -> Sender:
        """What sends acquires: it raises `NotConfirmed` for one that was `granted`, if too few replicas have it."""

    def replaced_at(self, payload: bytes) -> float:
        """When the server of the command was found to be another process than before; -inf: never, as far as known."""

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        """Sends several commands, in one write to each server. Error replies are in the list.

        ASK is followed, as no other server serves the command. MOVED isn't, so a caller waits for no server that it
        didn't mean: it is in the list, and the same command goes to the other server from then on.

        `NoReply` is raised if all commands go to one server. If they go to several, the error of a server that doesn't
        reply is in the list, for each of its commands.
        """

    def slot_of(self, key: bytes) -> int:
        """The slot of a cluster that the key belongs to; always 0 where there are no slots."""

    def shard_of(self, key: bytes) -> Hashable:
        """The server that serves the key now; always the same object where there is one server. None: unknown."""

    def on_topology_change(self, listener: Callable[[Changes], None]) -> None:
        """Has a bound method called after each change of the topology, if there are several servers.

        It is referred to weakly, and called on any thread. It must not block.
        """

    def is_open(self) -> bool:
        """Whether a connection to the server is open that no call uses. Sends nothing.

        True where there are several servers: their restarts are changes of the topology.
        """

    def post(self, payload: bytes) -> None:
        """Sends an idempotent command in the background, after the commands that this backend has sent before.

        Never waits and never raises. The command is sent again until it has run, or is of no use any more.
        """

    def spawn(self, operation: Operation) -> None:
        """Runs an operation in the background to its end, also when the caller fails or is cancelled."""

    def spawner(self) -> Callable[[Operation], None]:
        """A `spawn` that can be called on any thread. In asyncio for the event loop that runs now, until its end."""

    def wait(self, wakeup: Wakeup, seconds: float) -> Coroutine[Any, Any, object]:
        """Waits until the wakeup is set or the time is over."""

    async def sleep(self, seconds: float) -> None:
        """Pauses. It ends early when the runtime is closed; a command that is sent after that raises `ClosedError`."""

    def wakeup(self) -> Wakeup:
        """A new wakeup, which isn't set."""

    # --- For what reads all servers. A single one is the only one

    async def masters(self) -> list[Node]:
        """All masters that serve slots, by address. Waits until the topology is known. Raises what prevents that."""

    async def ask(self, node: Node, payloads: Sequence[bytes]) -> list[Reply]:
        """Sends commands to that server, in one write. Error replies are in the list; `NoReply` is raised."""
