"""Long holds on a cluster of which nodes are slow, die, or are replaced, and the rules for these."""

from collections.abc import Sequence
from typing import Any

from pyredisson._core import slot
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.renewer import IDLE_LEASES

from .locks import LockJudge, Owner
from .moving import MovingSlots, SlotServer
from .network import Network

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
            [when], dying = self.fault_plan.times(1.0), random.choice(self._cluster.servers[:nodes])
            simulation.at(when, self._fail_over, dying)
            if random.random() < 0.5:
                # Its last replies arrive when its replica is the master already.
                simulation.at(when - random.random() * 5, self._be_slow, dying, 5.0, 4.0)

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
                if not lost or hold.state is not HELD:
                    continue
                since = self._since.setdefault(hold, self.simulation.now)
                if self.simulation.now - since > KNOWN_WITHIN:
                    self.blame(f"{hold.owner!r} believes to hold {key!r}, which a failover has lost")

    def closing(self) -> None:
        super().closing()
        for client in self.clients:
            if client.session.watchdog.pending_repairs() or client.session.watchdog._renewers:
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
            self._note_trouble(server, seconds)
            server.go_down(seconds)
        else:
            self._be_slow(server, seconds, 2 * self.lease)

    def _be_slow(self, server: SlotServer, seconds: float, delay: float) -> None:
        self._note_trouble(server, seconds)
        server.be_slow(seconds, delay)

    def _note_trouble(self, server: SlotServer, seconds: float) -> None:
        until = self.simulation.now + seconds + self.lease + 10
        self._troubled_until[server.number] = max(self._troubled_until[server.number], until)

    def _move_one(self) -> None:
        """A slot moves with all its keys. No client is told: it is redirected."""
        random, places = self.simulation.random, list(self._cluster.places.values())
        random.choice(places).serving = random.choice(places).serving
        self._note_places()

    def _fail_over(self, dying: SlotServer) -> None:
        """The replica has forgotten the half of the locks. Each client gets to know it some time later."""
        self._note_trouble(dying, 4.0 + KNOWN_WITHIN)
        self._dead = dying
        for number, place in self._cluster.places.items():
            if place.serving == dying.number and self.simulation.random.random() < 0.5:
                self._lost.update((place.name, owner) for owner in self.keyspace.hash(place.name))
                for key in self._cluster.keys(number):
                    self.keyspace.lose(key)
        self._tampered |= self._lost
        self._cluster.replace(dying.number)
        self._note_places()
        for client in self.clients:
            self.simulation.after(4 * self.simulation.random.random(), client.deliver, client.keeper.request)
