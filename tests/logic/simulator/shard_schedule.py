"""Random schedules with several servers of which some are slow, die, or are replaced by a replica; and their judge."""

from __future__ import annotations

from dataclasses import dataclass

from redis.exceptions import RedisError

from pyredisson.errors import LockLostError
from pyredisson.logic.holds import HELD, LEASE_ENDED, LOST, Hold
from pyredisson.logic.locks.read_write_lock import ReadLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.renewer import IDLE_LEASES

from .judge import Violation
from .shards import KNOWN_WITHIN, LEASE, SLOTS, Cluster, ShardClient, slot_of
from .simulation import Simulation

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


def run(seed: int, trace: list[str] | None = None) -> ShardReport:
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
