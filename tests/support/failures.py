"""A plugin of pytest that writes each failure to a file as it happens: a line of JSON with the test and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report)

    def _write(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        test = self._root / report.nodeid  # so that it can be run in any folder
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([str(test), f"{report.when}: {report.longreprtext}"]) + "\n")
