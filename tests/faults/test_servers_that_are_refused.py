"""Servers that are too old and nodes of a cluster are refused at once, with an explanation."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import pyredisson
from pyredisson.errors import ConfigError
from pyredisson.testing import Server
from tests.support.raw_backends import RawBackend

from .stub import Stub, bulk, hello, shake

pytestmark = pytest.mark.asyncio


def five(words: list[bytes]) -> bytes:
    """Redis 5 knows neither HELLO nor CLIENT INFO."""
    if words[0].upper() == b"INFO":
        return bulk("# Server\r\nredis_version:5.0.14\r\nredis_mode:standalone\r\n")
    return b"-ERR unknown command `%b`\r\n" % words[0]


def six(words: list[bytes]) -> bytes:
    return shake(words, "6.0.16")


def sentinel(words: list[bytes]) -> bytes:
    return hello("7.0.15", "sentinel") if words[0].upper() == b"HELLO" else shake(words)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (five, r"version 5\.0\.14; Redis 6\.2"),
        (six, r"version 6\.0\.16; Redis 6\.2"),
        (sentinel, r"redis\+sentinel://"),
    ],
)
async def test_a_server_that_cannot_be_served(
    backend: RawBackend, answer: Callable[[list[bytes]], bytes], text: str
) -> None:
    before = set(threading.enumerate())
    with Stub(answer) as stub:
        client = backend.connect(stub.url)
        for call in (client.get_lock("a").lock, client.get_semaphore("s").acquire, client.get_lock("a").is_locked):
            with pytest.raises(ConfigError, match=text):
                await backend.do(call())
        # Once for each call; nothing continues in the background.
        assert stub.connections == 3
        assert "pyredisson-renew" not in {thread.name for thread in threading.enumerate() if thread not in before}


async def test_a_node_of_a_cluster(backend: RawBackend) -> None:
    with Server(config={"cluster-enabled": "yes"}) as server:
        lock = backend.connect(server.url).get_lock("a")
        with pytest.raises(ConfigError, match=rf"{server.port} is a node of a cluster.*redis\+cluster://"):
            await backend.do(lock.lock())


async def test_a_server_without_hello(backend: RawBackend) -> None:
    """HELLO is renamed, as some providers do: INFO returns the version, too."""
    with Server(config={"rename-command": "HELLO ''"}) as server:
        lock = backend.connect(server.url).get_lock("a")
        await backend.do(lock.lock())
        await backend.do(lock.unlock())


async def test_a_server_without_an_identity(backend: RawBackend) -> None:
    """Neither HELLO nor INFO is allowed: it is taken for one that can be served."""
    with Server(users=("app on >secret ~* &* +@all -info -hello",)) as server:
        lock = backend.connect(server.url, username="app", password="secret").get_lock("a")
        await backend.do(lock.lock())
        await backend.do(lock.unlock())


@pytest.mark.parametrize("url", ["redis://h1:7000,h2:7001", "redis://u:p@h1:7000,h2", "rediss://h1,h2:1/0"])
async def test_several_hosts_in_a_plain_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"one host.*redis\+cluster://.*redis\+sentinel://") as raised:
        pyredisson.connect(url)
    assert "p@" not in str(raised.value)
