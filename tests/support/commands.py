"""Runs `pyredisson` as a user does: in a process of its own, or in this one, which is faster."""

import os
import sys
from collections.abc import Mapping
from subprocess import Popen
from typing import IO, NamedTuple, cast

import pytest

from pyredisson.cli.main import start

from .children import completed

TIMEOUT = 60
"""Seconds after which a command hangs."""


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def pyredisson(*arguments: str, env: Mapping[str, str] = {}, code: str | None = None) -> Ended:
    """Runs the command line in a process of its own. `code`: instead of `-m pyredisson`."""
    program = ["-m", "pyredisson"] if code is None else ["-c", code]
    environment = {**clean_environment(), **env}
    done = completed(sys.executable, *program, *arguments, env=environment, input="", timeout=TIMEOUT)
    return Ended(done.returncode, done.stdout, done.stderr)


def line(process: Popen[str]) -> str:
    """The next line that the process prints."""
    return cast(IO[str], process.stdout).readline().strip()


def end_of(process: Popen[str], text: str | None = None) -> Ended:
    """What becomes of the process. `text`: the rest of its input."""
    out, err = process.communicate(text, timeout=TIMEOUT)
    return Ended(process.returncode, out, err)


def output(ended: Ended) -> str:
    """What a command has printed that ended without an error."""
    assert (ended.status, ended.err) == (0, "")
    return ended.out


def clean_environment() -> dict[str, str]:
    """The environment without what changes the command line."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYREDISSON_")}


class Commands:
    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        for name in os.environ.keys() - clean_environment().keys():
            monkeypatch.delenv(name)
        # Help doesn't depend on the terminal.
        monkeypatch.setenv("COLUMNS", "100")

    def __call__(self, *arguments: str) -> Ended:
        self._capsys.readouterr()
        status = start([*arguments])
        said = self._capsys.readouterr()
        return Ended(status, said.out, said.err)
