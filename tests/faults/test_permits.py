"""Expiring permits after lost replies, late requests and the death of a process: no permit is lost or made."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError

import pyredisson
import pyredisson.asyncio
from pyredisson.logic.permits.registry import DOUBT_LASTS
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import LOSSES, Lose
from tests.support.raw_backends import RawBackend

from .permits import ACQUIRE, RELEASE, TEXTS, USED, state


@pytest.mark.asyncio
class TestLostReplies:
    @LOSSES
    @pytest.mark.parametrize("renew", [False, True])
    async def test_acquire_and_release(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose, renew: bool
    ) -> None:
        client = backend.connect(proxy.url, timeout=0.8)
        semaphore = client.get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(5))
        faults = [lose(proxy, ACQUIRE)]
        one = await backend.do(semaphore.acquire(renew=renew))
        assert state(admin) == (4, 1)
        faults.append(lose(proxy, ACQUIRE))
        many = await backend.do(semaphore.try_acquire_many(3, 0, renew=renew))
        assert len(many) == 3
        assert state(admin) == (1, 4)
        faults.append(lose(proxy, RELEASE))
        await backend.do(semaphore.release(one))
        assert state(admin) == (2, 3)
        faults.append(lose(proxy, RELEASE))
        assert await backend.do(semaphore.try_release(many)) == 3
        assert state(admin) == (5, 0)
        assert all(fault.happened.is_set() for fault in faults)
        assert client._session.permits.in_doubt == {}

    async def test_a_doubt_is_forgotten_when_no_copy_can_come_any_more(
        self, backend: RawBackend, proxy: Proxy, admin: Redis
    ) -> None:
        """Nobody need release a permit: it ends with its lease."""
        client = backend.connect(proxy.url)
        semaphore, session = client.get_permit_expirable_semaphore("p"), client._session
        await backend.do(semaphore.set_permits(9))
        noted, clock = [], session.clock
        for passed in (0.0, 10.0, DOUBT_LASTS + 5.0, 2 * DOUBT_LASTS + 10.0):
            session.clock = lambda passed=passed: clock() + passed
            proxy.cut_reply(ACQUIRE)
            await backend.do(semaphore.acquire())
            noted.append(len(session.permits.in_doubt))
        assert noted == [1, 2, 2, 1]

    @LOSSES
    async def test_the_answer_is_still_no(self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose) -> None:
        semaphore = backend.connect(proxy.url, timeout=0.8).get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(2))
        one = await backend.do(semaphore.acquire())
        lose(proxy, ACQUIRE)
        assert await backend.do(semaphore.try_acquire_many(2)) == []
        lose(proxy, RELEASE)
        assert await backend.do(semaphore.try_release([one, "0" * 32])) == 0
        assert state(admin) == (1, 1)

    @LOSSES
    async def test_an_ended_permit_is_not_called_released(
        self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose
    ) -> None:
        """All unknown after a lost reply means released; but this one is known, and has ended."""
        semaphore = backend.connect(proxy.url, timeout=0.8).get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(1))
        permit = await backend.do(semaphore.acquire(0.001))
        await backend.sleep(0.005)
        lose(proxy, RELEASE)
        with pytest.raises(pyredisson.PermitNotHeldError):
            await backend.do(semaphore.release(permit))

    @LOSSES
    async def test_all_else(self, backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose) -> None:
        semaphore = backend.connect(proxy.url, timeout=0.8).get_permit_expirable_semaphore("p")
        faults = []

        def struck(name: str) -> None:
            faults.append(lose(proxy, TEXTS[name].sha))

        struck("semaphore_set")
        assert await backend.do(semaphore.try_set_permits(2)) is True
        struck("semaphore_set")
        assert await backend.do(semaphore.try_set_permits(3)) is False
        struck("semaphore_add")
        await backend.do(semaphore.add_permits(3))
        assert state(admin) == (5, 0)
        permit = await backend.do(semaphore.acquire())
        struck("permit_set")
        await backend.do(semaphore.set_permits(3))
        assert state(admin) == (2, 1)
        struck("permit_lease")
        assert await backend.do(semaphore.update_lease_time(permit, 50)) is True
        struck("permit_count")
        assert await backend.do(semaphore.get_permits()) == 3
        struck("exactly_once_delete")
        assert await backend.do(semaphore.delete()) is True
        assert all(fault.happened.is_set() for fault in faults)
        assert not admin.exists("p", USED)


@pytest.mark.asyncio
class TestLateCopies:
    async def test_an_acquire_that_gave_up(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        """Nothing gets through, the caller gets an error, and then the network delivers what it had kept."""
        client = backend.connect(proxy.url, timeout=0.8, connect_timeout=0.8, lock_watchdog_timeout=3)
        semaphore = client.get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(5))
        late = proxy.hold_request(ACQUIRE)
        proxy.refuse(True)
        with pytest.raises((ConnectionError, TimeoutError)):
            await backend.do(semaphore.try_acquire_many(2, 0.1))
        await backend.run_blocking(late.deliver)
        assert state(admin) == (3, 2)
        proxy.refuse(False)
        await backend.until(lambda: state(admin) == (5, 0))

    @pytest.mark.parametrize("undone", ["released", "released in parts", "not had", "closed"])
    async def test_the_server_could_not_be_asked_to_drop_it(self, backend: RawBackend, undone: str) -> None:
        """The user has no right to do so: the copy arrives, and takes nothing."""
        with (
            Server(users=["app on >x ~* &* +@all -client"]) as server,
            server.redis() as redis,
            Proxy(server.host, server.port) as proxy,
        ):
            for text in TEXTS.values():
                redis.script_load(text.text)
            redis.set("p", 3)
            client = backend.connect(f"redis://app:x@{proxy.host}:{proxy.port}/0", timeout=0.8)
            semaphore = client.get_permit_expirable_semaphore("p")
            late = proxy.hold_request(ACQUIRE)
            permits = await backend.do(semaphore.try_acquire_many(9 if undone == "not had" else 3, renew=True))
            assert late.held.is_set()
            if undone == "released":
                await backend.do(semaphore.release(permits))
            elif undone == "released in parts":
                for permit in permits:
                    await backend.do(semaphore.release(permit))
            elif undone == "closed":
                await backend.do(client.close())
            else:
                await backend.run_blocking(proxy.wait_for, RELEASE)
                redis.set("p", 9)
            await backend.until(lambda: redis.zcard(USED) == 0)
            before = redis.get("p")
            await backend.run_blocking(late.deliver)
            assert redis.get("p") == before == (b"9" if undone == "not had" else b"3")
            assert redis.zcard(USED) == 0
            assert all(redis.ttl(key) > 0 for key in redis.keys("pyredisson*"))

    async def test_a_release_that_failed_is_done_in_the_background(
        self, backend: RawBackend, proxy: Proxy, admin: Redis
    ) -> None:
        client = backend.connect(proxy.url, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=3)
        semaphore = client.get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(3))
        permits = await backend.do(semaphore.acquire_many(2, renew=True))
        fault = proxy.cut_request(RELEASE, 2)
        with pytest.raises((ConnectionError, TimeoutError)):
            await backend.do(semaphore.release(permits))
        assert fault.happened.is_set()
        await backend.until(lambda: state(admin) == (3, 0))
        assert client._session.holds.table == {}


HOLD = """
import asyncio, sys
import pyredisson, pyredisson.asyncio
url, backend, lease = sys.argv[1:]

def said():
    print("held", flush=True)
    sys.stdin.readline()

async def main():
    client = pyredisson.asyncio.connect(url, lock_watchdog_timeout=float(lease))
    await client.get_permit_expirable_semaphore("p").acquire_many(3, renew=True)
    await asyncio.to_thread(said)

if backend == "asyncio":
    asyncio.run(main())
else:
    client = pyredisson.connect(url, lock_watchdog_timeout=float(lease))
    client.get_permit_expirable_semaphore("p").acquire_many(3, renew=True)
    said()
"""


@pytest.mark.asyncio
class TestProcesses:
    async def test_the_end_of_the_interpreter_releases_renewed_permits(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        admin.set("p", 3)
        holder = child(HOLD, server.url, backend.name, 30)
        assert await backend.run_blocking(holder.receive) == "held"
        assert state(admin) == (0, 3)
        holder.send()
        assert await backend.run_blocking(holder.wait) == 0
        assert state(admin) == (3, 0)

    async def test_what_a_killed_process_renewed_goes_to_the_next_when_the_lease_ends(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        admin.set("p", 3)
        holder = child(HOLD, server.url, backend.name, 1)
        assert await backend.run_blocking(holder.receive) == "held"
        semaphore = backend.connect(server.url).get_permit_expirable_semaphore("p")

        async def take() -> float:
            await backend.do(semaphore.acquire_many(2))
            return time.monotonic()

        waiter = backend.start(take)
        await backend.sleep(1.5)
        # It is renewed while the process lives.
        assert not waiter.done
        holder.signal(signal.SIGKILL)
        await backend.run_blocking(holder.wait)
        killed = time.monotonic()
        assert await waiter.result() - killed < 2
        assert state(admin) == (0, 3)  # one of which has ended
        assert await backend.do(semaphore.available_permits()) == 1

    async def test_a_pause_beyond_the_lease(
        self, backend: RawBackend, server: Server, admin: Redis, child: Callable[..., Child]
    ) -> None:
        """While the process is paused its permits go to others; when it continues it takes nothing from them."""
        admin.set("p", 3)
        holder = child(HOLD, server.url, backend.name, 0.6)
        assert await backend.run_blocking(holder.receive) == "held"
        holder.signal(signal.SIGSTOP)
        semaphore = backend.connect(server.url).get_permit_expirable_semaphore("p")
        permits = await backend.do(semaphore.acquire_many(3))
        holder.signal(signal.SIGCONT)
        holder.send()
        assert await backend.run_blocking(holder.wait) == 0
        assert {permit.hex() for permit in admin.zrange(USED, 0, -1)} == set(permits)  # type: ignore[union-attr]
        assert state(admin) == (0, 3)
