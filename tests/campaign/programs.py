"""What is built for the campaign, once: the checker of histories, and a clock that can be stepped for a server."""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pyredisson.testing import Server
from pyredisson.testing.server import find_executable

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "campaign"


def built(name: str, sources: list[Path], build: Callable[[Path], object]) -> Path:
    """The path of a program, which is built if it is missing or older than its sources."""
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / name
    # Several processes of one test run build at the same time.
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or program.stat().st_mtime < max(file.stat().st_mtime for file in sources):
            build(program)
    return program


@cache
def checker() -> Path:
    """The program of `checker/`. Skips the test where it can't be built."""
    folder = HERE / "checker"

    def build(program: Path) -> None:
        if shutil.which("go") is None:
            pytest.skip("no go on this machine: apt install golang-go")
        if subprocess.run(["go", "mod", "download"], cwd=folder, check=False).returncode:
            pytest.skip("porcupine can't be downloaded")
        subprocess.run(["go", "build", "-o", program, "."], cwd=folder, check=True)

    return built("checker", list(folder.iterdir()), build)


class SteppedServer(Server):
    """A server whose time of day can be stepped. Its monotonic clock goes on as it was."""

    def __init__(self, directory: Path, tls: bool = False) -> None:
        source = HERE / "clock.c"
        command = ("gcc", "-O2", "-shared", "-fPIC", source, "-o")
        library = built("clock.so", [source], lambda program: subprocess.run((*command, program), check=True))
        self._offset = directory / "offset"
        self._offset.write_bytes(bytes(8))
        program = directory / "server"
        program.write_text(
            f'#!/bin/sh\nCLOCK_OFFSET={self._offset} LD_PRELOAD={library} exec {find_executable(None)} "$@"\n', "utf-8"
        )
        program.chmod(0o700)
        super().__init__(executable=program, tls=tls)

    def step(self, seconds: float) -> None:
        """From now on its clock is ahead by so many seconds, or behind."""
        # Not as a new file: the server has mapped this one.
        with self._offset.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("q", round(seconds * 1e6)), 0)
