"""A lock whose lease is over when the reply arrives: it is released, and acquired again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import InvalidResponse

from pyredisson._protocol.scripts import script
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE, FLAGS
from tests.support.raw_backends import BackgroundCall, RawBackend
from tests.support.waiting import TIME_LIMIT, eventually

pytestmark = pytest.mark.asyncio

LEASE = 0.5
KINDS = ["lock", "fair_lock", "fenced_lock", "spin_lock", "read", "write"]


def locked_by(client: Any, kind: str) -> Any:
    if kind in ("read", "write"):
        return getattr(client.get_read_write_lock("a"), f"{kind}_lock")()
    return getattr(client, f"get_{kind}")("a")


def acquire_sha(kind: str) -> bytes:
    name = {"fair_lock": "fair", "fenced_lock": "fenced", "spin_lock": "lock"}.get(kind, kind)
    return script(f"{name}_acquire", with_shebang=FLAGS).sha


def start(backend: RawBackend, call: Callable[[], Any]) -> BackgroundCall:
    """Makes a call on another thread, or in another task."""

    async def operation() -> Any:
        return await backend.do(call())

    return backend.start(operation)


async def end_of_lease(backend: RawBackend, admin: Redis) -> None:
    await backend.until(lambda: not admin.exists("a"))


@pytest.mark.parametrize("kind", KINDS)
async def test_another_owner_holds_it_by_then(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, kind: str
) -> None:
    lock = locked_by(backend.connect(proxy.url), kind)
    other = locked_by(backend.connect(server.url), "write" if kind == "read" else kind)
    await backend.do(lock.is_locked())
    late = proxy.hold_reply(acquire_sha(kind))
    started = start(backend, lambda: lock.try_lock(lease_time=LEASE))
    assert await backend.run_blocking(late.held.wait, TIME_LIMIT)
    await end_of_lease(backend, admin)
    assert await backend.do(other.try_lock())
    await backend.run_blocking(late.deliver)
    assert await started.result() is False
    assert await backend.do(lock.get_hold_count()) == 0
    assert await backend.do(other.is_held())
    await backend.do(other.unlock())
    assert await backend.do(other.is_locked()) is False


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_asked_for_again_within_the_wait(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str
) -> None:
    lock = locked_by(backend.connect(proxy.url), kind)
    await backend.do(lock.is_locked())
    late = proxy.hold_reply(acquire_sha(kind))

    async def take() -> tuple[bool, bool]:
        return await backend.do(lock.try_lock(TIME_LIMIT, lease_time=LEASE)), lock.lost.is_set()

    started = backend.start(take)
    assert await backend.run_blocking(late.held.wait, TIME_LIMIT)
    await end_of_lease(backend, admin)
    await backend.run_blocking(late.deliver)
    assert await started.result() == (True, False)


async def test_a_nested_lease_that_is_over_counts_inside_an_outer_one(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    lock = backend.connect(proxy.url).get_lock("a", owner=7)
    await backend.do(lock.lock())
    late = proxy.hold_reply(ACQUIRE)
    started = start(backend, lambda: lock.try_lock(lease_time=0.1))
    assert await backend.run_blocking(late.held.wait, TIME_LIMIT)
    time.sleep(0.15)
    await backend.run_blocking(late.deliver)
    assert await started.result() is True
    assert await backend.do(lock.get_hold_count()) == 2


async def test_permits_that_have_ended_are_acquired_again(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    semaphore = backend.connect(proxy.url).get_permit_expirable_semaphore("a")
    await backend.do(semaphore.try_set_permits(1))
    late = proxy.hold_reply(script("permit_acquire", with_shebang=FLAGS).sha)
    started = start(backend, lambda: semaphore.try_acquire(TIME_LIMIT, lease_time=3 * LEASE))
    assert await backend.run_blocking(late.held.wait, TIME_LIMIT)
    first: list[Any] = list(admin.zrange("{a}:timeout", 0, -1))
    await backend.run_blocking(time.sleep, 3 * LEASE)
    await backend.run_blocking(late.deliver)
    permit = await started.result()
    assert permit != first[0].hex()
    assert await backend.do(semaphore.get_lease_time(permit)) > 0
    assert await backend.do(semaphore.available_permits()) == 0


class Misquoting:
    """A server's made that answers the first request containing `match` with something else than the server."""

    def __init__(self, server: Server, match: bytes) -> None:
        self._address = server.host, server.port
        self._match = match
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def close(self) -> None:
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its other side was first
        for thread in self._threads:
            thread.join(TIME_LIMIT)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._address)
            self._sockets += [client, server]
            thread = threading.Thread(target=self._serve, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while request := client.recv(1 << 16):
                server.sendall(request)
                reply = server.recv(1 << 16)
                if self._match in request:
                    self._match, reply = b"once only", b"+OK\r\n"
                client.sendall(reply)
        except OSError:
            return


@pytest.fixture
def misquoting(server: Server) -> Iterator[Misquoting]:
    made = Misquoting(server, ACQUIRE)
    yield made
    made.close()


async def test_an_acquire_with_an_answer_of_another_kind_is_undone(
    backend: RawBackend, misquoting: Misquoting, admin: Redis
) -> None:
    client = backend.connect(misquoting.url)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())
    with pytest.raises(InvalidResponse, match=r"lock 'a' .*OK"):
        await backend.do(lock.try_lock())
    await backend.run_blocking(eventually, lambda: not admin.exists("a"), 5)
    assert await backend.do(lock.try_lock()) is True
    await backend.do(lock.unlock())
