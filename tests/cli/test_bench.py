"""`pyredisson bench`: it measures, and leaves nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pyredisson.testing import Proxy, Server
from tests.support.commands import TIMEOUT, Commands

from .objects import Run
from .running import interrupted


@pytest.mark.parametrize(
    ("arguments", "who"), [([], "1 thread"), (["--threads", "3"], "3 threads"), (["--asyncio-tasks", "5"], "5 tasks")]
)
def test_it_measures(cli: Run, server: Server, redis: Any, arguments: list[str], who: str) -> None:
    ended = cli("bench", "--seconds", "1", *arguments)
    assert (ended.status, ended.err) == (0, "")
    first, pairs, times, trip = ended.out.splitlines()
    assert re.fullmatch(rf"{who} for [\d.]+ s, at {server.host}:{server.port}/0", first)
    assert int(pairs.partition(" ")[0].replace(",", "")) > 0
    assert times.startswith("a pair takes ")
    assert trip.startswith("a round trip takes ")
    assert redis.dbsize() == 0


@pytest.mark.parametrize("arguments", [[], ["--asyncio-tasks", "5"]])
def test_interrupted(proxy: Proxy, redis: Any, arguments: list[str]) -> None:
    """Ctrl-C ends it at once, says what was measured until then, and leaves no lock."""
    command = ["bench", "--seconds", "30", *arguments, "--url", proxy.url]
    ended = interrupted(lambda: proxy.wait_for(b"pyredisson:bench", TIMEOUT), *command)
    assert (ended.status, ended.err) == (130, "")
    assert " for " in ended.out
    assert redis.dbsize() == 0


def test_an_error(command: Commands, server: Server, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", "~orders*", "&*", "+@all")
    url = f"redis://app:x@{server.host}:{server.port}"
    for arguments in ([], ["--asyncio-tasks", "2"]):
        ended = command("bench", *arguments, "--url", url)
        assert ended.status == 77
        assert ended.err.count("\n") == 1
