"""`pytest --virtual`: the tests of the asyncio backend that need no real server, in virtual time."""

import asyncio
import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from tests.support.items import awaits

from .install import install
from .network import SERVERS, connect
from .proxy import MemoryProxy, MemoryStub
from .server import MemoryServer
from .time import VirtualClock, VirtualLoop

REAL = {"child", "tls_server"}
"""Fixtures with real processes and sockets."""
SERVER_ONLY = re.compile(r"acl_setuser|Server\((users|password|config)=|maxmemory|replicaof|Trouble")
"""What the text of a test contains that needs a real server: access rights, limits and settings, replicas."""
REAL_ONLY = {
    "access rights": (
        "api/test_announcement.py::test_a_user_may_lack_the_right",
        "faults/test_lost_replies.py::test_a_release_in_doubt_that_another_server_answers[asyncio-lock-False]",
        "faults/test_bounds.py::test_a_connection_that_many_tasks_need[wrong-AuthenticationError-100]",
        "faults/test_waiting.py::test_a_refusal_belongs_to_the_command_that_was_refused",
    ),
    "addresses, access rights, TLS, several kinds of servers": ("api/test_lock_connect.py",),
    "limits and settings of a server": (
        "faults/test_bounds.py::test_a_server_that_has_no_room",
        "faults/test_bounds.py::test_a_server_without_hello",
    ),
    "clients of redis-py for asyncio": ("api/test_fencing.py::TestRedis",),
    "sockets": (
        "faults/test_bounds.py::test_silent_addresses",
        "faults/test_lost_replies.py::test_an_acquire_with_an_odd_answer_is_undone",
        "faults/test_lost_replies.py::test_a_restart_behind_a_unix_socket_cuts_no_other_client",
    ),
    "threads, or a client for threads": (
        "api/test_holders.py::test_outside_of_any_task",
        "api/test_lock_asyncio.py::test_two_loops_at_a_time",
        "api/test_lock_lost.py::TestCallback",
        "api/test_arguments.py::test_threads_that_make_the_same_owner_at_once_get_one",
        "faults/test_waiting.py::test_the_process_is_forked",
        "faults/test_outages.py::test_several_idle_connections_cost_one_try",
        "faults/test_closing.py::TestTasks::test_closing_in_another_loop_than_the_clients",
        "faults/test_closing.py::TestTasks::test_where_no_thread_is_free",
        "faults/test_dropped_clients.py::test_in_asyncio[True]",
        "faults/test_threads.py",
        "faults/test_watchdog.py::TestNoLockIsLost::test_two_threads_serve_all_locks",
        "faults/test_watchdog.py::test_a_loop_that_was_started_twice_runs_once",
    ),
    "a watchdog beside the event loop": (
        "api/test_lock_asyncio.py::TestLostBody::test_a_body_that_does_not_yield",
        "api/test_lock_asyncio.py::test_the_watchdog_does_not_need_the_loop",
        "faults/test_watchdog.py::TestChores::test_one_that_asks_for_itself_leaves_time_for_renewals",
    ),
}
"""What only a real run tests: by the reason, the beginnings of the ids of tests in `tests`."""
REAL_TESTS = tuple(f"tests/{test}" for tests in REAL_ONLY.values() for test in tests)
CLOCK = VirtualClock()
TESTS = str(Path(__file__).parents[1])


class InVirtualTime:
    """What differs from a usual run."""

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
