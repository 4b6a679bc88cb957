"""Atomic moves whose keys take a while to copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyredisson.testing import AtomicMove, Cluster, ClusterNode

COPYING_SECONDS = 2.0
"""How long the source copies the keys of a slow move: long enough for some calls."""
KEYS = 20


def begin_slow_move(cluster: Cluster, tag: str, to: ClusterNode, seconds: float = COPYING_SECONDS) -> AtomicMove:
    """Begins a move whose keys take a while to copy. Meanwhile the source goes on serving the slot."""
    slot = cluster.slot_of_key(tag)
    source = cluster.node_of(slot)
    for number in range(KEYS):
        source.ask("SET", f"{{{tag}}}:{number}", number, "PX", 60_000)
    source.ask("CONFIG", "SET", "rdb-key-save-delay", round(seconds / KEYS * 1e6))
    return cluster.begin_atomic_move(slot, slot, to)


@contextmanager
def while_it_is_copied(cluster: Cluster, tag: str, to: ClusterNode) -> Iterator[None]:
    """The keys of the slot are copied while the body runs. Behind it the slot has moved."""
    source = cluster.node_of_key(tag)
    move = begin_slow_move(cluster, tag, to)
    yield
    assert cluster.node_of_key(tag) is source, "the copying did not take long enough for the test"
    cluster.finish_atomic_move(move)
    source.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
    assert cluster.node_of_key(tag) is to
