"""A failure is repeated if the machine stood still while the test timed something, and only then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STOP = """
import math, signal, time
import pytest
import pyredisson
import pyredisson.asyncio
from conftest import WATCHER, longest_standstill

attempts = []

@pytest.fixture
def stand_still(request):
    def stop():
        watcher = request.config.stash[WATCHER]
        watcher.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        watcher.send_signal(signal.SIGCONT)
        # It has seen it when it answers.
        assert longest_standstill(watcher, [(0, math.inf)]) >= 0.3
        time.sleep(0.15)  # until the other cores have seen it too
    return stop

def fail_at_first(request):
    attempts.append(request.node.name)
    assert attempts.count(request.node.name) > 1, "the first attempt"
"""
REPEATED = """
def test_after_the_begin(request, timed, stand_still):
    timed.begin()
    stand_still()
    fail_at_first(request)

def test_in_a_block(request, timed, stand_still):
    with timed:
        stand_still()
    fail_at_first(request)

def test_a_block_that_fails(request, timed, stand_still):
    with timed:
        stand_still()
        fail_at_first(request)

@pytest.mark.usefixtures("all_timed")
def test_throughout(request, stand_still):
    stand_still()
    fail_at_first(request)

def test_with_a_client(request, stand_still):
    with pyredisson.connect("redis://127.0.0.1:1"):
        stand_still()
    fail_at_first(request)

def test_with_a_client_of_asyncio(request, stand_still):
    client = pyredisson.asyncio.connect("redis://127.0.0.1:1")
    stand_still()
    fail_at_first(request)
"""
NOT_REPEATED = """
@pytest.fixture
def client():
    with pyredisson.connect("redis://127.0.0.1:1") as made:
        yield made

@pytest.fixture
def late(client, timed, stand_still):
    with timed:
        stand_still()

@pytest.fixture
def broken(late):
    assert False, "in a fixture"

@pytest.fixture
def left_broken(timed, stand_still):
    yield
    with timed:
        stand_still()
    assert False, "after the test"

def test_before(stand_still):
    stand_still()

def test_after_one(request, timed):
    with timed:
        fail_at_first(request)

def test_what_times_nothing(request, stand_still):
    stand_still()
    fail_at_first(request)

def test_before_what_is_timed(request, timed, stand_still):
    stand_still()
    timed.begin()
    fail_at_first(request)

def test_after_what_is_timed(request, timed, stand_still):
    with timed:
        pass
    time.sleep(0.2)  # a core may be late by nearly as much without standing still
    stand_still()
    fail_at_first(request)

@pytest.mark.usefixtures("all_timed")
def test_in_setup(request, late):
    fail_at_first(request)

def test_a_failing_setup(broken):
    pass

def test_a_failing_teardown(left_broken):
    pass
"""
ALWAYS = """
@pytest.mark.usefixtures("all_timed")
def test_it(stand_still):
    stand_still()
    assert False, "whatever the machine does"
"""


@pytest.mark.parametrize(
    ("tests", "outcome"),
    [(REPEATED, "6 passed, 6 rerun"), (NOT_REPEATED, "5 failed, 2 passed, 2 errors"), (ALWAYS, "1 failed, 2 rerun")],
    ids=["in what is timed", "anywhere else", "each time"],
)
def test_what_is_repeated(tmp_path: Path, tests: str, outcome: str) -> None:
    home = Path(__file__).parents[1]
    shutil.copy(home / "conftest.py", tmp_path / "conftest.py")
    shutil.copytree(home / "support", tmp_path / "tests" / "support")
    (tmp_path / "test_some.py").write_text(STOP + tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "--rerun-show-tracebacks"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{outcome} in " in done.stdout, done.stdout
    assert ("The machine stood still for " in done.stdout) is ("rerun" in outcome)
