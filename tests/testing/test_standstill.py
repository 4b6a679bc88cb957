"""A failure is repeated if the machine stood still meanwhile, and only then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STOP = """
import signal, time
import pytest
from conftest import WATCHER, longest_standstill

def stand_still(config, seconds):
    watcher = config.stash[WATCHER]
    watcher.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    watcher.send_signal(signal.SIGCONT)
    # It has seen it when it answers.
    assert longest_standstill(watcher, 0) >= seconds

attempts = []
"""
WITH_ONE = """
def test_it(request):
    attempts.append(1)
    if len(attempts) == 1:
        stand_still(request.config, 0.3)
        assert False, "the first attempt"
"""
ALWAYS = """
def test_it(request):
    stand_still(request.config, 0.3)
    assert False, "whatever the machine does"
"""
WITHOUT = """
def test_before(request):
    stand_still(request.config, 0.3)

def test_it():
    attempts.append(1)
    assert len(attempts) > 1, "the first attempt"
"""
SETUP = """
@pytest.fixture
def prepared(request):
    attempts.append(1)
    if len(attempts) == 1:
        stand_still(request.config, 0.3)
        assert False, "the first attempt"

def test_it(prepared):
    pass
"""


@pytest.mark.parametrize(
    ("tests", "outcome"),
    [
        (WITH_ONE, "1 passed, 1 rerun"),
        (ALWAYS, "1 failed, 2 rerun"),
        (WITHOUT, "1 failed, 1 passed"),
        (SETUP, "1 passed, 1 rerun"),
    ],
    ids=["in the test", "each time", "before the test", "in a fixture"],
)
def test_what_is_repeated(tmp_path: Path, tests: str, outcome: str) -> None:
    home = Path(__file__).parents[1]
    for name in ("conftest.py", "standstill.py"):
        shutil.copy(home / name, tmp_path / name)
    (tmp_path / "test_some.py").write_text(STOP + tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "--rerun-show-tracebacks"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{outcome} in " in done.stdout, done.stdout
    assert ("The machine stood still for " in done.stdout) is ("rerun" in outcome)
