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


async def test_without_a_hold_and_after_one_that_raises(
    backend: RawBackend, server: Server, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The first chore starts the watchdog's threads. One that raises is logged, and the next one is run."""
    client = backend.connect(server.url)
    assert not client._session.watchdog.started
    chores: list[Any] = [Append(KEY), Failing(KEY), Append(KEY)]
    for chore in chores:
        client._session.watchdog.do(chore)
    await backend.until(lambda: chores[0].done.is_set() and chores[2].done.is_set())
    assert admin.get(KEY) == b"xxx"
    assert client._session.watchdog.started
    assert [record for record in caplog.records if record.exc_info and "other than a renewal" in record.getMessage()]


async def test_one_that_hangs_delays_renewals_by_one_timeout(backend: RawBackend, proxy: Proxy) -> None:
    """The reply is held back until the watchdog gives up. The lease is renewed over another connection."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=2 * LEASE)
    lock = client.get_lock("a")
    await backend.do(lock.lock())
    for _ in range(3):
        proxy.hold_reply(b"APPEND")
        chore = Append(KEY)
        client._session.watchdog.do(chore)
        await backend.until(chore.failed.is_set)
        before = proxy.seen(RENEW)
        await backend.until(lambda before=before: proxy.seen(RENEW) > before)  # type: ignore[misc]
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
    await backend.until(chore.done.is_set)
    assert not lock.lost.is_set()


async def test_one_that_asks_for_itself_leaves_time_for_renewals(backend: RawBackend, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, lock_watchdog_timeout=LEASE)
    lock = client.get_lock("a")
    await backend.do(lock.lock())
    watchdog = client._session.watchdog

    class Again(Append):
        async def run(self, runtime: Any) -> None:
            await super().run(runtime)
            if len(self.replies) < 5 or proxy.seen(RENEW) < 3:
                watchdog.do(self)

    chore = Again(KEY)
    watchdog.do(chore)
    await backend.until(lambda: proxy.seen(RENEW) >= 3)
    assert not lock.lost.is_set()
    assert len(chore.replies) >= 5
