"""Runs pytest with the plugin on small test files, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyredisson.testing import find_executable

OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED) \S*?::(\S+)", re.MULTILINE)
Run = Callable[..., "Outcome"]


@dataclass
class Outcome:
    """What a run of pytest has printed."""

    status: int
    text: str

    @property
    def tests(self) -> dict[str, str]:
        """What became of each test, by its name with its parameters."""
        return {name: outcome for outcome, name in OUTCOME.findall(self.text)}


def run_pytest(folder: Path, text: str, *arguments: str, plugins: tuple[str, ...], **env: str) -> Outcome:
    """Runs one file of tests with these plugins and no others; without any, with all that are installed."""
    (folder / "test_it.py").write_text(text, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-W", "error", "-p", "no:cacheprovider"]
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYREDISSON_"))}
    settings["PYREDISSON_TEST_SERVER"] = find_executable()
    if plugins:
        settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in plugins:
        command += ["-p", name]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=settings | env, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout + done.stderr)
