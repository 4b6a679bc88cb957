"""Slots that the servers move with all keys at once, while locks are acquired by many."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyredisson.testing import Cluster, ServerError
from tests.faults.soak_worker import clock
from tests.support.programs import ATOMIC_PROGRAMS

from .load import LEASE, Load, tag_on, wants
from .slow_moves import begin_slow_move, while_it_is_copied
from .test_scenario_slots import ALL, places

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("program", ATOMIC_PROGRAMS, indirect=True)]


def test_slots_move_to_and_fro_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tag, source, other = places(cluster)
    slot = cluster.slot_of_key(tag)
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 4) as load:
        for to in (other, source) * 3:
            cluster.move_atomically(slot, slot, to)
            load.wait_until_taken(40)
        with while_it_is_copied(cluster, tag, other):
            load.wait_until_taken(20)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()


def test_all_slots_of_a_master_move_under_load(cluster: Cluster, tmp_path: Path) -> None:
    source, other, third = cluster.masters()
    tags = [tag_on(cluster, node) for node in (source, other)]
    ((first, last),) = source.view()[source.id].slots
    with Load(cluster, tmp_path, [wants(tag, ALL) for tag in tags] * 2) as load:
        for to in (other, third, source):
            cluster.move_atomically(first, last, to)
            load.wait_until_taken(60)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert not history.disturbances()


@pytest.mark.parametrize(("struck", "strike"), [("source", "pause"), ("target", "kill")])
def test_a_node_fails_while_a_slot_moves_under_load(
    own_cluster: Cluster, tmp_path: Path, struck: str, strike: str
) -> None:
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
        calm = clock()
        load.wait_until_all_are_taken()
        load.end(calm)


def test_a_move_is_cancelled_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tag, source, other = places(cluster)
    with Load(cluster, tmp_path, [wants(tag, ALL)] * 2) as load:
        for _ in range(3):
            move = begin_slow_move(cluster, tag, other)
            load.wait_until_taken(5)
            move.cancel()
            with pytest.raises(ServerError, match="the slots have not moved"):
                cluster.finish_atomic_move(move)
            load.wait_until_taken(10)
        source.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    assert cluster.node_of_key(tag) is source
    assert not history.disturbances()
