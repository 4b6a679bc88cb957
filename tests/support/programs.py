"""The server programs that some tests run on, one after the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyredisson.testing.process import read_version

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyredisson"
"""Where `.ci/server` unpacks the servers that the machine has not installed."""


def redis_server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server on PATH")
    return found


def valkey_server() -> str:
    found = shutil.which("valkey-server") or shutil.which(CACHE / "valkey" / "usr" / "bin" / "valkey-server")
    if found is None:
        pytest.skip(f"no valkey-server on PATH or in {CACHE / 'valkey'}: .ci/server sets it up on Debian")
    return found


def newest_redis() -> str:
    return _newest("redis")


def newest_valkey() -> str:
    return _newest("valkey")


def _newest(name: str) -> str:
    found = shutil.which(CACHE / f"newest-{name}" / f"{name}-server")
    if found is None:
        pytest.skip(f"no {name}-server in {CACHE / f'newest-{name}'}: .ci/server sets it up on Debian")
    return found


PROGRAMS = [
    pytest.param(redis_server, id="redis"),
    pytest.param(valkey_server, id="valkey"),
    pytest.param(newest_redis, id="newest-redis"),
    pytest.param(newest_valkey, id="newest-valkey"),
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
    """Runs a test of several servers on the usual program, and on another one.

    `PYREDISSON_TEST_SERVER` makes another program the usual one, and all tests run on that one only.
    """
    programs = [pytest.param(None, id="usual")]
    if "PYREDISSON_TEST_SERVER" not in os.environ:
        programs.append(pytest.param(program, id=program.__name__.replace("_", "-")))
    return pytest.mark.parametrize("program", programs, indirect=True)
