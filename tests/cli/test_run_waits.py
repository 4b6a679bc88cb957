"""`pyredisson run` that waits: who is told for whom, and that a refusal is written for a person."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.commands import TIMEOUT, Ended, clean_environment
from tests.support.waiting import eventually

from .running import python

WAITS = re.compile(r"pyredisson: lock 'job' is held by .*, free in [\d.]+ s at the latest, .*; waiting")
CHANNEL = "redisson_lock__channel:{job}"


def waiting_run(server: Server, admin: Redis, *options: str, terminal: bool) -> str:
    """What a `run` says on stderr that waits, until the lock is released."""
    ours, its = pty.openpty()
    try:
        program = [sys.executable, "-m", "pyredisson", "run", "job", "--url", server.url, *options, *python("pass")]
        with pyredisson.connect(server.url) as client, client.get_lock("job") as lock:
            process = subprocess.Popen(
                program, stderr=its if terminal else subprocess.PIPE, env=clean_environment(), start_new_session=True
            )
            eventually(lambda: admin.pubsub_numsub(CHANNEL)[0][1], seconds=TIMEOUT)
            assert lock.is_held()
        _, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0
        if not terminal:
            return str(err.decode())
        os.write(its, b"\n")
        return os.read(ours, 65536).decode().strip()
    finally:
        os.close(ours)
        os.close(its)


@pytest.mark.parametrize(
    ("options", "terminal", "says"),
    [
        ([], True, True),
        (["--wait", "60"], True, True),
        (["--quiet"], True, False),
        ([], False, False),
        (["--verbose"], False, True),
    ],
)
def test_it_says_for_whom_it_waits(
    server: Server, admin: Redis, options: list[str], terminal: bool, says: bool
) -> None:
    said = waiting_run(server, admin, *options, terminal=terminal)
    if says:
        assert WAITS.fullmatch(said.strip()), said
    else:
        assert said == ""


@pytest.mark.parametrize("semaphore", [[], ["--semaphore", "1"]])
def test_a_refusal(run: Callable[..., Ended], server: Server, semaphore: list[str]) -> None:
    """It ends with what a person can use: no id of the owner that wanted the lock."""
    with pyredisson.connect(server.url) as client:
        held: Any = client.get_lock("job")
        if semaphore:
            held = client.get_permit_expirable_semaphore("job").permit()
            client.get_permit_expirable_semaphore("job").try_set_permits(1)
        with held:
            now, later = (run("job", *wait, *semaphore, *python("pass")) for wait in (["--no-wait"], ["--wait", "0.1"]))
            both = run("job", "--verbose", "--wait", "0.1", *semaphore, *python("pass"))
    end = "no permit of semaphore 'job' is free" if semaphore else ", unless that is extended"
    assert now.err.endswith(f"{end}\n")
    assert later.err.endswith(f"{end}; waited 0.1 s\n")
    assert [line.rpartition("; ")[2] for line in both.err.splitlines()] == ["waiting", "waited 0.1 s"]
    assert {now.status, later.status, both.status} == {75}


def test_quiet_and_verbose(run: Callable[..., Ended]) -> None:
    ended = run("job", "-q", "-v", *python("pass"))
    assert ended.err.startswith("pyredisson: --quiet and --verbose exclude each other")
