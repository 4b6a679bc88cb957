"""Slots that the servers move with all keys at once, while locks are held and waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

import pyredisson
from pyredisson import LockLostError, NotReplicatedError
from pyredisson.testing import Cluster
from tests.faults.soak_worker import clock
from tests.support.backends import Backend
from tests.support.kinds import LOCKS
from tests.support.programs import ATOMIC_PROGRAMS
from tests.support.waiting import eventually

from .conftest import CALM_NODE_TIMEOUT, NO_FAILOVER
from .load import NOTICE_SECONDS, OPTIONS
from .scenes import COPYING_SECONDS, acquiring, against, begin_slow_move, places, tag_on, while_it_is_copied
from .test_messages import MODES, Scene, flavour_of


@pytest.fixture(scope="module", params=ATOMIC_PROGRAMS)
def atomic_program(request: pytest.FixtureRequest) -> str:
    found: Callable[[], str] = request.param
    return found()


@pytest.fixture(scope="module")
def shared_moving(atomic_program: str) -> Iterator[Cluster]:
    """One cluster for all tests of this module on one program."""
    with Cluster(executable=atomic_program, config={"enable-debug-command": "yes"}) as running:
        running.set_node_timeout(CALM_NODE_TIMEOUT)
        yield running


@pytest.fixture
def cluster(shared_moving: Cluster) -> Cluster:
    """In place of the usual cluster: one whose servers move slots atomically."""
    shared_moving.flush()
    return shared_moving


@pytest.fixture
def own_cluster(atomic_program: str) -> Iterator[Cluster]:
    with Cluster(executable=atomic_program) as running:
        yield running


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "released_when"), [*((kind, "moved") for kind in LOCKS), ("lock", "copied"), ("fair", "copied")]
)
async def test_a_lock_with_a_waiter_moves(cluster: Cluster, backend: Backend, kind: str, released_when: str) -> None:
    tag, _, other = places(cluster)
    name, slot = f"held{{{tag}}}", cluster.slot_of_key(tag)
    one, two, three = (backend.connect() for _ in range(3))
    held, wanted = LOCKS[kind](one, name), against(kind, two, name)
    await held.lock()
    waiter = backend.spawn(acquiring(wanted))
    await backend.sleep(0.1)
    if released_when == "moved":
        cluster.move_atomically(slot, slot, other)
    with while_it_is_copied(cluster, tag, other) if released_when == "copied" else nullcontext():
        assert not held.lost.is_set()
        assert await held.is_held()
        assert not await against(kind, three, name).try_lock()
        assert not waiter.done()
        await held.unlock()
        released = clock()
        assert await waiter.result() - released < 1, "only a timer has woken the waiter"
    assert cluster.node_of(slot) is other


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", MODES)
async def test_subscriptions_follow_the_slot(cluster: Cluster, backend: Backend, mode: str) -> None:
    """The server ends the sharded subscription, and somebody who knows nothing of it publishes on the new node."""
    scene = Scene(cluster, backend)
    waiter = await scene.begin(backend.connect(sharded_pubsub=mode, topology_refresh_interval=1.0), mode)
    for _ in range(2):
        source, target = scene.node, scene.elsewhere
        cluster.move_atomically(scene.slot, scene.slot, target)
        await scene.heard_on(target, mode)
        await backend.until(lambda source=source: scene.subscribers("SPUBLISH", source) == 0)  # type: ignore[misc]
    assert not waiter.done()
    await scene.released(waiter, flavour_of(mode))


@pytest.mark.asyncio
async def test_a_hand_over_takes_longer_than_calls_wait_for_replies(cluster: Cluster, backend: Backend) -> None:
    """The source lets writes wait. What gets no reply in time has not run there, and runs once at the target."""
    tag, source, other = places(cluster)
    if "MIGRATESLOTS" not in str(source.ask("CLUSTER", "HELP")):
        pytest.skip("only Valkey can be told to wait with the hand-over")
    client = backend.connect(timeout=0.5)
    held = client.get_lock(f"held{{{tag}}}", owner=pyredisson.new_owner())  # released by another thread or task
    semaphore = client.get_semaphore(f"permits{{{tag}}}")
    await held.lock()
    await semaphore.try_set_permits(5)
    slot = cluster.slot_of_key(tag)
    other.ask("DEBUG", "SLOTMIGRATION", "PREVENT-FAILOVER", 1)
    try:
        move = cluster.begin_atomic_move(slot, slot, other)
        eventually(lambda: move.state == "failover-granted")
        calls = [backend.spawn(held.unlock), backend.spawn(lambda: semaphore.acquire(2))]
        await backend.sleep(1.2)
        assert not any(call.done() for call in calls)
    finally:
        other.ask("DEBUG", "SLOTMIGRATION", "PREVENT-FAILOVER", 0)
    cluster.finish_atomic_move(move)
    for call in calls:
        await call.result()
    assert await semaphore.available_permits() == 3
    assert not held.lost.is_set()
    assert await backend.connect().get_lock(f"held{{{tag}}}").try_lock()


@pytest.mark.asyncio
async def test_the_node_that_copies_is_no_replica(own_cluster: Cluster, backend: Backend) -> None:
    """It confirms no acquire in place of a replica, and isn't waited for where there is none."""
    tag, source, other = places(own_cluster)
    client = backend.connect(replicas_sync_timeout=0.2)
    for node in (source, other):
        await client.get_lock(f"connected{{{tag_on(own_cluster, node)}}}").lock()
    (replica,) = own_cluster.replicas_of(source)
    own_cluster.set_node_timeout(NO_FAILOVER)
    replica.pause()
    begin_slow_move(own_cluster, tag, other)
    with pytest.raises(NotReplicatedError, match="0 of 1 replica confirmed it"):
        await client.get_lock(f"unconfirmed{{{tag}}}").lock()
    assert own_cluster.node_of_key(tag) is source
    replica.resume()
    eventually(lambda: own_cluster.node_of_key(tag) is other)
    own_cluster.wait_until_consistent()
    # The other way round, from a master without replicas.
    (replica,) = own_cluster.replicas_of(other)
    replica.kill()
    eventually(lambda: other.ask("INFO", "replication")["connected_slaves"] == 0)
    patient = backend.connect(replicas_sync_timeout=5.0)
    assert not await patient.get_lock(f"alone{{{tag}}}").is_locked()  # connects
    with while_it_is_copied(own_cluster, tag, source):
        begin = clock()
        await patient.get_lock(f"alone{{{tag}}}").lock()
        assert clock() - begin < 4, "it has waited for a replica"


@pytest.mark.asyncio
async def test_a_frozen_source_has_handed_over_what_it_had_before(own_cluster: Cluster, backend: Backend) -> None:
    """Redis 8.6: a replaced master that comes back goes on with the move, and the target takes the slot with old data.

    Valkey gives the move up.
    """
    tag, source, other = places(own_cluster)
    lock = backend.connect(**OPTIONS).get_lock(f"held{{{tag}}}")
    begin_slow_move(own_cluster, tag, other)
    await backend.sleep(COPYING_SECONDS / 2)
    own_cluster.pause(source)
    promoted = own_cluster.wait_for_promotion(source)
    await lock.lock(25)  # nothing renews it
    own_cluster.resume(source)
    if own_cluster.node_of_key(tag) is promoted:
        await backend.sleep(OPTIONS["topology_refresh_interval"] + NOTICE_SECONDS)
        assert not lock.lost.is_set()
        await lock.unlock()
        return
    assert own_cluster.node_of_key(tag) is other
    # An idle client learns of the move at the next refresh.
    await backend.until(lock.lost.is_set, OPTIONS["topology_refresh_interval"] + NOTICE_SECONDS)
    with pytest.raises(LockLostError):
        await lock.unlock()
