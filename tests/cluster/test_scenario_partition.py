"""A client that doesn't reach one node of a cluster, while the other nodes do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyredisson.testing import Cluster, Proxy
from tests.faults.soak_worker import clock

from .load import LEASE, Load, tag_on, wants

pytestmark = pytest.mark.slow


@pytest.fixture
def proxied_cluster() -> Iterator[Cluster]:
    """A cluster with a proxy before each node."""
    with Cluster(proxied=True) as running:
        yield running


def refuse(proxy: Proxy) -> None:
    proxy.refuse(True)
    proxy.cut(reset=True)


def swallow(proxy: Proxy) -> None:
    proxy.blackhole()
    proxy.stall()


PARTITIONS: dict[str, tuple[Callable[[Proxy], object], Callable[[Proxy], object]]] = {
    # What was sent meanwhile arrives late, when the connections are open again.
    "stall": (Proxy.stall, Proxy.resume),
    "refuse": (refuse, lambda proxy: proxy.refuse(False)),
    "swallow": (swallow, Proxy.resume),
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_node_is_out_of_reach_under_load(proxied_cluster: Cluster, tmp_path: Path, kind: str) -> None:
    """Longer than a lease: holders lose what they hold there, and nothing else waits."""
    separate, reunite = PARTITIONS[kind]
    node, spared = proxied_cluster.masters()[:2]
    proxy = proxied_cluster.proxy_of(node)
    tag, other = tag_on(proxied_cluster, node), tag_on(proxied_cluster, spared)
    both = [("multi", [f"both{{{tag}}}", f"both{{{other}}}"])]
    owners = [wants(tag), wants(tag), both, *[wants(other, ("lock", "fair", "read"), "spared")] * 2]
    with Load(proxied_cluster, tmp_path, owners) as load:
        separate(proxy)
        separated = clock()
        while clock() < separated + LEASE + 1:
            load.wait_until_served(LEASE, "spared")
        reunite(proxy)
        reunited = clock()
        load.wait_until_served(LEASE + 3, f"{{{tag}}}")
        calm = clock()
        load.wait_until_all_are_taken()
        history = load.end(calm)
    within = [hold for hold in history.holds.values() if separated < hold.asked and hold.begin < reunited]
    assert not [hold for hold in within if tag in hold.name and f"both{{{other}}}" != hold.name], "it was no partition"
