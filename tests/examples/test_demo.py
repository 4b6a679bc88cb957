"""`make demo`, the README's first command, shows what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demo" / "demo.py"
LONGEST = 120
"""Seconds; it takes a quarter of a minute."""


@pytest.mark.real
@pytest.mark.heavy
def test_everything_is_observed() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it was observed" in done.stdout
