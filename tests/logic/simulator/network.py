"""The network of a schedule: its faults, the server, connections that are slow and break, and subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

from pyredisson._protocol.node import Node as RealNode
from pyredisson._protocol.replies import Answers, NoReply, Redirected, Reply, as_error
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.channels import LINGER, ChannelRegistry

from .server import Server
from .simulation import Cancelled, Park, Process, Simulation

FAULTS_END = 1020.0
"""No faults happen from then on, so that the final state can be checked."""
LONGEST_PAUSE = 15.0
"""Seconds for which a process may stand still."""
REPLY_TIMEOUT = 3.0
PASSING = (
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script.",
    "READONLY You can't write against a read only replica.",
)


class FaultPlan:
    """Draws every fault. `calm`: messages and replies arrive; only cancellations happen."""

    def __init__(self, random: Random, *, calm: bool) -> None:
        self._random, self.calm = random, calm
        self.slowest = random.choice((0.001, 0.005, 0.02))
        """The longest way to the server or back, in seconds."""
        self.cancels = random.choice((0.0, 0.2, 0.5))
        self.pipelined = random.random() < 0.5

        def chance(highest: float) -> float:
            return 0.0 if calm or random.random() < 0.5 else random.random() * highest

        self._lost, self.unanswered, self._late = chance(0.2), chance(0.3), chance(0.2)
        self._unreachable, self._passing = chance(0.3), chance(0.2)
        self.subscription_cuts = chance(3.0)
        """How many subscription connections fail, a client."""
        self.flushes, self.deaths, self.pauses = chance(4.0), chance(1.0), chance(3.0)
        self.forces = 0.2 if calm and random.random() < 0.2 else chance(0.3)
        self._faults = self._lost + self.unanswered + self._late

    def lose_replies(self, share: float) -> None:
        """From now on, that share of the requests gets no reply."""
        self.unanswered = self._faults = share

    def delay(self) -> float:
        """One way."""
        return self.slowest * (0.05 + 0.95 * self._random.random())

    def fate(self, now: float) -> str | None:
        """The fate of a request: None, or it is lost, gets no reply or arrives late."""
        if not self._faults or now >= FAULTS_END:
            return None
        die = self._random.random()
        if die < self._lost:
            return "lost"
        if die < self._lost + self.unanswered:
            return "unanswered"
        return "late" if die < self._faults else None

    def unreachable(self, now: float) -> bool:
        return bool(self._unreachable) and now < FAULTS_END and self._random.random() < self._unreachable

    def passing(self, now: float) -> str | None:
        """An error reply that passes by itself."""
        if not self._passing or now >= FAULTS_END or self._random.random() >= self._passing:
            return None
        return self._random.choice(PASSING)

    def times(self, average: float) -> list[float]:
        """When something happens that happens so often in a schedule."""
        count = int(average) + (self._random.random() < average % 1)
        return [1000 + self._random.random() * (FAULTS_END - 1000) for _ in range(count)]


class Network:
    def __init__(self, simulation: Simulation, fault_plan: FaultPlan, patches: dict[str, bytes] | None) -> None:
        self.simulation, self.fault_plan = simulation, fault_plan
        self.subscribers: list[Subscriber] = []
        self.server = Server(simulation.clock, self._publish, patches)
        self.server.keyspace.commands[b"PUBSUB"] = self._pubsub
        self.on_executed: Callable[[bytes], None] | None = None
        """Called with every command before it is executed."""
        self.on_replied: Callable[[bytes, Reply], None] | None = None
        """Called with every command that was executed, and its reply."""
        self.on_restart: Callable[[], None] | None = None
        self.up_at = 0.0
        self.connections: list[Connection] = []
        self.checked = self.identified = True
        self.cluster: Any = None
        """The slots and their nodes, if this is the data of all nodes of a cluster."""
        self.restarts = 0

    @property
    def identity(self) -> bytes:
        """The identity (`run_id`) of the server that runs now."""
        return b"%d" % self.restarts

    def restart(self) -> None:
        """The server loses all data. Only a client that waits for a reply notices it."""
        self.simulation.log("a server restarts empty")
        if self.on_restart is not None:
            self.on_restart()
        self.restarts += 1
        for key in list(self.server.keyspace.values):
            self.server.keyspace.drop(key, lost=True)
        self.server.flush_scripts()
        for connection in self.connections:
            connection.hang_up()
        self.connections.clear()
        for subscriber in list(self.subscribers):
            subscriber.subscription.cut()

    def go_down(self, seconds: float) -> None:
        """Nothing reaches the server for so long; it keeps its data."""
        self.simulation.log("a server is down for %.3f s", seconds)
        self.up_at = max(self.up_at, self.simulation.now + seconds)

    @property
    def down(self) -> bool:
        return self.simulation.now < self.up_at

    def execute(self, payload: bytes) -> Reply:
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

    def _pubsub(self, what: bytes, *words: bytes) -> Reply:
        """PUBSUB NUMSUB, and PUBSUB CHANNELS for a pattern that is the beginning of names."""
        heard = [name for subscriber in self.subscribers if not subscriber.broken for name in subscriber.channels]
        if what == b"NUMSUB":
            return [word for name in words for word in (name, heard.count(name))]
        if what != b"CHANNELS":
            raise ResponseError("ERR unknown subcommand")
        return [name for name in dict.fromkeys(heard) if name.startswith(words[0].removesuffix(b"*"))]


class Node(RealNode):
    """A server, as one client sees it: which of its connections may still carry a command."""

    suspects: list[Any]

    def __init__(self, process: Process, network: Network, scripts: ScriptSet, config: Config) -> None:
        super().__init__(config)
        self.process, self.network, self.scripts = process, network, scripts
        self.cuts = 0


class Connection:
    """One connection: what is sent over it arrives in order, or not at all."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._arrived = self._answered = 0.0
        self._parks: dict[Park, None] = {}
        self.closed = self.killed = False
        """Killed: the server has dropped it: commands that are still on their way are not executed."""
        self.made_after = node.cuts
        self.server = node.network.identity if node.network.identified else None
        node.availability.on_connected(self.server, node.network.simulation.now)
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
            # The client waits no longer for a reply, however slow the way is.
            noticed = simulation.now + silent if fate == "late" else arrives + silent
            simulation.at(min(noticed, simulation.now + REPLY_TIMEOUT), self.cut, silent)
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
            self._fail(ConnectionError("the server has gone"))

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

    def cut(self, silent: float = 0.0) -> None:
        """It fails now, after so long a silence. Commands that are on their way may still arrive."""
        if not self.closed:
            self.abandon()
            self._node.on_failure()
            self._fail((TimeoutError if silent == REPLY_TIMEOUT else ConnectionError)("the line is cut"))

    def _fail(self, error: RedisError) -> None:
        for park in self._parks:
            park.resolve(error=self.no_reply(error))


class Connections:
    """The connections of one runtime to one server: one at a time for each call, or one that all calls share."""

    def __init__(self, node: Node, *, pipelined: bool) -> None:
        self._node, self._pipelined = node, pipelined
        self._idle: list[Connection] = []

    @property
    def shared(self) -> Connection | None:
        """The connection that is open, where all calls share one."""
        return self._idle[0] if self._pipelined and self._idle and not self._idle[0].closed else None

    @property
    def connected(self) -> bool:
        return not all(connection.closed for connection in self._idle)

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        (reply,), _ = await self.exchange((payload,), new_connection=new_connection)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    async def exchange(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> Answers:
        connection = await (self._share if self._pipelined else self._take)(new_connection)
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
        for reply in replies:
            if isinstance(reply, Redirected):
                reply.asked, reply.server_id = self._node, connection.server
        return replies, connection.server

    def disconnect(self) -> None:
        if self.shared is not None:
            self.shared.cut()

    def retire(self) -> None: ...

    async def _take(self, new_connection: bool) -> Connection:
        if new_connection:
            self._idle.clear()
        return self._idle.pop() if self._idle else await self._open()

    async def _share(self, new_connection: bool) -> Connection:
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
            refused = NoReply(ConnectionError("refused"), may_have_run=False)
            simulation.after(fault_plan.delay(), park.resolve, None, refused)
        else:
            simulation.after(fault_plan.delay(), self._welcome, suspects, park)
        try:
            await park
        except NoReply:
            node.on_failure()
            raise
        for suspect in suspects:
            if suspect in node.suspects:
                node.suspects.remove(suspect)
        node.on_handshake(connection.server)
        return connection

    def _welcome(self, suspects: list[Connection], park: Park) -> None:
        for suspect in suspects:
            suspect.killed = True
        self._node.network.simulation.after(self._node.network.fault_plan.delay(), park.resolve)


class Subscription:
    """A client's subscription: it connects when it is first needed, and again whenever it was cut."""

    def __init__(self, process: Process, network: Network, channels: ChannelRegistry) -> None:
        self.process, self._network, self.channels = process, network, channels
        self.subscriber: Subscriber | None = None
        self._connecting = False

    def subscribe(self, channels: Iterable[bytes], *, wanted: bool = True) -> None:
        if self.subscriber is not None:
            for channel in channels:
                self.subscriber.request(channel, wanted)
        elif wanted and not self._connecting:
            self._connecting = True
            self._connect()

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        self.subscribe(channels, wanted=False)

    def cut(self) -> None:
        """From now on the client misses all messages; it notices the broken connection after a while."""
        subscriber = self.subscriber
        if subscriber is not None and not subscriber.broken:
            simulation = self._network.simulation
            simulation.log("%s: receives no more messages", self.process.name)
            subscriber.broken = True
            self._network.subscribers.remove(subscriber)
            simulation.after(simulation.random.random() * 3, self.process.deliver, self._noticed)

    def _noticed(self) -> None:
        self.subscriber = None
        self._connecting = True
        self._network.simulation.log("%s: the subscription is over", self.process.name)
        with self.channels.mutex:
            self.channels.on_disconnected()
        self._network.simulation.after(0.05 + self._network.simulation.random.random() / 20, self._connect)

    def _connect(self) -> None:
        delay = self._network.fault_plan.delay
        self._network.simulation.after(delay() + delay(), self.process.deliver, self._connected)

    def _connected(self) -> None:
        self._connecting = False
        self.subscriber = subscriber = Subscriber(self, self._network, self.process)
        with self.channels.mutex:
            self.subscribe(self.channels.names())
        self._network.simulation.after(LINGER, self.process.deliver, self._sweep, subscriber)

    def _sweep(self, subscriber: Subscriber) -> None:
        if self.subscriber is subscriber:
            self.channels.sweep()
            self._network.simulation.after(LINGER, self.process.deliver, self._sweep, subscriber)


class Subscriber:
    """One subscription connection, as the server sees it."""

    def __init__(self, subscription: Subscription, network: Network, process: Process) -> None:
        self.subscription, self._network, self._process = subscription, network, process
        self.channels: dict[bytes, None] = {}
        self.broken = False
        self._last_request = self._last_sent = 0.0
        network.subscribers.append(self)

    def request(self, channel: bytes, wanted: bool) -> None:
        """Sends SUBSCRIBE or UNSUBSCRIBE."""
        self._last_request = max(self._last_request, self._network.simulation.now + self._network.fault_plan.delay())
        self._network.simulation.at(self._last_request, self._on_request, channel, wanted)

    def send(self, action: Callable[..., None], *args: bytes) -> None:
        """Sends the client a message, which `action` handles there."""
        self._last_sent = max(self._last_sent, self._network.simulation.now + self._network.fault_plan.delay())
        self._network.simulation.at(self._last_sent, self._process.deliver, self._deliver, action, args)

    def _deliver(self, action: Callable[..., None], args: tuple[bytes, ...]) -> None:
        if self.subscription.subscriber is self:
            action(*args)

    def _on_request(self, channel: bytes, wanted: bool) -> None:
        if wanted and not self.broken:
            self.channels[channel] = None
            self.send(self.subscription.channels.on_subscribed, channel)
        elif not wanted:
            self.channels.pop(channel, None)
