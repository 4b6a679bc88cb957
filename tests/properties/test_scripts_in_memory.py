"""The server in memory does with each script what real servers do: it passes the tables of `tests/lua`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.lua import (
    test_lock_scripts,
    test_permit_scripts,
    test_read_write_scripts,
    test_semaphore_scripts,
    test_waiting_list,
)
from tests.lua.fair import test_fair_queue
from tests.lua.locks import OfList
from tests.lua.scripted import Scripted
from tests.virtual.server import MemoryServer
from tests.virtual.time import VirtualClock

Table = tuple[Callable[..., Any], Mapping[str, Any], Callable[[Any, Any], None]]
TABLES: dict[str, Table] = {
    "lock": (Scripted, test_lock_scripts.CASES, Scripted.check),
    "permits": (Scripted, test_permit_scripts.CASES, Scripted.check),
    "read_write": (OfList, test_read_write_scripts.CASES, Scripted.check),
    "semaphore": (Scripted, test_semaphore_scripts.CASES, Scripted.check),
    "list": (OfList, test_waiting_list.CASES, Scripted.check),
    "fair": (test_fair_queue.SCRIPTS, test_fair_queue.FLOWS, test_fair_queue.test_a_flow),
}
CASES = [(table, name) for table, (_, cases, _) in TABLES.items() for name in cases]


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with MemoryServer(VirtualClock()) as running:
        yield running


@pytest.mark.parametrize(("table", "name"), CASES)
def test_a_script(server: MemoryServer, table: str, name: str) -> None:
    make, cases, check = TABLES[table]
    with server.redis() as redis:
        redis.flushall()
        check(make(server, redis), cases[name])
