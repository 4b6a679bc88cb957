"""The connections to servers that serve nothing for this client, but may have replaced a master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pyredisson._protocol.node import Node
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

LONGEST = 0.5
"""Seconds that such a server may take to connect, and to reply: a call waits for it, and it may be gone for good."""
MOST = 100
"""Servers whose connections are kept. Servers in containers get new addresses again and again."""


class Retirable(Protocol):
    """The connections to one server."""

    def retire(self) -> None:
        """Closes the connections that no call uses now, and each of the others after its call."""


C = TypeVar("C", bound=Retirable)


class PeerNode(Node):
    """A server that serves no slot for this client. That it doesn't answer is no outage."""

    def on_unreachable(self, error: BaseException, began: float) -> None:
        """A connection could not be made."""


class PeerConnections(Generic[C]):
    """Makes these connections, and keeps them beside those to masters. Any thread may call any method."""

    def __init__(self, config: Config, connections: dict[Node, C]) -> None:
        """`connections`: all connections of the runtime, which closes them."""
        self._config = config
        self._connections = connections
        self._nodes: dict[Address, Node] = {}

    def connections_of(self, address: Address, master: Node, make: Callable[[Node], C]) -> C:
        """The connections to a server, or the connections that `make` makes."""
        node = self._nodes.get(address)
        if node is None:
            made = PeerNode(self._config.at(address)).with_timeout(LONGEST)
            made.client_id = master.client_id
            node = self._nodes.setdefault(address, made)
            self._remove_oldest()
        return self._connections.get(node) or self._connections.setdefault(node, make(node))

    def _remove_oldest(self) -> None:
        """Forgets the servers that were asked first, if there are many."""
        for address in list(self._nodes)[:-MOST]:
            node = self._nodes.pop(address, None)
            connections = None if node is None else self._connections.pop(node, None)
            if connections is not None:
                connections.retire()
