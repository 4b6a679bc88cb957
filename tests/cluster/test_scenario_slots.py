"""Slots that move, in steps or atomically, and flushed scripts, while locks are acquired by many."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pyredisson.testing import Cluster, ClusterNode, ServerError
from tests.support.programs import ATOMIC_PROGRAMS, also_on, newest_redis, newest_valkey, valkey_server

from .load import ALL, LEASE, Load, wants
from .scenes import SINGLE_KEY, begin_slow_move, other_than, places, tag_on, while_it_is_copied

pytestmark = pytest.mark.slow
atomically = pytest.mark.parametrize("program", ATOMIC_PROGRAMS, indirect=True)


@also_on(valkey_server)
def test_slots_move_to_and_fro_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tag, source, other = places(cluster)
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 4) as load:
        for to in (other, source) * 3:
            cluster.move_slot(cluster.slot_of_key(tag), to)
            load.wait_until_taken(40)
        load.end(undisturbed=True)


@also_on(newest_redis)
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
        load.end(undisturbed=True)


@also_on(newest_valkey)
def test_redis_cli_reshards_under_load(cluster: Cluster, tmp_path: Path) -> None:
    source = cluster.node_of(0)
    other = other_than(source, cluster)
    first = [slot for slot, node in enumerate(map(cluster.node_of, range(200))) if node is source][:50]
    tag = next(tag for tag in map(str, range(100_000)) if cluster.slot_of_key(tag) in first)
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 4) as load:
        for origin, target in ((source, other), (other, source)):
            reshard(origin, target, 200)  # the first slots of the node
            assert cluster.node_of_key(tag) is target
            load.wait_until_taken(40)
        load.end(undisturbed=True)


def reshard(source: ClusterNode, target: ClusterNode, slots: int) -> None:
    command = ["redis-cli", "--cluster", "reshard", f"{source.host}:{source.port}", "--cluster-from", source.id]
    command += ["--cluster-to", target.id, "--cluster-slots", str(slots), "--cluster-yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@also_on(valkey_server)
def test_scripts_are_flushed_on_all_nodes_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tags = [tag_on(cluster, master) for master in cluster.masters()]
    with Load(cluster, tmp_path, [wants(tag, ALL) for tag in tags]) as load:
        for _ in range(20):
            cluster.flush_scripts()
            load.wait_until_taken(10)
        load.end(undisturbed=True)


@atomically
def test_slots_move_atomically_under_load(cluster: Cluster, tmp_path: Path) -> None:
    """One slot, all slots of a master, and moves that are cancelled."""
    source, other, third = cluster.masters()
    tag, *others = [tag_on(cluster, node) for node in (source, other)]
    slot = cluster.slot_of_key(tag)
    ((first, last),) = source.view()[source.id].slots
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 3 + [wants(each, ALL) for each in others]) as load:
        for to in (other, source) * 2:
            cluster.move_atomically(slot, slot, to)
            load.wait_until_taken(40)
        for to in (other, third, source):
            cluster.move_atomically(first, last, to)
            load.wait_until_taken(60)
        for _ in range(2):
            move = begin_slow_move(cluster, tag, other)
            load.wait_until_taken(5)
            move.cancel()
            with pytest.raises(ServerError, match="the slots have not moved"):
                cluster.finish_atomic_move(move)
            load.wait_until_taken(10)
        assert cluster.node_of_key(tag) is source
        with while_it_is_copied(cluster, tag, other):
            load.wait_until_taken(20)
        load.end(undisturbed=True)


@atomically
@pytest.mark.parametrize(("struck", "strike"), [("source", "pause"), ("target", "kill")])
def test_a_node_fails_amid_a_move_under_load(own_cluster: Cluster, tmp_path: Path, struck: str, strike: str) -> None:
    """The slot stays at the source, or at the replica that is promoted in its place, which has what it confirmed."""
    tag, source, other = places(own_cluster)
    node = source if struck == "source" else other
    with Load(own_cluster, tmp_path, [wants(tag), wants(tag)]) as load:
        begin_slow_move(own_cluster, tag, other, 20.0)
        load.wait_until_taken(20)
        getattr(own_cluster, strike)(node)
        promoted = own_cluster.wait_for_promotion(node)
        load.wait_until_served(LEASE + 3)
        assert own_cluster.node_of_key(tag) is (promoted if struck == "source" else source)
        (own_cluster.restart if strike == "kill" else own_cluster.resume)(node)
        load.end()
