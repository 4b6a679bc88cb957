"""Fixtures of the tests of the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from pyredisson.testing import Server
from tests.support.commands import Commands, Ended
from tests.support.commands import pyredisson as pyredisson_command

from .running import IN_TERMINAL, Running, begin, python, terminal


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs a command in this process: `command("ls", "--url", url)`."""
    return Commands(capsys, monkeypatch)


@pytest.fixture
def cli(command: Commands, server: Server) -> Callable[..., Ended]:
    """Runs a command in this process, on the server of the tests if it says no other: `cli("ls")`."""
    return lambda *arguments: command("--url", server.url, *arguments)


@pytest.fixture
def start(server: Server) -> Iterator[Callable[..., Running]]:
    """Starts `pyredisson run NAME ARGUMENTS... -- python -c CODE` on the test's server."""
    running: list[Running] = []

    def start_one(code: str, *arguments: str, url: str = server.url, stdin: int = subprocess.DEVNULL) -> Running:
        address = [] if "--config" in arguments else ["--url", url]
        running.append(Running("job", *address, *arguments, *python(code), stdin=stdin))
        return running[-1]

    yield start_one
    end([each.process for each in running])


def end(processes: list[subprocess.Popen[str]]) -> None:
    for each in processes:
        each.kill()
        each.communicate()


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Starts `pyredisson run ARGUMENTS...` as a job of a terminal. Returns the process, and what controls the terminal.

    `stdin`: its input, if that isn't the terminal.
    """
    processes: list[subprocess.Popen[str]] = []
    with terminal() as (controller, its):

        def start(*arguments: str, stdin: int = its) -> tuple[subprocess.Popen[str], int]:
            processes.append(begin(str(its), "run", *arguments, code=IN_TERMINAL, stdin=stdin, pass_fds=(its,)))
            return processes[-1], controller

        yield start
        end(processes)


@pytest.fixture
def run(server: Server) -> Callable[..., Ended]:
    """Runs `pyredisson run` to its end."""

    def run_it(*arguments: str, url: str = server.url) -> Ended:
        return pyredisson_command("run", "--url", url, *arguments)

    return run_it
