"""All nodes of a cluster are replaced by others, of which the client knows only what the user gave it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyredisson.testing import Cluster
from tests.support.backends import Asyncio, Backend, Threads

from .load import OPTIONS

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@pytest.fixture
def clusters() -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters of three masters. The nodes of the second one don't run yet."""
    with Cluster(replicas=0) as former, Cluster(replicas=0) as latter:
        for node in latter.nodes:
            latter.kill(node)
        yield former, latter


@pytest.mark.parametrize("kind", [Threads, Asyncio], ids=lambda kind: str(kind.name))
async def test_all_nodes_are_replaced(clusters: tuple[Cluster, Cluster], kind: type[Backend]) -> None:
    """As behind one DNS name in maintenance: of the addresses that the user gave, another one answers now."""
    former, latter = clusters
    seeds = [former.nodes[0].address, former.nodes[1].address, latter.nodes[2].address]
    url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in seeds)
    backend = kind(url)
    one, two = backend.connect(**OPTIONS), backend.connect(**OPTIONS)
    names = [f"orders-{number}" for number in range(6)]
    for name in names:
        await one.get_lock(name).lock()
    former.stop()
    for node in latter.nodes:
        node.start()
    latter.wait_until_consistent()
    for name in names:
        # What the former nodes knew is gone, so all that was held is lost.
        await backend.until(one.get_lock(name).lost.is_set, 10)
        assert await two.get_lock(name).try_lock(10)
        await two.get_lock(name).unlock()
    assert await one.get_lock("new").try_lock(10)
    await backend.close()
