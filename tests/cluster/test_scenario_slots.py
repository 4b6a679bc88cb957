"""Slots that move, and scripts that are flushed, while locks are held, waited for, and acquired by many."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyredisson.testing import Cluster, ClusterNode
from tests.faults.soak_worker import clock
from tests.support.backends import Backend
from tests.support.programs import also_on, newest_redis, newest_valkey, valkey_server

from .load import KINDS, Load, tag_on, wants

ALL = (*KINDS, "semaphore", "permit")
FACTORIES: dict[str, Callable[[Any, str], Any]] = {
    "lock": lambda client, name: client.get_lock(name),
    "fair": lambda client, name: client.get_fair_lock(name),
    "fenced": lambda client, name: client.get_fenced_lock(name),
    "spin": lambda client, name: client.get_spin_lock(name),
    "non-reentrant": lambda client, name: client.get_non_reentrant_lock(name),
    "write": lambda client, name: client.get_read_write_lock(name).write_lock(),
    "read": lambda client, name: client.get_read_write_lock(name).read_lock(),
}


SINGLE_KEY = ("lock", "spin", "non-reentrant")
"""The other kinds have several keys, or create them: the cluster answers TRYAGAIN as long as these are on two nodes."""
MOVE: dict[str, Callable[[Cluster, int, str, ClusterNode], object]] = {
    "begun": lambda cluster, slot, _, to: cluster.begin_move(slot, to),
    "key moved": lambda cluster, slot, name, _: cluster.move_keys(slot, name),
    "all keys moved": lambda cluster, slot, _name, _to: cluster.move_keys(slot),
    "finished": lambda cluster, slot, _name, _to: cluster.finish_move(slot),
}


def places(cluster: Cluster) -> tuple[str, ClusterNode, ClusterNode]:
    """A hash tag, the node of its slot, and another master."""
    source, other = cluster.masters()[:2]
    return tag_on(cluster, source), source, other


def others(kind: str, client: Any, name: str) -> Any:
    """A lock that a hold of this kind excludes."""
    return FACTORIES["write" if kind == "read" else kind](client, name)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", FACTORIES)
async def test_a_held_lock_moves_with_its_slot(cluster: Cluster, backend: Backend, kind: str) -> None:
    """Nobody else acquires it meanwhile, and the release reaches a waiter of the new node."""
    tag, source, other = places(cluster)
    name = f"held{{{tag}}}"
    one, two = backend.connect(), backend.connect()
    held, behind, wanted = FACTORIES[kind](one, name), one.get_lock(f"behind{{{tag}}}"), others(kind, two, name)
    await held.lock()
    await behind.lock()  # its key moves later
    slot = cluster.slot_of_key(name)
    for step in MOVE:
        MOVE[step](cluster, slot, name, other)
        assert await behind.is_held()
        if kind in SINGLE_KEY or step == "finished":
            assert await held.is_held()
            assert not await wanted.try_lock()
    assert cluster.node_of(slot) is other
    assert not held.lost.is_set()
    waiter = backend.spawn(lambda: wanted.try_lock(8))
    await backend.sleep(0.2)
    assert not waiter.done()
    await held.unlock()
    assert await waiter.result()
    await behind.unlock()
    cluster.move_slot(slot, source)


@pytest.mark.asyncio
@pytest.mark.parametrize("released_after", MOVE)
@pytest.mark.parametrize("kind", FACTORIES)
async def test_a_waiter_of_a_moving_slot_is_woken(
    cluster: Cluster, backend: Backend, kind: str, released_after: str
) -> None:
    tag, source, other = places(cluster)
    name = f"awaited{{{tag}}}"
    slot = cluster.slot_of_key(name)
    one, two = backend.connect(), backend.connect()
    held, wanted = FACTORIES[kind](one, name), others(kind, two, name)
    await held.lock()
    taken: list[float] = []

    async def wait() -> None:
        assert await wanted.try_lock(20)
        taken.append(clock())

    waiter = backend.spawn(wait)
    await backend.sleep(0.2)
    steps = list(MOVE.values())
    before = list(MOVE).index(released_after) + 1
    for step in steps[:before]:
        step(cluster, slot, name, other)
    finish = threading.Timer(0.5, lambda: [step(cluster, slot, name, other) for step in steps[before:]])
    if kind not in SINGLE_KEY:
        finish.start()
    assert not waiter.done()
    await held.unlock()
    released = clock()
    await waiter.result()
    # After TRYAGAIN a waiter pauses for up to two seconds.
    assert taken[0] - released < (3 if kind in SINGLE_KEY else 6), "only a timer has woken the waiter"
    if kind in SINGLE_KEY:
        finish.function()
    else:
        finish.join()
    cluster.move_slot(slot, source)


@also_on(valkey_server)
@pytest.mark.slow
def test_slots_move_to_and_fro_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tag, source, other = places(cluster)
    slot = cluster.slot_of_key(tag)
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 4) as load:
        for to in (other, source) * 4:
            cluster.move_slot(slot, to)
            load.wait_until_taken(40)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()


@also_on(newest_redis)
@pytest.mark.slow
def test_a_slot_stays_half_moved_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tag, source, other = places(cluster)
    slot = cluster.slot_of_key(tag)
    with Load(cluster, tmp_path, [wants(tag, SINGLE_KEY)] * 4) as load:
        for to in (other, source):
            cluster.begin_move(slot, to)
            load.wait_until_taken(40)
            cluster.move_keys(slot)
            load.wait_until_taken(40)
            # A key that was deleted and set again is on the new node, those that were held are on the former.
            load.wait_until_all_are_taken()
            cluster.move_keys(slot)
            cluster.finish_move(slot)
            load.wait_until_taken(40)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()


@also_on(newest_valkey)
@pytest.mark.slow
def test_redis_cli_reshards_under_load(cluster: Cluster, tmp_path: Path) -> None:
    source = cluster.node_of(0)
    other = next(master for master in cluster.masters() if master is not source)
    first = [slot for slot, node in enumerate(map(cluster.node_of, range(200))) if node is source][:50]
    tag = next(tag for tag in map(str, range(100_000)) if cluster.slot_of_key(tag) in first)
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 4) as load:
        for origin, target in ((source, other), (other, source)):
            reshard(origin, target, 200)  # the first slots of the node
            assert cluster.node_of_key(tag) is target
            load.wait_until_taken(40)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()


def reshard(source: ClusterNode, target: ClusterNode, slots: int) -> None:
    command = ["redis-cli", "--cluster", "reshard", f"{source.host}:{source.port}", "--cluster-from", source.id]
    command += ["--cluster-to", target.id, "--cluster-slots", str(slots), "--cluster-yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@also_on(valkey_server)
@pytest.mark.slow
def test_scripts_are_flushed_on_all_nodes_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tags = [tag_on(cluster, master) for master in cluster.masters()]
    with Load(cluster, tmp_path, [wants(tag, ALL) for tag in tags]) as load:
        for _ in range(20):
            cluster.flush_scripts()
            load.wait_until_taken(10)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()
