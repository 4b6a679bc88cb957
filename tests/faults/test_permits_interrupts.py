"""Expiring permits when a call is cancelled or interrupted: no permit is lost or made."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._api import arguments
from pyredisson._api.sync import releases
from pyredisson.asyncio import Client
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child
from tests.support.faults import InterruptAt
from tests.support.waiting import cancel_after, eventually

from .permits import ACQUIRE, RELEASE, state

STEPS = 40
"""More turns of the event loop than an acquire takes; each is one round trip at most."""


def ours(admin: Redis) -> list[Any]:
    found: Any = admin.keys("pyredisson_permit*")
    return list(found)


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    async with pyredisson.asyncio.connect(proxy.url) as running:
        yield running


async def whole(admin: Redis, client: Client) -> None:
    """All permits are free again."""
    await asyncio.to_thread(eventually, lambda: state(admin) == (3, 0), 5)
    assert client._session.holds.table == {}
    assert client._session.permits.in_doubt == {}


async def take_and_end(client: Client, seconds: float, renew: bool) -> None:
    """A user's block, that lasts `seconds`."""
    semaphore = client.get_permit_expirable_semaphore("p")
    permits = await semaphore.acquire_many(2, renew=renew)
    try:
        await asyncio.sleep(seconds)
    finally:
        await semaphore.release(permits)


@pytest.mark.asyncio
class TestCancellation:
    @pytest.mark.parametrize("connected", [True, False])
    async def test_at_any_turn_of_the_loop(self, proxy: Proxy, admin: Redis, connected: bool) -> None:
        admin.set("p", 3)
        struck = 0
        for turns in range(STEPS):
            async with pyredisson.asyncio.connect(proxy.url) as client:
                if connected:
                    await client.get_lock("other").is_locked()
                # Twice as late from some turn on: real input and output come between the turns.
                task = asyncio.ensure_future(take_and_end(client, 2e-4 * max(0, turns - 20), bool(turns % 2)))
                struck += await cancel_after(turns, task)
                await whole(admin, client)
        assert struck

    async def test_at_any_turn_of_a_contended_wait(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(3)
        for turns in range(STEPS):
            held = await semaphore.acquire_many(2)
            waiter = asyncio.ensure_future(take_and_end(client, 0, bool(turns % 2)))
            # Half of them are struck while the release is on its way to them.
            release = asyncio.ensure_future(semaphore.release(held)) if turns % 2 else None
            struck = await cancel_after(turns, waiter)
            assert struck or release is not None
            await (release or semaphore.release(held))
            await whole(admin, client)
            assert not any(channel.waiters for channel in client._session.channels.by_name.values())

    @pytest.mark.parametrize("what", ["request", "reply"])
    async def test_an_acquire_on_its_way(self, client: Client, proxy: Proxy, admin: Redis, what: str) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(3)
        late = proxy.hold_request(ACQUIRE) if what == "request" else proxy.hold_reply(ACQUIRE)
        task = asyncio.ensure_future(semaphore.acquire_many(2))
        assert await asyncio.to_thread(late.held.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(late.deliver)
        await whole(admin, client)
        assert await semaphore.try_acquire() is not None

    @pytest.mark.parametrize("what", ["request", "reply"])
    async def test_a_release_on_its_way(self, client: Client, proxy: Proxy, admin: Redis, what: str) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(3)
        permits = await semaphore.acquire_many(2, renew=True)
        late = proxy.hold_request(RELEASE) if what == "request" else proxy.hold_reply(RELEASE)
        task = asyncio.ensure_future(semaphore.release(permits))
        assert await asyncio.to_thread(late.held.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(late.deliver)
        await whole(admin, client)

    async def test_a_wait_that_is_given_up_leaves_nothing_to_undo(self, client: Client, admin: Redis) -> None:
        semaphore = client.get_permit_expirable_semaphore("p")
        await semaphore.set_permits(0)
        with pytest.raises(asyncio.TimeoutError):
            # It must be asleep by then: an attempt in flight would have to be undone.
            await asyncio.wait_for(semaphore.acquire(), 1.0)
        assert client._session.watchdog.repairs.pending() == []
        assert ours(admin) == []


class TestInterrupts:
    @pytest.mark.parametrize("must", [True, False])
    def test_a_release_that_had_not_begun(self, server: Server, admin: Redis, must: bool) -> None:
        with pyredisson.connect(server.url) as client:
            semaphore = client.get_permit_expirable_semaphore("p")
            semaphore.set_permits(3)
            permits = semaphore.acquire_many(2, renew=True)
            with InterruptAt(PermitExpirableSemaphoreLogic.release) as interrupt, pytest.raises(KeyboardInterrupt):
                release: Callable[..., object] = semaphore.release if must else semaphore.try_release
                release(permits)
            assert interrupt.happened
            eventually(lambda: state(admin) == (3, 0))
            assert client._session.holds.table == {}

    def test_before_the_ids_were_read(self, server: Server, admin: Redis) -> None:
        with pyredisson.connect(server.url) as client:
            semaphore = client.get_permit_expirable_semaphore("p")
            semaphore.set_permits(3)
            permit = semaphore.acquire()
            with InterruptAt(releases.release_permit_ids) as interrupt, pytest.raises(KeyboardInterrupt):
                semaphore.release(permit)
            # As if the signal had come before the call.
            assert interrupt.happened
            assert state(admin) == (2, 1)
            with InterruptAt(arguments.permit_ids_of), pytest.raises(KeyboardInterrupt):
                semaphore.release(permit)
            eventually(lambda: state(admin) == (3, 0))

    @pytest.mark.parametrize(
        "function", [PermitExpirableSemaphoreLogic._renew, PermitExpirableSemaphoreLogic._hold_key]
    )
    def test_on_the_way_out_with_permits_in_its_hands(
        self, server: Server, admin: Redis, function: Callable[..., Any]
    ) -> None:
        with pyredisson.connect(server.url) as client:
            semaphore = client.get_permit_expirable_semaphore("p")
            semaphore.set_permits(3)
            with InterruptAt(function) as interrupt, pytest.raises(KeyboardInterrupt):
                semaphore.acquire_many(2, renew=True)
            assert interrupt.happened
            eventually(lambda: state(admin) == (3, 0))
            assert client._session.holds.table == {}

    @pytest.mark.timeout(2 * CHILD_LIMIT)
    @pytest.mark.parametrize("renew", [False, True])
    def test_at_random_moments(self, server: Server, admin: Redis, child: Callable[..., Child], renew: bool) -> None:
        admin.set("p", 3)
        user = child(RANDOM, server.url, 1, renew, 1500)
        interrupts = int(user.receive(CHILD_LIMIT))
        assert interrupts > 100
        eventually(lambda: state(admin) == (3, 0))
        user.send()
        assert user.receive() == "0"
        assert user.wait() == 0

    def test_of_a_real_signal_while_the_reply_is_on_its_way(
        self, proxy: Proxy, admin: Redis, child: Callable[..., Child]
    ) -> None:
        admin.set("p", 3)
        user = child(INTERRUPTED, proxy.url)
        assert user.receive() == "go"
        late = proxy.hold_reply(ACQUIRE)
        user.send()
        assert late.held.wait(10)
        assert state(admin) == (1, 2)
        user.signal(signal.SIGINT)
        assert user.receive() == "interrupted"
        eventually(lambda: state(admin) == (3, 0), 5)
        user.send()
        assert user.wait() == 0


INTERRUPTED = """
import sys
import pyredisson
client = pyredisson.connect(sys.argv[1])
semaphore = client.get_permit_expirable_semaphore("p")
semaphore.get_permits()
print("go", flush=True)
sys.stdin.readline()
try:
    semaphore.acquire_many(2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""
RANDOM = """
import faulthandler, random, signal, sys
import pyredisson
# Who hangs says where.
faulthandler.dump_traceback_later(100, exit=True)
signal.signal(signal.SIGALRM, signal.default_int_handler)
url, seed, renew, rounds = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True", int(sys.argv[4])
random.seed(seed)
client = pyredisson.connect(url, connection_pool_size=3, timeout=5)
semaphore = client.get_permit_expirable_semaphore("p")
interrupts = 0
for _ in range(rounds):
    permits = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1.5e-3))
            permits = semaphore.acquire_many(2, renew=renew)
            semaphore.release(permits)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
        if permits is not None:
            # Interrupted between the two calls; or the second is done already, or in the background.
            semaphore.try_release(permits)
print(interrupts, flush=True)
sys.stdin.readline()
print(len(client._session.holds.table), flush=True)
client.close()
"""
