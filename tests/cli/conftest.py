"""Fixtures of the tests of the command line."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.commands import Commands, Ended, clean_environment
from tests.support.commands import pyredisson as pyredisson_command

from .running import IN_TERMINAL, Running


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Runs a command in this process: `command("ls", "--url", url)`."""
    return Commands(capsys, monkeypatch)


@pytest.fixture
def cli(command: Commands, server: Server) -> Callable[..., Ended]:
    """Runs a command in this process, on the server of the tests if it says no other: `cli("ls")`."""
    return lambda *arguments: command("--url", server.url, *arguments)


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(server.url) as made:
        yield made


@pytest.fixture
def redis(admin: Redis) -> Any:
    """A plain client of the server, without types."""
    return admin


@pytest.fixture
def start(server: Server) -> Iterator[Callable[..., Running]]:
    """Starts `pyredisson run NAME ARGUMENTS... -- python -c CODE` on the test's server."""
    running: list[Running] = []

    def begin(code: str, *arguments: str, url: str = server.url, stdin: int = subprocess.DEVNULL) -> Running:
        address = [] if "--config" in arguments else ["--url", url]
        command = ["job", *address, *arguments, "--", sys.executable, "-c", code]
        running.append(Running(*command, stdin=stdin))
        return running[-1]

    yield begin
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Starts `pyredisson run ARGUMENTS...` as a job of a terminal. Returns the process, and what controls the terminal.

    `stdin`: its input, if that isn't the terminal.
    """
    controller, terminal = pty.openpty()
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, stdin: int | None = None) -> tuple[subprocess.Popen[str], int]:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", IN_TERMINAL, str(terminal), "run", *arguments],
                stdin=terminal if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=clean_environment(),
                pass_fds=(terminal,),
            )
        )
        return processes[-1], controller

    yield begin
    for each in processes:
        if each.poll() is None:
            each.kill()
        each.communicate()
    os.close(controller)
    os.close(terminal)


@pytest.fixture
def run(server: Server) -> Callable[..., Ended]:
    """Runs `pyredisson run` to its end."""

    def run_it(*arguments: str, url: str = server.url) -> Ended:
        return pyredisson_command("run", "--url", url, *arguments)

    return run_it
