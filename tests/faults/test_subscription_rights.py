"""A user without some rights on the subscription connection: each refusal belongs to one command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from pyredisson._backends.aio import listener as aio_listener
from pyredisson._backends.threads import listener
from pyredisson.logic import channels
from pyredisson.testing import Proxy, Server
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners

pytestmark = pytest.mark.asyncio
SHORT = 0.1
"""Seconds without a message after which the client sends a PING, and unsubscribes."""


@pytest.fixture(params=["ping", "unsubscribe"])
def refused(request: pytest.FixtureRequest, admin: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """The user `app` may do everything but this."""
    for module in (channels, listener, aio_listener):
        monkeypatch.setattr(module, "LINGER", SHORT)
    admin.acl_setuser(
        "app", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", f"-{request.param}"]
    )
    yield request.param.encode()
    admin.acl_deluser("app")


async def test_a_refusal_belongs_to_the_command_that_was_refused(
    backend: RawBackend, proxy: Proxy, server: Server, admin: Redis, refused: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The reply to the refused command comes when a SUBSCRIBE, which is allowed, is on its way behind it."""
    for name in "ab":
        admin.hset(name, "another:1", 1)
    client = backend.connect(proxy.url, username="app", password="any", ping_interval=SHORT)
    held = proxy.hold_reply(refused.upper())

    async def wait_for(name: str, seconds: float) -> Any:
        return await backend.do(client.get_lock(name).try_lock(seconds))

    assert await wait_for("a", SHORT) is False
    if refused == b"ping":
        first = backend.start(lambda: wait_for("a", 5))
    await backend.run_blocking(held.held.wait, 5)
    waiting = backend.start(lambda: wait_for("b", 5))
    await backend.run_blocking(
        proxy.wait_for, lambda: proxy.seen(b"SUBSCRIBE\r\n$26\r\nredisson_lock__channel:{b}") > 0
    )
    await backend.run_blocking(held.deliver)
    await backend.until(lambda: listeners(admin, "b") == 1)
    for name in "ab":
        admin.delete(name)
        admin.publish(f"redisson_lock__channel:{{{name}}}", "0")
    assert await waiting.result(2) is True
    if refused == b"ping":
        assert await first.result(2) is True
    assert not caplog.messages
