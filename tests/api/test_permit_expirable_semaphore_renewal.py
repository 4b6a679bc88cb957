"""Renewal of expiring permits by the watchdog."""

from __future__ import annotations

import logging

import pytest
from redis.exceptions import ResponseError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.logic import renewal_grid
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend
from tests.support.server_state import ServerState

from .expirable_permits import FOREVER, USED, free, java_release, used

pytestmark = pytest.mark.asyncio


class TestRenewal:
    async def test_it_outlives_its_lease(self, backend: Backend, server_state: ServerState) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(5)
        one = await semaphore.acquire(renew=True)
        two = await semaphore.try_acquire(renew=True)
        assert two is not None
        three, four = await semaphore.acquire_many(2, renew=True)
        [five] = await semaphore.try_acquire_many(1, renew=True)
        assert 0.6 < await semaphore.get_lease_time(one) <= 1.5
        for _ in range(8):
            await backend.sleep(0.25)
            assert used(server_state) == {one, two, three, four, five}
            assert await semaphore.available_permits() == 0
        await semaphore.release([one, three])
        await semaphore.release(two)
        assert await semaphore.try_release(four) is True
        await backend.sleep(0.5)
        assert await semaphore.get_permits() == 5
        assert used(server_state) == {five}

    async def test_semaphores_are_renewed_together(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # What is taken within half a second falls due at once.
        monkeypatch.setattr(renewal_grid, "STEPS_PER_ROUND", (2, 2))
        client = backend.connect(proxy.url, lock_watchdog_timeout=3)
        semaphores = [client.get_permit_expirable_semaphore(f"stock{number}") for number in range(5)]
        for semaphore in semaphores:
            await semaphore.set_permits(4)
        permits = [await semaphore.acquire_many(4, renew=True) for semaphore in semaphores]
        proxy.forget()
        await backend.until(lambda: sum(int(words[2]) for words in renewals(proxy)) == 20)
        assert len(renewals(proxy)) < 5
        for semaphore, taken in zip(semaphores, permits, strict=True):
            assert await semaphore.try_release(taken) == 4

    async def test_one_that_is_gone_is_logged_and_not_held(
        self, backend: Backend, server_state: ServerState, caplog: pytest.LogCaptureFixture
    ) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        gone, kept = await semaphore.acquire_many(2, renew=True)
        with caplog.at_level(logging.WARNING, "pyredisson"):
            java_release(server_state, gone)
            await backend.until(lambda: gone in caplog.text)
        assert "'stock'" in caplog.text
        assert kept not in caplog.text
        with pytest.raises(pyredisson.PermitNotHeldError, match=gone):
            await semaphore.release([kept, gone])
        # A permit that was not released is renewed further.
        await backend.sleep(1.8)
        assert await semaphore.get_lease_time(kept) > 0
        await semaphore.release(kept)
        assert (free(server_state), caplog.text.count("was lost")) == (2, 1)

    async def test_one_that_is_found_gone_by_its_release(
        self, backend: Backend, server_state: ServerState, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = backend.connect(lock_watchdog_timeout=1.5)
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(2)
        gone, kept = await semaphore.acquire_many(2, renew=True)
        with caplog.at_level(logging.WARNING, "pyredisson"):
            java_release(server_state, gone)
            assert await semaphore.try_release([gone, kept]) == 0
        assert caplog.text.count("was lost") == 1
        for _ in range(3):
            await backend.sleep(0.6)
            assert await semaphore.get_lease_time(kept) > 0
        assert await semaphore.try_release(kept)

    async def test_a_release_is_no_loss(
        self, backend: Backend, proxy: Proxy, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A renewal that is under way meanwhile finds the permit gone."""
        semaphore = backend.connect(proxy.url, lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        renewal = proxy.hold_request(script("permit_renew", with_shebang=server.version >= (7,)).sha)
        permit = await semaphore.acquire(renew=True)
        await backend.until(renewal.held.is_set)
        with caplog.at_level(logging.WARNING, "pyredisson"):
            await semaphore.release(permit)
            renewal.deliver()
            await semaphore.release(await semaphore.acquire(renew=True))
        assert caplog.text == ""

    @pytest.mark.parametrize("lease", [0.5, None])
    async def test_a_lease_that_is_set_is_not_renewed(
        self, backend: Backend, server_state: ServerState, lease: float | None
    ) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire(renew=True)
        await backend.sleep(0.2)
        assert await semaphore.update_lease_time(permit, lease) is True
        if lease is None:
            await backend.sleep(0.5)
            assert server_state.redis.zscore(USED, bytes.fromhex(permit)) == FOREVER
            await semaphore.release(permit)
        else:
            await backend.sleep(0.7)
            assert await semaphore.available_permits() == 1
            assert await semaphore.try_release(permit) is False

    async def test_a_lease_that_cannot_be_set_is_renewed_further(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        semaphore = backend.connect(lock_watchdog_timeout=1.5).get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire(renew=True)
        server_state.redis.rename(USED, "aside")
        server_state.redis.set(USED, "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await semaphore.update_lease_time(permit, 10)
        server_state.redis.rename("aside", USED)
        await backend.sleep(1.8)
        assert 0 < await semaphore.get_lease_time(permit) <= 1.5

    async def test_a_close_releases_renewed_permits(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(4)
        await semaphore.acquire_many(2, renew=True)
        kept = [await semaphore.acquire(), await semaphore.acquire(30)]
        await client.close()
        assert (free(server_state), used(server_state)) == (2, set(kept))

    async def test_a_closed_client_can_still_release(self, backend: Backend, server_state: ServerState) -> None:
        """Nobody else would free what never expires."""
        client = backend.connect()
        semaphore = client.get_permit_expirable_semaphore("stock")
        await semaphore.set_permits(1)
        permit = await semaphore.acquire()
        await client.close()
        with pytest.raises(pyredisson.ClosedError):
            await semaphore.release(permit)
        await backend.until(lambda: free(server_state) == 1)


def renewals(proxy: Proxy) -> list[tuple[bytes, ...]]:
    """The commands that renew, of whatever form of the script."""
    return [
        words
        for words in proxy.commands
        if words[0] == b"EVALSHA" and len(words) > 3 and words[3].endswith(b":timeout")
    ]
