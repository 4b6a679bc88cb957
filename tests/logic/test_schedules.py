"""Thousands of random schedules: exclusion, no lost wakeup, no leaked hold, no waiter that waits for ever.

Behind them are schedules that no seed draws.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import RedisError

from pyredisson._core import slot
from pyredisson._settings.config import Config
from pyredisson.logic.groups.group import GroupOwner
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.holds import HELD, LOST, NOT_TAKEN_OVER
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.ports import Operation

from .simulator import KINDS, Report, Violation, run
from .simulator.client import Client
from .simulator.locks import Owner
from .simulator.moving import KNOWN_WITHIN, LongOwner, MovingClient, MovingSlots
from .simulator.network import FaultPlan, Network
from .simulator.simulation import Simulation

CHUNK = 500


def played(kind: str, seed: int) -> Report:
    """A schedule. If it fails: its end, and how to see all of it."""
    trace: list[str] = []
    try:
        return run(seed, KINDS[kind])
    except Violation as violation:
        with suppress(Violation):
            run(seed, KINDS[kind], trace)
        events = "\n".join(trace[-40:])
        pytest.fail(f"{violation}\n{events}\nreplay: python -m tests.logic.simulator {kind} {seed}", pytrace=False)


def chunks() -> Iterator[Any]:
    """A seed is the same schedule on every interpreter, so the first ones do for all but one of them."""
    for kind in KINDS:
        for first in range(0, KINDS[kind].schedules, CHUNK):
            yield pytest.param(kind, first, marks=[pytest.mark.slow] if first else [])


@pytest.mark.parametrize(("kind", "first"), list(chunks()))
def test_schedules(kind: str, first: int) -> None:
    """Also, locks are acquired with and without planned faults: a simulator in which nothing happens finds nothing."""
    reports = [played(kind, seed) for seed in range(first, min(first + CHUNK, KINDS[kind].schedules))]
    calm = [report.acquired for report in reports if report.calm]
    stormy = [report.acquired for report in reports if not report.calm]
    assert not calm or sum(calm) / len(calm) > 2
    assert sum(stormy) / len(stormy) > 2
    assert bool(calm) is (KINDS[kind].restarts == KINDS[kind].names == 0)
    assert sum(report.waits for report in reports) > len(reports)
    if KINDS[kind].user in (Owner, LongOwner):
        assert sum(report.lost for report in reports) > len(reports) / 10


def test_commands_are_refused_for_each_reason_while_slots_move() -> None:
    trace: list[str] = []
    for seed in range(50):
        run(seed, KINDS["moving_plain"], trace)
        run(seed, KINDS["moving_semaphore"], trace)
    for refusal in ("MOVED", "ASK", "TRYAGAIN"):
        assert sum(f"-> {refusal}" in line for line in trace) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_one_schedule(kind: str) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run(3, KINDS[kind], trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 10


def test_a_client_without_either_check_is_detected() -> None:
    """It believes that its release was sent over a connection that was closed before."""
    logic = replace(KINDS["restarts"], checked=False, identified=False)
    with pytest.raises(Violation, match="the server didn't know the hold"):
        for seed in range(logic.schedules):
            run(seed, logic)


@pytest.mark.parametrize("lease", [None, 30_000])
def test_a_grant_that_arrives_after_the_failover_is_checked(lease: int | None) -> None:
    """The search for the holds of the slots that have moved can't find it yet. No random schedule comes to that."""
    simulation = Simulation(1)
    plan = FaultPlan(simulation.random, calm=True)
    # Calls that share a connection would be cut off.
    plan.pipelined = False
    home = Network(simulation, plan, None)
    cluster = MovingSlots(home, [b"lock", b"other"], 2)
    cluster.place(slot(b"other")).serving = 1
    client = MovingClient(simulation, "c", home, Config())
    lock, other = LockLogic(client.session, b"lock"), LockLogic(client.session, b"other")
    owner = client.session.owners.new()

    def fail_over(*_: object) -> None:
        home.on_replied = None
        home.server.keyspace.lose(b"lock")
        cluster.replace(0)
        client.keeper.table.apply(cluster.view(), client.keeper.table.begin_view())

    async def hold_both() -> None:
        # So that the watchdog runs.
        assert await other.acquire(owner, None, None)
        home.on_replied = fail_over
        assert await lock.acquire(owner, lease, None)

    task = client.spawn(hold_both())
    simulation.run(simulation.now + KNOWN_WITHIN, lambda: task.done)
    hold = lock.hold_of(owner.id)
    assert cluster.replaced
    assert hold is not None
    assert hold.state is HELD
    simulation.run(simulation.now + KNOWN_WITHIN)
    assert (hold.state, hold.reason) == (LOST, NOT_TAKEN_OVER)
    client.die()


SOON = 4.0
"""Seconds in which all that was begun is done. A lease is longer."""


class Group:
    """A red lock on three servers, and one owner. Operations that the group begins can be held up."""

    def __init__(self) -> None:
        self.simulation = Simulation(1)
        plan = FaultPlan(self.simulation.random, calm=True)
        self.networks = [Network(self.simulation, plan, None) for _ in range(3)]
        self.clients = [Client(self.simulation, "c", network, Config()) for network in self.networks]
        self.members = [LockLogic(client.session, b"a") for client in self.clients]
        self.logic = RedLockLogic(self.members)
        self.owner = GroupOwner([client.session.owners.new() for client in self.clients])
        self.held_up: list[Operation] = []
        runtime: Any = self.clients[0].session.runtime
        self.spawn, runtime.spawn = runtime.spawn, self.spawn_or_hold_up
        self.holds_up: Sequence[bool] = ()
        """Which of the next operations do not begin."""

    def spawn_or_hold_up(self, operation: Operation) -> None:
        holds_up, *self.holds_up = self.holds_up or [False]
        self.held_up.append(operation) if holds_up else self.spawn(operation)

    def go_on(self) -> None:
        """What was held up begins."""
        while self.held_up:
            self.spawn(self.held_up.pop(0))
        self.simulation.run(self.simulation.now + SOON)

    def change(self, call: Callable[[], Coroutine[Any, Any, None]], *holds_up: bool) -> list[int]:
        """One level more, or less. Returns how many levels of each member are held then."""
        self.holds_up = holds_up
        task = self.clients[0].spawn(call())
        assert self.simulation.run(self.simulation.now + SOON, lambda: task.done)
        self.holds_up = ()
        self.simulation.run(self.simulation.now + SOON)
        return self.counts()

    async def take(self) -> None:
        assert await self.logic.acquire(self.owner, None, self.simulation.now)

    async def release(self) -> None:
        hold = self.logic.hold_of(self.owner.id)
        assert hold is not None
        # Perhaps a majority has not replied.
        with suppress(RedisError):
            await self.logic.release(self.owner, hold)

    def counts(self) -> list[int]:
        holds = [member.hold_of(owner.id) for member, owner in zip(self.members, self.owner.owners, strict=True)]
        return [0 if hold is None or hold.state is not HELD else hold.count for hold in holds]

    def on_servers(self) -> list[list[bytes]]:
        return [list(network.server.keyspace.hash(b"a").values()) for network in self.networks]


def test_a_release_that_begins_late_is_neither_a_second_one_nor_one_of_a_later_hold() -> None:
    """In no random schedule one begins so late."""
    group = Group()
    group.change(group.take)
    group.change(group.take)
    assert group.change(group.release, False, True, False) == [1, 1, 1]
    assert len(group.held_up) == 1
    group.go_on()
    assert group.counts() == [1, 1, 1]
    assert group.on_servers() == [[b"1"], [b"1"], [b"1"]]
    group.change(group.take)
    assert group.change(group.release, True, True, True) == [1, 1, 1]
    group.change(group.take)
    group.go_on()
    assert group.counts() == [2, 2, 2]
    assert group.change(group.release) == [1, 1, 1]
    assert all(group.on_servers())
    assert group.change(group.release) == [0, 0, 0]
    assert group.on_servers() == [[], [], []]
    assert not any(client.session.holds.table for client in group.clients)
    for client in group.clients:
        client.die()
