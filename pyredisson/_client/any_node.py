"""A node of several servers, whichever of them is known."""

from __future__ import annotations

import random

from pyredisson._protocol.node import Node
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config


class AnyNode(Node):
    """Stands for one of the masters, another one at each connection. Each hears what any of them publishes."""

    def __init__(self, config: Config, table: RoutingTable) -> None:
        self._config = config
        self._table = table
        super().__init__(config)
        # A sharded message would be heard on the node of its slot only.
        self.scripts = ScriptSet()

    @property
    def config(self) -> Config:
        """The settings of one of the masters."""
        nodes = list(self._table.nodes.values())
        return random.choice(nodes).config if nodes else self._config

    @config.setter
    def config(self, config: Config) -> None:
        self._config = config
