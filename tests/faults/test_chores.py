"""Chores of the watchdog: they run without a hold, and never cost one."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Proxy, Server
from tests.support.chores import Append, Failing
from tests.support.faults import RENEW
from tests.support.raw_backends import RawBackend

pytestmark = pytest.mark.asyncio
LEASE = 1.2
KEY = b"chore"


def renewals(proxy: Proxy) -> int:
    return proxy.seen(RENEW.encode() if isinstance(RENEW, str) else RENEW)


async def test_a_client_without_holds(backend: RawBackend, server: Server, admin: Redis) -> None:
    """The first chore starts the watchdog's threads."""
    client = backend.connect(server.url)
    assert not client._session.watchdog.started
    chores = [Append(KEY), Append(KEY)]
    for chore in chores:
        client._session.watchdog.do(chore)
    for chore in chores:
        assert await backend.run_blocking(chore.done.wait, 5)
    assert admin.get(KEY) == b"xx"
    assert client._session.watchdog.started


async def test_one_that_hangs_delays_renewals_by_one_timeout(backend: RawBackend, server: Server, proxy: Proxy) -> None:
    """The reply is held back until the watchdog gives up. The lease is renewed over another connection."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=2 * LEASE)
    lock = client.get_lock("a")
    await backend.do(lock.lock())
    for _ in range(3):
        proxy.hold_reply(b"APPEND")
        chore = Append(KEY)
        client._session.watchdog.do(chore)
        assert await backend.run_blocking(chore.failed.wait, 5)
        before = renewals(proxy)
        await backend.until(lambda before=before: renewals(proxy) > before)  # type: ignore[misc]
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())


async def test_none_is_run_during_an_outage(backend: RawBackend, proxy: Proxy) -> None:
    """Each would delay the next try of a renewal. It runs when renewals succeed again."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=2 * LEASE)
    lock = client.get_lock("a")
    await backend.do(lock.lock())
    renewer = client._session.watchdog._sole
    proxy.refuse(True)
    await backend.until(lambda: renewer._failures > 0, 5)
    chore = Append(KEY)
    client._session.watchdog.do(chore)
    failures = renewer._failures
    await backend.until(lambda: renewer._failures > failures + 1, 5)
    assert not chore.failed.is_set()
    proxy.refuse(False)
    assert await backend.run_blocking(chore.done.wait, 5)
    assert not lock.lost.is_set()


async def test_one_that_raises(
    backend: RawBackend, server: Server, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next one is run."""
    client = backend.connect(server.url)
    chores: list[Any] = [Failing(KEY), Append(KEY)]
    for chore in chores:
        client._session.watchdog.do(chore)
    assert await backend.run_blocking(chores[1].done.wait, 5)
    assert admin.get(KEY) == b"xx"
    assert [record for record in caplog.records if record.exc_info and "other than a renewal" in record.getMessage()]


async def test_one_that_asks_for_itself_leaves_time_for_renewals(backend: RawBackend, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, lock_watchdog_timeout=LEASE)
    lock = client.get_lock("a")
    await backend.do(lock.lock())
    watchdog = client._session.watchdog

    class Again(Append):
        async def run(self, runtime: Any) -> None:
            await super().run(runtime)
            if len(self.replies) < 5 or renewals(proxy) < 3:
                watchdog.do(self)

    chore = Again(KEY)
    watchdog.do(chore)
    await backend.until(lambda: renewals(proxy) >= 3)
    assert not lock.lost.is_set()
    assert len(chore.replies) >= 5
