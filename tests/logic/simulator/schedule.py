"""One schedule of some kind: the primitive, some clients, their owners, and the faults, all drawn from a seed."""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

from pyredisson._diagnostics import logger
from pyredisson._protocol.replies import Reply
from pyredisson._protocol.scripts import script, words_of
from pyredisson._settings.config import Config
from pyredisson.logic import announcement, owners, renewer
from pyredisson.logic.holds import Hold
from pyredisson.logic.locks import moving
from pyredisson.logic.locks.fair_lock import FairLockLogic, NonReentrantFairLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.locks.read_write_lock import ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic, NonReentrantLockLogic
from pyredisson.logic.locks.spin_lock import SpinLockLogic
from pyredisson.logic.permits import permit_expirable_semaphore
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.logic.session import Session

from . import locks
from .client import Client
from .groups import GroupJudge, LatchJudge, LatchUser, MultiLockUser, RedLockJudge, RedLockUser
from .judge import Judge, User
from .keys import Hash
from .moving import LongOwner, MovingClient, MovingSlots, ShardJudge, plan_moves
from .network import FAULTS_END, LONGEST_PAUSE, FaultPlan, Network
from .permits import CrowdedSemaphoreUser, PermitJudge, PermitUser, SemaphoreJudge, SemaphoreUser
from .simulation import Simulation

OWNER_AT = {"lock_release": -5, "lock_hand_over": -4, "fenced_hand_over": -4}
"""The scripts that release a level, and the place of the owner in their commands."""
SCRIPTS = [script(name, with_shebang=flags) for name in OWNER_AT for flags in (False, True)]
RELEASES = {word: OWNER_AT[each.name] for each in SCRIPTS for word in (each.sha, each.text)}


class RestartJudge(locks.LockJudge):
    """Knows which releases the server has done."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._released: dict[tuple[bytes, bytes], float] = {}
        self._lost: dict[tuple[bytes, bytes], float] = {}
        """When a server that restarted has lost a hold."""
        networks[0].on_replied = self._replied
        networks[0].on_restart = self._forgotten

    def released(self, owner: locks.Owner, hold: Hold) -> None:
        place = hold.commands.key, hold.owner
        # If all copies but the last one met a server that knows no script, the lease may end before that one.
        unknown = not self.fault_plan.unanswered or self._lost.get(place, 0.0) > hold.begun
        if unknown and self._released.get(place, 0.0) < owner.began:
            self.blame(f"{owner.name}: has released {hold.commands.key!r}, but the server didn't know the hold")

    def _replied(self, payload: bytes, reply: Reply) -> None:
        words = words_of(payload)
        place = RELEASES.get(words[1]) if len(words) > 3 else None
        # A hand-over replies with a list; 0: it has found neither of both owners.
        if place is not None and isinstance(reply, int if place == OWNER_AT["lock_release"] else list):
            self._released[words[3], words[place]] = self.simulation.now

    def _forgotten(self) -> None:
        for key, value in self.keyspace.values.items():
            if isinstance(value, Hash):
                # Until the watchdog asks, its client believes to hold it.
                self._tampered.update((key, name) for name in value)
                self._lost.update(((key, name), self.simulation.now) for name in value)


@dataclass(frozen=True)
class Logic:
    """The classes that a schedule runs; planted bugs come in their place."""

    objects: tuple[Callable[[Session, bytes], Any], ...] = (LockLogic,)
    """What of each name an owner uses: the two sides of a read-write lock, else one."""
    patches: dict[str, bytes] | None = None
    """Texts of scripts that run instead of their own, by name."""
    servers: int = 1
    user: Callable[..., User] = locks.Owner
    judge: Callable[..., Judge] = locks.LockJudge
    nodes: int = 1
    """More than one: of a cluster."""
    moves: float = 0.0
    """How often the slot of each name moves between the nodes."""
    names: int = 0
    """How many names there are; 0: one or two. Then nothing breaks but what the judge plans."""
    restarts: float = 0.0
    """How often a server restarts empty. Then some replies are lost, and nothing else breaks."""
    checked: bool = True
    """Whether a connection is looked at before it is used."""
    identified: bool = True
    """Whether the clients know the server's identity."""
    users: int = 1
    """How many times as many users as usual there are."""
    schedules: int = 500
    """How many of them the tests go through."""


PLAIN = Logic(schedules=2_000)
MOVES = 6.0
ON_A_CLUSTER = ("plain", "fenced", "fair", "read_write", "handed_off", "handed_off_read_write", "semaphore", "latch")
"""Not permits with ids: a release whose reply is lost, and whose slot moves to a node without any slot in the latest
view, isn't known to be done."""
KINDS = {
    "plain": PLAIN,
    "fenced": Logic(objects=(FencedLockLogic,)),
    "spin": Logic(objects=(partial(SpinLockLogic, backoff=locks.BACKOFF),), judge=locks.SpinJudge),
    "non_reentrant": Logic(objects=(NonReentrantLockLogic,)),
    "fair": Logic(objects=(FairLockLogic,), judge=locks.FairJudge, schedules=1000),
    "non_reentrant_fair": Logic(objects=(NonReentrantFairLockLogic,), judge=locks.FairJudge),
    "read_write": Logic(objects=(ReadLogic, WriteLogic), judge=locks.ReadWriteJudge, schedules=1000),
    "handed_off": Logic(objects=(FencedLockLogic,), user=locks.HandingOwner, judge=locks.HandingJudge),
    "handed_off_read_write": Logic(
        objects=(ReadLogic, WriteLogic), user=locks.HandingOwner, judge=locks.HandingReadWriteJudge
    ),
    "semaphore": Logic(objects=(SemaphoreLogic,), user=SemaphoreUser, judge=SemaphoreJudge, schedules=1000),
    "crowded_semaphore": Logic(
        objects=(SemaphoreLogic,), user=CrowdedSemaphoreUser, judge=SemaphoreJudge, users=4, schedules=1000
    ),
    "permits": Logic(objects=(PermitExpirableSemaphoreLogic,), user=PermitUser, judge=PermitJudge, schedules=1000),
    "latch": Logic(objects=(CountDownLatchLogic,), user=LatchUser, judge=LatchJudge),
    "multi": Logic(servers=2, user=MultiLockUser, judge=GroupJudge, schedules=250),
    "red": Logic(servers=3, user=RedLockUser, judge=RedLockJudge, schedules=250),
    "restarts": Logic(judge=RestartJudge, restarts=3.0, schedules=300),
    "fenced_restarts": Logic(objects=(FencedLockLogic,), judge=RestartJudge, restarts=3.0, schedules=300),
    "shards": Logic(user=LongOwner, judge=ShardJudge, nodes=3, names=12, users=4, schedules=250),
}
KINDS |= {f"moving_{kind}": replace(KINDS[kind], nodes=2, moves=MOVES, schedules=80) for kind in ON_A_CLUSTER}
# The server's identity is enough to know that it is another one.
KINDS |= {f"unchecked_{kind}": replace(KINDS[kind], checked=False) for kind in ("restarts", "fenced_restarts")}

LONGEST = FAULTS_END + 400
"""Every owner must have done all that it had to do by then."""
CONFIGS = {
    (lease, without_end): Config(lock_watchdog_timeout=lease, local_hand_over_time=60 if without_end else 0.01)
    for lease in (3, 10)
    for without_end in (False, True)
}


@dataclass(frozen=True)
class Report:
    """What happened in a schedule in which nothing was wrong."""

    calm: bool
    acquired: int
    waits: int
    lost: int


@contextmanager
def alone(simulation: Simulation) -> Iterator[None]:
    """What is drawn or counted elsewhere begins anew with every schedule."""
    with (
        # As in all tests: what a client tells of itself would be left behind.
        patch.object(announcement, "FIRST_AFTER", math.inf),
        patch.object(renewer, "LOOK_EVERY", math.inf),
        patch.object(owners, "_name_numbers", itertools.count(1)),
        patch.object(permit_expirable_semaphore, "urandom", simulation.random.randbytes),
        patch.object(moving, "uuid4", lambda: UUID(bytes=simulation.random.randbytes(16))),
    ):
        yield


def run(seed: int, logic: Logic = PLAIN, trace: list[str] | None = None) -> Report:
    """Runs the schedule of that seed; the same every time. Raises `Violation`."""
    simulation = Simulation(seed, trace)
    with alone(simulation):
        # With every other seed a lock is handed on inside a client without end.
        return _play(simulation, logic, hands_on_without_end=seed % 2 == 1)


class World:
    """The servers, the clients and the users of a schedule, and the judge of all that."""

    def __init__(
        self, simulation: Simulation, fault_plan: FaultPlan, logic: Logic, keys: Sequence[bytes], config: Config
    ) -> None:
        self.simulation, self.logic, self._keys, self._config = simulation, logic, keys, config
        self.networks = [Network(simulation, fault_plan, logic.patches) for _ in range(logic.servers)]
        self.cluster = MovingSlots(self.networks[0], keys, logic.nodes) if logic.nodes > 1 else None
        self.judge = logic.judge(self.networks, int(config.lock_watchdog_timeout))
        for network in self.networks:
            network.checked, network.identified = logic.checked, logic.identified
        if self.cluster is not None and logic.moves:
            self.judge.expect_moves()

    def server_faults(self) -> dict[str, Callable[[], None]]:
        """What may happen to the servers of that kind, by name."""
        if isinstance(self.judge, ShardJudge):
            return self.judge.faults()
        if self.cluster is not None:
            return {"moved": partial(self.cluster.begin_move, self._keys[0])}
        return {"restarted": self.networks[0].restart} if self.logic.restarts else {}

    def add_process(self) -> list[Client]:
        """The clients of a process, one for each server."""
        number = len({client.name for client in self.judge.clients})
        client_class = Client if self.cluster is None else MovingClient
        clients = [client_class(self.simulation, f"c{number}", network, self._config) for network in self.networks]
        self.judge.clients.extend(clients)
        for place, client in enumerate(clients):
            client.session.server = f"s{place}"
        return clients

    def add_users(self, clients: Sequence[Client], count: int) -> None:
        kinds = self.logic.objects
        objects = [make(client.session, key) for client in clients for key in self._keys for make in kinds]
        for _ in range(count):
            user = self.logic.user(clients[0], self.judge, objects, f"o{len(self.judge.users)}")
            self.judge.add(user)
            user.task = clients[0].spawn(user.live())

    @contextmanager
    def judged(self) -> Iterator[None]:
        """An error in the log is a violation. At the end all processes die."""
        level = logger.level
        logger.setLevel(logging.ERROR)
        logger.addFilter(self.judge)
        try:
            yield
        finally:
            for client in self.judge.clients:
                client.die()
                client.session.watchdog.wheel.close()
            logger.removeFilter(self.judge)
            logger.setLevel(level)

    def play(self, longest: float) -> Report:
        """Lets time pass until all users have ended, and all is at rest."""
        simulation, judge = self.simulation, self.judge
        if not simulation.run(longest, judge.all_over):
            judge.blame(f"stuck: {', '.join(user.name for user in judge.users if not user.over)}")
        simulation.run(judge.rests_at())
        judge.closing()
        return Report(judge.fault_plan.calm, judge.acquired, judge.waits, judge.lost)


def _play(simulation: Simulation, logic: Logic, *, hands_on_without_end: bool) -> Report:
    random = simulation.random
    # Many waiters in one client, many of whom give up: nobody else makes up for a wake-up that was lost.
    crowd = random.random() < 0.2
    fault_plan = FaultPlan(random, calm=crowd or random.random() < 0.4)
    if crowd:
        fault_plan.cancels = 0.5
    if logic.restarts or logic.names:
        fault_plan = FaultPlan(random, calm=True)
        fault_plan.calm = False
        fault_plan.cancels = fault_plan.forces = 0.0
        if logic.restarts:
            fault_plan.lose_replies(random.choice((0.0, 0.3)))
    knows_scripts = random.random() < 0.8
    config = CONFIGS[random.choice((3, 10)), hands_on_without_end]
    count = logic.names or 1 + (not crowd and random.random() < 0.3)
    keys = [b"lock%d" % number for number in range(count)]
    world = World(simulation, fault_plan, logic, keys, config)
    judge = world.judge
    if world.cluster is not None and logic.moves:
        plan_moves(world.cluster, keys, logic.moves)
    judge.begin()
    with world.judged():
        for _ in range(1 if crowd else random.randint(1, 3)):
            clients = world.add_process()
            world.add_users(clients, logic.users * (5 if crowd else random.randint(1, 3)))
            _plan_faults(simulation, fault_plan, clients)
        for network in world.networks:
            if knows_scripts:
                network.server.load_all()
            if logic.restarts:
                for when in fault_plan.times(logic.restarts):
                    simulation.at(when, network.restart)
            for when in fault_plan.times(fault_plan.flushes):
                simulation.at(when, network.server.flush_scripts)
        return world.play(LONGEST)


def _plan_faults(simulation: Simulation, fault_plan: FaultPlan, clients: Sequence[Client]) -> None:
    """What happens to one process."""
    for client in clients:
        for when in fault_plan.times(fault_plan.subscription_cuts):
            simulation.at(when, client.subscription.cut)
    for when in fault_plan.times(fault_plan.pauses):
        seconds = simulation.random.random() * simulation.random.choice((0.1, 2, LONGEST_PAUSE))
        for client in clients:
            simulation.at(when, client.pause, seconds)
    for when in fault_plan.times(fault_plan.deaths):
        for client in clients:
            simulation.at(when, client.kill)
