"""Fixtures of all tests: servers, a proxy that breaks connections, the backends; and the checks around each test."""

import contextlib
import gc
import math
import os
import shutil
import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from redis import Redis

import pyredisson
from pyredisson._protocol.scripts import NAMES, ScriptSet, script
from pyredisson.inspection import deadlocks
from pyredisson.logic import announcement, renewer, waits
from pyredisson.testing import Proxy, Server, ServerError
from tests.support.backends import Asyncio, Backend, Threads
from tests.support.children import Child
from tests.support.faults import FLAGS
from tests.support.inspecting import Scene
from tests.support.items import awaits, depends_on_time

DETERMINISTIC = (
    *("tests/cluster/test_keeper.py", "tests/cluster/test_routed_channels.py", "tests/cluster/test_routing_table.py"),
    *("tests/core/", "tests/docs/", "tests/logic/", "tests/lua/", "tests/packaging/test_", "tests/properties/"),
    "tests/virtual/",
)
"""The tests that `make test` runs, by the beginning of their ids. All others are marked `real`: they depend on real
time, or on faults of real processes and networks."""
HEAVY = (
    *("tests/campaign/", "tests/cluster/test_scenarios.py", "tests/dashboard/test_browser.py"),
    *("tests/frameworks/", "tests/interop/", "tests/logic/test_planted_bugs.py", "tests/logic/test_schedules.py"),
    *("tests/packaging/test_packaging.py", "tests/properties/", "tests/testing/test_plugin.py"),
)
"""The tests marked heavy, likewise: they load several servers or a JVM, run a whole pytest, or compute for long."""
LONG = 300
"""Seconds after which a test fails that is slow, heavy, or run by `make test`. The general limit (pyproject.toml) is
for hangs; what works for 10 s on an idle machine may take minutes on a busy one."""


# An example has no time limit of its own: on a busy machine any limit is exceeded now and then.
# The examples are the same in each run, whichever modules are loaded. Numbers in these would become examples, too.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
providers._get_local_constants = Constants
hypothesis.settings.load_profile("untimed")


# A shell starts jobs in the background with SIGINT ignored, and `nohup` with SIGHUP. Children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--uvloop", action="store_true", help="run only the tests of the asyncio backend, on uvloop")
    parser.addoption("--virtual", action="store_true", help="run only tests of the asyncio backend, in virtual time")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("uvloop"):
        config.pluginmanager.register(OnUvloop())
    if config.getoption("virtual"):
        # For the processes that run the tests.
        os.environ["PYREDISSON_VIRTUAL"] = "1"
        from tests.virtual.plugin import InVirtualTime

        config.pluginmanager.register(InVirtualTime())
    # Most tests look at all keys of a server, or count its commands.
    announcement.FIRST_AFTER = math.inf
    renewer.LOOK_EVERY = math.inf


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From now on a collection of garbage looks at what tests make only, not at thousands of tests and all modules."""
    # When Hypothesis first uses its random numbers, it looks for what refers to them.
    hypothesis.given(hypothesis.strategies.none())(lambda _: None)()
    gc.collect()
    if hasattr(gc, "freeze"):  # which PyPy doesn't have
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """No garbage is collected while a failure is described. Both parse sources, the description and what finalizers log
    of tasks that the test has left, and Python 3.11 can't parse one within another: pytest itself would end."""
    if call.excinfo is not None:
        gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


class OnUvloop:
    """With `--uvloop`: only the tests that await and don't run on the threads backend."""

    def pytest_asyncio_loop_factories(self) -> dict[str, Callable[[], AbstractEventLoop]]:
        import uvloop  # which PyPy doesn't have

        return {"uvloop": uvloop.new_event_loop}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if not awaits(item)]
        items[:] = [item for item in items if awaits(item)]
        config.hook.pytest_deselected(items=others)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test` doesn't import the modules of which it runs no test."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    runs = any(each.startswith(path) or path.startswith(each.rstrip("/")) for each in (*DETERMINISTIC, "tests/api/"))
    return (config.option.markexpr == "not real" and not runs) or None


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        deterministic = item.nodeid.startswith(DETERMINISTIC)
        if item.nodeid.startswith("tests/api/"):
            # What threads do on a real server, as far as it doesn't depend on time.
            deterministic = not awaits(item) and not depends_on_time(item)
        if not deterministic or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.real)
        if item.nodeid.startswith(HEAVY):
            item.add_marker(pytest.mark.heavy)
        if any(map(item.get_closest_marker, ("slow", "heavy"))) or not item.get_closest_marker("real"):
            # Behind a limit of the test's own.
            item.add_marker(pytest.mark.timeout(LONG))
        if item.get_closest_marker("asyncio") is not None:
            # Tests of both backends are coroutines: the threads backend, too, is called on an event loop's thread.
            item.add_marker(pytest.mark.filterwarnings("ignore:a client for threads is used:RuntimeWarning"))


@pytest.fixture(autouse=True)
def _old_server_is_known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client learns from its first connection that a server is old, and sends one call twice. Tests count calls."""
    if FLAGS or request.node.nodeid.startswith("tests/virtual/"):
        return
    made = ScriptSet.__init__

    def knowing(self: ScriptSet, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.use(with_shebang=False)

    monkeypatch.setattr(ScriptSet, "__init__", knowing)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are made in the test announce themselves, at once after their first hold or wait."""
    monkeypatch.setattr(announcement, "FIRST_AFTER", 0.0)
    monkeypatch.setattr(announcement, "PAUSE", 0.05)


@pytest.fixture
def listed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are listed after a tenth of a second, and deadlocks are confirmed soon."""
    for module in (announcement, waits):
        monkeypatch.setattr(module, "LISTED_AFTER", 0.1)
    monkeypatch.setattr(deadlocks, "CONFIRMED_AFTER", 0.3)


@pytest.fixture
async def scene(backend: Backend) -> AsyncIterator[Scene]:
    scene = Scene(backend)
    yield scene
    await scene.finish()


@pytest.fixture
def restarts_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are made in the test look each second whether the server was restarted, as usual."""
    monkeypatch.setattr(renewer, "LOOK_EVERY", 1.0)


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    with contextlib.ExitStack() as stack:
        yield lambda program, *args: stack.enter_context(contextlib.closing(Child(program, *args)))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests of this process, empty at the start of each. Not to be stopped or paused."""
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def tls_server() -> Iterator[Server]:
    """One server with TLS beside `server`, for all tests of this process; not flushed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes its certificate, isn't installed")
    running = Server(tls=True)
    try:
        running.start()
    except ServerError as error:
        if "built without TLS" not in str(error):
            raise
        pytest.skip(f"{running.executable} was built without TLS")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def two_more() -> Iterator[list[Server]]:
    """Two servers beside `server`, for all tests of this process."""
    with Server() as one, Server() as other:
        yield [one, other]


@pytest.fixture
def servers(server: Server, two_more: list[Server]) -> list[Server]:
    """Three independent servers, empty at the start of each test. Not to be stopped or paused."""
    for each in two_more:
        _empty(each)
    return [server, *two_more]


@pytest.fixture
def redises(servers: list[Server]) -> Iterator[list[Redis]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(each.redis()) for each in servers]


@pytest.fixture
def proxies(servers: list[Server]) -> Iterator[list[Proxy]]:
    """Proxies of this test's own before `servers`."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Proxy(each.host, each.port)) for each in servers]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of this test's own, to pause, kill and restart."""
    with Server() as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy of this test's own before `server`."""
    with Proxy(server.host, server.port) as running:
        yield running


@pytest.fixture
def admin(server: Server) -> Iterator[Redis]:
    with server.redis() as client:
        yield client


@pytest.fixture
def redis(admin: Redis) -> Any:
    """The same, without types."""
    return admin


@pytest.fixture
def user(server: Server, redis: Any) -> Callable[[str], str]:
    """Makes a user with these rights. Returns the server's address for that user."""

    def make(rules: str) -> str:
        redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", *rules.split())
        return f"redis://app:x@{server.host}:{server.port}"

    return make


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(server.url) as made:
        yield made


def on(*kinds: type[Backend]) -> Any:
    """A fixture: the test runs on each of these backends."""

    async def backend(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Backend]:
        made: Backend = request.param(server.url)
        yield made
        await made.close()

    return pytest.fixture(backend, params=kinds, ids=lambda kind: str(kind.name))


backend, threads, tasks = on(Threads, Asyncio), on(Threads), on(Asyncio)


@pytest.fixture(autouse=True)
def empty_server(request: pytest.FixtureRequest) -> None:
    """Removes all keys and loads all scripts, so that the number of commands doesn't depend on earlier tests."""
    if "server" in request.fixturenames:
        _empty(request.getfixturevalue("server"))


def _empty(server: Server) -> None:
    known = [script(name, with_shebang=server.version >= (7,)) for name in NAMES]
    with server.redis() as client:
        client.flushall()
        for each, is_loaded in zip(known, client.script_exists(*(each.sha for each in known)), strict=True):
            if not is_loaded:
                client.script_load(each.text)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """A forgotten non-daemon thread would keep a user's process from ever ending."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in left:
        thread.join(2.0)
    names = [thread.name for thread in left if thread.is_alive()]
    assert not names, f"threads left behind: {names}"
