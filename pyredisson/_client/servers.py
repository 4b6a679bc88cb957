"""The servers of one client: a single one, or several with the table that tells which of them serves what."""

from collections.abc import Callable

from pyredisson._backends.threads.runtime import RoutedThreadRuntime, ThreadRuntime
from pyredisson._client.topology.cluster_source import ClusterSource
from pyredisson._client.topology.keeper import Source, TopologyKeeper
from pyredisson._client.topology.master_source import ReplicatedSource, SentinelSource
from pyredisson._protocol.node import Node, Observe
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import Redirected
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

MOST_WATCHDOG_CONNECTIONS = 2
"""To each server."""


class SingleServer:
    """The server of a client that has one. To make it connects nothing. `observe` is told of each outage."""

    def __init__(self, config: Config, client_id: str, observe: Observe | None) -> None:
        self.node = Node(config, client_id, observe)

    @property
    def away(self) -> bool:
        """Whether it is known that no server serves."""
        return self.node.availability.interrupted

    def serving(self, payload: bytes) -> Node | None:
        return self.node

    def target(self, redirect: Redirected) -> Node | None:
        """The server that a redirect names; None if it is not to be followed."""

    def as_sent(self, payload: bytes, *, asking: bool = False) -> bytes:
        """A command in the form in which it has to be sent now. `asking`: it follows an ASK."""
        return payload

    def is_failing(self, node: Node | None) -> bool:
        """Whether it is known that the server doesn't serve."""
        return False

    def watchdog_runtime(self) -> ThreadRuntime:
        return ThreadRuntime(self.node, _post_nothing, MOST_WATCHDOG_CONNECTIONS)

    def close(self) -> None:
        """Ends what runs in the background. Can be called on any thread, and takes no mutex."""


class SeveralServers:
    """The servers of a client that has several: a cluster, or a master with replicas. To make it starts no thread."""

    away = False

    def __init__(self, config: Config, client_id: str, observe: Observe | None) -> None:
        self.config = config
        self.scripts = ScriptSet(PubSub.of(config), shared=True)
        self.keeper = open_topology(config, client_id, self.scripts, observe)
        self.table = self.keeper.table
        self.serving: Callable[[bytes], Node | None] = self.table.node_for
        """The server that serves a command. None: it isn't known."""
        self.as_sent = self.table.settling.command
        """As `SingleServer.as_sent`."""

    def target(self, redirect: Redirected) -> Node | None:
        return None if redirect.asked is None else self.table.redirect(redirect, redirect.asked)

    def is_failing(self, node: Node | None) -> bool:
        return node is None or self.table.is_failing(node.endpoint)

    def watchdog_runtime(self) -> RoutedThreadRuntime:
        return RoutedThreadRuntime(self.config, self.scripts, self.keeper, _post_nothing, MOST_WATCHDOG_CONNECTIONS)

    def close(self) -> None:
        """As `SingleServer.close`. The table stays as it is."""
        self.keeper.close()


Servers = SingleServer | SeveralServers


def _post_nothing(_: bytes) -> None:
    # Not `Session.repair`: the watchdog's threads refer to their runtime, and would keep the session alive through it.
    raise AssertionError("the watchdog posts nothing")


SHORTEST_SETTLING = 15.0
"""Seconds within which all clients, also Redisson's, have noticed a change of the topology: three intervals usually."""


def open_topology(config: Config, client_id: str, scripts: ScriptSet, observe: Observe | None = None) -> TopologyKeeper:
    """The keeper of a new client, and its table, whose nodes share `scripts`: a command is packed before it is known
    which node serves it. Nothing is connected, no thread started."""

    def make_node(address: Address) -> Node:
        return Node(config.at(address), client_id, observe, scripts)

    settling = max(SHORTEST_SETTLING, 3 * config.topology_refresh_interval) if scripts.pubsub is PubSub.AUTO else 0.0
    table = RoutingTable(make_node, config.map_address, settling)
    return TopologyKeeper(
        table, _SOURCES[config.topology](config, table), config.topology_refresh_interval, config.describe()
    )


_SOURCES: dict[str, Callable[[Config, RoutingTable], Source]] = {
    "cluster": ClusterSource,
    "sentinel": SentinelSource,
    "replicated": ReplicatedSource,
}
