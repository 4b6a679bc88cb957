"""A hold that is known to be lost raises `LockLostError` at once, also if the server can't be reached."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis import Redis

from pyredisson import LockLostError, PermitNotHeldError
from pyredisson.testing import Proxy
from tests.support.raw_backends import RawBackend

pytestmark = pytest.mark.asyncio

KINDS = ["lock", "fair_lock", "fenced_lock", "spin_lock", "read", "write", "multi_lock", "red_lock"]
AT_ONCE = 1.0
"""Seconds; a command that is sent again, or waited for, takes longer."""


def locked_by(client: Any, kind: str) -> Any:
    if kind in ("read", "write"):
        return getattr(client.get_read_write_lock("a"), f"{kind}_lock")()
    if kind in ("multi_lock", "red_lock"):
        return getattr(client, f"get_{kind}")(client.get_lock("a"), client.get_lock("b"))
    return getattr(client, f"get_{kind}")("a")


def lose_the_server(proxy: Proxy) -> None:
    proxy.refuse(True)
    proxy.cut()


@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_a_block_whose_lease_ended_while_the_server_was_away(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str
) -> None:
    lock = locked_by(backend.connect(proxy.url), kind)
    ended = 0.0
    with pytest.raises(LockLostError):
        if backend.threads:
            with lock.hold(lease_time=0.5):
                lose_the_server(proxy)
                assert lock.lost.wait(5)
                ended = time.monotonic()
        else:
            async with lock.hold(lease_time=0.5):
                await asyncio.to_thread(lose_the_server, proxy)
                try:
                    await asyncio.sleep(5)
                finally:
                    ended = time.monotonic()
    assert time.monotonic() - ended < AT_ONCE
    await backend.run_blocking(proxy.refuse, False)
    # The loss was this hold's: the next one is held.
    await backend.do(lock.lock())
    await backend.do(lock.unlock())
    await backend.until(lambda: not admin.exists("a", "b"))


async def test_the_release_of_each_level_of_a_lost_hold_raises(backend: RawBackend, proxy: Proxy) -> None:
    lock = backend.connect(proxy.url).get_lock("a")
    for _ in range(3):
        await backend.do(lock.lock(1.5))
    await backend.run_blocking(lose_the_server, proxy)
    lost = lock.lost
    assert await backend.do(lost.wait(5))
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(LockLostError):
            await backend.do(lock.unlock())
    assert time.monotonic() - began < AT_ONCE
    assert lost.is_set()


async def test_a_lease_that_ends_while_its_release_is_sent_again(backend: RawBackend, proxy: Proxy) -> None:
    lock = backend.connect(proxy.url, retry_attempts=2, timeout=0.3).get_lock("a")
    await backend.do(lock.lock(0.6))
    lost = lock.lost
    await backend.run_blocking(lose_the_server, proxy)
    with pytest.raises(LockLostError):
        await backend.do(lock.unlock())
    assert lost.is_set()


async def test_a_renewed_permit_that_is_lost(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    semaphore = backend.connect(proxy.url, lock_watchdog_timeout=0.5).get_permit_expirable_semaphore("a")
    await backend.do(semaphore.try_set_permits(1))
    permit = await backend.do(semaphore.acquire(renew=True))
    await backend.run_blocking(lose_the_server, proxy)
    await backend.run_blocking(time.sleep, 0.6)
    began = time.monotonic()
    with pytest.raises(PermitNotHeldError):
        await backend.do(semaphore.release(permit))
    assert time.monotonic() - began < AT_ONCE
    await backend.run_blocking(proxy.refuse, False)
    await backend.until(lambda: not admin.zcard("{a}:timeout"))
    assert await backend.do(semaphore.available_permits()) == 1
