"""What the fixtures of the pytest plugin `pyredisson_pytest` import when they are used."""

import re
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, NamedTuple, TypeVar, Unpack

import pytest
from redis import Redis

from pyredisson._api.aio.client import Client as AioClient
from pyredisson._api.aio.client import connect as aio_connect
from pyredisson._api.sync.client import Client, connect
from pyredisson._protocol.scripts import NAMES, script
from pyredisson._settings.address import Address as ServerAddress
from pyredisson._settings.config import Config
from pyredisson._settings.fields import ConfigFields
from pyredisson.testing import Fault, Hold, Proxy, Server

FAULT_TIMEOUT = 0.5
"""Seconds after which a client gives up a reply, in a test with a fault: a lost reply doesn't cost 3 s."""
LATENCY = 0.05
"""Seconds in each direction."""
LATE = 1.0
"""Seconds for which a reply is late: by then a client of the fixtures has given it up (`FAULT_TIMEOUT`)."""
OUTAGE = 1.0
"""Seconds for which the server can't be reached."""

C = TypeVar("C")
INJECTED = pytest.StashKey["Injection"]()


class GivenServer:
    """A server that runs already, and whose data is not the tests' own.

    The fixtures' clients put a random prefix before all names: so no test meets another one's locks, or a program's.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.config = Config.of(url)
        self.host = self.config.host
        self.port = self.config.port

    def redis(self, **options: Any) -> Redis:
        # redis-py doesn't know `valkey://`.
        client: Redis = Redis.from_url(re.sub("^valkey", "redis", self.url), **options)
        return client

    @property
    def takes_proxy(self) -> bool:
        """Whether a proxy can stand before it."""
        return self.config.topology == "single" and not self.config.ssl and self.config.path is None


AnyServer = Server | GivenServer


def load_scripts(server: AnyServer) -> None:
    """Has the server load all scripts: else a fault could strike a call that finds no script, and has no effect."""
    with server.redis() as client:
        major = int(client.info("server")["redis_version"].partition(".")[0])
        for name in NAMES:
            client.script_load(script(name, with_shebang=major >= 7).text)


# --- Its clients


class Address:
    """The server of one test, directly or through a proxy, and the settings of its clients."""

    def __init__(self, server: AnyServer, proxy: Proxy | None, *, has_fault: bool) -> None:
        config = Config.of(server.url)
        if proxy is not None:
            config = config.at(ServerAddress(proxy.host, proxy.port))
        self.config = config
        self._fields: ConfigFields = {"timeout": FAULT_TIMEOUT} if has_fault else {}
        self._prefix = f"test-{secrets.token_hex(4)}:" if isinstance(server, GivenServer) else ""

    def fields(self, given: ConfigFields) -> ConfigFields:
        """The settings of a client for which a test gives these. The prefix is put before what its mapper returns."""
        prefix, mapper = self._prefix, given.get("name_mapper") or str
        mapping: ConfigFields = {"name_mapper": lambda name: prefix + mapper(name)} if prefix else {}
        return self._fields | given | mapping


class Connections(Generic[C]):
    """Makes the clients of one test."""

    def __init__(self, address: Address, connect: Callable[..., C]) -> None:
        self.clients: list[C] = []
        self._address = address
        self._connect = connect

    def __call__(self, address: object = None, **fields: Unpack[ConfigFields]) -> C:
        if address is None:
            address, fields = self._address.config, self._address.fields(fields)
        client = self._connect(address, **fields)
        self.clients.append(client)
        return client


@contextmanager
def connections(request: pytest.FixtureRequest, address: Address) -> Iterator[Connections[Client]]:
    made = Connections(address, connect)
    yield made
    with _failing_if_held(request, made.clients):
        for client in made.clients:
            client.close()


@asynccontextmanager
async def aio_connections(request: pytest.FixtureRequest, address: Address) -> AsyncIterator[Connections[AioClient]]:
    """Clients for asyncio. The event loop of the test runs this."""
    made = Connections(address, aio_connect)
    yield made
    with _failing_if_held(request, made.clients):
        for client in made.clients:
            await client.close()


@contextmanager
def _failing_if_held(request: pytest.FixtureRequest, clients: Sequence[Client | AioClient]) -> Iterator[None]:
    """Fails a test that left something held, after a block that closes the clients: so it has been released."""
    left = [f"{hold.kind} {hold.name!r}" for client in clients for hold in client.holds() if not hold.lost]
    yield
    if left and request.node.get_closest_marker("pyredisson_allow_held") is None:
        pytest.fail(f"the test left held: {', '.join(left)}", pytrace=False)


# --- The faults of the marker `pyredisson_faults`


class Plan(NamedTuple):
    """One fault for one run of a test."""

    name: str
    match: bytes
    times: int


def plans(*names: str, match: bytes = b"EVALSHA", times: int = 1) -> list[Plan]:
    """The plans of a marker with these arguments. `ValueError`, `TypeError`: they can't be used."""
    for name in names:
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}, only {', '.join(FAULTS)}")
    if not isinstance(match, bytes):
        raise TypeError(f"match must be bytes, not {type(match).__name__}")
    if type(times) is not int or times < 1:
        raise ValueError(f"times must be an integer from 1, not {times!r}")
    return [Plan(name, match, times) for name in names or FAULTS]


class Injection:
    """One fault at the proxy of one test."""

    def __init__(self, plan: Plan, proxy: Proxy, server: AnyServer) -> None:
        self.plan = plan
        self._proxy = proxy
        self._server = server
        self._ended = threading.Event()
        self._hold: Hold | None = None
        """What the thread waits for that drives the fault."""
        self._driven: Future[object] | None = None
        """What that thread does."""
        self._struck = FAULTS[plan.name](self)

    def check(self) -> None:
        """Called after a test that has passed: fails it if its fault has not struck."""
        if self._driven is not None and self._driven.done():
            self._driven.result()
        if not self._struck():
            message = f"the fault {self.plan.name!r} never happened: no request contained {self.plan.match!r}"
            pytest.fail(message, pytrace=False)

    def end(self) -> None:
        """Ends the thread that drives the fault."""
        self._ended.set()
        if self._driven is not None and self._hold is not None:
            self._hold.held.set()
            wait([self._driven])

    # --- The faults. Each returns a function that says whether it has struck.

    def one_of_proxy(self) -> Callable[[], bool]:
        """A fault for which the proxy has a method of the same name."""
        fault: Fault = getattr(self._proxy, self.plan.name)(self.plan.match, self.plan.times)
        return fault.happened.is_set

    def late_reply(self) -> Callable[[], bool]:
        hold = self._proxy.hold_reply(self.plan.match)

        def deliver() -> None:
            if not self._ended.wait(LATE):
                hold.deliver()

        return self._drive(hold, deliver)

    def latency(self) -> Callable[[], bool]:
        self._proxy.latency(LATENCY)
        return lambda: self._proxy.seen(self.plan.match) > 0

    def outage(self) -> Callable[[], bool]:
        def fail() -> None:
            # The held request is never delivered: it is lost with its connection.
            self._proxy.refuse(True)
            self._proxy.cut()
            self._ended.wait(OUTAGE)
            self._proxy.refuse(False)

        return self._drive(self._proxy.hold_request(self.plan.match), fail)

    def server_restart(self) -> Callable[[], bool]:
        server = self._server
        if isinstance(server, GivenServer):
            pytest.skip("server_restart needs a server of the test run's own, not the server of --pyredisson-url")
        # The request is held, so that it has certainly not run before the server lost its data.
        return self._drive(self._proxy.hold_request(self.plan.match), server.restart)

    def _drive(self, hold: Hold, act: Callable[[], object]) -> Callable[[], bool]:
        """Has a thread call `act` once a request or a reply is held."""

        def run() -> None:
            hold.held.wait()
            if not self._ended.is_set():
                act()

        self._hold = hold
        thread = ThreadPoolExecutor(1, f"pyredisson-{self.plan.name}")
        self._driven = thread.submit(run)
        thread.shutdown(wait=False)
        return hold.held.is_set


FAULTS: dict[str, Callable[[Injection], Callable[[], bool]]] = {
    "drop_reply": Injection.one_of_proxy,
    "cut_reply": Injection.one_of_proxy,
    "cut_request": Injection.one_of_proxy,
    "late_reply": Injection.late_reply,
    "latency": Injection.latency,
    "outage": Injection.outage,
    "server_restart": Injection.server_restart,
}


@contextmanager
def inject(plan: Plan | None, proxy: Proxy, server: AnyServer, item: Any) -> Iterator[None]:
    if plan is None:
        yield
        return
    load_scripts(server)
    injection = item.stash[INJECTED] = Injection(plan, proxy, server)
    try:
        yield
    finally:
        injection.end()
