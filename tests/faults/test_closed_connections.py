"""Idle connections that the server has closed: a command that was never sent doesn't count as done."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson
from pyredisson._backends.aio.connection import connect
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson._settings.config import Config
from pyredisson.logic import retry
from pyredisson.testing import Proxy, Server
from tests.support.faults import RELEASE, pool_of
from tests.support.kinds import LOCKS
from tests.support.raw_backends import RawBackend
from tests.support.server_state import scripts_run
from tests.support.waiting import TIME_LIMIT, eventually

from .kinds import GROUPS, Used, lock_of, prepare

pytestmark = pytest.mark.asyncio
UNUSED = 0.02
"""Seconds after which a connection counts as idle; the loop of an asyncio test is blocked meanwhile."""
AT_ONCE = 5.0
"""Seconds; with `long_pauses` a pause between two tries is at least 10."""


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_DELAY", "LONGEST_DELAY"):
        monkeypatch.setattr(retry, name, 20.0)


def hang_up(admin: Redis) -> None:
    """The server closes all connections but this one. A client that waits for no reply doesn't notice it."""
    admin.client_kill_filter(_type="normal", skipme=True)
    time.sleep(UNUSED)


def take_away(admin: Redis) -> None:
    """All locks belong to another client now."""
    admin.flushdb()
    for name in "abc":
        admin.hset(name, "another:1", 1)
    hang_up(admin)


@pytest.mark.parametrize("kind", [*LOCKS, *GROUPS])
async def test_a_lost_hold_is_not_released(backend: RawBackend, server: Server, admin: Redis, kind: str) -> None:
    lock = lock_of(backend.connect(server.url), kind)
    await backend.do(lock.lock())
    take_away(admin)
    with pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())
    assert admin.hgetall("a") == {b"another:1": b"1"}


async def test_a_lost_hold_is_not_released_over_tls(backend: RawBackend, tls_server: Server) -> None:
    """What is still unread there, a session ticket for instance, hides nothing. Each level is lost."""
    lock = backend.connect(f"{tls_server.tls_url}?ssl_ca_certs={tls_server.ca_file}").get_lock("a")
    with tls_server.redis() as admin:
        for _ in range(2):
            await backend.do(lock.lock())
        take_away(admin)
        for _ in range(2):
            with pytest.raises(pyredisson.LockLostError):
                await backend.do(lock.unlock())
        admin.flushdb()


@pytest.mark.usefixtures("long_pauses")
async def test_a_closed_connection_costs_no_pause(backend: RawBackend, server: Server, admin: Redis) -> None:
    client = backend.connect(server.url, retry_attempts=0)
    lock = client.get_lock("a")
    semaphore = client.get_semaphore("s")
    await backend.do(semaphore.try_set_permits(2))
    for call in (lock.lock, lock.is_locked, lock.lock, lock.unlock, semaphore.acquire, semaphore.release, lock.unlock):
        hang_up(admin)
        begun = time.monotonic()
        await backend.do(call())
        assert time.monotonic() - begun < AT_ONCE
    assert not admin.exists("a")
    assert admin.get("s") == b"2"


async def test_a_renewal_over_a_closed_connection_is_no_trouble(
    backend: RawBackend, server: Server, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The watchdog's connection is idle between two rounds."""
    lock = backend.connect(server.url, lock_watchdog_timeout=1.2).get_lock("a")
    begun = scripts_run(admin)
    await backend.do(lock.lock())
    for renewals in range(2, 5):
        await backend.until(functools.partial(lambda so_far: scripts_run(admin) - begun >= so_far, renewals))
        await backend.run_blocking(hang_up, admin)
    assert not lock.lost.is_set()
    assert not caplog.messages


async def test_several_idle_connections_cost_one_try(server: Server, admin: Redis) -> None:
    """They are likely to have ended together."""
    with pyredisson.connect(server.url, retry_attempts=0) as client:
        lock = client.get_lock("a")
        pool: Any = pool_of(client)
        connections = [pool._connect_or_wait() for _ in range(3)]
        pool._idle.extend(connections)
        hang_up(admin)
        lock.lock()
        assert len(pool._all) == 1


async def test_a_permit_that_is_unknown_was_not_released(backend: RawBackend, server: Server, admin: Redis) -> None:
    semaphore = backend.connect(server.url).get_permit_expirable_semaphore("p")
    await backend.do(semaphore.set_permits(2))
    for _ in range(2):
        hang_up(admin)
        assert await backend.do(semaphore.try_release("0" * 32)) is False
    permit = await backend.do(semaphore.acquire(0.001))
    hang_up(admin)
    with pytest.raises(pyredisson.PermitNotHeldError):
        await backend.do(semaphore.release(permit))


@pytest.mark.parametrize(("kind", "identified"), [("lock", True), ("write", True), ("permits", True), ("lock", False)])
async def test_a_release_in_doubt_that_another_server_answers(backend: RawBackend, kind: str, identified: bool) -> None:
    """It may have run, but this server never had it; if the user may not ask for its identity, it is believed."""
    app: Any = {"username": "app", "password": "secret"}
    options: Any = {"users": ["app on >secret ~* &* +@all -info"]}
    if identified:
        app, options = {}, {}
    with Server(**options) as server, Proxy(server.host, server.port) as proxy, server.redis() as admin:
        prepare(admin, kind)
        one = Used(backend, backend.connect(proxy.url, **app), kind, owner=1)
        await one.acquire()
        held = proxy.hold_request(b"EVALSHA")
        releasing = backend.start(one.release)
        await backend.until(held.held.is_set)
        await backend.run_blocking(server.restart)
        if identified:
            with pytest.raises((pyredisson.LockLostError, pyredisson.PermitNotHeldError)):
                await releasing.result()
        else:
            await releasing.result()


async def test_an_inner_release_in_doubt_that_finds_nothing_is_a_loss(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    """An earlier copy of it would have left the outer hold."""
    lock = backend.connect(proxy.url).get_lock("a")
    await backend.do(lock.lock())
    await backend.do(lock.lock())
    admin.delete("a")
    fault = proxy.cut_reply(RELEASE)
    with pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())
    assert fault.happened.is_set()


async def test_a_connection_that_ends_with_its_handshake_is_not_waited_for(tasks: RawBackend, proxy: Proxy) -> None:
    """Its waiters may wake up after it is gone already; what they would send then gets no answer ever."""
    client = tasks.connect(proxy.url, timeout=60)
    late = proxy.hold_reply(b"HELLO")
    taken = asyncio.gather(*[client.get_lock(f"a{number}").acquire() for number in range(3)])
    await tasks.until(late.held.is_set)
    # The event loop sees both in one turn.
    late.deliver()
    proxy.cut()
    assert await asyncio.wait_for(taken, TIME_LIMIT) == [True, True, True]


def ping(connection: socket.socket) -> None:
    connection.sendall(b"PING\r\n")
    assert connection.recv(100) == b"+PONG\r\n"


async def test_a_restart_behind_a_unix_socket_costs_no_other_clients_connection(
    backend: RawBackend, own_server: Server
) -> None:
    """All clients have the same address there, and after a restart the same numbers."""
    client = backend.connect(own_server.unix_url, timeout=5, retry_attempts=0)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())
    own_server.pause()
    asking = backend.start(lock.is_locked)
    # By then it was asked.
    await backend.sleep(0.5)
    await backend.run_blocking(own_server.restart)
    with pytest.raises(ConnectionError):
        await asking.result()
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(8)]
        for other in others:
            other.connect(own_server.path)
            other.settimeout(5)
            ping(other)
        await backend.do(lock.is_locked())
        for other in others:
            ping(other)


class TestPipeline:
    """What a busy event loop finds out before it writes."""

    async def test_what_was_written_before_is_in_doubt_and_nothing_else(self, own_server: Server) -> None:
        pipeline = await connect(Node(Config.of(own_server.url)))
        assert pipeline.server_id is not None
        own_server.pause()
        before = pipeline.submit(command(b"PING"))
        await asyncio.sleep(0)
        own_server.kill()
        time.sleep(UNUSED)
        after = [pipeline.submit(command(b"PING")) for _ in range(2)]
        outcomes: list[Any] = await asyncio.gather(before, *after, return_exceptions=True)
        assert [(cut.may_have_run, cut.stale) for cut in outcomes] == [(True, False), (False, True), (False, True)]
        assert outcomes[0].server_id == pipeline.server_id

    async def test_what_was_answered_is_still_read(self, server: Server, admin: Redis) -> None:
        pipeline = await connect(Node(Config.of(server.url)))
        before = pipeline.submit(command(b"SET", b"a", 1))
        eventually(lambda: admin.get("a") == b"1")
        hang_up(admin)
        after = pipeline.submit(command(b"SET", b"a", 2))
        pipeline.flush()
        assert await before == b"OK"
        with pytest.raises(NoReply) as raised:
            await after
        assert not raised.value.may_have_run
        assert isinstance(raised.value.error, ConnectionError)
        assert admin.get("a") == b"1"
