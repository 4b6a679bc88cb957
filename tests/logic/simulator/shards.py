"""Schedules with several servers of which some are slow, die, or are replaced."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import hiredis
from redis.exceptions import RedisError

from pyredisson._client.lifecycle import registries
from pyredisson._protocol.replies import NoReply, Redirected, Reply, as_error
from pyredisson._protocol.routing import Changes
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.errors import LockLostError
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.holds import HELD, LEASE_ENDED, LOST, Hold
from pyredisson.logic.locks.read_write_lock import ReadLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.renewer import IDLE_LEASES
from pyredisson.logic.session import Resources

from .client import Client, SimRuntime
from .judge import Violation
from .network import Connections, FaultPlan, Network, Node
from .simulation import Simulation

SLOTS = 6
SERVERS = 3
LEASE = 10.0
KNOWN_WITHIN = 1.0
"""Seconds after which every hold is known as lost that the new master doesn't know."""
_reader = hiredis.Reader()


def hash_tag(key: bytes) -> bytes:
    """The name of the lock that the key belongs to."""
    return key.partition(b"{")[2].partition(b"}")[0] or key


def slot_of(key: bytes) -> int:
    """The slot of a key: the last byte of a lock's name is a digit."""
    return int(hash_tag(key)[-1:]) % SLOTS


def slot_of_command(payload: bytes) -> int:
    """The slot of a command's first key."""
    _reader.feed(payload)
    words = _reader.gets()
    return slot_of(words[3] if words[0].startswith(b"EVAL") else words[1])


class ShardServer(Network):
    """One of several servers, with delays of its own. It serves some slots, and refuses the others."""

    def __init__(self, simulation: Simulation, number: int, cluster: Cluster) -> None:
        super().__init__(simulation, FaultPlan(simulation.random, calm=True), None)
        self.number = number
        self.troubled_until = 0.0
        """Until then it may be slow or dead, or a lease may end because it was."""
        self._fast = self.fault_plan.slowest
        self._cluster = cluster

    def execute(self, payload: bytes) -> Reply:
        slot = slot_of_command(payload)
        serving = self._cluster.serving[slot]
        if serving is not self:
            return as_error(f"MOVED {slot} 127.0.0.1:{serving.number}")
        return super().execute(payload)

    def trouble(self, seconds: float) -> None:
        """It is dead for so long, or as slow as a server can be."""
        simulation = self.simulation
        self.troubled_until = max(self.troubled_until, simulation.now + seconds + LEASE + 10)
        if simulation.random.random() < 0.5:
            self.go_down(seconds)
        else:
            self.be_slow(seconds, 2 * LEASE)

    def be_slow(self, seconds: float, delay: float) -> None:
        """Messages to it, and its replies, take up to `delay` seconds each."""
        simulation = self.simulation
        simulation.log("server %d is slow for %.3f s", self.number, seconds)
        self.troubled_until = max(self.troubled_until, simulation.now + seconds + LEASE + 10)
        self.fault_plan.slowest = delay
        simulation.after(seconds, setattr, self.fault_plan, "slowest", self._fast)


class Cluster:
    """Which server really serves each slot."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.servers = [ShardServer(simulation, number, self) for number in range(SERVERS)]
        self.serving = [self.servers[slot % SERVERS] for slot in range(SLOTS)]
        self.served = [{server} for server in self.serving]
        """The servers that have ever served each slot."""
        self.forgotten: dict[bytes, float] = {}
        """Locks that a replica did not know when it became the master, and when the client knew that master."""

    def fail_over(self, dead: ShardServer, client: ShardClient, known_after: float, forgets: float) -> None:
        """A server dies for good. Its replica serves instead, and forgets this share of the locks."""
        simulation = self.simulation
        replica = ShardServer(simulation, len(self.servers), self)
        simulation.log("server %d replaces server %d", replica.number, dead.number)
        dead.go_down(1e9)
        self.servers.append(replica)
        moved = [slot for slot in range(SLOTS) if self.serving[slot] is dead]
        if simulation.random.random() < 0.5:
            replica.server.load_all()
        old, new = dead.server.keyspace, replica.server.keyspace
        dead.troubled_until = max(dead.troubled_until, simulation.now + known_after + KNOWN_WITHIN)
        for name in {hash_tag(key): None for key in old.values}:
            if simulation.random.random() < forgets:
                self.forgotten[name] = simulation.now + known_after
        for key in [key for key in old.values if hash_tag(key) not in self.forgotten]:
            new.values[key] = deepcopy(old.values[key])
            if key in old.valid_until:
                new.valid_until[key] = old.valid_until[key]
        for slot in moved:
            self._serve(slot, replica)
        simulation.after(known_after, client.deliver, client.refresh, dead)

    def move_one(self) -> None:
        """A slot moves with all its keys. No client is told: it is redirected."""
        slot, to = self.simulation.random.randrange(SLOTS), self.simulation.random.choice(self.serving)
        if to is self.serving[slot]:
            return
        self.simulation.log("slot %d moves to server %d", slot, to.number)
        old, new = self.serving[slot].server.keyspace, to.server.keyspace
        for key in [key for key in old.values if slot_of(key) == slot]:
            new.values[key] = old.values.pop(key)
            if key in old.valid_until:
                new.valid_until[key] = old.valid_until.pop(key)
        self._serve(slot, to)

    def troubled(self, key: bytes) -> bool:
        """Whether a lease may end because a server was slow or dead."""
        return self.simulation.now < max(server.troubled_until for server in self.served[slot_of(key)])

    def _serve(self, slot: int, server: ShardServer) -> None:
        self.serving[slot] = server
        self.served[slot].add(server)


class ShardClient(Client):
    """A client of all servers. It knows which server serves which slot, or did."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.scripts = ScriptSet()
        self.nodes = [Node(self, server, self.scripts) for server in cluster.servers]
        self.serving = [self.nodes[server.number] for server in cluster.serving]
        super().__init__(cluster.simulation, "c0", cluster.servers[0], Config(lock_watchdog_timeout=LEASE))

    def refresh(self, dead: ShardServer) -> None:
        """Gets to know which server serves each slot now, and that one is gone."""
        moved = [slot for slot, server in enumerate(self._cluster.serving) if self._learn(slot, server)]
        removed = cast(Any, self.nodes[dead.number])
        self.session.watchdog.on_topology_change(Changes(failed_over_slots=frozenset(moved), removed_nodes=(removed,)))

    def redirected(self, error: Redirected) -> None:
        """MOVED names the server of one slot."""
        _, slot, address = str(error).split()
        if self._learn(int(slot), self._cluster.servers[int(address.rpartition(":")[2])]):
            self.session.watchdog.on_topology_change(Changes(frozenset([int(slot)])))

    def _learn(self, slot: int, server: ShardServer) -> bool:
        """Whether that is news."""
        while server.number >= len(self.nodes):
            self.nodes.append(Node(self, self._cluster.servers[len(self.nodes)], self.scripts))
        before, self.serving[slot] = self.serving[slot], self.nodes[server.number]
        return before is not self.serving[slot]

    def open(self, post: Callable[[bytes], None]) -> Resources:
        runtime = ShardRuntime(self, post)
        self._watchdog_runtime: SimRuntime = ShardRuntime(self, post)
        channels = ChannelRegistry(self.simulation.clock)
        channels.attach(_NoMessages())
        return Resources(self.name, runtime, self._watchdog_runtime, channels, registries())


class ShardRuntime(SimRuntime):
    """A runtime that sends each command to the server that serves its slot."""

    sharded = True

    def __init__(self, client: ShardClient, repair: Callable[[bytes], None]) -> None:
        super().__init__(client.nodes[0], repair, pipelined=False)
        self._client = client
        self._of: dict[Node, Connections] = {}

    def slot_of(self, key: bytes) -> int:
        return slot_of(key)

    def shard_of(self, key: bytes) -> Hashable:
        return self._client.serving[slot_of(key)]

    def shard_of_command(self, payload: bytes) -> Hashable:
        return self._client.serving[slot_of_command(payload)]

    async def follow(
        self, redirect: Redirected, payload: bytes, *, new_connection: bool = False
    ) -> tuple[Reply, bytes | None]:
        return await self.send_identified(payload, new_connection=new_connection)

    async def _exchange(self, payloads: Sequence[bytes], *, new_connection: bool) -> tuple[list[Reply], bytes | None]:
        by_node: dict[Node, list[int]] = {}
        for i, payload in enumerate(payloads):
            by_node.setdefault(self._client.serving[slot_of_command(payload)], []).append(i)
        replies: list[Reply] = [None] * len(payloads)
        server: bytes | None = None
        for node, places in by_node.items():
            connections = self._of.setdefault(node, Connections(node, pipelined=False))
            try:
                answers, server = await connections.exchange(
                    [payloads[i] for i in places], new_connection=new_connection
                )
            except NoReply as problem:
                if len(by_node) == 1:
                    raise
                answers = [problem.error] * len(places)
            for i, answer in zip(places, answers, strict=True):
                replies[i] = answer
                if isinstance(answer, Redirected):
                    self._client.redirected(answer)
        return replies, server


class _NoMessages:
    """A subscription that is never confirmed: waiters make an attempt every second."""

    def subscribe(self, channels: Iterable[bytes]) -> None:
        pass

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        pass


ROUND = LEASE / 3
TROUBLE_ENDS = 1060.0
"""No server is slow or dies from then on."""


class LockUser:
    """A task that acquires one lock, keeps it for some leases, and releases it; several times."""

    def __init__(self, client: ShardClient, judge: ShardJudge, lock: LockLogic) -> None:
        self.lock = lock
        self._client = client
        self._judge = judge
        self._owner = client.session.owners.new()

    async def live(self) -> None:
        """All that it does."""
        session, random = self._client.session, self._client.simulation.random
        while session.clock() < TROUBLE_ENDS:
            await session.runtime.sleep(random.random() * random.choice((0.1, LEASE)))
            lease = None if random.random() < 0.7 else int(1000 * LEASE * (0.5 + 3 * random.random()))
            try:
                if not await self.lock.acquire(self._owner, lease, session.clock() + 5):
                    continue
            except RedisError:
                continue
            hold = self.lock.hold_of(self._owner.id)
            assert hold is not None
            self._judge.acquired(hold, lease)
            await session.runtime.sleep(random.random() * random.choice((0.1, 1, 3)) * LEASE)
            try:
                await self.lock.release(self._owner, hold)
            except (RedisError, LockLostError):
                continue


@dataclass(frozen=True)
class ShardReport:
    """What happened in a schedule in which nothing was wrong."""

    acquired: int
    ended: int
    """Holds that were lost because their lease ended."""
    not_taken_over: int
    """Holds that were lost because a new master didn't know them."""


class ShardJudge:
    """Trouble with one server costs no lock on another one. After a failover it is known at once what was lost."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._simulation = cluster.simulation
        self._soon = 30 * max(server.fault_plan.slowest for server in cluster.servers)
        self._holds: dict[Hold, tuple[float, float]] = {}
        """When the acquire of each hold was sent, and when it was answered."""
        self._verdict = ""
        """What was found in a listener, of which the logic catches all exceptions."""
        self.count = 0
        self.ended = 0
        self.not_taken_over = 0

    def acquired(self, hold: Hold, lease: int | None) -> None:
        """A hold to look at from now on."""
        sent_at = hold.valid_until - (LEASE if lease is None else lease / 1000)
        self.count += 1
        self._holds[hold] = (sent_at, self._simulation.now)
        hold.listen(self._over)

    def look(self) -> None:
        """Called after every event."""
        if self._verdict:
            raise Violation(self._verdict)
        now = self._simulation.now
        for hold, (sent_at, answered_at) in self._holds.items():
            key = hold.commands.key
            server = self._cluster.serving[slot_of(key)]
            if hold.state is not HELD or hold.valid_until <= now:
                continue
            if hold.owner not in server.server.keyspace.hash(key):
                known_at = self._known_at(key, sent_at)
                if known_at is None:
                    raise Violation(f"{key!r} counts as held; the server knows nothing of it")
                if now > max(max(known_at, answered_at) + KNOWN_WITHIN, server.troubled_until):
                    raise Violation(f"{key!r} counts as held {now - known_at:.3f} s after a failover lost it")
            elif (
                hold.renewed
                and not self._cluster.troubled(key)
                and hold.valid_until - now < LEASE - 1.05 * ROUND - self._soon
            ):
                raise Violation(f"{key!r} was not renewed for {now - hold.valid_until + LEASE:.3f} s")

    def closing(self, client: ShardClient) -> None:
        """Called when all users have ended, and nothing was to be done for long."""
        watchdog = client.session.watchdog
        if watchdog.repairs.pending():
            raise Violation("repairs have not run")
        if watchdog._renewers:
            raise Violation("a renewer without work has not ended")
        if client.session.holds.table or len(watchdog.wheel):
            raise Violation("a hold was not forgotten")
        for server in set(self._cluster.serving):
            for key in list(server.server.keyspace.values):
                if server.server.keyspace.value(key) is not None:
                    raise Violation(f"{key!r} is left behind")

    def _known_at(self, key: bytes, sent_at: float) -> float | None:
        """When it was known that a failover has lost a lock whose acquire was sent at `sent_at`. None: it hasn't."""
        known_at = self._cluster.forgotten.get(key)
        return None if known_at is None or sent_at > known_at else known_at

    def _over(self, hold: Hold) -> None:
        sent_at, _ = self._holds.pop(hold)
        if hold.state is not LOST:
            return
        key = hold.commands.key
        if self._known_at(key, sent_at) is not None:
            self.not_taken_over += 1
        elif self._cluster.troubled(key) or (hold.reason is LEASE_ENDED and not hold.renewed):
            self.ended += 1
        else:
            self._verdict = f"{key!r} was lost: {hold.reason}"


def run_with_shards(seed: int, trace: list[str] | None = None) -> ShardReport:
    """Runs the schedule of that seed. Raises `Violation`."""
    simulation = Simulation(seed, trace)
    random = simulation.random
    cluster = Cluster(simulation)
    client = ShardClient(cluster)
    judge = ShardJudge(cluster)
    simulation.after_event = judge.look
    tasks = []
    for number in range(2 * SLOTS):
        kind = ReadLogic if number % 3 == 2 else LockLogic
        lock = kind(client.session, b"lock%d-%d" % (number, number % SLOTS))
        tasks.append(client.spawn(LockUser(client, judge, lock).live()))
    for _ in range(random.randint(0, 3)):
        when, seconds = 1000 + random.random() * 50, random.random() * random.choice((3, 15))
        simulation.at(when, random.choice(cluster.servers).trouble, seconds)
    if random.random() < 0.6:
        dying, when = random.choice(cluster.servers), 1000 + random.random() * 50
        simulation.at(when, cluster.fail_over, dying, client, 4 * random.random(), 0.5)
        if random.random() < 0.5:
            # Its last replies arrive when its replica is the master already.
            simulation.at(when - random.random() * 5, dying.be_slow, 5, 4.0)
    for _ in range(random.choice((0, 3))):
        simulation.at(1000 + random.random() * 50, cluster.move_one)
    if not simulation.run(TROUBLE_ENDS + 200, lambda: all(task.done for task in tasks)):
        raise Violation("stuck")
    simulation.run(simulation.now + (IDLE_LEASES + 3) * LEASE)
    judge.closing(client)
    client.die()
    return ShardReport(judge.count, judge.ended, judge.not_taken_over)
