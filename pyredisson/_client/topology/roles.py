"""Confirms at a server itself that it is the master, which others may not know yet, or not any more."""

from __future__ import annotations

from typing import NamedTuple

from redis.exceptions import ConnectionError

from pyredisson._client.topology.servers import Servers
from pyredisson._diagnostics import logger
from pyredisson._protocol.replication import Replication, read_replication
from pyredisson._protocol.sentinel import ROLE_QUERY, read_role, unconfirmed_master
from pyredisson._protocol.topology import TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config


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
