"""Closing a client while calls are in flight, interrupted or cancelled leaves no lock."""

from __future__ import annotations

import asyncio
import gc
import signal
import weakref
from collections.abc import Callable

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.aio.listener import AioListener
from pyredisson._backends.threads.listener import ThreadListener
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._client.lifecycle import ClientLifecycle
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import ACQUIRE, RELEASE, InterruptAt
from tests.support.raw_backends import RawBackend
from tests.support.waiting import eventually

INTERRUPTED = """
import sys, time
import pyredisson
lock = pyredisson.connect(sys.argv[1]).get_lock("a")
lock.lock()
lock.unlock()
print("go")
sys.stdin.readline()
try:
    lock.lock()
except KeyboardInterrupt:
    time.sleep(float(sys.argv[2]))
    sys.exit(3)
"""


@pytest.mark.parametrize("pause", [0, 0.02, 0.06, 0.1])
def test_the_exit_releases_an_acquire_that_ctrl_c_interrupted(
    proxy: Proxy, admin: Redis, child: Callable[..., Child], pause: float
) -> None:
    user = child(INTERRUPTED, proxy.url, pause)
    assert user.receive() == "go"
    late = proxy.hold_reply(ACQUIRE)
    # So that the repair is under way, at one step or another, when the program ends.
    proxy.latency(0.02)
    user.send()
    assert late.held.wait(10)
    assert admin.exists("a")
    user.signal(signal.SIGINT)
    assert user.wait() == 3
    assert not admin.exists("a")


def test_an_acquire_whose_request_was_on_its_way_at_ctrl_c_never_runs_after_the_exit(
    proxy: Proxy, admin: Redis, child: Callable[..., Child]
) -> None:
    user = child(INTERRUPTED, proxy.url, 0)
    assert user.receive() == "go"
    late = proxy.hold_request(ACQUIRE)
    user.send()
    assert late.held.wait(10)
    user.signal(signal.SIGINT)
    assert user.wait() == 3
    with pytest.raises(ConnectionError, match="closed the connection"):
        late.deliver()
    assert not admin.exists("a")


@pytest.mark.asyncio
async def test_a_cancelled_close_releases_held_locks(server: Server, admin: Redis) -> None:
    client = pyredisson.asyncio.connect(server.url)
    await client.get_lock("a").lock()
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.to_thread(eventually, lambda: not admin.exists("a"))


def test_an_interrupted_close_releases_held_locks(server: Server, admin: Redis) -> None:
    client = pyredisson.connect(server.url)
    client.get_lock("a").lock()
    with pytest.raises(KeyboardInterrupt), InterruptAt(ThreadListener.close) as interrupt:
        client.close()
    assert interrupt.happened
    assert not admin.exists("a")


@pytest.mark.parametrize(
    "step", [ClientLifecycle.end, ThreadListener.close, ThreadRuntime.close], ids=lambda step: step.__qualname__
)
def test_an_interrupted_close_closes_the_connections(server: Server, admin: Redis, step: Callable[..., object]) -> None:
    client = pyredisson.connect(server.url, client_name="to-be-closed")
    assert not client.get_lock("a").is_locked()
    with pytest.raises(KeyboardInterrupt), InterruptAt(step) as interrupt:
        client.close()
    assert interrupt.happened
    eventually(lambda: all(entry["name"] != "to-be-closed" for entry in admin.client_list()))
    # What the interrupt left undone, the next call does.
    client.close()
    assert client.closed


@pytest.mark.asyncio
async def test_in_asyncio_an_interrupted_close_closes_the_connections(server: Server, admin: Redis) -> None:
    client = pyredisson.asyncio.connect(server.url, client_name="to-be-closed")
    assert not await client.get_lock("a").is_locked()
    with pytest.raises(KeyboardInterrupt), InterruptAt(AioListener.stop) as interrupt:
        await client.close()
    assert interrupt.happened
    await asyncio.to_thread(eventually, lambda: all(entry["name"] != "to-be-closed" for entry in admin.client_list()))
    await client.close()


@pytest.mark.asyncio
async def test_an_acquire_in_flight_while_the_client_is_closed_leaves_nothing(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    client = backend.connect(proxy.url)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())
    late = proxy.hold_reply(ACQUIRE)

    async def take() -> None:
        await backend.do(lock.lock())

    taking = backend.start(take)
    assert await backend.run_blocking(late.held.wait, 5)
    assert admin.exists("a")
    await backend.do(client.close())
    # Its connection is gone already.
    with pytest.raises(pyredisson.ClosedError):
        await taking.result()
    await backend.until(lambda: not admin.exists("a"))


@pytest.mark.asyncio
async def test_a_release_in_flight_while_the_client_is_closed_is_completed(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    client = backend.connect(proxy.url, timeout=0.8)
    lock = client.get_lock("a")
    late = proxy.hold_request(RELEASE)

    async def release() -> None:
        await backend.do(lock.lock())
        await backend.do(lock.unlock())

    releasing = backend.start(release)
    assert await backend.run_blocking(late.held.wait, 5)
    await backend.do(client.close())
    with pytest.raises(pyredisson.ClosedError):
        await releasing.result()
    await backend.until(lambda: not admin.exists("a"))


def test_a_command_that_is_added_during_a_final_release_is_sent_too(proxy: Proxy, admin: Redis) -> None:
    """A call that ends while the client sends its last commands adds one of its own."""
    client = pyredisson.connect(proxy.url, timeout=5)
    backend = RawBackend("threads")
    client.get_lock("held").lock()
    late = proxy.hold_reply(ACQUIRE)

    async def take() -> None:
        client.get_lock("late").lock()

    taking = backend.start(take)
    assert late.held.wait(5)
    final_release = proxy.hold_request(RELEASE)

    async def close() -> None:
        client.close()

    closing = backend.start(close)
    assert final_release.held.wait(5)
    late.deliver()
    eventually(lambda: taking.done)
    final_release.deliver()
    eventually(lambda: closing.done)
    eventually(lambda: not admin.keys())


def test_a_closed_client_that_held_a_lock_is_freed(server: Server) -> None:
    def use() -> weakref.ref[object]:
        with pyredisson.connect(server.url) as client:
            client.get_lock("a").lock()
            client.get_lock("b").lock(60)
            return weakref.ref(client._lifecycle)

    lifecycle_reference = use()
    # Its threads have to end first.
    eventually(lambda: gc.collect() >= 0 and lifecycle_reference() is None)
