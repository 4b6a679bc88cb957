"""Random schedules with several servers of which some are slow, die, or are replaced: renewals and checks go on."""

from __future__ import annotations

import pytest

from pyredisson.logic.holds import HELD, LOST, NOT_TAKEN_OVER
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.watchdog import Watchdog

from .simulator import Violation
from .simulator.shard_schedule import run
from .simulator.shards import KNOWN_WITHIN, Cluster, ShardClient
from .simulator.simulation import Simulation

SCHEDULES = 300
CHUNK = 100


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_schedules(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            run(seed)
        except Violation as violation:
            trace: list[str] = []
            with pytest.raises(Violation):
                run(seed, trace=trace)
            pytest.fail("\n".join([f"seed {seed}: {violation}", *trace[-40:]]), pytrace=False)


def test_schedules_are_worth_something() -> None:
    reports = [run(seed) for seed in range(30)]
    assert sum(report.acquired for report in reports) > 1000
    assert sum(report.ended for report in reports) > 20
    assert sum(report.not_taken_over for report in reports) > 10


def test_one_renewer_that_waits_for_the_slowest_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    renewer_of = Watchdog._renewer_of
    monkeypatch.setattr(Watchdog, "_renewer_of", lambda watchdog, _: renewer_of(watchdog, None))
    # It doesn't mind which server its holds are on.
    for name in ("_keeps", "_serves_command"):
        monkeypatch.setattr(Renewer, name, lambda *_: True)
    _is_found()


def test_a_failover_after_which_nothing_is_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watchdog, "on_topology_change", lambda *_: None)
    _is_found()


def _is_found() -> None:
    with pytest.raises(Violation):
        for seed in range(SCHEDULES):
            run(seed)


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
