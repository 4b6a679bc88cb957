"""Calls of every kind, and an outage of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyredisson.testing import Proxy
from tests.support.raw_backends import RawBackend


def semaphore(client: Any) -> Any:
    return client.get_semaphore("permits")


def permits(client: Any) -> Any:
    return client.get_permit_expirable_semaphore("ids")


def away(proxy: Proxy) -> None:
    proxy.refuse(True)
    proxy.cut()


async def done(backend: RawBackend, act: Callable[..., Any], *args: Any) -> Any:
    return await backend.do(act(*args))
