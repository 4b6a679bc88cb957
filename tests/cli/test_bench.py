"""`pyredisson bench`: it measures, is bounded, and leaves nothing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from pyredisson.testing import Proxy, Server
from tests.support.commands import TIMEOUT, Commands, clean_environment


@pytest.mark.parametrize(
    ("arguments", "who"), [([], "1 thread"), (["--threads", "3"], "3 threads"), (["--asyncio-tasks", "5"], "5 tasks")]
)
def test_it_measures(command: Commands, server: Server, redis: Any, arguments: list[str], who: str) -> None:
    ended = command("bench", "--seconds", "1", *arguments, "--url", server.url)
    assert (ended.status, ended.err) == (0, "")
    first, pairs, times, trip = ended.out.splitlines()
    assert re.fullmatch(rf"{who} for [\d.]+ s, at {server.host}:{server.port}/0", first)
    assert int(pairs.partition(" ")[0].replace(",", "")) > 0
    assert times.startswith("a pair takes ")
    assert trip.startswith("a round trip takes ")
    assert redis.dbsize() == 0


@pytest.mark.parametrize("arguments", [["--seconds", "31"], ["--threads", "65"], ["--asyncio-tasks", "10001"]])
def test_it_is_bounded(command: Commands, arguments: list[str]) -> None:
    ended = command("bench", *arguments)
    assert ended.status == 2
    assert ended.err.startswith(f"pyredisson: invalid value for '{arguments[0]}'")


@pytest.mark.parametrize("arguments", [[], ["--asyncio-tasks", "5"]])
def test_interrupted(server: Server, proxy: Proxy, redis: Any, arguments: list[str]) -> None:
    """Ctrl-C ends it at once, says what was measured until then, and leaves no lock."""
    program = [sys.executable, "-m", "pyredisson", "bench", "--seconds", "30", *arguments, "--url", proxy.url]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        proxy.wait_for(b"pyredisson:bench", TIMEOUT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (130, "")
    assert " for " in out
    assert redis.dbsize() == 0


def test_an_error(command: Commands, server: Server, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", "~orders*", "&*", "+@all")
    url = f"redis://app:x@{server.host}:{server.port}"
    for arguments in ([], ["--asyncio-tasks", "2"]):
        ended = command("bench", *arguments, "--url", url)
        assert ended.status == 77
        assert ended.err.count("\n") == 1
