"""The server of a test: one that the test run has started, or one that runs already."""

from __future__ import annotations

import secrets
from typing import Any

from redis import Redis

from pyredisson._protocol.scripts import NAMES, script
from pyredisson._settings.config import Config
from pyredisson.testing import Server


class GivenServer:
    """A server that runs already, and whose data is not the tests' own.

    The clients of the fixtures put a random prefix before the names of their objects. So tests don't meet each other's
    locks, nor the locks of a program.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.config = Config.of(url)
        self.host = self.config.host
        self.port = self.config.port

    def redis(self, **options: Any) -> Redis:
        """Returns a new redis-py client for this server."""
        client: Redis = Redis.from_url(self.url, **options)
        return client

    def prefix(self) -> str:
        """A new prefix."""
        return f"test-{secrets.token_hex(4)}:"

    @property
    def takes_proxy(self) -> bool:
        """Whether a proxy can stand before it."""
        return self.config.topology == "single" and not self.config.ssl and self.config.path is None


AnyServer = Server | GivenServer


def load_scripts(server: AnyServer) -> None:
    """Has the server load all scripts: else a fault could strike a call that finds no script, and has no effect."""
    with server.redis() as client:
        major = int(client.info("server")["redis_version"].partition(".")[0])
        for name in NAMES:
            client.script_load(script(name, with_shebang=major >= 7).text)
