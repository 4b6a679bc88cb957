"""Commands of the semaphore in doubt: lost replies, late requests, callers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
import pyredisson.asyncio
from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend
from tests.support.faults import LOSSES, Lose
from tests.support.server_state import ServerState

from .semaphore import free, java_release

pytestmark = pytest.mark.asyncio


@pytest.fixture
def sha(server: Server) -> Callable[[str], bytes]:
    """What to look for in a request."""
    return lambda name: script(f"semaphore_{name}", with_shebang=server.version >= (7,)).sha


class TestDoubt:
    """A reply is lost, a request comes late, the caller is gone: permits are neither lost nor made."""

    async def made(self, backend: Backend, address: str, permits: int = 5, **fields: Any) -> Any:
        semaphore = backend.connect(address, timeout=0.8, **fields).get_semaphore("stock")
        await semaphore.try_set_permits(permits)
        return semaphore

    @LOSSES
    async def test_acquire_and_release(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes], lose: Lose
    ) -> None:
        semaphore = await self.made(backend, proxy.url)
        for left in (3, 1):
            fault = lose(proxy, sha("acquire"))
            assert await semaphore.try_acquire(2) is True
            assert fault.happened.is_set()
            assert free(server_state) == left
        for left in (3, 5):
            fault = lose(proxy, sha("add"))
            await semaphore.release(2)
            assert fault.happened.is_set()
            assert free(server_state) == left

    @LOSSES
    async def test_all_else(
        self,
        backend: Backend,
        proxy: Proxy,
        server_state: ServerState,
        sha: Callable[[str], bytes],
        server: Server,
        lose: Lose,
    ) -> None:
        semaphore = await self.made(backend, proxy.url, 0)
        faults = []

        def struck(name: str) -> None:
            faults.append(lose(proxy, name.encode() if name.startswith("$") else sha(name)))

        struck("add")
        assert await semaphore.release_if_exists(2) is True
        struck("add")
        await semaphore.add_permits(3)
        struck("add")
        await semaphore.reduce_permits(1)
        assert free(server_state) == 4
        struck("acquire")
        assert await semaphore.drain_permits() == 4
        assert free(server_state) == 0
        faults.append(lose(proxy, script("exactly_once_delete", with_shebang=server.version >= (7,)).sha))
        assert await semaphore.delete() is True
        struck("set")
        assert await semaphore.try_set_permits(6) is True
        struck("set")
        assert await semaphore.try_set_permits(7) is False
        assert free(server_state) == 6
        assert all(fault.happened.is_set() for fault in faults)

    async def test_the_result_is_false_and_a_late_copy_acquires_nothing(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        semaphore = await self.made(backend, proxy.url, 1)
        late = proxy.hold_request(sha("acquire"))
        assert await semaphore.try_acquire(2) is False
        assert late.held.is_set()
        proxy.wait_for(sha("undo"))
        java_release(server_state, 1)
        # The server was asked to drop that connection before the call was repeated.
        with pytest.raises(OSError, match="closed the connection"):
            await asyncio.to_thread(late.deliver)
        assert await semaphore.try_acquire(2) is True

    @pytest.mark.parametrize("call", ["acquire", "release"])
    async def test_a_late_copy_that_the_server_could_not_be_told_to_drop(
        self, backend: Backend, server_state: ServerState, sha: Callable[[str], bytes], call: str
    ) -> None:
        """The user has no right to do so: the copy arrives, and is not executed."""
        with (
            Server(users=["app on >x ~* &* +@all -client"]) as server,
            server.redis() as redis,
            Proxy(server.host, server.port) as proxy,
        ):
            url = f"redis://app:x@{proxy.host}:{proxy.port}/0"
            semaphore = await self.made(backend, url)
            name = "acquire" if call == "acquire" else "add"
            text = script(f"semaphore_{name}", with_shebang=server.version >= (7,))
            redis.script_load(text.text)
            late = proxy.hold_request(text.sha)
            await getattr(semaphore, call)(2)
            assert late.held.is_set()
            expected = b"3" if call == "acquire" else b"7"
            assert redis.get("stock") == expected
            # Another call on the same session slot, and then the late one.
            await semaphore.try_acquire()
            await semaphore.release()
            await asyncio.to_thread(late.deliver)
            assert redis.get("stock") == expected

    async def test_a_late_request_of_an_abandoned_acquire_acquires_nothing(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        semaphore = await self.made(backend, proxy.url, connect_timeout=0.8, lock_watchdog_timeout=3)
        late = proxy.hold_request(sha("acquire"))
        proxy.refuse(True)
        with pytest.raises((ConnectionError, TimeoutError)):
            await semaphore.try_acquire(2, 0.1)
        await asyncio.to_thread(late.deliver)
        assert free(server_state) == 3
        proxy.refuse(False)
        await backend.until(lambda: free(server_state) == 5)

    @pytest.mark.parametrize("ran", [True, False])
    async def test_a_release_that_failed_is_done_in_the_background(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes], ran: bool
    ) -> None:
        semaphore = await self.made(backend, proxy.url, retry_attempts=0, lock_watchdog_timeout=3)
        await semaphore.acquire(2)
        fault = proxy.drop_reply(sha("add"), 2) if ran else proxy.cut_request(sha("add"), 2)
        with pytest.raises((ConnectionError, TimeoutError)):
            await semaphore.release(2)
        assert fault.happened.is_set()
        await backend.until(lambda: proxy.seen(sha("add")) >= 3)
        await backend.until(lambda: free(server_state) == 5)
        await semaphore.acquire(2)
        await semaphore.release(2)
        assert free(server_state) == 5

    async def test_the_server_is_a_new_one(
        self, backend: Backend, proxy: Proxy, server_state: ServerState, sha: Callable[[str], bytes]
    ) -> None:
        """Permits that were never acquired are not released."""
        semaphore = await self.made(backend, proxy.url, retry_attempts=0, lock_watchdog_timeout=3)
        late = proxy.hold_reply(sha("acquire"))
        other = backend.spawn(lambda: semaphore.try_acquire(2))
        await backend.until(late.held.is_set)
        server_state.redis.flushall()
        server_state.redis.set("stock", 5)
        proxy.cut_request(sha("acquire"))
        with pytest.raises((ConnectionError, TimeoutError)):
            await other.result()
        await backend.until(lambda: proxy.seen(sha("undo")) > 0)
        await backend.until(
            lambda: any(b" 0" in server_state.redis.get(key) for key in server_state.redis.keys("pyredisson_once*"))
        )
        assert free(server_state) == 5

    async def test_a_release_of_a_client_that_was_closed(self, backend: Backend, server_state: ServerState) -> None:
        """The permit would be lost for ever."""
        client = backend.connect()
        semaphore = client.get_semaphore("stock")
        await semaphore.try_set_permits(2)
        with pytest.raises(pyredisson.ClosedError):
            async with semaphore:
                await client.close()
        await backend.until(lambda: free(server_state) == 2)
        calls: list[Callable[[], Awaitable[object]]] = [
            semaphore.acquire,
            lambda: semaphore.try_set_permits(1),
            lambda: semaphore.add_permits(1),
            semaphore.available_permits,
            semaphore.drain_permits,
            semaphore.delete,
        ]
        for call in calls:
            with pytest.raises(pyredisson.ClosedError):
                await call()
        assert free(server_state) == 2

    async def test_a_long_pause_while_the_outcome_was_in_doubt(
        self,
        backend: Backend,
        proxy: Proxy,
        server_state: ServerState,
        sha: Callable[[str], bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The server may have forgotten what it did: asked again, it would do it again."""
        monkeypatch.setattr("pyredisson.logic.exactly_once.REMEMBERED", 0.0)
        semaphore = await self.made(backend, proxy.url)
        proxy.cut_reply(sha("acquire"))
        await semaphore.acquire(2)
        # It undid the one in doubt, and asked with a new number.
        proxy.wait_for(sha("undo"))
        await backend.until(lambda: free(server_state) == 3)
        assert proxy.seen(sha("acquire")) == 2
