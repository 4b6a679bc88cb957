"""Questions to servers about the topology: a connection of its own for each, so no other call delays it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.credentials import credentials
from pyredisson._backends.failures import as_redis_error
from pyredisson._backends.threads.sockets import ClientSocket
from pyredisson._core import Unsent, command
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config

LONGEST = 1.0
"""Seconds that a server may take to connect and reply. It is raised when no server at all replies within it."""
SHORTEST = 0.25
"""Seconds that it may take at least, however quickly the servers have replied so far."""
TOLERANCE = 4.0
"""How much longer than the last reply the next one may take."""


class Patience:
    """How long a server may take to reply.

    Among many servers one may hang, and each second spent on it is a second in which a promoted master stays unknown.
    So the limit follows the time that servers need.
    """

    def __init__(self, config: Config) -> None:
        self._most = max(config.connect_timeout, config.timeout)
        self._longest = min(config.timeout, LONGEST)
        self.seconds = self._longest

    def on_reply(self, seconds: float) -> None:
        """A server has replied after so many seconds."""
        self.seconds = min(self._longest, max(SHORTEST, TOLERANCE * seconds, self.seconds / 2))

    def on_silence(self) -> None:
        """No server has replied in time: they may be slower than expected."""
        self._longest = self.seconds = min(self._most, 2 * self._longest)


class Queries:
    """Asks one server at a time. `close` ends the question that is being asked, on any thread."""

    def __init__(self) -> None:
        self._connection: QueryConnection | None = None
        self._closed = False

    def ask(self, config: Config, commands: Sequence[bytes], seconds: float) -> list[Reply]:
        """The replies to all commands, which are sent in one write; error replies are in the list.

        Raises what the network or the server's refusal to authenticate is for users of redis-py.
        """
        connection = self._connection = QueryConnection(config, seconds)
        try:
            # Read after the connection is set: `close` sets it before it looks at the connection.
            if self._closed:
                raise ConnectionError("the client is closed")
            return connection.ask(commands)
        finally:
            self._connection = None
            connection.close()

    def close(self) -> None:
        """Ends the present question and all later ones. Takes no mutex."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()


class QueryConnection(ClientSocket):
    """A connection for one question."""

    __slots__ = ("_deadline",)

    def __init__(self, config: Config, seconds: float) -> None:
        super().__init__(Node(config))
        self._deadline = time.monotonic() + seconds
        self._timeout = seconds

    def ask(self, commands: Sequence[bytes]) -> list[Reply]:
        """Connects, sends everything and returns the replies, within the time that was given."""
        login = credentials(self._node.config)
        payloads = [command(b"AUTH", *login), *commands] if login else list(commands)
        try:
            self._connect(self._deadline)
            replies = self._round_trip(b"".join(payloads), len(payloads), self._deadline)
        except Unsent as unsent:
            (error,) = unsent.args
            raise as_redis_error(error, self._node, "asking") from error
        except OSError as error:
            raise as_redis_error(error, self._node, "asking") from error
        if login and isinstance(reply := replies.pop(0), RedisError):
            raise reply
        return replies
