"""A cluster of two nodes between which slots move with their keys, and a client that knows it by redirects.

The routing is the real one: `RoutingTable` and `RoutedRuntime`, over simulated connections.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import hiredis
from redis.exceptions import RedisError

from pyredisson._backends.routed import RoutedRuntime, Settable
from pyredisson._core import slot, slot_of_command
from pyredisson._protocol.node import Node as RealNode
from pyredisson._protocol.replies import ASKING, NoReply, Redirected, Reply, as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Granted, Wakeup
from pyredisson.logic.session import Resources

from .client import Client, SimRuntime
from .network import FAULTS_END, Connections, Network, Node
from .simulation import Cancelled, Flag

SLOTS = 16384
ADDRESSES = (Address("node0", 1), Address("node1", 1))
CONFIG = Config(topology="cluster", nodes=ADDRESSES)
LONGEST_MOVE = 1.0
"""Seconds in which the keys of a slot move."""
REFRESHED_AFTER = 0.5
"""Seconds, at most, after which a client knows the topology that it has asked for."""
_reader = hiredis.Reader()


class Place:
    """Where the keys of one slot are."""

    def __init__(self) -> None:
        self.serving = 0
        self.target: int | None = None
        """The node to which the slot is being moved."""
        self.moved: set[bytes] = set()
        """The keys at the target."""


class MovingSlots:
    """Which node serves each slot. Both nodes keep their data in one keyspace, as a key never is in two places."""

    def __init__(self, home: Network) -> None:
        self.home = home
        self.simulation = home.simulation
        self.places: dict[int, Place] = {}
        self.servers = [SlotServer(self, number) for number in range(len(ADDRESSES))]

    def place(self, number: int) -> Place:
        return self.places.setdefault(number, Place())

    def begin_move(self, key: bytes) -> None:
        """The slot of that key begins to move to the other node."""
        place = self.place(slot(key))
        if place.target is not None:
            return
        place.target = 1 - place.serving
        self.simulation.log("the slot of %r moves from node %d to node %d", key, place.serving, place.target)
        random = self.simulation.random
        duration = LONGEST_MOVE * random.random()
        for other in self.keys(slot(key)):
            self.simulation.after(duration * random.random(), self._move_key, place, other)
        self.simulation.after(duration, self._finish, place, slot(key))

    def keys(self, number: int) -> list[bytes]:
        """The keys of a slot."""
        keyspace = self.home.server.keyspace
        return [key for key in list(keyspace.values) if slot(key) == number and keyspace.value(key) is not None]

    def _move_key(self, place: Place, key: bytes) -> None:
        if place.target is not None:
            place.moved.add(key)

    def _finish(self, place: Place, number: int) -> None:
        assert place.target is not None
        self.simulation.log("slot %d has moved to node %d", number, place.target)
        place.serving, place.target = place.target, None
        place.moved.clear()

    def view(self) -> TopologyView:
        """What the nodes say about the slots."""
        ranges: list[list[tuple[int, int]]] = [[], []]
        begin = 0
        for number in [*sorted(self.places), SLOTS]:
            if begin < number:
                ranges[0].append((begin, number - 1))
            if number < SLOTS:
                ranges[self.places[number].serving].append((number, number))
            begin = number + 1
        members = [Member(address, b"%d" % number) for number, address in enumerate(ADDRESSES)]
        shards = [Shard(member, (), tuple(each)) for member, each in zip(members, ranges, strict=True) if each]
        return TopologyView(tuple(shards))


class SlotServer(Network):
    """One of the nodes. It refuses commands for slots and keys that it doesn't have."""

    def __init__(self, slots: MovingSlots, number: int) -> None:
        super().__init__(slots.simulation, slots.home.fault_plan, None)
        self.number = number
        self._slots = slots
        self._asking = False

    @property
    def identity(self) -> bytes:
        return b"node%d" % self.number

    def execute(self, payload: bytes) -> Reply:
        if payload == ASKING:
            self._asking = True
            return b"OK"
        asking, self._asking = self._asking, False
        number = slot_of_command(payload)
        if number < 0:
            # A script without keys runs on each node.
            return self._slots.home.execute(payload)
        place = self._slots.place(number)
        refusal = self._refusal(payload, number, place, asking=asking)
        if refusal is not None:
            self.simulation.log("node %d: %r -> %s", self.number, payload[-90:], refusal)
            return as_error(refusal)
        before = set(self._slots.keys(number))
        reply = self._slots.home.execute(payload)
        if place.target == self.number:
            # What is made here is here.
            place.moved.update(set(self._slots.keys(number)) - before)
        return reply

    def _refusal(self, payload: bytes, number: int, place: Place, *, asking: bool) -> str | None:
        """The error for a command that this node doesn't execute, by the rules of Redis 7."""
        names = _keys_of(payload)
        if place.serving == self.number:
            if place.target is None:
                return None
            there = set(self._slots.keys(number)) - place.moved
            missing = [name for name in names if name not in there]
            if not missing:
                return None
            if len(missing) < len(names):
                return "TRYAGAIN Multiple keys request during rehashing of slot"
            return f"ASK {number} {_text(ADDRESSES[place.target])}"
        if place.target == self.number and asking:
            present = set(self._slots.keys(number)) & place.moved
            if len(names) > 1 and any(name not in present for name in names):
                return "TRYAGAIN Multiple keys request during rehashing of slot"
            return None
        return f"MOVED {number} {_text(ADDRESSES[place.serving])}"


class SlotConnections:
    """The connections of one runtime to one node."""

    def __init__(self, real: RealNode, node: Node, *, pipelined: bool) -> None:
        self._real = real
        self._connections = Connections(node, pipelined=pipelined)

    @property
    def connected(self) -> bool:
        return self._connections.shared is not None

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        (reply,), _ = await self.exchange((payload,), new_connection=new_connection)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    async def exchange(
        self, payloads: Sequence[bytes], *, new_connection: bool = False
    ) -> tuple[list[Reply], bytes | None]:
        replies, server_id = await self._connections.exchange(payloads, new_connection=new_connection)
        self._real.on_handshake(server_id)
        for reply in replies:
            if isinstance(reply, Redirected):
                reply.replied_by(self._real, server_id)
        return replies, server_id

    async def acquire(
        self, commands: Sequence[bytes], wait: bytes | None, granted: Granted, *, new_connection: bool
    ) -> tuple[Reply, Reply, bytes | None]:
        raise AssertionError("these nodes have no replicas")

    def suspect(self) -> None:
        """Has the server drop the connection that all calls share."""
        shared = self._connections.shared
        if shared is not None:
            shared.cut()

    def retire(self) -> None: ...

    def disconnect(self) -> None: ...


class SimKeeper:
    """Applies what the nodes say, some time after it was asked for."""

    def __init__(self, slots: MovingSlots, table: RoutingTable, process: Client) -> None:
        self.table = table
        self._slots = slots
        self._process = process
        self._coming = False
        table.apply(slots.view(), table.begin_view())
        table.on_request = self._request

    def wait_until_known(self, wakeup: Settable) -> None:
        raise AssertionError("the topology is known")

    def forget(self, wakeup: Settable) -> None:
        raise AssertionError("the topology is known")

    def check_known(self) -> None:
        raise AssertionError("the topology is known")

    def _request(self) -> None:
        if not self._coming:
            self._coming = True
            simulation = self._slots.simulation
            simulation.after(REFRESHED_AFTER * simulation.random.random(), self._process.deliver, self._ask)

    def _ask(self) -> None:
        simulation = self._slots.simulation
        self._coming = False
        begun, view = self.table.begin_view(), self._slots.view()
        delay = REFRESHED_AFTER * simulation.random.random()
        simulation.after(delay, self._process.deliver, self.table.apply, view, begun)


class MovingRuntime(RoutedRuntime[SlotConnections]):
    """The real routed runtime over this network."""

    blocking = False

    def __init__(self, client: MovingClient, repair: Callable[[bytes], None], *, pipelined: bool) -> None:
        super().__init__(CONFIG, client.scripts, client.keeper)
        self._moving = client
        self._pipelined = pipelined
        self._repair = repair
        self._basis = SimRuntime(client.node, repair, pipelined=pipelined)
        self.clock = self._basis.clock
        self.spawn = self._basis.spawn
        self.spawner = self._basis.spawner
        self.jitter = self._basis.jitter  # type: ignore[method-assign]

    def wakeup(self) -> Flag:
        return self._basis.wakeup()

    async def wait(self, wakeup: Wakeup, seconds: float) -> None:
        await self._basis.wait(wakeup, seconds)

    def post(self, payload: bytes) -> None:
        if not self._moving.alive:
            return
        connections = self._connections.get(self.node_for(payload))  # type: ignore[arg-type]
        if connections is None or not connections.connected:
            self._repair(payload)
        else:
            self._moving.spawn(self._post(payload))

    async def _post(self, payload: bytes) -> None:
        try:
            await self.send(payload)
        except (NoReply, RedisError):
            self._repair(payload)

    async def close(self) -> None:
        raise AssertionError("no part of the logic closes a runtime")

    async def _ask(
        self, connections: SlotConnections, payload: bytes, *, new_connection: bool
    ) -> tuple[Reply, bytes | None]:
        try:
            return await super()._ask(connections, payload, new_connection=new_connection)
        except Cancelled:
            # As `RoutedAioRuntime` does it.
            connections.suspect()
            raise

    def _connections_to(self, node: RealNode) -> SlotConnections:
        return SlotConnections(node, self._moving.sim_node(node), pipelined=self._pipelined)

    def _end(self, connections: SlotConnections) -> None:
        raise AssertionError("no part of the logic closes a runtime")

    def _on_any_thread(self, wakeup: Wakeup) -> Settable:
        return wakeup

    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        for operation in operations:
            await operation


class MovingClient(Client):
    """A client of the cluster."""

    slots: MovingSlots
    """Set by a subclass: it is needed before a client has attributes of its own."""

    def open(self, post: Callable[[bytes], None]) -> Resources:
        # Of the resources of the one server the subscription is used: any node hears the messages of all.
        resources = super().open(post)
        self.scripts: ScriptSet = self.node.scripts
        self._sim_nodes: dict[Address, Node] = {}
        table = RoutingTable(self._make_node, None)
        self.keeper = SimKeeper(self.slots, table, self)
        runtime = MovingRuntime(self, post, pipelined=self._weather.pipelined)
        self._watchdog_runtime: Any = MovingRuntime(self, post, pipelined=False)
        return resources._replace(runtime=runtime, watchdog_runtime=self._watchdog_runtime)

    def sim_node(self, node: RealNode) -> Node:
        return self._sim_nodes[node.endpoint]

    def _make_node(self, address: Address) -> RealNode:
        real = RealNode(CONFIG.at(address))
        real.scripts = self.scripts
        sim = self._sim_nodes[address] = Node(self, self.slots.servers[ADDRESSES.index(address)], self.scripts)
        # Only whether there are any is asked.
        real.suspects = sim.suspects  # type: ignore[assignment]
        return real


def plan_moves(slots: MovingSlots, keys: Sequence[bytes], average: float) -> None:
    """Has the slots of these keys move so often, each."""
    for key in keys:
        for when in slots.home.fault_plan.times(average):
            slots.simulation.at(min(when, FAULTS_END - LONGEST_MOVE), slots.begin_move, key)


def _keys_of(payload: bytes) -> list[bytes]:
    _reader.feed(payload)
    words: list[bytes] = _reader.gets()
    if words[0] in (b"EVALSHA", b"EVAL"):
        return words[3 : 3 + int(words[2])]
    return words[1:2]


def _text(address: Address) -> str:
    return f"{address.host}:{address.port}"
