"""A cluster between whose nodes slots move with their keys, or of which nodes are slow, die, or are replaced.

A client knows it by redirects. The routing is the real one: `RoutingTable` and `RoutedRuntime`, over simulated
connections.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from functools import partial
from typing import Any

from pyredisson._backends.routed import RoutedRuntime, Wake
from pyredisson._core import slot, slot_of_command
from pyredisson._protocol.node import Node as RealNode
from pyredisson._protocol.replies import ASKING, Answers, Reply, as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import words_of
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.renewer import IDLE_LEASES

from .client import Client, SimBackend
from .locks import LockJudge, Owner
from .network import FAULTS_END, Connections, Network, Node
from .simulation import Cancelled

SLOTS = 16384
CONFIG = Config(topology="cluster", nodes=(Address("node", 1),), check_lock_synced_replicas=False)
LONGEST_MOVE = 1.0
"""Seconds in which the keys of a slot move."""
REFRESHED_AFTER = 0.5
"""Seconds, at most, after which a client knows the topology that it has asked for."""


class Place:
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
        self.home, self.simulation, self.nodes = home, home.simulation, nodes
        home.cluster = self
        self.places = {slot(key): Place(key) for key in keys}
        self.replaced: set[int] = set()
        """The nodes whose replicas serve in their place."""
        self.servers = [SlotServer(self, number) for number in range(2 * nodes)]
        """The nodes, and behind them the replica of each."""

    def place(self, number: int) -> Place:
        return self.places.setdefault(number, Place())

    def begin_move(self, key: bytes) -> None:
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
        self.number, self._slots, self._asking = number, slots, False
        self.address = Address(f"node{number}", 1)

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
        serves, imports = place.serving == self.number, place.target == self.number and asking
        if place.target is None or not (serves or imports):
            return None if serves else f"MOVED {number} node{place.serving}:1"
        words = words_of(payload)
        names = words[3 : 3 + int(words[2])] if words[0] in (b"EVALSHA", b"EVAL") else words[1:2]
        keys = set(self._slots.keys(number))
        here = keys - place.moved if serves else keys & place.moved
        missing = [name for name in names if name not in here]
        if not missing or (imports and len(names) == 1):
            return None
        if imports or len(missing) < len(names):
            return "TRYAGAIN Multiple keys request during rehashing of slot"
        return f"ASK {number} node{place.target}:1"


class RoutedConnections(Connections):
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
        self._slots, self._process, self.coming = slots, process, False
        table.apply(slots.view(), table.begin_view())
        table.on_request = self.request

    def request(self) -> None:
        """Has the topology looked at soon."""
        if not self.coming:
            self.coming = True
            simulation = self._slots.simulation
            simulation.after(REFRESHED_AFTER * simulation.random.random(), self._process.deliver, self._ask)

    def _ask(self) -> None:
        simulation = self._slots.simulation
        self.coming = False
        begun, view = self.table.begin_view(), self._slots.view()
        delay = REFRESHED_AFTER * simulation.random.random()
        simulation.after(delay, self._process.deliver, self.table.apply, view, begun)


class MovingRuntime(SimBackend, RoutedRuntime[RoutedConnections]):
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


KNOWN_WITHIN = 1.0
"""Seconds after which every hold is known as lost that the new master doesn't know."""


class LongOwner(Owner):
    """Holds locks for some leases."""

    async def nap(self) -> None:
        await self.session.runtime.sleep(self.random.random() * self.random.choice((0.1, 1, 3)) * self.lease)


class ShardJudge(LockJudge):
    """Trouble with one server costs no lock on another one. After a failover it is known at once what was lost."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        cluster: Any = networks[0].cluster
        self._cluster: MovingSlots = cluster
        self._troubled_until = [0.0] * len(cluster.servers)
        self._served: dict[int, set[int]] = {}
        """The nodes that have ever served each slot."""
        self._dead: SlotServer | None = None
        self._lost: set[tuple[bytes, bytes]] = set()
        """The locks and the names of their owners that its replica lacked."""
        self._since: dict[Hold, float] = {}
        """Since when the client of such a hold could know that."""

    def begin(self) -> None:
        random, simulation, nodes = self.simulation.random, self.simulation, self._cluster.nodes
        for number, place in enumerate(self._cluster.places.values()):
            place.serving = number % nodes
        self._note_places()
        for when in self.fault_plan.times(2.0):
            simulation.at(when, self._trouble, random.choice(self._cluster.servers[:nodes]), random.random() * 10)
        for when in self.fault_plan.times(2.0):
            simulation.at(when, self._move_one)
        if random.random() < 0.6:
            for when in self.fault_plan.times(1.0):
                dying = random.choice(self._cluster.servers[:nodes])
                simulation.at(when, self._fail_over, dying, 0.5)
                if random.random() < 0.5:
                    # Its last replies arrive when its replica is the master already.
                    simulation.at(when - random.random() * 5, self._be_slow, dying, 5.0, 4.0)

    def faults(self) -> dict[str, Callable[[], None]]:
        """What may happen to the first node, by name."""
        first, place = self._cluster.servers[0], next(iter(self._cluster.places.values()))
        return {
            "moved": partial(self._move, place, 1),
            "down": partial(self._go_down, first, 5.0),
            "replaced": partial(self._fail_over, first, 0.0),
            "replaced by an empty one": partial(self._fail_over, first, 1.0),
        }

    def rests_at(self) -> float:
        return super().rests_at() + (IDLE_LEASES + 3) * self.lease

    def taken(self, owner: Owner, lock: LockLogic, *, clean: bool) -> None:
        name = (lock.key, owner.holder.name)
        if owner.holder.name in self.keyspace.hash(lock.key) and name in self._lost:
            self._lost.discard(name)
            self._tampered.discard(name)
        super().taken(owner, lock, clean=clean)

    def look(self) -> None:
        super().look()
        if self._dead is None:
            return
        for client in self.clients:
            if not client.alive or self._dead.address in client.keeper.table.nodes:
                continue
            for hold in client.session.holds.table.values():
                key = hold.commands.key
                lost = (key, hold.owner) in self._lost and hold.owner not in self.keyspace.hash(key)
                # Another server, to which the slot has moved since, may have trouble, and not reply.
                trouble_ends = self._troubled_until[self._cluster.places[slot(key)].serving]
                if lost and hold.state is HELD and self.simulation.now > trouble_ends:
                    since = self._since.setdefault(hold, self.simulation.now)
                    if self.simulation.now - since > KNOWN_WITHIN:
                        self.blame(f"{hold.owner!r} believes to hold {key!r}, which a failover has lost")

    def closing(self) -> None:
        super().closing()
        for client in self.clients:
            watchdog = client.session.watchdog
            if client.alive and (watchdog.pending_repairs() or watchdog._renewers):
                self.blame(f"{client.name}: repairs have not run, or a renewer without work has not ended")

    def _hold_ended(self, hold: Hold) -> None:
        super()._hold_ended(hold)
        key = hold.commands.key
        if hold.state is not LOST or not hold.renewed or (key, hold.owner) in self._lost:
            return
        if self.simulation.now > max(self._troubled_until[number] for number in self._served[slot(key)]):
            self.blame(f"{hold.owner!r}: lost {key!r} on a server without trouble: {hold.reason}")

    def _note_places(self) -> None:
        for number, place in self._cluster.places.items():
            self._served.setdefault(number, set()).add(place.serving)

    def _trouble(self, server: SlotServer, seconds: float) -> None:
        """It is dead for so long, or as slow as a server can be."""
        if self.simulation.random.random() < 0.5:
            self._go_down(server, seconds)
        else:
            self._be_slow(server, seconds, 2 * self.lease)

    def _go_down(self, server: SlotServer, seconds: float) -> None:
        self._note_trouble(server, seconds)
        server.go_down(seconds)

    def _be_slow(self, server: SlotServer, seconds: float, delay: float) -> None:
        self._note_trouble(server, seconds)
        server.be_slow(seconds, delay)

    def _note_trouble(self, server: SlotServer, seconds: float) -> None:
        until = self.simulation.now + seconds + self.lease + 10
        self._troubled_until[server.number] = max(self._troubled_until[server.number], until)

    def _move_one(self) -> None:
        random, places = self.simulation.random, list(self._cluster.places.values())
        target = random.choice(places).serving
        self._move(random.choice(places), target)

    def _move(self, place: Place, target: int) -> None:
        """A slot moves with all its keys. No client is told: it is redirected."""
        place.serving = target
        self._note_places()

    def _fail_over(self, dying: SlotServer, share: float) -> None:
        """The replica has forgotten that share of the locks. Each client gets to know it some time later."""
        self._note_trouble(dying, 4.0 + KNOWN_WITHIN)
        self._dead = dying
        for number, place in self._cluster.places.items():
            if place.serving == dying.number and self.simulation.random.random() < share:
                self._lost.update((place.name, owner) for owner in self.keyspace.hash(place.name))
                for key in self._cluster.keys(number):
                    self.keyspace.drop(key, lost=True)
        self._tampered |= self._lost
        self._cluster.replace(dying.number)
        self._note_places()
        for client in self.clients:
            self.simulation.after(4 * self.simulation.random.random(), client.deliver, client.keeper.request)
