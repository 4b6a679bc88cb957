"""The network of a schedule: the server, whether it can be reached, and a client's view of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.scripts import ScriptSet

from .fault_plan import FaultPlan
from .server import Server
from .simulation import Process, Simulation

if TYPE_CHECKING:
    from .connections import Connection
    from .subscription import Subscriber


class Network:
    """The server, and every connection to it."""

    def __init__(self, simulation: Simulation, fault_plan: FaultPlan, patches: dict[str, bytes] | None) -> None:
        self.simulation = simulation
        self.fault_plan = fault_plan
        self.subscribers: list[Subscriber] = []
        self.server = Server(simulation.clock, self._publish, patches)
        self.on_executed: Callable[[bytes], None] | None = None
        """Called with every command before it is executed."""
        self.on_replied: Callable[[bytes, Reply], None] | None = None
        """Called with every command that was executed, and its reply."""
        self.on_restart: Callable[[], None] | None = None
        """Called before the server forgets everything."""
        self.up_at = 0.0
        """Until then the server is down."""
        self.connections: list[Connection] = []
        self.checked = True
        """Whether a connection is checked before it is used: is it still open?"""
        self.identified = True
        """Whether the clients may ask for the server's identity."""
        self._restarts = 0

    @property
    def identity(self) -> bytes:
        """The identity (`run_id`) of the server that runs now."""
        return b"%d" % self._restarts

    def restart(self) -> None:
        """The server loses all data. Only a client that waits for a reply notices it."""
        self.simulation.log("a server restarts empty")
        if self.on_restart is not None:
            self.on_restart()
        self._restarts += 1
        now = self.simulation.now
        for key in list(self.server.keyspace.values):
            self.server.keyspace.drop(key)
            # As if it had expired: no message is published.
            self.server.keyspace.freed[key] = (now, True)
        self.server.flush_scripts()
        for connection in self.connections:
            connection.hang_up()
        self.connections.clear()
        for subscriber in list(self.subscribers):
            subscriber.subscription.cut()

    def go_down(self, seconds: float) -> None:
        """Nothing reaches the server for so long; it keeps its data."""
        self.simulation.log("a server is down for %.3f s", seconds)
        self.up_at = self.simulation.now + seconds

    @property
    def down(self) -> bool:
        """Whether nothing reaches the server now."""
        return self.simulation.now < self.up_at

    def execute(self, payload: bytes) -> Reply:
        """Executes a command on the server."""
        passing = self.fault_plan.passing(self.simulation.now)
        if passing is not None:
            return as_error(passing)
        if self.on_executed is not None:
            self.on_executed(payload)
        reply = self.server.execute(payload)
        self.simulation.log("server: %r -> %r", payload[-90:], reply)
        if self.on_replied is not None:
            self.on_replied(payload, reply)
        return reply

    def _publish(self, channel: bytes, payload: bytes) -> int:
        received = 0
        for subscriber in self.subscribers:
            if channel in subscriber.channels and not subscriber.broken:
                received += 1
                subscriber.send(subscriber.subscription.channels.deliver, channel, payload)
        return received


class Node:
    """A client's view of the server: which of its connections may still carry a command."""

    def __init__(self, process: Process, network: Network, scripts: ScriptSet) -> None:
        self.process = process
        self.network = network
        self.scripts = scripts
        self.suspects: list[Connection] = []
        self.cuts = 0
