"""Thousands of random schedules: exclusion, no lost wakeup, no leaked hold, no waiter that waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pyredisson.logic.groups.recovery import MemberRecovery
from pyredisson.logic.holds import HELD, LOST, NOT_TAKEN_OVER
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.watchdog import Watchdog

from .simulator import KINDS, Violation, run
from .simulator.locks import Owner
from .simulator.schedule import RED_RESTARTS
from .simulator.shards import KNOWN_WITHIN, Cluster, ShardClient, run_with_shards
from .simulator.simulation import Simulation

CHUNK = 500
SCHEDULES = {
    "plain": 4_000,
    "fenced": 500,
    "spin": 500,
    "non_reentrant": 500,
    "fair": 1000,
    "non_reentrant_fair": 500,
    "read_write": 1000,
    "semaphore": 1000,
    "crowded_semaphore": 1000,
    "permits": 1000,
    "latch": 500,
    "multi": 250,
    "red": 250,
    **{kind: 80 for kind in KINDS if kind.startswith("moving_")},
    **{kind: 300 for kind in KINDS if kind.endswith("restarts")},
}
"""How many schedules each kind of primitive goes through."""


def explained(kind: str, seed: int) -> str:
    """The end of a failed schedule, and how to see all of it."""
    trace: list[str] = []
    with pytest.raises(Violation) as caught:
        run(seed, KINDS[kind], trace) if kind != "shards" else run_with_shards(seed, trace=trace)
    events = "\n".join(trace[-40:])
    return f"seed {seed}: {caught.value}\n{events}\nreplay: python -m tests.logic.simulator {kind} {seed}"


def chunks() -> Iterator[Any]:
    """A seed is the same schedule on every interpreter, so the first ones do for all but one of them."""
    for kind in KINDS:
        for first in range(0, SCHEDULES[kind], CHUNK):
            yield pytest.param(kind, first, marks=[pytest.mark.slow] if first else [])


@pytest.mark.parametrize(("kind", "first"), list(chunks()))
def test_schedules(kind: str, first: int) -> None:
    for seed in range(first, min(first + CHUNK, SCHEDULES[kind])):
        try:
            run(seed, KINDS[kind])
        except Violation:
            pytest.fail(explained(kind, seed), pytrace=False)


@pytest.mark.parametrize("kind", KINDS)
def test_schedules_are_worth_something(kind: str) -> None:
    """Locks are acquired with and without planned faults: a simulator in which nothing happens finds nothing."""
    reports = [run(seed, KINDS[kind]) for seed in range(50)]
    calm = [report.acquired for report in reports if report.calm]
    stormy = [report.acquired for report in reports if not report.calm]
    assert not calm or sum(calm) / len(calm) > 2
    assert sum(stormy) / len(stormy) > 2
    assert bool(calm) is (KINDS[kind].restarts == 0)
    assert sum(report.waits for report in reports) > 50
    if KINDS[kind].user is Owner:
        assert sum(report.lost for report in reports) > 5


def test_commands_are_refused_for_each_reason_while_slots_move() -> None:
    trace: list[str] = []
    for seed in range(50):
        run(seed, KINDS["moving_plain"], trace)
        run(seed, KINDS["moving_semaphore"], trace)
    for refusal in ("MOVED", "ASK", "TRYAGAIN"):
        assert sum(f"-> {refusal}" in line for line in trace) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_one_schedule(kind: str) -> None:
    first: list[str] = []
    second: list[str] = []
    run(3, KINDS[kind], first)
    run(3, KINDS[kind], second)
    assert first == second
    assert len(first) > 10


RED_SCHEDULES = 5


def test_a_client_without_either_check_is_detected() -> None:
    """It believes that its release was sent over a connection that was closed before."""
    logic = replace(KINDS["restarts"], checked=False, identified=False)
    with pytest.raises(Violation, match="the server didn't know the hold"):
        for seed in range(SCHEDULES["restarts"]):
            run(seed, logic)


def test_a_red_lock_outlives_servers_that_restart_one_after_the_other() -> None:
    """Unless it has only just been acquired, of fewer servers than all."""
    reports = [run(seed, RED_RESTARTS) for seed in range(RED_SCHEDULES)]
    assert 20 * sum(report.lost for report in reports) < sum(report.acquired for report in reports)


def test_a_red_lock_that_acquires_no_member_again_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberRecovery, "begin", lambda _: None)
    reports = [run(seed, RED_RESTARTS) for seed in range(RED_SCHEDULES)]
    assert 20 * sum(report.lost for report in reports) > sum(report.acquired for report in reports)


SHARD_SCHEDULES = 300
SHARD_CHUNK = 100


@pytest.mark.parametrize("first", range(0, SHARD_SCHEDULES, SHARD_CHUNK))
def test_schedules_with_several_servers(first: int) -> None:
    """Some are slow, die, or are replaced: renewals and checks go on."""
    for seed in range(first, first + SHARD_CHUNK):
        try:
            run_with_shards(seed)
        except Violation:
            pytest.fail(explained("shards", seed), pytrace=False)


def test_schedules_with_several_servers_are_worth_something() -> None:
    reports = [run_with_shards(seed) for seed in range(30)]
    assert sum(report.acquired for report in reports) > 1000
    assert sum(report.ended for report in reports) > 20
    assert sum(report.not_taken_over for report in reports) > 10


def test_one_renewer_that_waits_for_the_slowest_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    renewer_of = Watchdog._renewer_of
    monkeypatch.setattr(Watchdog, "_renewer_of", lambda watchdog, _: renewer_of(watchdog, None))
    # It doesn't mind which server its holds are on.
    for name in ("_keeps", "_serves_command"):
        monkeypatch.setattr(Renewer, name, lambda *_: True)
    _is_found_with_shards()


def test_a_failover_after_which_nothing_is_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watchdog, "on_topology_change", lambda *_: None)
    _is_found_with_shards()


def _is_found_with_shards() -> None:
    with pytest.raises(Violation):
        for seed in range(SHARD_SCHEDULES):
            run_with_shards(seed)


@pytest.mark.parametrize("lease", [None, 30_000])
def test_a_grant_that_arrives_after_the_failover_is_checked(lease: int | None) -> None:
    """The search for the holds of the slots that have moved can't find it yet."""
    simulation = Simulation(1)
    cluster = Cluster(simulation)
    cluster.serving[0].server.load_all()
    client = ShardClient(cluster)
    lock, other = LockLogic(client.session, b"lock0"), LockLogic(client.session, b"other1")
    owner = client.session.owners.new()

    async def hold_both() -> None:
        # So that the watchdog runs.
        assert await other.acquire(owner, None, None)
        cluster.serving[0].on_replied = lambda *_: cluster.fail_over(cluster.serving[0], client, 0.0, 1.0)
        assert await lock.acquire(owner, lease, None)
        before.append(client.serving[0])

    before: list[object] = []
    dead = client.serving[0]
    task = client.spawn(hold_both())
    simulation.run(simulation.now + KNOWN_WITHIN, lambda: task.done)
    assert before
    assert before[0] is not dead
    hold = lock.hold_of(owner.id)
    assert hold is not None
    assert hold.state is HELD
    simulation.run(simulation.now + KNOWN_WITHIN)
    assert hold.reason == NOT_TAKEN_OVER
    assert hold.state is LOST
    client.die()
