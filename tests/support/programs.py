"""The server programs that some tests run on, one after the other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

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
