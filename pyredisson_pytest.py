"""A pytest plugin: a real server, clients for threads and asyncio, a proxy that breaks connections, tests under faults.

pytest loads this module in every run where pyredisson is installed. So it is outside of the package, whose import would
load redis, ssl and asyncio into each run, before a `conftest.py` may call gevent's `patch_all`. The fixtures and the
marker import the package when a test uses them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyredisson._api.aio.client import Client as AioClient
    from pyredisson._api.sync.client import Client
    from pyredisson._pytest import Address, AnyServer, Connections, GivenServer, Plan
    from pyredisson.testing import Proxy, Server

URL_VARIABLE = "PYREDISSON_TEST_URL"
FAULTS = "pyredisson_faults"
_PLAN = "_pyredisson_fault"
"""The fixture that the marker of the faults parametrizes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pyredisson")
    group.addoption(
        "--pyredisson-url",
        default=os.environ.get(URL_VARIABLE) or None,
        metavar="URL",
        help=f"a server to test with, instead of starting one; it is not emptied (also by {URL_VARIABLE})",
    )
    group.addoption(
        "--pyredisson-require",
        action="store_true",
        help="tests that need a server fail, instead of being skipped, if there is no program of one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{FAULTS}(*names, match=b'EVALSHA', times=1): run the test once without a fault and once under each; without"
        " names, under all",
    )
    config.addinivalue_line("markers", "pyredisson_allow_held: the test may leave locks held")
    if _has_pytest_asyncio(config):
        config.pluginmanager.register(_with_pytest_asyncio(), "pyredisson-asyncio")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(FAULTS)
    if marker is None:
        return
    from pyredisson._pytest import plans

    where = metafunc.definition.nodeid
    if _PLAN not in metafunc.fixturenames:
        pytest.fail(f"{where}: {FAULTS} needs redis_proxy or a client's fixture among the arguments", pytrace=False)
    try:
        made = plans(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        pytest.fail(f"{where}: {FAULTS}: {error}", pytrace=False)
    ids = ["no-fault", *(plan.name for plan in made)]
    metafunc.parametrize(_PLAN, [None, *made], ids=ids, indirect=True)


# It runs after the test itself, and only if that has passed. It isn't a wrapper: the new kind is a TypeError before
# pluggy 1.2, and a failure in the old kind is a warning since pluggy 1.4.
@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    if item.get_closest_marker(FAULTS) is not None:
        from pyredisson._pytest import INJECTED

        if (injection := item.stash.get(INJECTED, None)) is not None:
            injection.check()


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[Server | GivenServer]:
    """A server of this test run's own (`pyredisson.testing.Server`), or the server of `--pyredisson-url`."""
    if (url := pytestconfig.getoption("--pyredisson-url")) is not None:
        from pyredisson._pytest import GivenServer

        yield GivenServer(url)
        return
    from pyredisson.testing import Server

    try:
        server = Server()
    except FileNotFoundError as error:
        if pytestconfig.getoption("--pyredisson-require"):
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def empty_redis(redis_server: Server | GivenServer) -> Server:
    """`redis_server` without keys. Only for a server of the test run's own."""
    from pyredisson._pytest import GivenServer

    if isinstance(redis_server, GivenServer):
        pytest.skip("empty_redis needs a server of its own: the one of --pyredisson-url is not emptied")
    with redis_server.redis() as client:
        client.flushall()
    return redis_server


@pytest.fixture
def _pyredisson_server(request: pytest.FixtureRequest, redis_server: AnyServer) -> AnyServer:
    """The server for one test: without keys if it is the test run's own."""
    from pyredisson._pytest import GivenServer

    if not isinstance(redis_server, GivenServer):
        request.getfixturevalue("empty_redis")
    return redis_server


@pytest.fixture
def _pyredisson_fault(request: pytest.FixtureRequest) -> Plan | None:
    """The fault under which this test runs."""
    plan: Plan | None = getattr(request, "param", None)
    return plan


@pytest.fixture
def redis_proxy(
    request: pytest.FixtureRequest, _pyredisson_server: AnyServer, _pyredisson_fault: Plan | None
) -> Iterator[Proxy]:
    """A `pyredisson.testing.Proxy` of this test's own before the server, with the fault of the marker."""
    from pyredisson._pytest import GivenServer, inject
    from pyredisson.testing import Proxy

    if isinstance(_pyredisson_server, GivenServer) and not _pyredisson_server.takes_proxy:
        pytest.skip("redis_proxy needs a single server without TLS, by host and port")
    host, port = _pyredisson_server.host, _pyredisson_server.port
    with Proxy(host, port) as proxy, inject(_pyredisson_fault, proxy, _pyredisson_server, request.node):
        yield proxy


@pytest.fixture
def _pyredisson_address(
    request: pytest.FixtureRequest, _pyredisson_server: AnyServer, _pyredisson_fault: Plan | None
) -> Address:
    """What the clients of this test connect to: the server, or the proxy if the test uses it or has a fault."""
    from pyredisson._pytest import Address

    proxy: Proxy | None = None
    if _pyredisson_fault is not None or "redis_proxy" in request.fixturenames:
        proxy = request.getfixturevalue("redis_proxy")
    return Address(_pyredisson_server, proxy, has_fault=_pyredisson_fault is not None)


@pytest.fixture
def pyredisson_connect(request: pytest.FixtureRequest, _pyredisson_address: Address) -> Iterator[Connections[Client]]:
    """A function that makes clients for threads, as `pyredisson.connect`; without an address, of this test's server."""
    from pyredisson._pytest import connections

    with connections(request, _pyredisson_address) as made:
        yield made


@pytest.fixture
def pyredisson_client(pyredisson_connect: Connections[Client]) -> Client:
    """A client for threads, closed after the test. A test that leaves a lock held fails."""
    return pyredisson_connect()


@pytest.fixture
async def _pyredisson_aio(
    request: pytest.FixtureRequest, _pyredisson_address: Address
) -> AsyncIterator[Connections[AioClient]]:
    """Clients that are closed in the event loop of the test, by anyio's plugin or pytest-asyncio in its auto mode."""
    from pyredisson._pytest import aio_connections

    async with aio_connections(request, _pyredisson_address) as made:
        yield made


def _with_pytest_asyncio() -> ModuleType:
    """A plugin with the same fixture for pytest-asyncio in its other mode. To be called where that is loaded."""
    # Not at the top: pytest must load it first, to rewrite its assertions.
    import pytest_asyncio

    @pytest_asyncio.fixture
    async def _pyredisson_pytest_asyncio(
        request: pytest.FixtureRequest, _pyredisson_address: Address
    ) -> AsyncIterator[Connections[AioClient]]:
        from pyredisson._pytest import aio_connections

        async with aio_connections(request, _pyredisson_address) as made:
            yield made

    # A module, as pytest would bind the function to an object of another kind.
    plugin = ModuleType("pyredisson_pytest_asyncio")
    plugin.__dict__["_pyredisson_pytest_asyncio"] = _pyredisson_pytest_asyncio
    return plugin


@pytest.fixture
def pyredisson_aconnect(request: pytest.FixtureRequest, _pyredisson_address: Address) -> Connections[AioClient]:
    """As `pyredisson_connect`, for clients of `pyredisson.asyncio`."""
    if "anyio_backend" in request.fixturenames:
        found: Connections[AioClient] = request.getfixturevalue("_pyredisson_aio")
    elif _has_pytest_asyncio(request.config):
        found = request.getfixturevalue("_pyredisson_pytest_asyncio")
    else:
        pytest.fail("fixtures for asyncio need pytest-asyncio, or anyio and its marker on the test", pytrace=False)
    return found


@pytest.fixture
def pyredisson_aclient(pyredisson_aconnect: Connections[AioClient]) -> AioClient:
    """A client for asyncio, closed after the test in its event loop. A test that leaves a lock held fails."""
    return pyredisson_aconnect()


def _has_pytest_asyncio(config: pytest.Config) -> bool:
    return any(map(config.pluginmanager.hasplugin, ("asyncio", "pytest_asyncio.plugin")))
