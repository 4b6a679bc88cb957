"""A cluster between whose nodes slots move with their keys, and a client that knows it by redirects.

The routing is the real one: `RoutingTable` and `RoutedRuntime`, over simulated connections.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from typing import Any

import hiredis

from pyredisson._backends.routed import RoutedRuntime, Wake
from pyredisson._core import slot, slot_of_command
from pyredisson._protocol.node import Node as RealNode
from pyredisson._protocol.replies import ASKING, Answers, Reply, as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Wakeup

from .client import Client, SimBackend
from .network import FAULTS_END, Connections, Network, Node
from .simulation import Cancelled

SLOTS = 16384
CONFIG = Config(topology="cluster", nodes=(Address("node", 1),))
LONGEST_MOVE = 1.0
"""Seconds in which the keys of a slot move."""
REFRESHED_AFTER = 0.5
"""Seconds, at most, after which a client knows the topology that it has asked for."""
_reader = hiredis.Reader()


class Place:
    """Where the keys of one slot are."""

    def __init__(self, name: bytes = b"") -> None:
        self.name = name
        """The lock, or another primitive, on that slot."""
        self.serving = 0
        self.target: int | None = None
        """The node to which the slot is being moved."""
        self.moved: set[bytes] = set()
        """The keys at the target."""


class MovingSlots:
    """Which node serves each slot. All nodes keep their data in one keyspace, as a key never is in two places."""

    def __init__(self, home: Network, keys: Sequence[bytes], nodes: int) -> None:
        self.home = home
        home.cluster = self
        self.simulation = home.simulation
        self.places = {slot(key): Place(key) for key in keys}
        self.nodes = nodes
        self.replaced: set[int] = set()
        """The nodes whose replicas serve in their place."""
        self.servers = [SlotServer(self, number) for number in range(2 * nodes)]
        """The nodes, and behind them the replica of each."""

    def place(self, number: int) -> Place:
        return self.places.setdefault(number, Place())

    def begin_move(self, key: bytes) -> None:
        """The slot of that key begins to move to the next node."""
        place = self.place(slot(key))
        if place.target is not None:
            return
        place.target = (place.serving + 1) % self.nodes
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

    def replace(self, number: int) -> None:
        """A node dies for good, and its replica serves."""
        self.simulation.log("node %d is replaced", number)
        self.replaced.add(number)
        self.servers[number].go_down(1e9)
        for place in self.places.values():
            if place.serving == number:
                place.serving += self.nodes

    def _move_key(self, place: Place, key: bytes) -> None:
        if place.target is not None:
            place.moved.add(key)

    def _finish(self, place: Place, number: int) -> None:
        assert place.target is not None
        self.simulation.log("slot %d has moved to node %d", number, place.target)
        place.serving, place.target = place.target, None
        place.moved.clear()

    def view(self) -> TopologyView:
        """What the nodes say about the slots. The first one serves those that no key has needed yet."""
        ranges: list[list[tuple[int, int]]] = [[] for _ in self.servers]
        begin, first = 0, self.nodes if 0 in self.replaced else 0
        for number in [*sorted(self.places), SLOTS]:
            if begin < number:
                ranges[first].append((begin, number - 1))
            if number < SLOTS:
                ranges[self.places[number].serving].append((number, number))
            begin = number + 1
        members = [Member(server.address, server.identity) for server in self.servers]
        return TopologyView(
            tuple(
                Shard(members[number], tuple(members[number + self.nodes : number + self.nodes + 1]), tuple(each))
                for number, each in enumerate(ranges)
                if each
            )
        )


class SlotServer(Network):
    """One of the nodes, with delays of its own. It refuses commands for slots and keys that it doesn't have."""

    def __init__(self, slots: MovingSlots, number: int) -> None:
        super().__init__(slots.simulation, copy(slots.home.fault_plan), None)
        self.number = number
        self.address = Address(f"node{number}", 1)
        self._slots = slots
        self._asking = False

    @property
    def identity(self) -> bytes:
        return b"node%d" % self.number

    def be_slow(self, seconds: float, delay: float) -> None:
        """Messages to it, and its replies, take up to `delay` seconds each."""
        self.simulation.log("node %d is slow for %.3f s", self.number, seconds)
        self.simulation.after(seconds, setattr, self.fault_plan, "slowest", self._slots.home.fault_plan.slowest)
        self.fault_plan.slowest = delay

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
            return f"ASK {number} node{place.target}:1"
        if place.target == self.number and asking:
            present = set(self._slots.keys(number)) & place.moved
            if len(names) > 1 and any(name not in present for name in names):
                return "TRYAGAIN Multiple keys request during rehashing of slot"
            return None
        return f"MOVED {number} node{place.serving}:1"


class RoutedConnections(Connections):
    """The connections of one runtime to one node."""

    async def exchange(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> Answers:
        try:
            return await super().exchange(payloads, new_connection=new_connection)
        except Cancelled:
            if payloads[0] == ASKING:
                # As `PipelineHolder` does it.
                self.disconnect()
            raise

    async def acquire(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("these nodes have no replicas that are asked")

    def drop(self) -> None:
        raise AssertionError("no part of the logic closes a runtime")


class SimKeeper:
    """Applies what the nodes say, some time after it was asked for."""

    def __init__(self, slots: MovingSlots, table: RoutingTable, process: Client) -> None:
        self.table = table
        self._slots = slots
        self._process = process
        self._coming = False
        table.apply(slots.view(), table.begin_view())
        table.on_request = self.request

    def request(self) -> None:
        """Has the topology looked at soon."""
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


class MovingRuntime(SimBackend, RoutedRuntime[RoutedConnections]):
    """The real routed runtime over this network."""

    def __init__(self, client: MovingClient, repair: Callable[[bytes], None], *, pipelined: bool) -> None:
        super().__init__(client, repair, CONFIG, client.scripts, client.keeper)
        self._pipelined = pipelined

    def _connections_for(self, payload: bytes) -> Connections | None:
        return self._connections.get(self.node_for(payload))  # type: ignore[arg-type]

    def _connections_to(self, node: RealNode) -> RoutedConnections:
        assert isinstance(node, Node)
        return RoutedConnections(node, pipelined=self._pipelined)

    def _on_any_thread(self, wakeup: Wakeup) -> Wake:
        return wakeup.set

    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        for operation in operations:
            await operation


class MovingClient(Client):
    """A client of the cluster. Any node hears the messages of all, so its subscription is to the network of all."""

    def _runtimes(self, post: Callable[[bytes], None]) -> tuple[MovingRuntime, MovingRuntime]:
        cluster = self._network.cluster

        def make_node(address: Address) -> Node:
            [server] = [server for server in cluster.servers if server.address == address]
            return Node(self, server, self.scripts, CONFIG.at(address))

        self.keeper = SimKeeper(cluster, RoutingTable(make_node, None), self)
        runtime = MovingRuntime(self, post, pipelined=self.fault_plan.pipelined)
        return runtime, MovingRuntime(self, post, pipelined=False)


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
