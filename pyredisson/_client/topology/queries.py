"""Questions to servers about the topology: a connection of its own for each, so no other call delays it."""

import builtins
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._backends.connecting import as_redis_error, credentials
from pyredisson._backends.threads.connection import ClientSocket
from pyredisson._core import Unsent, command
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import PING
from pyredisson._protocol.replies import Reply, is_transient
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

LONGEST = 1.0
"""Seconds that a server may take to connect and reply. It is raised when no server at all replies within it."""
SHORTEST = 0.25
"""Seconds that it may take at least, however quickly the servers have replied so far."""
TOLERANCE = 4.0
"""How much longer than the last reply the next one may take."""


class QueryConnection(ClientSocket):
    def __init__(self, config: Config, seconds: float) -> None:
        super().__init__(Node(config))
        self._deadline = monotonic() + seconds
        self._timeout = seconds

    def ask(self, commands: Sequence[bytes]) -> list[Reply]:
        """Connects, sends everything and returns the replies, within the time that was given."""
        login = credentials(self._node.config)
        payloads = [command(b"AUTH", *login), *commands] if login else list(commands)
        try:
            self._connect(self._deadline)
            replies = self._round_trip(b"".join(payloads), len(payloads), self._deadline)
        except (Unsent, OSError) as error:
            reason = error.args[0] if isinstance(error, Unsent) else error
            raise as_redis_error(reason, self._node, "asking") from reason
        if login and isinstance(reply := replies.pop(0), RedisError):
            raise reply
        return replies

    def receive(self, silence: float) -> Reply:
        """The next message or reply. After so many seconds of silence the server has to answer a PING in time."""
        try:
            [reply] = self._read_replies(1, monotonic() + silence)
        except (BlockingIOError, builtins.TimeoutError):
            [reply] = self._round_trip(PING, 1, monotonic() + self._timeout)
        return reply


SILENCE_REMEMBERED = 30.0
"""Seconds for which a server that didn't reply is asked after the others."""


class Servers:
    """Asks servers, and remembers which of them have not replied lately. Used by one thread, apart from `close`."""

    def __init__(self, config: Config) -> None:
        self._connection: QueryConnection | None = None
        """For the question that is being asked."""
        self._closed = False
        self._most = max(config.connect_timeout, config.timeout)
        # So that a call which waits for the topology lasts longer than one server that hangs.
        self._longest = min(config.timeout, max(SHORTEST, config.connect_timeout / 2), LONGEST)
        self._seconds = self._longest
        """How long a server may take to reply, by the time that servers need. Each second spent on one that hangs is a
        second in which a promoted master stays unknown."""
        self._silent: dict[Address, float] = {}
        """When a server has not replied last."""

    def ask(self, config: Config, commands: Sequence[bytes]) -> list[Reply]:
        """The replies, error replies among them, of the server that `config` names, to commands sent in one write.
        Raises what the network or the server's refusal to authenticate is for users of redis-py."""
        address = Address(config.host, config.port)
        began = monotonic()
        connection = self._connection = QueryConnection(config, self._seconds)
        try:
            # Read after the connection is set: `close` sets it before it looks at the connection.
            if self._closed:
                raise ConnectionError("the client is closed")
            replies = connection.ask(commands)
        except (ConnectionError, TimeoutError):
            self._silent[address] = began
            raise
        finally:
            self._connection = None
            connection.close()
        self._seconds = min(self._longest, max(SHORTEST, TOLERANCE * (monotonic() - began), self._seconds / 2))
        self._silent.pop(address, None)
        return replies

    def is_silent(self, address: Address) -> bool:
        """Whether a server has not replied lately."""
        return address in self._silent

    def sort(self, addresses: Iterable[Address], is_failing: Callable[[Address], bool]) -> list[Address]:
        """The addresses in their order; at the end the servers that are likely not to reply."""
        recent = monotonic() - SILENCE_REMEMBERED
        self._silent = {address: when for address, when in self._silent.items() if when > recent}
        return sorted(addresses, key=lambda address: address in self._silent or is_failing(address))

    def no_answer(self, failures: Sequence[RedisError], message: str) -> RedisError:
        """What to raise if no server has given an answer: the last of the failures, or one with that message."""
        if any(isinstance(error, TimeoutError) for error in failures):
            # They may be slower than expected.
            self._longest = self._seconds = min(self._most, 2 * self._longest)
        # An error that doesn't pass by itself says most.
        lasting = [error for error in failures if not is_transient(error)]
        return (lasting or failures or [ConnectionError(message)])[-1]

    def close(self) -> None:
        """Ends the question that is being asked, and all later ones. Can be called on any thread, takes no mutex."""
        self._closed = True
        if (connection := self._connection) is not None:
            connection.shut_down()
