"""Runs the tests that depend on real time and real faults (`make test-all`), and each test that fails again, alone.

A test that fails again has failed. A test that passes twice is *unstable*: it is listed at the end with the report of
its failure, and more than three of them fail the run. `make test` runs no test again.

It is a plugin of pytest, too, which writes each failure to a file as it happens: a line of JSON with test and report.
The last line is the sum of all parts, as one of them may have no test for the given marks.

    python -m tests.run_all [--jobs N] [--heavy-jobs N] [--marks EXPRESSION] [--uvloop PATH...] [PATH...]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pytest

MOST_UNSTABLE = 3
"""A run with more unstable tests than this has failed."""
MOST_AGAIN = 12
"""With more failures than this in a part of the run, none is run again: something else is wrong than luck."""
AGAIN = 2
"""How often a failed test is run again."""
GROUP = re.compile(r"@[\w-]+$")
"""What pytest-xdist appends to the id of a test with a group."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of pytest: what the tests of this call have in common."""

    jobs: int
    selected: list[str]
    options: list[str]


@dataclass(slots=True)
class Outcome:
    """What became of the tests of all parts."""

    failed: list[str] = field(default_factory=list)
    unstable: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """How many tests of the parts have passed, failed or were skipped, before any was run again."""
    began: float = field(default_factory=monotonic)

    @property
    def status(self) -> int:
        return int(bool(self.failed) or len(self.unstable) > MOST_UNSTABLE)

    def __str__(self) -> str:
        reports = [f"== unstable: {test}\n{report}" for test, report in self.unstable.items()]
        names = [f"unstable: {test}" for test in self.unstable] + [f"failed: {test}" for test in self.failed]
        count = f"{len(self.failed)} tests or parts failed, {len(self.unstable)} tests are unstable"
        total = ", ".join(f"{number} {what}" for what, number in self.counts.items()) or "no tests ran"
        total = f"{total} in {monotonic() - self.began:.2f}s"
        return "\n".join([*reports, *names, f"{count} (at most {MOST_UNSTABLE} may be)", total])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", metavar="FILE", required=True, help="where failures are written to")


def pytest_configure(config: pytest.Config) -> None:
    # The process of pytest-xdist that distributes the tests sees all reports, also the one of a process that has died.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(config.getoption("failures")), config.rootpath))


class Failures:
    """Writes what has failed."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._counts[report.outcome] += 1
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            # So that it can be run in any folder. Not as a path: a parameter may be an URL, with two slashes.
            self._write([f"{self._root}/{report.nodeid}", f"{report.when}: {report.longreprtext}"])

    def pytest_sessionfinish(self) -> None:
        self._write(self._counts)

    def _write(self, line: object) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def run_pytest(part: Part, *selected: str, jobs: int) -> tuple[int, dict[str, str], Counter[str]]:
    """Runs pytest; its status, the reports of the tests that failed, by their ids, and the numbers of outcomes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.run_all", *part.options]
    command += ["-n", str(jobs), "--dist", "loadgroup"] if jobs else ["-n", "0"]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "failures")
        command += [f"--failures={found}", *selected]
        print("pytest", *command[3:], flush=True)
        status = subprocess.run(command, check=False).returncode
        lines = found.read_text(encoding="utf-8").splitlines() if found.exists() else []
    reports: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for line in map(json.loads, lines):
        if isinstance(line, dict):
            counts.update(line)
        else:
            test, report = line
            reports.setdefault(GROUP.sub("", test), report)
    return status, reports, counts


def run(part: Part, outcome: Outcome) -> None:
    """Runs a part, and what fails in it again."""
    status, reports, counts = run_pytest(part, *part.selected, jobs=part.jobs)
    outcome.counts += counts
    if status == pytest.ExitCode.INTERRUPTED:
        sys.exit(status)
    if status not in {0, 1, pytest.ExitCode.NO_TESTS_COLLECTED} or (status == 1 and not reports):
        outcome.failed.append(f"pytest ended with status {status}: {part}")
    if len(reports) > MOST_AGAIN:
        outcome.failed += reports
        return
    for test, report in reports.items():
        if all(run_pytest(part, test, jobs=0)[0] == 0 for _ in range(AGAIN)):
            outcome.unstable[test] = report
        else:
            outcome.failed.append(test)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5, help="how many tests at a time; they mostly wait")
    parser.add_argument("--heavy-jobs", type=int, default=3, help="how many of the heavy ones, after the others")
    parser.add_argument("--marks", default="", help="which tests, as in pytest -m")
    parser.add_argument("--uvloop", action="append", help="what is run on uvloop once more, after the others")
    parser.add_argument("paths", nargs="*", default=["tests"])
    options = parser.parse_args()
    for path in [*options.paths, *(options.uvloop or [])]:
        # Beside pytest-xdist pytest only says that no tests ran.
        if not Path(path.partition("::")[0]).exists():
            parser.error(f"there is no {path}")
    marks = f" and ({options.marks})" if options.marks else ""
    extra = os.environ.get("PYTEST_ARGS", "").split()
    parts = [
        Part(options.jobs, ["-m", f"real and not heavy{marks}", *options.paths], extra),
        Part(options.heavy_jobs, ["-m", f"real and heavy{marks}", *options.paths], extra),
    ]
    if options.uvloop:
        parts.append(Part(options.jobs, options.uvloop, [*extra, "--uvloop"]))
    outcome = Outcome()
    for part in parts:
        run(part, outcome)
    print(outcome, flush=True)
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())
