"""Fixtures of the tests with several servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from pyredisson.testing import Cluster, Replicated, Sentinels
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.keepers import Watched
from tests.support.replicated_master import ReplicatedMaster

CALM_NODE_TIMEOUT = 10.0
"""Seconds: a machine that stands still for a moment must not lead to a failover that no test has asked for."""


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """One cluster for all tests of this process."""
    with Cluster() as running:
        running.set_node_timeout(CALM_NODE_TIMEOUT)
        yield running


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A cluster of three masters with a replica each, empty at the start of each test. Its nodes are not to be stopped.

    A test may move slots, and let replicas take over (`takeover=True`: an election takes up to four node timeouts, when
    another test had one before). It need not undo that.
    """
    shared_cluster.flush()
    return shared_cluster


@pytest_asyncio.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """The test runs on each of the two backends. Their clients are those of the cluster that the test asks for."""
    name = next(name for name in ("own_cluster", "shared_master", "cluster") if name in request.fixturenames)
    made: Backend = request.param(request.getfixturevalue(name).url)
    yield made
    await made.close()


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster of this test's own, whose nodes it may kill, pause and restart."""
    with Cluster() as running:
        yield running


@pytest.fixture
def master(shared_master: Cluster) -> Iterator[ReplicatedMaster]:
    """The only master of `shared_master`, a fixture of the test's module. Its replicas can be frozen."""
    shared_master.flush()
    made = ReplicatedMaster(shared_master)
    made.node.ask("CONFIG", "RESETSTAT")
    yield made
    made.restore()


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    """A master with a replica, and three sentinels, all of this test's own."""
    with Sentinels() as running:
        yield running


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    """A master with a replica, both of this test's own."""
    with Replicated() as running:
        yield running


@pytest.fixture
def watch_topology() -> Iterator[Callable[..., Watched]]:
    """Makes keepers, which end with the test."""
    made: list[Watched] = []

    def make(topology: str, nodes: Any, **fields: Any) -> Watched:
        made.append(Watched(topology, nodes, **fields))
        return made[-1]

    yield make
    for watched in made:
        watched.close()
