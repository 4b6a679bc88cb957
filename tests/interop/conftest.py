"""Fixtures of the tests beside Java: a Java process for each version of Redisson, and a server for both sides."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.conftest import shared_cluster  # noqa: F401 - a fixture
from tests.support.backends import Asyncio, Backend, Threads

from .jvm import VERSIONS, JavaClient, Jvm, class_path, needed
from .targets import NON_REENTRANT, OLD, Target, against, cluster_of_servers, single_server

HERE = Path(__file__).parent
CLUSTER_KINDS = (None, "Lock", "FairLock", "ReadLock", "WriteLock")
"""What is tested on a cluster, too. Only routing, redirects and messages differ there."""
Connect = Callable[..., JavaClient]
Jvms = Callable[[str], Jvm]
on_one_server = pytest.mark.parametrize("target", ["single"], indirect=True)
on_a_cluster = pytest.mark.parametrize("target", ["cluster"], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Removes tests of what a version doesn't have, or what isn't tested on a cluster, and groups the others.

    With `--dist loadgroup` all tests of one version and target run in one process, and so share one Java process.
    """
    left_out = []
    for item in items:
        if item.path.parent != HERE:  # the hook is called with the tests of all folders
            continue
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        version, kind, target = (params.get(name) for name in ("version", "kind", "target"))
        if (version in OLD and kind in NON_REENTRANT) or (target == "cluster" and kind not in CLUSTER_KINDS):
            left_out.append(item)
        elif version in VERSIONS:
            item.add_marker(pytest.mark.xdist_group(f"redisson-{version}-{target}"))
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def jvms() -> Iterator[Jvms]:
    """The Java processes of a test session, by version. Each starts when it is first asked for."""
    with ExitStack() as stack:
        yield cache(lambda version: stack.enter_context(closing(Jvm(version))))


def built(version: str) -> str:
    with needed():
        class_path(version)
    return version


@pytest.fixture(params=VERSIONS, ids=lambda version: f"redisson-{version}")
def version(request: pytest.FixtureRequest) -> str:
    """The test runs beside each of these versions of Redisson."""
    return built(request.param)


@pytest.fixture
def versions(target: Target) -> Sequence[str]:
    """The test runs once, with all versions of Redisson beside each other that hear each other."""
    # On a cluster the old version chooses by chance between plain and sharded messages.
    return [*map(built, VERSIONS if target.name == "single" else VERSIONS[:1])]


@pytest.fixture
def jvm(version: str, jvms: Jvms) -> Jvm:
    """A Java process that tests share. Not to be killed."""
    return jvms(version)


@pytest.fixture
def own_jvm(version: str) -> Iterator[Jvm]:
    """A Java process of this test's own, to kill."""
    with closing(Jvm(version)) as process:
        yield process


@pytest.fixture(params=("single", "cluster"))
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """What both sides talk to."""
    make, servers = (single_server, "server") if request.param == "single" else (cluster_of_servers, "shared_cluster")
    with closing(make(request.getfixturevalue(servers))) as shared:
        shared.redis.flushall()
        yield shared


@pytest.fixture
def connect_java(jvm: Jvm, target: Target) -> Iterator[Connect]:
    """Makes Redisson clients, with settings as in Redisson's configuration file; closed after the test.

    `servers`: settings of the servers' section. `prefix`: what the name mapper puts before each name.
    """
    clients: list[JavaClient] = []

    def connect(servers: Mapping[str, object] | None = None, *, prefix: str = "", **settings: object) -> JavaClient:
        clients.append(jvm.connect(target.yaml(servers, **settings), prefix))
        return clients[-1]

    if target.name not in jvm.warmed_up:
        jvm.warmed_up.add(target.name)
        # Has the classes loaded which tests use that measure time: on a busy machine that takes more than a second.
        client = connect()
        for kind in ("Lock", "FairLock", "ReadLock", "WriteLock"):
            lock = client.get(kind, kind)
            client.ann.call(lock, "lock")
            client.bob.call(client.get(against(kind), kind), "tryLock", 50, "MILLISECONDS")
            client.ann.call(lock, "unlock")
        target.redis.flushall()

    yield connect
    for each in clients:
        each.shutdown()


@pytest.fixture
def java(connect_java: Connect) -> JavaClient:
    """A Redisson client with default settings: no lease ends and no renewal comes while a test runs."""
    return connect_java()


@pytest.fixture
async def both(target: Target) -> AsyncIterator[list[Backend]]:
    """Both backends in one test, for what takes long: both wait at the same time.

    A test waits for asyncio first. Threads go on meanwhile, but to wait for them stops the event loop.
    """
    made: list[Backend] = [Asyncio(target.url), Threads(target.url)]
    yield made
    for each in made:
        await each.close()


@pytest.fixture(params=[Threads, Asyncio], ids=lambda kind: str(kind.name))
async def backend(request: pytest.FixtureRequest, target: Target) -> AsyncIterator[Backend]:
    """The test runs on each of the two backends."""
    made: Backend = request.param(target.url)
    yield made
    await made.close()
