"""The server programs that some tests run on, one after the other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

VALKEY_FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyredisson" / "valkey"
"""Where `.ci/server` unpacks Valkey if the machine has none."""


def redis_server() -> str:
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server on PATH")
    return found


def valkey_server() -> str:
    found = shutil.which("valkey-server") or shutil.which(VALKEY_FOLDER / "usr" / "bin" / "valkey-server")
    if found is None:
        pytest.skip(f"no valkey-server on PATH or in {VALKEY_FOLDER}: .ci/server sets it up on Debian")
    return found


PROGRAMS = [pytest.param(redis_server, id="redis"), pytest.param(valkey_server, id="valkey")]
"""For fixtures: `@pytest.fixture(params=PROGRAMS)`, where `request.param()` returns the path or skips the test."""
