"""Virtual time itself: clients of a server in memory, on an event loop that jumps to its next timer."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pyredisson._protocol.scripts import script

from .server import EPOCH
from .time import LONGEST, START
from .world import World

ACQUIRE = script("lock_acquire", with_shebang=True).sha


async def contend(world: World) -> None:
    """One holder lets its lease of 30 s end, and others wait for that."""

    async def another() -> None:
        async with world.client() as client, client.get_lock("orders"):
            await asyncio.sleep(0.01)

    async with world.client() as client:
        await client.get_lock("orders").lock(30)
        await asyncio.gather(*(another() for _ in range(3)))


def test_a_lease_ends_in_virtual_time(world: World) -> None:
    assert 30 < world.run(lambda: contend(world)) < 31
    assert world.server.keys.keyspace.do_keys(b"orders") == []


def test_a_watchdog_renews_in_virtual_time(world: World) -> None:
    async def hold_for_an_hour() -> None:
        async with world.client() as client, client.get_lock("orders") as hold:
            await asyncio.sleep(LONGEST - 10)
            assert not hold.lost.is_set()

    assert world.run(hold_for_an_hour) > LONGEST - 10
    # Every ten seconds, and the acquire and the release.
    assert LONGEST / 10 <= world.server.calls["evalsha"] <= LONGEST / 10 + 2


def test_the_time_of_day_is_the_servers(world: World) -> None:
    assert dt.datetime.now(dt.UTC).timestamp() == time.time() == EPOCH + START
    seconds, _ = world.server.keys.keyspace.do_time()
    assert int(seconds) == EPOCH + START


def test_what_would_hang_or_depend_on_real_time_fails(world: World) -> None:
    with pytest.raises(AssertionError, match="nothing can happen"):
        world.run(asyncio.Event().wait)
    with pytest.raises(AssertionError, match="3600 virtual seconds"):
        world.run(lambda: asyncio.sleep(LONGEST + 1))
    with pytest.raises(AssertionError, match="real time"):
        threading.Thread(target=print).start()
    with pytest.raises(AssertionError, match="real time"):
        socket.create_connection(("localhost", 1))


ROOT = Path(__file__).parents[2]
TESTS = "tests/faults/test_lost_replies.py"
TRACING = """
import os
import re

from tests.virtual.network import Way

put = Way.put
out = open(os.environ["TRACE"], "w", encoding="ascii")


def noted(way, data):
    # The name of a connection ends with the id of the process.
    print(way._loop.time(), re.sub(r"(@[^ ]+?):[0-9]+", r"\\1", repr(data)), file=out)
    put(way, data)


def pytest_configure():
    Way.put = noted


def pytest_unconfigure():
    out.close()
"""
"""A plugin that writes what is sent between clients and servers, and when."""


def test_two_runs(tmp_path: Path) -> None:
    (tmp_path / "tracing.py").write_text(TRACING)
    first, second = (trace(tmp_path, hash_seed) for hash_seed in "12")
    assert first.count("EVALSHA") > 10
    assert first.splitlines() == second.splitlines()


def trace(folder: Path, hash_seed: str) -> str:
    """What a run sends. The order of a set of strings depends on the seed of their hashes."""
    file = folder / hash_seed
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--virtual", "-p", "tracing", "--randomly-seed=1", TESTS]
    changes = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(folder), "TRACE": str(file)}
    subprocess.run(command, cwd=ROOT, env=os.environ | changes, check=True, stdout=subprocess.DEVNULL)
    return file.read_text()
