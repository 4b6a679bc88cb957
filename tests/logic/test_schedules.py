"""Thousands of random schedules: exclusion, no lost wakeup, no leaked hold, no waiter that waits for ever.

Behind them are schedules that no seed draws, and all schedules of two users whose steps come at wrong moments, or of
which one meets a fault. More: `python -m tests.logic.simulator.small_world KIND 2 1`.
"""

from contextlib import suppress
from dataclasses import replace

import pytest

from pyredisson._core import slot
from pyredisson._settings.config import Config
from pyredisson.logic.holds import HELD, LOST, NOT_TAKEN_OVER
from pyredisson.logic.locks.rlock import LockLogic

from .simulator import KINDS, Report, Violation, run
from .simulator.locks import Owner
from .simulator.moving import KNOWN_WITHIN, LongOwner, MovingClient, MovingSlots
from .simulator.network import FaultPlan, Network
from .simulator.simulation import Simulation
from .simulator.small_world import walk
from .test_planted_bugs import text_with

CHUNK = 125
CHUNKS = [
    pytest.param(kind, first, marks=[pytest.mark.slow] if first else [])
    for kind, each in KINDS.items()
    for first in range(0, each.schedules, CHUNK)
]
"""A seed is the same schedule on every interpreter, so the first ones do for all but one of them."""


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


@pytest.mark.parametrize(("kind", "first"), CHUNKS)
def test_schedules(kind: str, first: int) -> None:
    """Also, locks are acquired with and without planned faults: a simulator in which nothing happens finds nothing."""
    reports = [played(kind, seed) for seed in range(first, min(first + CHUNK, KINDS[kind].schedules))]
    calm, stormy = ([each.acquired for each in reports if each.calm is is_calm] for is_calm in (True, False))
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


def test_a_client_without_either_check_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It believes that its release was sent over a connection that was closed before."""
    monkeypatch.setitem(KINDS, "restarts", replace(KINDS["restarts"], checked=False, identified=False))
    with pytest.raises(Violation, match="the server didn't know the hold"):
        walk("restarts", (2,), 0, turns=0, faults=1)


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
        home.server.keyspace.drop(b"lock", lost=True)
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


SMALL = [kind for kind, each in KINDS.items() if {each.nodes, each.servers, each.users} == {1} and not each.restarts]


@pytest.mark.parametrize("kind", SMALL)
def test_two_changes_of_turn(kind: str) -> None:
    assert all(walk(kind, users, 0, turns=2, faults=0).schedules > 1 for users in ((1, 1), (2,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["plain", "fenced", "fair", "read_write", "semaphore", "permits", "latch", "moving_latch"]
)
def test_one_fault(kind: str) -> None:
    assert walk(kind, (1, 1), 0, turns=0, faults=1).schedules > 20


@pytest.mark.parametrize(
    "bug", ["plain: a release wakes no client of the list", "handed_off: several adopt it", "latch: it counts twice"]
)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = bug.partition(":")[0]
    monkeypatch.setitem(KINDS, kind, replace(KINDS[kind], patches=text_with(bug)))
    with pytest.raises(Violation):
        for seed in range(3):
            for budget in ((2, 0), (0, 1)):
                walk(kind, (1, 1), seed, *budget)
