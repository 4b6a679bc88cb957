"""Questions to servers about the topology: a connection of its own for each, so no other call delays it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import NamedTuple

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._backends.connecting import as_redis_error, credentials
from pyredisson._backends.threads.connection import ClientSocket
from pyredisson._core import Unsent, command
from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._protocol.replication import Replication, read_replication
from pyredisson._protocol.replies import Reply, is_transient
from pyredisson._protocol.topology import ROLE_QUERY, TopologyView, read_role, unconfirmed_master
from pyredisson._settings.address import Address
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
        self.seconds = min(self._longest, max(SHORTEST, TOLERANCE * seconds, self.seconds / 2))

    def on_silence(self) -> None:
        """No server has replied in time: they may be slower than expected."""
        self._longest = self.seconds = min(self._most, 2 * self._longest)


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


# --- Servers that are asked one after the other, until one gives the answer that is needed


SILENCE_REMEMBERED = 30.0
"""Seconds for which a server that didn't reply is asked after the others."""


class Servers:
    """Asks servers, and remembers which of them have not replied lately. Used by one thread, apart from `close`."""

    def __init__(self, config: Config) -> None:
        self._connection: QueryConnection | None = None
        """For the question that is being asked."""
        self._closed = False
        self._patience = Patience(config)
        self._silent: dict[Address, float] = {}
        """When a server has not replied last."""

    def ask(self, config: Config, commands: Sequence[bytes]) -> list[Reply]:
        """The replies of the server that `config` names, to commands that are sent in one write.

        Error replies are in the list. Raises what the network or the server's refusal to authenticate is for users of
        redis-py.
        """
        address = Address(config.host, config.port)
        began = monotonic()
        try:
            replies = self._ask(config, commands)
        except (ConnectionError, TimeoutError):
            self._silent[address] = began
            raise
        self._patience.on_reply(monotonic() - began)
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
            self._patience.on_silence()
        # An error that doesn't pass by itself says most.
        lasting = [error for error in failures if not is_transient(error)]
        return (lasting or failures or [ConnectionError(message)])[-1]

    def close(self) -> None:
        """Ends the question that is being asked, and all later ones. Can be called on any thread, takes no mutex."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()

    def _ask(self, config: Config, commands: Sequence[bytes]) -> list[Reply]:
        connection = self._connection = QueryConnection(config, self._patience.seconds)
        try:
            # Read after the connection is set: `close` sets it before it looks at the connection.
            if self._closed:
                raise ConnectionError("the client is closed")
            return connection.ask(commands)
        finally:
            self._connection = None
            connection.close()


# --- The servers that store the locks: whether one is the master, which others may not know yet, or not any more


class Confirmed(NamedTuple):
    """What a server says that is a master."""

    view: TopologyView
    replication: Replication | None
    """None: the user may not ask for it."""


class Roles:
    """Asks the servers that store the locks for their role."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.servers = Servers(config)
        self._warned = False
        """Whether the log says that the user may not ask."""

    def confirm(self, address: Address, epoch: int, *, trusted: bool) -> Confirmed:
        """With the view in which the server is the master. ConnectionError: it is a replica, or doesn't reply.

        `trusted`: it counts as the master if the user has no right to ask it.
        """
        replies = self.servers.ask(self._config.at(address), ROLE_QUERY)
        if trusted and (view := unconfirmed_master(replies, address, epoch)) is not None:
            if not self._warned:
                self._warned = True
                logger.warning("the user may run neither ROLE nor INFO at %s: its role can't be confirmed", address)
            return Confirmed(view, None)
        confirmed = read_role(replies, address, epoch)
        if confirmed is None:
            raise ConnectionError(f"the server at {address} is a replica")
        info = replies[1]
        return Confirmed(
            confirmed if self._config.address_mapper is None else self._with_mapped_replicas(confirmed),
            read_replication(info) if isinstance(info, bytes) else None,
        )

    def _with_mapped_replicas(self, view: TopologyView) -> TopologyView:
        """The addresses of the replicas are announced by their master; the one of the master is translated already."""
        master = view.shards[0].master.address
        return view.mapped(lambda address: address if address == master else self._config.map_address(address))
