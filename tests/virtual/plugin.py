"""`pytest --virtual`: the tests of the asyncio backend that need no real server, without threads, in virtual time."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

import pyredisson._core
from pyredisson._api.aio import connections
from pyredisson._backends.aio import connection
from pyredisson._backends.aio.runtime import AioRuntime
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._backends.runtime import BackendRuntime
from pyredisson._client import lifecycle
from pyredisson._client.callbacks import CallbackThreads, Delivery
from pyredisson._client.final_release import FinalRelease
from pyredisson._client.lifecycle import ClientLifecycle
from pyredisson._client.servers import SingleServer
from pyredisson.logic.loops import Loop
from pyredisson.logic.permits import permit_expirable_semaphore
from tests.support.items import awaits

from .network import LATENCY, SERVERS, Connection, MemoryIdleCheck, connect
from .proxy import MemoryProxy, MemoryStub
from .server import EPOCH, MemoryServer
from .time import VirtualClock, VirtualLoop

REAL = {"child", "tls_server"}
"""Fixtures with real processes and sockets."""
SERVER_ONLY = re.compile(r"acl_setuser|Server\((users|password|config)=|max(memory|clients)|unix_url|replicaof|Trouble")
"""What the text of a test contains that needs a real server: access rights, limits, settings, sockets, replicas."""
REAL_ONLY = {
    "access rights": (
        "faults/test_lost_replies.py::test_a_release_in_doubt_that_another_server_answers[asyncio-lock-unknown]",
        "faults/test_bounds.py::test_a_connection_that_many_tasks_need[asyncio-wrong-AuthenticationError-100]",
        "faults/test_waiting.py::test_a_refusal_belongs_to_the_command_that_was_refused",
    ),
    "addresses, access rights, TLS, several kinds of servers": ("api/test_lock_connect.py",),
    "clients of redis-py for asyncio": ("api/test_fencing.py::TestRedis",),
    "sockets": (
        "faults/test_bounds.py::test_silent_addresses",
        "faults/test_event_loops.py::test_an_interrupt_while_a_command_is_sent[write]",
        "faults/test_event_loops.py::test_what_a_finalizer_posts_in_the_middle_of_a_write",
        "faults/test_lost_replies.py::test_an_acquire_with_an_odd_answer_is_undone",
    ),
    "threads, or a client for threads": (
        "api/test_holders.py::test_outside_of_any_task",
        "api/test_lock_asyncio.py::test_two_loops_at_a_time",
        "api/test_lock_lost.py::TestCallback",
        "api/test_arguments.py::test_threads_that_make_the_same_owner_at_once_get_one",
        "faults/test_waiting.py::test_the_process_is_forked",
        "faults/test_outages.py::test_several_idle_connections_cost_one_try",
        "faults/test_closing.py::TestTasks::test_where_no_thread_is_free",
        "faults/test_dropped_clients.py::test_in_asyncio[asyncio-True]",
        "faults/test_threads.py",
        "faults/test_watchdog.py::TestNoLockIsLost::test_two_threads_serve_all_locks",
        "faults/test_watchdog.py::test_a_loop_that_was_started_twice_runs_once",
    ),
    "a watchdog beside the event loop": (
        "api/test_lock_asyncio.py::test_the_watchdog_does_not_need_the_loop",
        "faults/test_watchdog.py::TestChores::test_one_that_asks_for_itself_leaves_time_for_renewals",
    ),
}
"""What only a real run tests: by the reason, the beginnings of the ids of tests in `tests`."""
REAL_TESTS = tuple(f"tests/{test}" for tests in REAL_ONLY.values() for test in tests)
CLOCK = VirtualClock()
TESTS = str(Path(__file__).parents[1])


class InVirtualTime:
    def pytest_collectstart(self) -> None:
        # Not before: other plugins have started their threads. And before the tests import `time`.
        install_once()

    def pytest_asyncio_loop_factories(self) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        return {"virtual": lambda: VirtualLoop(CLOCK, connect)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        CLOCK.restart()
        for server in SERVERS.values():
            if isinstance(server, MemoryServer):
                # Those of event loops that are closed.
                server.sessions.clear()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        replace_classes()
        config.hook.pytest_deselected(items=[item for item in items if not is_virtual(item)])
        items[:] = filter(is_virtual, items)


def is_virtual(item: pytest.Item) -> bool:
    """Whether the test runs in virtual time, too."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    if not awaits(item) or not REAL.isdisjoint(fixtures) or item.nodeid.startswith(REAL_TESTS):
        return False
    return not isinstance(item, pytest.Function) or SERVER_ONLY.search(inspect.getsource(item.function)) is None


class OwnServer(MemoryServer):
    """A server as tests start it. It has no options: tests of access rights, for instance, are `REAL_ONLY`."""

    ports = count(6379)

    def __init__(self) -> None:
        super().__init__(CLOCK, port=next(self.ports))


MemoryProxy.clock = MemoryStub.clock = CLOCK
IN_MEMORY = {
    ("pyredisson.testing.server", "Server"): OwnServer,
    ("pyredisson.testing.proxy", "Proxy"): MemoryProxy,
    ("faults.stub", "Stub"): MemoryStub,
}
"""What tests use instead of a class, by its module and name."""


def replace_classes() -> None:
    """In the tests, which are imported by now."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", "")).startswith(TESTS):
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and (value.__module__, name) in IN_MEMORY:
                    setattr(module, name, IN_MEMORY[value.__module__, name])


@cache
def install_once() -> None:
    install(pytest.MonkeyPatch(), CLOCK)


# What lives on the virtual clock

LOOPS: set[asyncio.Task[None]] = set()
"""The watchdogs' loops: an event loop keeps only weak references to its tasks."""

PING, PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"
RELEASING: set[ClientLifecycle] = set()
"""The clients whose final release is under way."""


def install(patch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
    """Until `patch` is undone, every client of this process lives on that clock, and no thread can be started."""
    _replace_clocks(patch, clock)
    send_final_releases = ClientLifecycle.send_final_releases

    def one_after_another(client: ClientLifecycle, seconds: float = lifecycle.CLOSE_TIMEOUT) -> None:
        # The client's own lock doesn't tell greenlets from each other.
        clock.wait(lambda: client not in RELEASING, seconds)
        RELEASING.add(client)
        try:
            send_final_releases(client, seconds)
        finally:
            RELEASING.discard(client)

    patch.setattr(threading.Thread, "start", _refuse)
    patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=clock.random.getrandbits(128), version=4))
    patch.setattr(permit_expirable_semaphore, "urandom", clock.random.randbytes)
    patch.setattr(socket, "getaddrinfo", _refuse)
    patch.setattr(socket.socket, "connect", _refuse)
    patch.setattr(ClientLifecycle, "start_loop", _start_loop)
    patch.setattr(SingleServer, "watchdog_runtime", lambda server: WatchdogRuntime(server.node, _refuse))
    patch.setattr(CallbackThreads, "call", lambda _, callback: asyncio.get_running_loop().call_soon(callback))
    patch.setattr(Delivery, "_start", _deliver_soon)
    patch.setattr(Delivery, "drain", _deliver_now)
    patch.setattr(FinalRelease, "send", lambda release, **_: _send_beside(clock, release))
    patch.setattr(ClientLifecycle, "send_final_releases", one_after_another)
    patch.setattr(connections, "run_in_thread", lambda work, _: asyncio.get_running_loop().run_in_executor(None, work))
    patch.setattr(connection, "IdleCheck", MemoryIdleCheck)
    patch.setattr(lifecycle, "start_thread", lambda work, _, **__: work())


def _replace_clocks(patch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
    def time_of_day() -> float:
        return EPOCH + clock()

    class VirtualDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> VirtualDatetime:
            return cls.fromtimestamp(time_of_day(), tz)

    for name, module in list(sys.modules.items()):
        if name.startswith("pyredisson."):
            for variable, usual, virtual in (
                ("clock", BackendRuntime.clock, clock),
                ("monotonic", time.monotonic, clock),
                ("datetime", dt.datetime, VirtualDatetime),
            ):
                if getattr(module, variable, None) is usual:
                    patch.setattr(module, variable, virtual)
    patch.setattr(pyredisson._core, "monotonic", clock)
    patch.setattr(BackendRuntime, "clock", staticmethod(clock))
    patch.setattr(dt, "datetime", VirtualDatetime)
    patch.setattr(threading.Event, "wait", lambda event, timeout=None: clock.wait(event.is_set, timeout))
    patch.setattr(threading.Condition, "wait_for", lambda _, condition, timeout=None: clock.wait(condition, timeout))
    patch.setattr(time, "monotonic", clock)
    patch.setattr(time, "sleep", clock.sleep)
    patch.setattr(time, "time", time_of_day)
    patch.setattr(time, "time_ns", lambda: int(time_of_day() * 1e9))


def _refuse(*what: object, **_: object) -> NoReturn:
    """Of a thread, a connection of a socket, or a command that the watchdog posts."""
    raise AssertionError(f"it would happen beside the event loop, in real time: {what}")


def _start_loop(_: ClientLifecycle, loop: Loop) -> None:
    task = asyncio.get_running_loop().create_task(loop())
    LOOPS.add(task)
    task.add_done_callback(LOOPS.discard)


class WithoutLoop(BackendRuntime):
    """The watchdog's connections. It is closed by a call that doesn't wait."""

    def wakeup(self) -> AioWakeup:
        # Not for the running event loop: a client may be made before there is one.
        return AioWakeup()

    def limit_timeout(self, seconds: float) -> None:
        """From now on a reply may take so many seconds at most."""
        for holder in self._all_connections():
            holder._node = holder._node.with_timeout(seconds)

    async def close(self) -> None:
        self.stop()  # type: ignore[attr-defined]


class WatchdogRuntime(WithoutLoop, AioRuntime): ...


def _deliver_soon(delivery: Delivery) -> None:
    # Outside of an event loop events wait for `drain`.
    with suppress(RuntimeError):
        asyncio.get_running_loop().call_soon(delivery._deliver_pending)


def _deliver_now(delivery: Delivery, _: float) -> bool:
    if delivery.calling._is_owned():  # type: ignore[attr-defined]
        # The observer has closed the client.
        return False
    delivery._deliver_pending()
    return True


def _send_beside(clock: VirtualClock, release: FinalRelease) -> None:
    # To connect takes longer than what the client has sent before: a command must not run after its release.
    clock.sleep(3 * LATENCY)
    batches: dict[tuple[str, int], list[bytes]] = {}
    for payload in list(release.unsent):
        node = release.servers.serving(payload)
        if node is not None:
            address = (node.config.host, node.config.port)
            batches.setdefault(address, []).append(release.servers.as_sent(payload))
        release.unsent.pop(payload, None)
    sessions: list[Connection] = []
    outcomes: list[bytearray] = []
    for address, batch in batches.items():
        if (server := SERVERS.get(address)) is not None:
            outcomes.append(outcome := bytearray())
            end = partial(outcome.extend, PONG)
            sessions.append(server.open_session(outcome.extend, lambda _, end=end: end()))  # type: ignore[misc]
            sessions[-1].receive(b"".join(batch) + PING)
    clock.wait(lambda: all(outcome.endswith(PONG) for outcome in outcomes), release.deadline - clock())
    for session in sessions:
        session.left()
