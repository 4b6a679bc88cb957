"""`make test-all` runs a failed test again, alone, and tells unstable tests from those that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.run_all import MOST_UNSTABLE, Outcome

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

def fails(name, times):
    runs = Path(__file__).with_name(name)
    before = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (before + 1))
    assert before >= times, f"run {before + 1} of {name}"

@pytest.mark.parametrize("name", ["a::b [c]"])
@pytest.mark.xdist_group("some")
def test_once(name):
    fails("once", 1)

def test_the_second_time_too():
    fails("twice", 2)

@pytest.mark.heavy
def test_good():
    pass
"""


def test_what_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    real\n    heavy\n", "utf-8")
    (tmp_path / "test_some.py").write_text(TESTS, "utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_module", "utf-8")
    command = [sys.executable, "-m", "tests.run_all", "--jobs", "1", "--heavy-jobs", "1", str(tmp_path)]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False)
    summary = done.stdout.rpartition("== unstable: ")[2]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "run 1 of once" in summary
    assert set(re.findall(r"^(\w+): .*/(?:test_some.py::)?(test_\w+)", summary, re.MULTILINE)) == {
        ("unstable", "test_once"),
        ("failed", "test_broken"),
        ("failed", "test_the_second_time_too"),
    }
    assert len((tmp_path / "once").read_text()) == 3  # run again twice
    # Without the collection that failed, and without what was run again.
    assert re.fullmatch(r"2 failed, 1 passed in [\d.]+s", done.stdout.splitlines()[-1])


def test_how_many_may_be_unstable() -> None:
    def outcome(count: int) -> Outcome:
        return Outcome(unstable={f"test_{number}": "" for number in range(count)})

    assert outcome(MOST_UNSTABLE).status == 0
    assert outcome(MOST_UNSTABLE + 1).status == 1
    assert Outcome(failed=["test"]).status == 1
