"""One schedule: some clients, their owners, and the faults, all drawn from a seed."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from pyredisson._diagnostics import logger
from pyredisson._settings.config import Config
from pyredisson.logic import owners
from pyredisson.logic.permits import expirable_acquire

from .client import Client
from .fault_plan import FAULTS_END, LONGEST_PAUSE, FaultPlan
from .judge import Violation
from .kinds import KINDS, PLAIN, Logic
from .moving import MovingClient, MovingSlots, plan_moves
from .network import Network
from .simulation import Simulation

__all__ = ["KINDS", "Logic", "Report", "Violation", "run"]

LONGEST = FAULTS_END + 400
"""Every owner must have done all that it had to do by then."""
_CONFIGS = {
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


def run(seed: int, logic: Logic = PLAIN, trace: list[str] | None = None) -> Report:
    """Runs the schedule of that seed; the same every time. Raises `Violation`."""
    simulation = Simulation(seed, trace)
    with _replayable(simulation):
        # With every other seed a lock is handed on inside a client without end.
        return _play(simulation, logic, hands_on_without_end=seed % 2 == 1)


def _play(simulation: Simulation, logic: Logic, *, hands_on_without_end: bool) -> Report:
    random = simulation.random
    # Many waiters in one client, many of whom give up: nobody else makes up for a wake-up that was lost.
    crowd = random.random() < 0.2
    fault_plan = FaultPlan(random, calm=crowd or random.random() < 0.4)
    if crowd:
        fault_plan.cancels = 0.5
    if logic.restarts or logic.calm:
        fault_plan = FaultPlan(random, calm=True)
        fault_plan.calm = False
        fault_plan.cancels = fault_plan.forces = 0.0
    networks = [Network(simulation, fault_plan, logic.patches) for _ in range(logic.servers)]
    if random.random() < 0.8:
        for network in networks:
            network.server.load_all()
    lease = random.choice((3, 10))
    config = _CONFIGS[lease, hands_on_without_end]
    keys = [b"a", b"b"][: 1 + (not crowd and random.random() < 0.3)]
    client_type = _clients_of(networks[0], keys, logic)
    judge = logic.judge(networks, lease)
    if logic.moves:
        judge.expect_moves()
    judge.begin()
    level = logger.level
    logger.setLevel(logging.ERROR)
    logger.addFilter(judge)
    try:
        for number in range(1 if crowd else random.randint(1, 3)):
            clients = [client_type(simulation, f"c{number}", network, config) for network in networks]
            judge.clients.extend(clients)
            for place, client in enumerate(clients):
                client.session.server = f"s{place}"
            objects = [make(client.session, key) for client in clients for key in keys for make in logic.objects]
            for _ in range(logic.users * (5 if crowd else random.randint(1, 3))):
                user = logic.user(clients[0], judge, objects, f"o{len(judge.users)}")
                judge.add(user)
                user.task = clients[0].spawn(user.live())
            _plan_faults(simulation, fault_plan, clients)
        for network in networks:
            network.checked, network.identified = logic.checked, logic.identified
            if logic.restarts:
                for when in fault_plan.times(logic.restarts):
                    simulation.at(when, network.restart)
            for when in fault_plan.times(fault_plan.flushes):
                simulation.at(when, network.server.flush_scripts)
        if not simulation.run(LONGEST, judge.all_over):
            judge.stuck()
        simulation.run(judge.rests_at())
        judge.closing()
        return Report(fault_plan.calm, judge.acquired, judge.waits, judge.lost)
    finally:
        for client in judge.clients:
            client.die()
        logger.removeFilter(judge)
        logger.setLevel(level)


def _clients_of(network: Network, keys: Sequence[bytes], logic: Logic) -> type[Client]:
    """The kind of clients; where slots move, clients of a cluster."""
    if not logic.moves:
        return Client
    moving = MovingSlots(network)
    plan_moves(moving, keys, logic.moves)
    return type("ClientOfThisCluster", (MovingClient,), {"slots": moving})


@contextmanager
def _replayable(simulation: Simulation) -> Iterator[None]:
    """What is drawn or counted elsewhere begins anew with every schedule."""
    with (
        patch.object(owners, "_call_numbers", itertools.count(1)),
        patch.object(expirable_acquire, "urandom", simulation.random.randbytes),
    ):
        yield


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
