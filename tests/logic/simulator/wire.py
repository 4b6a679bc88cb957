"""The network of a schedule: connections that are slow and break, and the runtime and subscription over them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.channels import LINGER, ChannelRegistry
from pyredisson.logic.ports import Wakeup

from .server import Server
from .simulation import Cancelled, Flag, Park, Process, Simulation
from .weather import REPLY_TIMEOUT, Weather

OVERSHOOT = 5e-5
"""Seconds by which every timer is late, as real ones are: otherwise a loop that waits for nothing stops the clock."""


class Network:
    """The server and every way to it."""

    def __init__(self, simulation: Simulation, weather: Weather, patches: dict[str, bytes] | None) -> None:
        self.simulation = simulation
        self.weather = weather
        self.ears: list[Ear] = []
        self.server = Server(simulation.clock, self._publish, patches)
        self.on_executed: Callable[[bytes], None] | None = None
        """Called with every command before it is executed."""
        self.on_replied: Callable[[bytes, Reply], None] | None = None
        """Called with every command that was executed, and its reply."""
        self.on_restart: Callable[[], None] | None = None
        """Called before the server forgets everything."""
        self.up_at = 0.0
        """Until then the server is down."""
        self.lines: list[Line] = []
        self.checked = True
        """Whether a connection is looked at before it is used: is it open still."""
        self.identified = True
        """Whether the clients may ask for the server's identity."""
        self._restarts = 0

    @property
    def identity(self) -> bytes:
        """Of the server that runs now."""
        return b"%d" % self._restarts

    def restart(self) -> None:
        """The server forgets everything; who waits for a reply notices, and nobody else."""
        self.simulation.log("a server restarts empty")
        if self.on_restart is not None:
            self.on_restart()
        self._restarts += 1
        now = self.simulation.now
        for key in list(self.server.keyspace.values):
            self.server.keyspace.drop(key)
            # As if it had expired: no message tells of it.
            self.server.keyspace.freed[key] = (now, True)
        self.server.flush_scripts()
        for line in self.lines:
            line.hang_up()
        self.lines.clear()
        for ear in list(self.ears):
            ear.subscription.cut()

    def go_down(self, seconds: float) -> None:
        """Nothing reaches the server for so long; what it holds, it keeps."""
        self.simulation.log("a server is down for %.3f s", seconds)
        self.up_at = self.simulation.now + seconds

    @property
    def down(self) -> bool:
        """Whether nothing reaches the server now."""
        return self.simulation.now < self.up_at

    def execute(self, payload: bytes) -> Reply:
        """At the server."""
        passing = self.weather.passing(self.simulation.now)
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
        heard = 0
        for ear in self.ears:
            if channel in ear.channels and not ear.deaf:
                heard += 1
                ear.tell(ear.subscription.channels.deliver, channel, payload)
        return heard


class Node:
    """A client's view of the server: which of its connections may still carry a command."""

    def __init__(self, process: Process, network: Network, scripts: ScriptSet) -> None:
        self.process = process
        self.network = network
        self.scripts = scripts
        self.suspects: list[Line] = []
        self.cuts = 0


class Line:
    """One connection: what is sent over it arrives in order, or not at all."""

    __slots__ = ("_answered", "_arrived", "_node", "_parks", "closed", "killed", "made_after", "server")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._arrived = 0.0
        self._answered = 0.0
        self._parks: dict[Park, None] = {}
        self.closed = False
        self.killed = False
        """By the server: nothing that is still on its way is executed."""
        self.made_after = node.cuts
        self.server = node.network.identity if node.network.identified else None
        node.network.lines.append(self)

    def request(self, payloads: Sequence[bytes], park: Park) -> None:
        """Sends commands; the park is resolved with their replies, or with `NoReply`."""
        simulation, weather = self._node.network.simulation, self._node.network.weather
        arrives = max(self._arrived, simulation.now + weather.delay())
        fate = "lost" if self._node.network.down else weather.fate(simulation.now)
        self._parks[park] = None
        if fate is None:
            simulation.at(arrives, self._arrive, payloads, park)
        else:
            simulation.log("%s: a request is %s", self._node.process.name, fate)
            silent = weather.delay() if simulation.random.random() < 0.5 else REPLY_TIMEOUT
            if fate == "late":
                arrives += simulation.random.random() * 2 * REPLY_TIMEOUT
            if fate != "lost":
                simulation.at(arrives, self._arrive, payloads, None)
            simulation.at(simulation.now + silent if fate == "late" else arrives + silent, self._break, silent)
        self._arrived = arrives

    def abandon(self) -> None:
        """Closes it with a command in flight."""
        if not self.closed:
            self.closed = True
            self._node.cuts += 1
            self._node.suspects.append(self)

    def hang_up(self) -> None:
        """The server closes it, and has executed what it will execute."""
        self.killed = True
        if not self.closed:
            self.closed = True
            self._node.cuts += 1
            for park in self._parks:
                park.resolve(error=self.cut(ConnectionError("the server has gone")))

    def cut(self, error: RedisError) -> NoReply:
        """What became of a command that was sent over it."""
        return NoReply(error, may_have_run=True, server_id=self.server)

    def _arrive(self, payloads: Sequence[bytes], park: Park | None) -> None:
        if self.killed:
            return
        network = self._node.network
        replies = [network.execute(payload) for payload in payloads]
        if park is not None and not self.closed:
            self._answered = max(self._answered, network.simulation.now + network.weather.delay())
            network.simulation.at(self._answered, self._answer, park, replies)

    def _answer(self, park: Park, replies: list[Reply]) -> None:
        if not self.closed:
            self._parks.pop(park, None)
            park.resolve(replies)

    def _break(self, silent: float) -> None:
        if self.closed:
            return
        self.abandon()
        kind = TimeoutError if silent == REPLY_TIMEOUT else ConnectionError
        for park in self._parks:
            park.resolve(error=self.cut(kind("the line is cut")))


class Wire:
    """The connections of one runtime: one at a time for each call, or one that all calls share."""

    def __init__(self, node: Node, *, pipelined: bool) -> None:
        self._node = node
        self._pipelined = pipelined
        self._idle: list[Line] = []

    @property
    def shared(self) -> Line | None:
        """The connection that is open, where all calls share one."""
        return self._idle[0] if self._pipelined and self._idle and not self._idle[0].closed else None

    async def exchange(
        self, payloads: Sequence[bytes], *, new_connection: bool = False
    ) -> tuple[list[Reply], bytes | None]:
        """Commands in one write, their replies, and the identity of the server that gave them."""
        line = await (
            self._share(new_connection=new_connection) if self._pipelined else self._take(new_connection=new_connection)
        )
        if line.closed:
            if self._node.network.checked:
                raise NoReply(ConnectionError("closed while it was idle"), may_have_run=False, stale=True)
            raise line.cut(ConnectionError("closed"))
        park = Park()
        line.request(payloads, park)
        try:
            replies: list[Reply] = await park
        except Cancelled:
            if not self._pipelined:
                line.abandon()
                # What is on its way may be lost with the socket that is closed, or not.
                line.killed = self._node.network.simulation.random.random() < 0.5
            raise
        if not self._pipelined:
            self._idle.append(line)
        return replies, line.server

    async def _take(self, *, new_connection: bool) -> Line:
        if new_connection:
            self._idle.clear()
        return self._idle.pop() if self._idle else await self._open()

    async def _share(self, *, new_connection: bool) -> Line:
        while True:
            line = self.shared
            if line is not None and not (new_connection and line.made_after != self._node.cuts):
                return line
            made = await self._open()
            if self.shared is line:
                self._idle[:] = [made]

    async def _open(self) -> Line:
        node = self._node
        simulation, weather = node.network.simulation, node.network.weather
        line = Line(node)
        suspects = list(node.suspects)
        park = Park()
        if node.network.down or weather.unreachable(simulation.now):
            simulation.after(
                weather.delay(), park.resolve, None, NoReply(ConnectionError("refused"), may_have_run=False)
            )
        else:
            simulation.after(weather.delay(), self._welcome, suspects, park)
        await park
        for suspect in suspects:
            if suspect in node.suspects:
                node.suspects.remove(suspect)
        return line

    def _welcome(self, suspects: list[Line], park: Park) -> None:
        for suspect in suspects:
            suspect.killed = True
        self._node.network.simulation.after(self._node.network.weather.delay(), park.resolve)


class SimRuntime:
    """A `Runtime` over this network."""

    blocking = False

    def __init__(self, node: Node, repair: Callable[[bytes], None], *, pipelined: bool) -> None:
        self._node = node
        self._simulation = node.network.simulation
        self._wire = Wire(node, pipelined=pipelined)
        self._repair = repair
        self.scripts = node.scripts
        self.clock = self._simulation.clock

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        reply, _ = await self.send_identified(payload, new_connection=new_connection)
        return reply

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        (reply,), server = await self._wire.exchange((payload,), new_connection=new_connection)
        if isinstance(reply, RedisError):
            raise reply
        return reply, server

    def on_command_failed(self, error: RedisError) -> None:
        pass

    def on_command_served(self) -> None:
        pass

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        replies, _ = await self._wire.exchange(payloads, new_connection=new_connection)
        return replies

    def post(self, payload: bytes) -> None:
        process = self._node.process
        if not process.alive:
            return
        if self._wire.shared is None:
            self._repair(payload)
        else:
            process.spawn(self._post(payload))

    async def _post(self, payload: bytes) -> None:
        try:
            await self.send(payload)
        except (NoReply, RedisError):
            self._repair(payload)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._node.process.alive:
            self._node.process.spawn(operation())

    async def wait(self, signal: Wakeup, seconds: float) -> None:
        assert isinstance(signal, Flag)
        if signal.is_set():
            return
        signal.park = park = Park()
        self._simulation.after(seconds + OVERSHOOT, park.resolve)
        try:
            await park
        finally:
            signal.park = None

    async def sleep(self, seconds: float) -> None:
        park = Park()
        self._simulation.after(seconds + OVERSHOOT, park.resolve)
        await park

    def wakeup(self) -> Flag:
        return Flag(self._simulation)

    def jitter(self) -> float:
        return self._simulation.random.random()

    async def close(self) -> None:
        raise AssertionError("no part of the logic closes a runtime")


class Subscription:
    """A client's subscriber: it connects when it is first needed, and again whenever it was cut."""

    def __init__(self, process: Process, network: Network, channels: ChannelRegistry) -> None:
        self._process = process
        self._network = network
        self.channels = channels
        self.ear: Ear | None = None
        self._connecting = False

    def subscribe(self, channels: Iterable[bytes]) -> None:
        if self.ear is not None:
            for channel in channels:
                self.ear.ask(channel, wanted=True)
        elif not self._connecting:
            self._connecting = True
            self._connect()

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        if self.ear is not None:
            for channel in channels:
                self.ear.ask(channel, wanted=False)

    def cut(self) -> None:
        """The server speaks into the void from now on; the client notices after a while."""
        ear = self.ear
        if ear is not None and not ear.deaf:
            simulation = self._network.simulation
            simulation.log("%s: hears nothing any more", self._process.name)
            ear.deaf = True
            self._network.ears.remove(ear)
            simulation.after(simulation.random.random() * 3, self._process.deliver, self._noticed)

    def _noticed(self) -> None:
        self.ear = None
        self._connecting = True
        self._network.simulation.log("%s: the subscription is over", self._process.name)
        with self.channels.mutex:
            self.channels.on_disconnected()
        self._network.simulation.after(0.05 + self._network.simulation.random.random() / 20, self._connect)

    def _connect(self) -> None:
        delay = self._network.weather.delay
        self._network.simulation.after(delay() + delay(), self._process.deliver, self._connected)

    def _connected(self) -> None:
        self._connecting = False
        self.ear = ear = Ear(self, self._network, self._process)
        with self.channels.mutex:
            self.subscribe(self.channels.names())
        self._network.simulation.after(LINGER, self._process.deliver, self._sweep, ear)

    def _sweep(self, ear: Ear) -> None:
        if self.ear is ear:
            self.channels.sweep()
            self._network.simulation.after(LINGER, self._process.deliver, self._sweep, ear)


class Ear:
    """One subscription connection, as the server sees it."""

    def __init__(self, subscription: Subscription, network: Network, process: Process) -> None:
        self.subscription = subscription
        self.channels: dict[bytes, None] = {}
        self.deaf = False
        self._network = network
        self._process = process
        self._asked = 0.0
        self._told = 0.0
        network.ears.append(self)

    def ask(self, channel: bytes, *, wanted: bool) -> None:
        """Sends SUBSCRIBE or UNSUBSCRIBE."""
        self._asked = max(self._asked, self._network.simulation.now + self._network.weather.delay())
        self._network.simulation.at(self._asked, self._asked_for, channel, wanted)

    def tell(self, action: Callable[..., None], *args: bytes) -> None:
        """Sends the client something that it takes in by `action`."""
        self._told = max(self._told, self._network.simulation.now + self._network.weather.delay())
        self._network.simulation.at(self._told, self._process.deliver, self._hear, action, args)

    def _hear(self, action: Callable[..., None], args: tuple[bytes, ...]) -> None:
        if self.subscription.ear is self:
            action(*args)

    def _asked_for(self, channel: bytes, wanted: bool) -> None:
        if self.deaf:
            return
        if wanted:
            self.channels[channel] = None
            self.tell(self.subscription.channels.on_subscribed, channel)
        else:
            self.channels.pop(channel, None)
