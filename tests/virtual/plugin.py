"""`pytest --virtual`: the tests of the asyncio backend that need no real server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache

import pytest

from tests.support.items import awaits

from .install import install
from .network import SERVERS, connect
from .server import MemoryServer
from .time import START, VirtualClock, VirtualLoop

REAL = {"proxy", "proxies", "own_server", "child", "tls_server", "servers", "redises"}
"""Fixtures with real processes and sockets."""
REAL_ONLY = {
    "tests/api/test_client_name.py::test_a_user_may_lack_the_right": "access rights",
    "tests/api/test_client_name.py::test_a_forked_child_has_its_own_name": "processes",
    "tests/api/test_fencing.py::TestRedis": "clients of redis-py for asyncio",
    "tests/api/test_holds.py::test_outside_of_any_task": "threads",
    "tests/api/test_lock_asyncio.py::TestOnLost": "threads",
    "tests/api/test_lock_asyncio.py::test_the_watchdog_does_not_need_the_loop": "a watchdog beside the event loop",
    "tests/api/test_lock_asyncio.py::test_two_loops_at_a_time": "threads",
    "tests/api/test_lock_asyncio.py::test_one_loop_after_another": "a watchdog beside the event loop",
    "tests/api/test_lock_asyncio.py::TestLostBody::test_a_body_that_does_not_yield": "a watchdog beside the event loop",
    "tests/api/test_lock_bypass.py::test_a_series_of_hand_overs_is_bounded": "MONITOR",
    "tests/api/test_lock_connect.py": "addresses, access rights, TLS",
    "tests/api/test_lock_lost_callbacks.py::TestCallback": "threads",
    "tests/api/test_lock_servers.py": "several kinds of servers",
    "tests/api/test_owners.py::test_one_owner_on_both_backends": "threads",
    "tests/api/test_owners.py::test_a_handle_in_a_forked_child_is_the_childs": "processes",
    "tests/api/test_owners.py::test_threads_that_make_the_same_owner_at_once_get_one": "threads",
    "tests/api/test_semaphore_lost_replies.py::TestDoubt::test_a_late_copy_that_the_server_could_not_be_told_to_drop": (
        "access rights"
    ),
}
"""What only a real run tests, by the beginning of its id, and why."""
CLOCK = VirtualClock()


class InVirtualTime:
    """What differs from a usual run."""

    def pytest_collectstart(self) -> None:
        # Not before: other plugins have started their threads. And before the tests import `time`.
        install_once()

    def pytest_asyncio_loop_factories(self) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
        return {"virtual": lambda: VirtualLoop(CLOCK, connect)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        CLOCK.now = START
        # Those of event loops that are closed.
        memory_server().sessions.clear()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if is_virtual(item)]
        others = [item for item in items if not is_virtual(item)]
        items[:] = chosen
        config.hook.pytest_deselected(items=others)


def is_virtual(item: pytest.Item) -> bool:
    """Whether the test runs in virtual time, too."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return awaits(item) and REAL.isdisjoint(fixtures) and not item.nodeid.startswith(tuple(REAL_ONLY))


@cache
def install_once() -> None:
    install(pytest.MonkeyPatch(), CLOCK)


@cache
def memory_server() -> MemoryServer:
    """One for all tests of this process."""
    server = MemoryServer(CLOCK)
    SERVERS[server.host, server.port] = server
    return server
