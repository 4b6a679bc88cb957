"""What commands say when they can't do their work: one line, with what to do, and no traceback."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pyredisson.cli.main import COMMANDS
from pyredisson.testing import Server
from tests.support.commands import Commands, Ended, pyredisson

ARGUMENTS: dict[str, list[str]] = {
    "ls": [],
    "inspect": ["orders"],
    "unlock": ["orders", "--yes"],
    "rm": ["orders"],
    "permits": ["orders", "--free", "2", "--yes"],
    "doctor": [],
    "bench": ["--seconds", "0.1"],
}
"""The commands that ask a server, each with what it needs."""
CALLS = [pytest.param([name, *arguments], id=name) for name, arguments in ARGUMENTS.items()]
every_command = pytest.mark.parametrize("call", CALLS)
OTHERS = {"completion", "watch"}
"""`watch` first looks for a terminal."""


def test_every_command_is_tested() -> None:
    """`run` and `dashboard` have tests of their own."""
    assert ARGUMENTS.keys() | OTHERS >= COMMANDS.keys() - {"run", "dashboard"}


def one_line(ended: Ended, status: int, *texts: str) -> None:
    assert (ended.status, ended.out) == (status, "")
    assert ended.err.startswith("pyredisson: ")
    assert ended.err.count("\n") == 1
    for text in texts:
        assert text in ended.err


def test_in_a_process_of_its_own() -> None:
    """Nothing else is written: no log of the library, no traceback at exit."""
    text = "no server at 127.0.0.1:1/0 (connection refused); say where it is with --url or PYREDISSON_URL"
    assert pyredisson("ls", env={"PYREDISSON_URL": "redis://127.0.0.1:1"}) == (69, "", f"pyredisson: {text}\n")


@every_command
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "redis+cluster://127.0.0.1:1,127.0.0.1:2",
        "redis+sentinel://127.0.0.1:1/mymaster",
        "unix:///nowhere.sock",
    ],
)
def test_no_server(command: Commands, call: list[str], url: str) -> None:
    # Refused at once. On a busy machine the thread that asks for the topology may begin late.
    one_line(command(*call, "--url", url, "--timeout", "3"), 69, "no server at ", "--url")


@every_command
def test_a_server_that_does_not_reply(command: Commands, call: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for scheme, more in (("redis", ""), ("rediss", "; no TLS handshake")):
            ended = command(*call, "--url", f"{scheme}://127.0.0.1:{port}", "--timeout", "0.3")
            one_line(ended, 69, f"no reply from 127.0.0.1:{port}/0 within 0.3 s{more}")


@every_command
def test_passwords(command: Commands, call: list[str], own_server: Server) -> None:
    with own_server.redis() as redis:
        redis.config_set("requirepass", "right")
    address = f"127.0.0.1:{own_server.port}"
    one_line(command(*call, "--url", f"redis://{address}"), 77, "wants a password", "PYREDISSON_PASSWORD")
    ended = command(*call, "--url", f"redis://:secret@{address}")
    one_line(ended, 77, "refuses the user name or the password")
    assert "secret" not in ended.err


@pytest.mark.parametrize("call", [call for call in CALLS if call.id not in ("doctor", "bench")])
def test_no_rights(command: Commands, call: list[str], server: Server, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", "~*", "+@connection")
    ended = command(*call, "--url", f"redis://app:x@{server.host}:{server.port}")
    one_line(ended, 77, "no permissions", "ACL SETUSER")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://nowhere.invalid", "no server at nowhere.invalid:6379/0 ("),
        ("redis://{}/99", "{}/99 replied with an error: ERR DB index is out of range"),
        (
            "redis+cluster://{}",
            "the server at {} is not a node of a cluster: a single server is addressed as redis://",
        ),
        ("redis+sentinel://{}/mymaster", "is no Sentinel"),
    ],
)
def test_another_server_than_the_address_says(command: Commands, server: Server, url: str, text: str) -> None:
    address = f"{server.host}:{server.port}"
    one_line(command("ls", "--url", url.format(address)), 69, text.format(address))
