"""Finds out the topology of a cluster: one node is asked, and others only if it doesn't reply or may know less."""

import random
from collections.abc import Iterator
from time import monotonic

from redis.exceptions import ClusterDownError, RedisError

from pyredisson._client.topology.queries import Servers
from pyredisson._protocol.replies import is_transient
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import CLUSTER_QUERY, SLOTS, TopologyView, read_cluster
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import UnsupportedServerError

MOST_ANSWERS = 3
"""Nodes whose views are compared in one refresh, if none of them is reliable."""
SECONDS_FOR_NODES = 2.0
"""After so many seconds without a reply of a known node the addresses that the user gave are asked."""
FEWEST_ASKED = 2
"""Known nodes that are asked in any case, and addresses of the user."""


class ClusterSource:
    """Asks nodes for the topology. Used by one thread, apart from `close`."""

    def __init__(self, config: Config, table: RoutingTable) -> None:
        self._config = config
        self._table = table
        self._servers = Servers(config)
        self.close = self._servers.close
        self._members: list[Address] = []
        """Masters and replicas of the latest view."""

    def look(self) -> tuple[TopologyView, int]:
        views: list[tuple[TopologyView, int]] = []
        failures: list[RedisError] = []
        for address in self._candidates():
            begun = self._table.begin_view()
            try:
                view = self._ask(address)
            except RedisError as error:
                if not self._table.ready and not is_transient(error):
                    # A wrong password, for example. The caller is told at once.
                    raise
                failures.append(error)
                continue
            if self._is_reliable(view, begun):
                views = [(view, begun)]
                break
            views.append((view, begun))
            if len(views) == MOST_ANSWERS:
                break
        if not views:
            raise self._servers.no_answer(failures, "the cluster has no known node")
        # Unless one is reliable: the view that is worth most.
        view, begun = max(
            views, key=lambda each: (each[0].covered > 0, each[0].healthy, each[0].epoch, each[0].covered)
        )
        self._check(view)
        self._members = [member.address for shard in view.shards for member in (shard.master, *shard.replicas)]
        return view, begun

    def _candidates(self) -> Iterator[Address]:
        """Whom to ask, one after the other, until one answers."""
        asked: set[Address] = set()
        # The known nodes may all have been replaced. The names that the user gave are resolved anew.
        for addresses in (self._members, self._config.nodes):
            # At random: one refresh may not ask all of them, and the next one must not ask the same two that hang.
            shuffled = random.sample(addresses, len(addresses))
            if addresses is self._members and (target := self._table.redirect_target) is not None:
                # The new master of a slot knows of it before the others do.
                shuffled.insert(0, target.endpoint)
            until = monotonic() + SECONDS_FOR_NODES
            # At the end are the servers that are likely not to reply.
            for count, address in enumerate(self._servers.sort(shuffled, self._table.is_failing)):
                if count >= FEWEST_ASKED and monotonic() >= until:
                    break
                if address not in asked:
                    asked.add(address)
                    yield address

    def _ask(self, address: Address) -> TopologyView:
        replies = self._servers.ask(self._config.at(address), CLUSTER_QUERY)
        try:
            view = read_cluster(replies, address)
        except RedisError as error:
            if str(error).startswith(("ERR This instance has cluster support disabled", "ERR unknown command")):
                raise UnsupportedServerError(
                    f"the server at {address} is not a node of a cluster: a single server is addressed as"
                    " redis://host:port, a Sentinel as redis+sentinel://host:port/master"
                ) from error
            raise
        return view.mapped(self._config.map_address)

    def _is_reliable(self, view: TopologyView, begun: int) -> bool:
        """Whether no other node needs to be asked."""
        complete = view.healthy and view.covered == SLOTS
        return complete and view.epoch >= self._table.epoch and not self._table.contradicts(view, begun)

    def _check(self, view: TopologyView) -> None:
        """Refuses a view that is worth less than the map that is known."""
        if not view.covered:
            # A node that was removed from the cluster, or a cluster that is being made.
            raise ClusterDownError("CLUSTERDOWN no node that replies knows a slot that is assigned")
        if self._table.ready and not view.healthy and view.epoch < self._table.epoch:
            raise ClusterDownError("CLUSTERDOWN only nodes reply that are cut off from the rest of the cluster")
