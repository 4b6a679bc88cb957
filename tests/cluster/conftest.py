"""Fixtures of the tests with several servers."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from pyredisson.testing import Cluster, Replicated, Sentinels
from tests.support.backends import NOWHERE, Asyncio, Backend, Threads
from tests.support.children import ATOMIC_PROGRAMS, PROGRAMS

CALM_NODE_TIMEOUT = 10.0
"""Seconds: a machine that stands still for a moment must not lead to a failover that no test has asked for."""
NO_FAILOVER = 60.0
"""Seconds: nodes that a test freezes don't count as failed."""
SHARED = {"proxied", "two_masters", "moving"}
"""Servers of all tests of a module."""
SERVERS = (
    *("two_replicas", "own_cluster", "one_node", "masters_only", "two_masters", "proxied", "moving", "one_master"),
    *("idle_sentinels", "sentinels", "replicated", "with_replicas", "master", "cluster"),
)
"""The fixtures whose URL the clients of a test get. The first one counts that the test uses."""


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.set_node_timeout(CALM_NODE_TIMEOUT)
        yield running


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> str | None:
    """The server program (`everywhere`, `atomically`, `also_on`). None: the usual one."""
    find: Callable[[], str] | None = getattr(request, "param", None)
    return None if find is None else find()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, program: str | None) -> Any:
    """A cluster of three masters with a replica each, empty at the start of each test. Its nodes are not to be stopped.
    A test may move slots, and let replicas take over (`takeover=True`: an election takes up to four node timeouts, when
    another test had one before). It need not undo that."""
    found = request.getfixturevalue("shared_cluster" if program is None else "calm_cluster")
    found.flush()
    return found


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    """Servers that the tests of a module share are empty at the start of each test."""
    for name in SHARED & {*request.fixturenames}:
        request.getfixturevalue(name).flush()


@pytest.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """The test runs on each of the two backends, whose clients are those of the servers that the test uses."""
    name = next((name for name in SERVERS if name in request.fixturenames), None)
    made: Backend = request.param(NOWHERE if name is None else request.getfixturevalue(name).url)
    yield made
    await made.close()


everywhere = pytest.mark.parametrize("program", PROGRAMS, indirect=True)
atomically = pytest.mark.parametrize("program", ATOMIC_PROGRAMS, indirect=True)


def started(
    kind: Callable[..., Any], scope: Any = "function", node_timeout: float | None = None, **options: Any
) -> Any:
    """A fixture: such servers of a test's own, which it may kill, pause and restart; or of a module (`scope`)."""

    @pytest.fixture(scope=scope)
    def fixture(program: str | None) -> Iterator[Any]:
        with kind(executable=program, **options) as running:
            if node_timeout is not None:
                running.set_node_timeout(node_timeout)
            yield running

    return fixture


own_cluster = started(Cluster)
calm_cluster = started(Cluster, node_timeout=CALM_NODE_TIMEOUT)
proxied_cluster = started(Cluster, proxied=True)
one_node = started(Cluster, masters=1, replicas=0)
masters_only = started(Cluster, masters=3, replicas=0, config={"cluster-require-full-coverage": "no"})
"""Three masters without replicas, which serve their slots although others are missing."""
one_master = started(Cluster, masters=1, replicas=1, proxied=True)
two_replicas = started(Cluster, masters=1, replicas=2)
sentinels = started(Sentinels)
"""A master with a replica, and three sentinels."""
replicated = started(Replicated)
"""A master with a replica."""


def either(*names: str) -> Any:
    """A fixture: one of these."""

    @pytest.fixture(params=names)
    def fixture(request: pytest.FixtureRequest) -> Any:
        return request.getfixturevalue(request.param)

    return fixture


with_replicas = either("sentinels", "replicated")
"""A master with a replica, with Sentinels and without, of this test's own. Another parameter: `one_master`."""
