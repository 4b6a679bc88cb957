"""A master whose replicas a test freezes, and what the master says about them."""

from typing import Any, Generic, TypeVar

from pyredisson._protocol.replication import ReplicaState
from pyredisson.testing import Cluster, Proxy, Replicated, Sentinels

Servers = TypeVar("Servers", bound=Cluster | Sentinels | Replicated)


class ReplicatedMaster(Generic[Servers]):
    """The only master among some servers, and its replicas."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.url = servers.url
        self.node: Any
        """A `ClusterNode` or a `ReplicatedNode`."""
        self.replicas: tuple[Any, ...]
        if isinstance(servers, Cluster):
            (self.node,) = servers.masters()
            self.replicas = servers.replicas_of(self.node)
        else:
            self.node, self.replicas = servers.master(), servers.replicas()
        self._frozen: list[Any] = []

    def freeze(self, count: int | None = None) -> None:
        """Freezes so many replicas, or all of them. They stay connected."""
        for replica in self.replicas[:count]:
            self._frozen.append(replica)
            replica.pause()

    def restore(self) -> None:
        while self._frozen:
            self._frozen.pop().resume()
        assert self.node.ask("WAIT", len(self.replicas), 10000) is not None

    def online(self) -> int:
        """How many replicas the master has that can confirm a write."""
        info: dict[str, Any] = self.node.ask("INFO", "replication")
        return sum(info[key]["state"] == "online" for key in info if key.startswith("slave") and key[5:].isdigit())

    def waits(self) -> int:
        return int(self.node.ask("INFO", "commandstats").get("cmdstat_wait", {"calls": 0})["calls"])

    def exists(self, name: str) -> bool:
        return bool(self.node.ask("EXISTS", name))

    @property
    def proxy(self) -> Proxy:
        """The one between the clients and the master."""
        assert isinstance(self.servers, Cluster)
        return self.servers.proxy_of(self.node)


def replicas_known_to(client: Any) -> list[ReplicaState]:
    """What a client knows about the replicas of each master."""
    runtime = getattr(client, "_target", client)._session.runtime
    return [node.replicas for node in runtime._table.nodes.values()]


def let_a_minute_pass(client: Any) -> None:
    """What the masters have said about their replicas becomes older."""
    for state in replicas_known_to(client):
        for name in ("asked_at", "ask_again_at", "none_until"):
            setattr(state, name, getattr(state, name) - 60)
