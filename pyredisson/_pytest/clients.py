"""The clients of one test: made for its server, closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

import pytest

from pyredisson._api.aio.client import Client as AioClient
from pyredisson._api.aio.client import connect as aio_connect
from pyredisson._api.sync.client import Client, connect
from pyredisson._pytest.servers import AnyServer, GivenServer
from pyredisson._settings.address import Address as ServerAddress
from pyredisson._settings.config import Config
from pyredisson._settings.fields import ConfigFields
from pyredisson.testing import Proxy

FAULT_TIMEOUT = 0.5
"""Seconds after which a client gives up a reply, in a test with a fault: a lost reply doesn't cost 3 s."""


class Address:
    """The server of one test, directly or through a proxy, and the settings of its clients."""

    def __init__(self, server: AnyServer, proxy: Proxy | None, *, has_fault: bool) -> None:
        config = Config.of(server.url)
        if proxy is not None:
            config = config.at(ServerAddress(proxy.host, proxy.port))
        self.config = config
        self._defaults: ConfigFields = {"timeout": FAULT_TIMEOUT} if has_fault else {}
        if isinstance(server, GivenServer):
            prefix = server.prefix()
            self._defaults["name_mapper"] = lambda name: prefix + name

    def settings(self, address: object, fields: ConfigFields) -> tuple[object, ConfigFields]:
        """The arguments of `connect` for a client of this server, or of another one."""
        if address is not None:
            return address, fields
        return self.config, self._defaults | fields


class Connections:
    """Makes clients for threads."""

    def __init__(self, address: Address) -> None:
        self.left_held: list[str] = []
        """What the clients held when they were closed."""
        self._address = address
        self._clients: list[Client] = []

    def __call__(self, address: object = None, **fields: Unpack[ConfigFields]) -> Client:
        where, settings = self._address.settings(address, fields)
        client = connect(where, **settings)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            self.left_held += _held(client)
            client.close()


class AioConnections:
    """Makes clients for asyncio."""

    def __init__(self, address: Address) -> None:
        self.left_held: list[str] = []
        """What the clients held when they were closed."""
        self._address = address
        self._clients: list[AioClient] = []

    def __call__(self, address: object = None, **fields: Unpack[ConfigFields]) -> AioClient:
        where, settings = self._address.settings(address, fields)
        client = aio_connect(where, **settings)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            self.left_held += _held(client)
            await client.close()


@asynccontextmanager
async def aio_connections(request: pytest.FixtureRequest, address: Address) -> AsyncIterator[AioConnections]:
    """Clients for one test, whose event loop runs this."""
    made = AioConnections(address)
    yield made
    await made.close()
    check_held(request, made.left_held)


def _held(client: Client | AioClient) -> list[str]:
    return [f"{hold.kind} {hold.name!r}" for hold in client.holds() if not hold.lost]


def check_held(request: pytest.FixtureRequest, left: list[str]) -> None:
    """Fails a test that left something held. The clients are closed by now, so it has been released."""
    if left and request.node.get_closest_marker("pyredisson_allow_held") is None:
        pytest.fail(f"the test left held: {', '.join(left)}", pytrace=False)
