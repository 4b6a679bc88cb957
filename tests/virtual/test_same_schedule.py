"""A test in virtual time has the same schedule every time: the same bytes are sent at the same moments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("tests/faults/test_lost_replies.py", "tests/faults/test_outages.py")
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
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--virtual", "-p", "tracing", "--randomly-seed=1", *TESTS]
    changes = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(folder), "TRACE": str(file)}
    subprocess.run(command, cwd=ROOT, env=os.environ | changes, check=True, stdout=subprocess.DEVNULL)
    return file.read_text()
