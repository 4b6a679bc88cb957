"""Late replies and late repairs: which call gets a reply, how long a hold is valid, and how long to retry."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson
import pyredisson.asyncio
from pyredisson._backends.threads.connection import Connection
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE, RELEASE, InterruptAt
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners, scripts_run
from tests.support.waiting import TIME_LIMIT

pytestmark = pytest.mark.asyncio


async def test_a_signal_while_a_reply_is_abandoned_leaves_it_to_no_other_call(proxy: Proxy, admin: Redis) -> None:
    admin.hset("a", "another:1", 1)
    with pyredisson.connect(proxy.url, timeout=0.8) as client:
        taken, free = client.get_lock("a"), client.get_lock("b")
        free.is_locked()
        # The reply comes after the deadline, on a connection that must not be used any more.
        proxy.latency(0.5)
        with pytest.raises(KeyboardInterrupt), InterruptAt(Connection._close_after_failure) as interrupt:
            taken.remain_time_to_live()
        assert interrupt.happened
        proxy.latency(0)
        time.sleep(0.5)
        assert free.is_locked() is False
        assert free.remain_time_to_live() is None
        assert taken.is_locked() is True


async def test_a_lease_counts_from_the_copy_that_was_answered(backend: RawBackend, proxy: Proxy) -> None:
    """Waiting for the lost reply took longer than the lease."""
    lock = backend.connect(proxy.url, timeout=1).get_lock("a")
    await backend.do(lock.is_locked())
    fault = proxy.drop_reply(ACQUIRE)
    assert await backend.do(lock.try_lock(3, lease_time=0.9)) is True
    assert fault.happened.is_set()
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


async def test_two_acquires_of_one_owner_at_once_count_twice(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    client = backend.connect(proxy.url)
    lock = client.get_lock("a", owner=7)
    await backend.do(lock.is_locked())
    late = proxy.hold_reply(ACQUIRE)

    async def take() -> None:
        await backend.do(lock.lock())

    first = backend.start(take)
    assert await backend.run_blocking(late.held.wait, 5)
    second = backend.start(take)
    await backend.run_blocking(late.deliver)
    await first.result()
    await second.result()
    assert await backend.do(lock.get_hold_count()) == 2
    await backend.do(lock.unlock())
    assert await backend.do(lock.get_hold_count()) == 1
    assert admin.exists("a")
    await backend.do(lock.unlock())
    assert not admin.exists("a")


async def test_a_release_in_doubt_is_repeated_beyond_the_watchdogs_lease(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    """The lock has a longer one of its own: it would stay for a minute."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=1.2, timeout=0.8, retry_attempts=0)
    lock = client.get_lock("a")
    await backend.do(lock.lock(lease_time=60))
    proxy.cut_request(RELEASE)
    proxy.refuse(True)
    with pytest.raises(ConnectionError):
        await backend.do(lock.unlock())
    await backend.sleep(1.8)
    assert admin.exists("a")
    proxy.refuse(False)
    await backend.until(lambda: not admin.exists("a"), 5)


async def test_a_waiter_without_a_subscription_polls(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """The subscription is broken, and commands work: the waiter must not sleep until the end of the lease."""
    admin.hset("a", "another:1", 1)
    client = backend.connect(proxy.url)
    before = scripts_run(admin)

    async def take() -> bool:
        return bool(await backend.do(client.get_lock("a").try_lock(25)))

    waiter = backend.start(take)
    await backend.until(lambda: scripts_run(admin) - before == 2)
    proxy.refuse(True)
    admin.client_kill_filter(_type="pubsub")
    await backend.until(lambda: listeners(admin, "a") == 0)
    admin.delete("a")
    assert await waiter.result(5) is True


@pytest.fixture
def hasty(server: Server) -> Iterator[tuple[int, threading.Event]]:
    """A balancer before the server; it ends its first connection with the reply to the first thing said there."""
    ended = threading.Event()
    sockets = [socket.create_server(("127.0.0.1", 0))]
    threads: list[threading.Thread] = []

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        while data := receive(source):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while client := accept(sockets[0]):
            behind = socket.create_connection((server.host, server.port))
            sockets.extend((client, behind))
            if not ended.is_set():
                behind.sendall(receive(client))
                client.sendall(receive(behind))
                client.close()
                ended.set()
                continue
            for pair in ((client, behind), (behind, client)):
                threads.append(threading.Thread(target=pass_on, args=pair))
                threads[-1].start()

    threads.append(threading.Thread(target=serve))
    threads[0].start()
    yield sockets[0].getsockname()[1], ended
    sockets[0].shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for each in sockets:
        each.close()


def accept(listening: socket.socket) -> socket.socket | None:
    try:
        return listening.accept()[0]
    except OSError:
        # The end of the test.
        return None


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


async def test_a_connection_that_ends_with_its_handshake_is_not_waited_for(hasty: tuple[int, threading.Event]) -> None:
    """Its waiters may wake up after it is gone already; what they would send then gets no answer ever."""
    port, ended = hasty
    async with pyredisson.asyncio.connect(f"redis://127.0.0.1:{port}/0", timeout=60) as client:
        taken = asyncio.gather(*[client.get_lock(f"a{number}").acquire() for number in range(3)])
        assert await asyncio.wait_for(taken, TIME_LIMIT) == [True, True, True]
        assert ended.is_set()


async def test_a_restart_behind_a_unix_socket_costs_no_other_clients_connection(
    backend: RawBackend, own_server: Server
) -> None:
    """All clients have the same address there, and after a restart the same numbers."""
    client = backend.connect(own_server.unix_url, timeout=5, retry_attempts=0)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())

    async def ask() -> None:
        await backend.do(lock.is_locked())

    own_server.pause()
    asking = backend.start(ask)
    # By then it was asked.
    await backend.sleep(0.5)
    await backend.run_blocking(own_server.restart)
    with pytest.raises(ConnectionError):
        await asking.result()
    others = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    try:
        for other in others:
            other.connect(own_server.path)
            other.settimeout(5)
            other.sendall(b"PING\r\n")
            assert other.recv(100) == b"+PONG\r\n"
        await backend.do(lock.is_locked())
        for other in others:
            other.sendall(b"PING\r\n")
            assert other.recv(100) == b"+PONG\r\n"
    finally:
        for other in others:
            other.close()
