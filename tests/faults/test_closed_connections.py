"""Idle connections that the server has closed: a command that was never sent doesn't count as done."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson
from pyredisson._backends.aio.connection import connect
from pyredisson._core import command
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson.logic import retry
from pyredisson.testing import Proxy, Server
from tests.support.faults import RELEASE, pool_of
from tests.support.raw_backends import RawBackend
from tests.support.server_state import scripts_run
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio
UNUSED = 0.02
"""Seconds after which a connection counts as idle; the loop of an asyncio test is blocked meanwhile."""
AT_ONCE = 5.0
"""Seconds; with `long_pauses` a pause between two tries is at least 10."""

Make = Callable[[Any], Any]
KINDS: dict[str, Make] = {
    "lock": lambda client: client.get_lock("a"),
    "fair": lambda client: client.get_fair_lock("a"),
    "fenced": lambda client: client.get_fenced_lock("a"),
    "spin": lambda client: client.get_spin_lock("a"),
    "non_reentrant": lambda client: client.get_non_reentrant_lock("a"),
    "read": lambda client: client.get_read_write_lock("a").read_lock(),
    "write": lambda client: client.get_read_write_lock("a").write_lock(),
    "multi": lambda client: client.get_multi_lock(client.get_lock("a"), client.get_lock("b")),
    "red": lambda client: client.get_red_lock(*map(client.get_lock, "abc")),
}


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Make:
    """Each kind of lock, of a client."""
    return KINDS[request.param]


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


async def test_a_lost_hold_is_not_released(backend: RawBackend, server: Server, admin: Redis, make: Make) -> None:
    lock = make(backend.connect(server.url))
    await backend.do(lock.lock())
    take_away(admin)
    with pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())
    assert admin.hgetall("a") == {b"another:1": b"1"}


async def test_a_lost_hold_is_not_released_over_tls(backend: RawBackend, tls_server: Server) -> None:
    """What is still unread there, a session ticket for instance, hides nothing."""
    lock = backend.connect(f"{tls_server.tls_url}?ssl_ca_certs={tls_server.ca_file}").get_lock("a")
    with tls_server.redis() as admin:
        await backend.do(lock.lock())
        take_away(admin)
        with pytest.raises(pyredisson.LockLostError):
            await backend.do(lock.unlock())
        admin.flushdb()


async def test_a_block_that_lost_its_lock_raises(backend: RawBackend, server: Server, admin: Redis) -> None:
    lock = backend.connect(server.url).get_lock("a")
    with pytest.raises(pyredisson.LockLostError):
        if backend.threads:
            with lock:
                take_away(admin)
        else:
            async with lock:
                take_away(admin)


async def test_an_inner_hold_that_was_lost_is_not_released(backend: RawBackend, server: Server, admin: Redis) -> None:
    lock = backend.connect(server.url).get_lock("a")
    await backend.do(lock.lock())
    await backend.do(lock.lock())
    take_away(admin)
    for _ in range(2):
        with pytest.raises(pyredisson.LockLostError):
            await backend.do(lock.unlock())


@pytest.mark.parametrize("kind", ["lock", "read", "fair"])
async def test_a_server_that_restarted_empty(backend: RawBackend, own_server: Server, kind: str) -> None:
    lock = KINDS[kind](backend.connect(own_server.url))
    await backend.do(lock.lock())
    own_server.restart()
    with pyredisson.connect(own_server.url) as other, other.get_lock("a"), pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())


@pytest.mark.usefixtures("long_pauses")
async def test_a_server_that_closes_what_is_idle(backend: RawBackend, own_server: Server) -> None:
    client = backend.connect(own_server.url)
    lock = client.get_lock("a")
    with own_server.redis() as admin:
        admin.config_set("timeout", 1)
        await backend.do(lock.lock())
        # The server looks now and then; on this thread, which the asyncio backend's loop needs.
        eventually(lambda: len(admin.client_list()) == 1)
        time.sleep(UNUSED)
        begun = time.monotonic()
        await backend.do(lock.unlock())
        await backend.do(lock.lock())
        assert time.monotonic() - begun < AT_ONCE
        eventually(lambda: len(admin.client_list()) == 1)
        take_away(admin)
        with pytest.raises(pyredisson.LockLostError):
            await backend.do(lock.unlock())


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


@pytest.mark.parametrize("kind", ["lock", "write"])
async def test_another_server_knows_nothing_of_an_earlier_copy(
    backend: RawBackend, own_server: Server, kind: str
) -> None:
    """The release may have run, but the server that answers never had it."""
    with Proxy(own_server.host, own_server.port) as proxy:
        client = backend.connect(proxy.url)
        # An owner for this test and for what it starts.
        lock = client.get_lock("a", owner=1)
        if kind == "write":
            lock = client.get_read_write_lock("a", owner=1).write_lock()
        await backend.do(lock.lock())
        held = proxy.hold_request(b"EVALSHA")
        releasing = backend.start(lambda: unlock(backend, lock))
        await backend.run_blocking(held.held.wait, 5)
        await backend.run_blocking(own_server.restart)
        with pytest.raises(pyredisson.LockLostError):
            await releasing.result()


async def test_a_permit_on_another_server(backend: RawBackend, own_server: Server) -> None:
    with Proxy(own_server.host, own_server.port) as proxy:
        semaphore = backend.connect(proxy.url).get_permit_expirable_semaphore("p")
        await backend.do(semaphore.set_permits(1))
        permit = await backend.do(semaphore.acquire())
        held = proxy.hold_request(b"EVALSHA")

        async def release() -> Any:
            return await backend.do(semaphore.try_release(permit))

        releasing = backend.start(release)
        await backend.run_blocking(held.held.wait, 5)
        await backend.run_blocking(own_server.restart)
        assert await releasing.result() is False


async def test_a_user_without_the_right_to_the_servers_identity(backend: RawBackend) -> None:
    """INFO is refused: the earlier copy may have done it."""
    with Server(users=("app on >secret ~* &* +@all -info",)) as server, Proxy(server.host, server.port) as proxy:
        lock = backend.connect(proxy.url, username="app", password="secret").get_lock("a", owner=1)
        await backend.do(lock.lock())
        held = proxy.hold_request(b"EVALSHA")
        releasing = backend.start(lambda: unlock(backend, lock))
        await backend.run_blocking(held.held.wait, 5)
        await backend.run_blocking(server.restart)
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


async def unlock(backend: RawBackend, lock: Any) -> None:
    await backend.do(lock.unlock())


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
