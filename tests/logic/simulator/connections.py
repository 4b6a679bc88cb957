"""Connections that are slow and break, and the connections of one client."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._protocol.no_reply import NoReply, Reply

from .fault_plan import REPLY_TIMEOUT
from .network import Node
from .simulation import Cancelled, Park


class Connection:
    """One connection: what is sent over it arrives in order, or not at all."""

    __slots__ = ("_answered", "_arrived", "_node", "_parks", "closed", "killed", "made_after", "server")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._arrived = 0.0
        self._answered = 0.0
        self._parks: dict[Park, None] = {}
        self.closed = False
        self.killed = False
        """The server has dropped it: commands that are still on their way are not executed."""
        self.made_after = node.cuts
        self.server = node.network.identity if node.network.identified else None
        node.network.connections.append(self)

    def request(self, payloads: Sequence[bytes], park: Park) -> None:
        """Sends commands; the park is resolved with their replies, or with `NoReply`."""
        simulation, fault_plan = self._node.network.simulation, self._node.network.fault_plan
        arrives = max(self._arrived, simulation.now + fault_plan.delay())
        fate = "lost" if self._node.network.down else fault_plan.fate(simulation.now)
        self._parks[park] = None
        if fate is None:
            simulation.at(arrives, self._arrive, payloads, park)
        else:
            simulation.log("%s: a request is %s", self._node.process.name, fate)
            silent = fault_plan.delay() if simulation.random.random() < 0.5 else REPLY_TIMEOUT
            if fate == "late":
                arrives += simulation.random.random() * 2 * REPLY_TIMEOUT
            if fate != "lost":
                simulation.at(arrives, self._arrive, payloads, None)
            simulation.at(simulation.now + silent if fate == "late" else arrives + silent, self._break, silent)
        self._arrived = arrives

    def abandon(self) -> None:
        """The client closes it with a command in flight."""
        if not self.closed:
            self.closed = True
            self._node.cuts += 1
            self._node.suspects.append(self)

    def hang_up(self) -> None:
        """The server closes it. Commands that are still on their way are not executed."""
        self.killed = True
        if not self.closed:
            self.closed = True
            self._node.cuts += 1
            for park in self._parks:
                park.resolve(error=self.no_reply(ConnectionError("the server has gone")))

    def no_reply(self, error: RedisError) -> NoReply:
        """The error for a command that was sent over this connection: it may have run."""
        return NoReply(error, may_have_run=True, server_id=self.server)

    def _arrive(self, payloads: Sequence[bytes], park: Park | None) -> None:
        if self.killed:
            return
        network = self._node.network
        replies = [network.execute(payload) for payload in payloads]
        if park is not None and not self.closed:
            self._answered = max(self._answered, network.simulation.now + network.fault_plan.delay())
            network.simulation.at(self._answered, self._answer, park, replies)

    def _answer(self, park: Park, replies: list[Reply]) -> None:
        if not self.closed:
            self._parks.pop(park, None)
            park.resolve(replies)

    def cut(self) -> None:
        """It fails now. Commands that are on their way may still arrive."""
        self._break(0.0)

    def _break(self, silent: float) -> None:
        if self.closed:
            return
        self.abandon()
        kind = TimeoutError if silent == REPLY_TIMEOUT else ConnectionError
        for park in self._parks:
            park.resolve(error=self.no_reply(kind("the line is cut")))


class Connections:
    """The connections of one runtime: one at a time for each call, or one that all calls share."""

    def __init__(self, node: Node, *, pipelined: bool) -> None:
        self._node = node
        self._pipelined = pipelined
        self._idle: list[Connection] = []

    @property
    def shared(self) -> Connection | None:
        """The connection that is open, where all calls share one."""
        return self._idle[0] if self._pipelined and self._idle and not self._idle[0].closed else None

    def is_open(self) -> bool:
        """Whether a connection is open that no call uses."""
        return any(not connection.closed for connection in self._idle)

    async def exchange(
        self, payloads: Sequence[bytes], *, new_connection: bool = False
    ) -> tuple[list[Reply], bytes | None]:
        """Commands in one write, their replies, and the identity of the server that gave them."""
        connection = await (
            self._share(new_connection=new_connection) if self._pipelined else self._take(new_connection=new_connection)
        )
        if connection.closed:
            if self._node.network.checked:
                raise NoReply(ConnectionError("closed while it was idle"), may_have_run=False, stale=True)
            raise connection.no_reply(ConnectionError("closed"))
        park = Park()
        connection.request(payloads, park)
        try:
            replies: list[Reply] = await park
        except Cancelled:
            if not self._pipelined:
                connection.abandon()
                # A command that is on its way may be lost with the closed socket, or may arrive.
                connection.killed = self._node.network.simulation.random.random() < 0.5
            raise
        if not self._pipelined:
            self._idle.append(connection)
        return replies, connection.server

    async def _take(self, *, new_connection: bool) -> Connection:
        if new_connection:
            self._idle.clear()
        return self._idle.pop() if self._idle else await self._open()

    async def _share(self, *, new_connection: bool) -> Connection:
        while True:
            connection = self.shared
            if connection is not None and not (new_connection and connection.made_after != self._node.cuts):
                return connection
            made = await self._open()
            if self.shared is connection:
                self._idle[:] = [made]

    async def _open(self) -> Connection:
        node = self._node
        simulation, fault_plan = node.network.simulation, node.network.fault_plan
        connection = Connection(node)
        suspects = list(node.suspects)
        park = Park()
        if node.network.down or fault_plan.unreachable(simulation.now):
            simulation.after(
                fault_plan.delay(), park.resolve, None, NoReply(ConnectionError("refused"), may_have_run=False)
            )
        else:
            simulation.after(fault_plan.delay(), self._welcome, suspects, park)
        await park
        for suspect in suspects:
            if suspect in node.suspects:
                node.suspects.remove(suspect)
        return connection

    def _welcome(self, suspects: list[Connection], park: Park) -> None:
        for suspect in suspects:
            suspect.killed = True
        self._node.network.simulation.after(self._node.network.fault_plan.delay(), park.resolve)
