"""Outages, and idle connections that were closed: calls wait within their limits, and a loss is known at once."""

import asyncio
import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError

import pyredisson
from pyredisson import ClosedError, LockLostError, PermitNotHeldError
from pyredisson._backends.aio.connection import connect
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson.logic import retry
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, RawBackend, asleep, eventually, listeners, scripts_run, within
from tests.support.faults import pool_of
from tests.support.kinds import LOCKS

from .kinds import GROUPS, KINDS, Log, Patch, Used, away, do_all, excluding, lock_of, prepare, taken_by_another

AT_ONCE = 1.0
"""Seconds; a command that is sent again, or waited for, takes longer."""
UNUSED = 0.02
"""Seconds after which a connection counts as idle; the loop of an asyncio test is blocked meanwhile."""
OTHERS: dict[str, Callable[[Any, float | None], Any]] = {
    "acquire": lambda client, wait: client.get_lock("a").acquire(timeout=-1 if wait is None else wait),
    "non-blocking": lambda client, _: client.get_lock("a").acquire(blocking=False),
    "query": lambda client, _: client.get_lock("a").is_locked(),
    "token": lambda client, _: client.get_fenced_lock("a").try_lock_and_get_token(),
    "latch": lambda client, wait: client.get_count_down_latch("done").wait(wait),
}
"""Calls besides those of each kind, by the time that they may wait (None: without limit)."""


async def ask(backend: RawBackend, client: Any, kind: str, wait: float | None) -> Any:
    if kind in OTHERS:
        return await backend.do(OTHERS[kind](client, wait))
    one = Used(backend, client, kind)
    return await (one.acquire() if wait is None else one.attempt(wait))


async def outlasts(backend: RawBackend, proxy: Proxy, client: Any, kind: str, wait: float | None) -> Any:
    """A call waits while the server is away, and is done when it is back. Its result."""
    call = backend.start(ask, backend, client, kind, wait)
    # Longer than all tries of a call without time to wait.
    await backend.waits(call, 0.4)
    proxy.refuse(False)
    return await call.result()


@pytest.fixture
def quick(monkeypatch: Patch) -> None:
    """Pauses of a fiftieth, so that more tries than a call without a limit once had fit into a test."""
    for name in ("FIRST_DELAY", "LONGEST_DELAY"):
        monkeypatch.setattr(retry, name, getattr(retry, name) / 50)


@pytest.fixture
def long_pauses(monkeypatch: Patch) -> None:
    for name in ("FIRST_DELAY", "LONGEST_DELAY"):
        monkeypatch.setattr(retry, name, 20.0)


def warnings(caplog: Log) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", [*KINDS, *GROUPS, "acquire", "latch"])
async def test_a_call_without_a_limit(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str, caplog: Log) -> None:
    """Whatever `retry_attempts` says, which is not for it. A warning tells for which server it waits."""
    prepare(admin, kind)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=0)
    away(proxy)
    assert await outlasts(backend, proxy, client, kind, None) is not False
    warning, over = warnings(caplog)
    assert warning.startswith(f"the server 127.0.0.1:{proxy.port} is not available")
    assert "is available again" in over


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", [*KINDS, *GROUPS, "non-blocking", "query", "token"])
async def test_a_call_without_time_uses_its_tries(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    prepare(admin, kind)
    few, many = [await backend.connected(proxy.url, timeout=0.8, retry_attempts=attempts) for attempts in (2, 200)]
    away(proxy)
    if kind == "red":
        # Nothing is in doubt: the members that a minority granted were released.
        assert not await ask(backend, few, kind, 0)
    else:
        await backend.fails(ConnectionError, ask, backend, few, kind, 0)
    outcome = await outlasts(backend, proxy, many, kind, 0)
    assert outcome is False if kind == "query" else outcome


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["lock", "fair", "spin", "write", "multi", "semaphore", "permits", "acquire", "latch"])
async def test_a_call_with_a_limit_waits_that_long(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    prepare(admin, kind)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    away(proxy)
    # Not False: that it isn't taken is not known. Without a limit it would be three times the timeout.
    with within(2.2, least=0.5), pytest.raises(ConnectionError):
        await ask(backend, client, kind, 0.5)
    assert await outlasts(backend, proxy, client, kind, 5) is not False


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["lock", "fair", "read", "write", "spin", "semaphore", "permits", "latch"])
async def test_an_outage_in_a_wait(backend: RawBackend, proxy: Proxy, server: Server, admin: Redis, kind: str) -> None:
    """And what is released meanwhile is not missed."""
    prepare(admin, kind)
    holding, client = backend.connect(server.url), backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    latch = holding.get_count_down_latch("done")
    if kind == "latch":
        await backend.do(latch.try_set_count(1))
    elif kind == "write":
        holder = Used(backend, holding, "read", 9)
        await holder.acquire()
    else:
        holder = await excluding(backend, holding, kind)
    call = backend.start(ask, backend, client, kind, None)
    if kind == "lock":
        await backend.until(lambda: asleep(client, "a"))
    await backend.until(lambda: proxy.seen(b"\r\na\r\n" if kind == "spin" else b"SUBSCRIBE") > 0)
    proxy.refuse(True)
    # By a RST or a FIN.
    proxy.cut(reset=kind == "lock")
    await backend.waits(call, 0.4)
    await (backend.do(latch.count_down()) if kind == "latch" else holder.release())
    proxy.refuse(False)
    assert await call.result() is not False


async def test_a_restart_with_the_usual_settings(backend: RawBackend, own_server: Server) -> None:
    lock = (await backend.connected(own_server.url)).get_lock("a")
    for take in (lock.try_lock, lock.lock, lambda: lock.try_lock(5)):
        own_server.kill()
        taking = backend.start(take)
        await backend.sleep(0.3)
        await backend.run_blocking(own_server.start)
        assert await taking.result() is not False


async def test_a_silent_server_is_waited_for(backend: RawBackend, proxy: Proxy, caplog: Log) -> None:
    client = await backend.connected(proxy.url, timeout=0.2, retry_attempts=1)
    proxy.stall()
    call = backend.start(client.get_lock("a").lock)
    # Two tries and a pause, which is where it used to end.
    await backend.waits(call, 1.2)
    assert " is not available: timed out; " in caplog.text
    proxy.resume()
    await call.result()


@pytest.mark.parametrize("change", ["resetpass", "-@all +@connection", "resetkeys"])
async def test_an_error_that_waiting_cannot_cure_ends_a_waiting_call(backend: RawBackend, change: str) -> None:
    with Server(users=["alice on >x ~* &* +@all"]) as server, Proxy(server.host, server.port) as proxy:
        client = await backend.connected(proxy.url, username="alice", password="x")
        away(proxy)
        call = backend.start(client.get_lock("a").lock)
        await backend.waits(call, 0.1)
        with server.redis() as admin:
            admin.execute_command("ACL", "SETUSER", "alice", *change.split())
        proxy.refuse(False)
        await backend.fails((AuthenticationError, NoPermissionError), call.result)


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize("kind", ["lock", "fair", "multi", "red", "semaphore", "permits", "latch"])
async def test_closing_ends_a_call_that_waits_for_the_server(backend: RawBackend, proxy: Proxy, kind: str) -> None:
    client = backend.connect(proxy.url, timeout=0.8)
    away(proxy)
    call = backend.start(ask, backend, client, kind, None)
    await backend.waits(call, 0.3)
    with within(2):
        await backend.do(client.close())
        await backend.fails(ClosedError, call.result)


class TestLog:
    """One warning when an outage begins, and one when it ends."""

    async def test_an_outage(self, backend: RawBackend, proxy: Proxy, caplog: Log) -> None:
        client = backend.connect(proxy.url, timeout=0.8, lock_watchdog_timeout=3)
        # A connection that is cut is no outage.
        for _ in range(3):
            await backend.do(client.get_lock("a").is_locked())
            proxy.cut()
        assert warnings(caplog) == []
        mine, other = client.get_lock("a"), client.get_lock("b", owner=1)
        await do_all(backend, mine.lock, other.lock)
        waiting = await backend.started(lambda: proxy.seen(b"SUBSCRIBE") > 0, client.get_lock("b").lock)
        begun = time.monotonic()
        away(proxy)
        await backend.until(lambda: warnings(caplog))
        # All of them fail, more than once: the waiter, the subscription and the watchdog.
        await backend.sleep(1.3)
        proxy.refuse(False)
        await do_all(backend, mine.unlock, other.unlock, waiting.result)
        warning, over = warnings(caplog)
        assert "is not available: " in warning
        text, _, seconds = over.removesuffix(" s").rpartition(" after ")
        assert text.endswith("is available again")
        assert 1.2 < float(seconds) < time.monotonic() - begun + 0.1
        assert all(proxy.url.split("/")[2] in line for line in (warning, over))

    async def test_one_connection_fails(self, backend: RawBackend, proxy: Proxy, admin: Redis, caplog: Log) -> None:
        client = backend.connect(proxy.url, timeout=2, client_name="overtaking")
        await backend.do(client.get_lock("a", owner=1).lock())
        # The handshake of the subscription gets no reply.
        slow = proxy.hold_request(b"HELLO")
        waiting = await backend.started(slow.held.is_set, client.get_lock("a").lock)
        for entry in admin.client_list():
            if entry["name"] == "overtaking":
                admin.client_kill_filter(_id=entry["id"])
        # Over a new connection.
        assert not await backend.do(client.get_lock("b").is_locked())
        # The one for the subscription has failed by then.
        await backend.until(lambda: listeners(admin, "a") == 1)
        assert warnings(caplog) == []
        await do_all(backend, client.get_lock("a", owner=1).unlock, waiting.result)


class TestKnownLosses:
    """A hold that is known to be lost raises `LockLostError` at once, also if the server can't be reached."""

    @pytest.mark.parametrize("kind", [kind for kind in (*LOCKS, *GROUPS) if kind != "non-reentrant"])
    async def test_a_block_whose_lease_ended(self, backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
        """And the release of the level outside of it."""
        lock = lock_of(backend.connect(proxy.url), kind)
        ended = 0.0
        await backend.do(lock.lock(0.5))
        with pytest.raises(LockLostError):
            if backend.threads:
                with lock.hold(lease_time=0.5):
                    away(proxy)
                    assert lock.lost.wait(5)
                    ended = time.monotonic()
            else:
                async with lock.hold(lease_time=0.5):
                    away(proxy)
                    try:
                        await asyncio.sleep(5)
                    finally:
                        ended = time.monotonic()
        await backend.fails(LockLostError, lock.unlock)
        assert time.monotonic() - ended < AT_ONCE
        proxy.refuse(False)
        # The loss was of these levels: the next hold is held.
        await do_all(backend, lock.lock, lock.unlock)
        await backend.until(lambda: not admin.exists("a", "b"))

    async def test_a_lease_that_ends_while_its_release_is_sent_again(self, backend: RawBackend, proxy: Proxy) -> None:
        """Its other retries would take 18 s at least."""
        lock = backend.connect(proxy.url, retry_attempts=20, timeout=0.3).get_lock("a")
        await backend.do(lock.lock(0.6))
        lost = lock.lost
        away(proxy)
        with within(5):
            await backend.fails(LockLostError, lock.unlock)
        assert lost.is_set()

    async def test_a_renewed_permit(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        semaphore = backend.connect(proxy.url, lock_watchdog_timeout=0.5).get_permit_expirable_semaphore("a")
        await backend.do(semaphore.try_set_permits(1))
        permit = await backend.do(semaphore.acquire(renew=True))
        away(proxy)
        await backend.sleep(0.6)
        with within(AT_ONCE):
            await backend.fails(PermitNotHeldError, semaphore.release, permit)
        proxy.refuse(False)
        await backend.until(lambda: not admin.zcard("{a}:timeout"))
        assert await backend.do(semaphore.available_permits()) == 1


def hang_up(admin: Redis) -> None:
    """The server closes all connections but this one. A client that waits for no reply doesn't notice it."""
    admin.client_kill_filter(_type="normal", skipme=True)
    time.sleep(UNUSED)


@pytest.mark.parametrize("kind", [*LOCKS, *GROUPS])
async def test_a_lost_hold_is_not_released(backend: RawBackend, server: Any, admin: Redis, kind: str) -> None:
    """None of its levels."""
    lock = lock_of(backend.connect(server.url), kind)
    levels = 1 if kind == "non-reentrant" else 2
    await do_all(backend, *[lock.lock] * levels)
    # All locks belong to another client now.
    admin.flushdb()
    taken_by_another(admin, *"abc")
    hang_up(admin)
    for _ in range(levels):
        await backend.fails(LockLostError, lock.unlock)
    assert admin.hgetall("a") == {b"another:1": b"1"}
    admin.flushdb()


async def test_a_lost_hold_is_not_released_over_tls(backend: RawBackend, tls_server: Server) -> None:
    """What is still unread there, a session ticket for instance, hides nothing."""
    place = SimpleNamespace(url=f"{tls_server.tls_url}?ssl_ca_certs={tls_server.ca_file}")
    with tls_server.redis() as admin:
        await test_a_lost_hold_is_not_released(backend, place, admin, "lock")


@pytest.mark.usefixtures("long_pauses")
async def test_a_closed_connection_costs_no_pause(backend: RawBackend, server: Server, admin: Redis) -> None:
    """And an unknown permit was not released over it."""
    client = backend.connect(server.url, retry_attempts=0)
    lock, semaphore = client.get_lock("a"), client.get_semaphore("s")
    await backend.do(semaphore.try_set_permits(2))
    for call in (lock.lock, lock.is_locked, lock.lock, lock.unlock, semaphore.acquire, semaphore.release, lock.unlock):
        hang_up(admin)
        # With `long_pauses` a pause between two tries is at least 10 s.
        with within(5):
            await backend.do(call())
    assert (admin.exists("a"), admin.get("s")) == (0, b"2")
    permits = client.get_permit_expirable_semaphore("p")
    await backend.do(permits.set_permits(2))
    for _ in range(2):
        hang_up(admin)
        assert await backend.do(permits.try_release("0" * 32)) is False
    permit = await backend.do(permits.acquire(0.001))
    hang_up(admin)
    await backend.fails(PermitNotHeldError, permits.release, permit)


async def test_renewals_over_closed_connections(backend: RawBackend, server: Server, admin: Redis, caplog: Log) -> None:
    """The watchdog's connection is idle between two rounds."""
    lock = backend.connect(server.url, lock_watchdog_timeout=1.2).get_lock("a")
    begun = scripts_run(admin)
    await backend.do(lock.lock())
    for renewals in range(2, 5):
        await backend.until(lambda renewals=renewals: scripts_run(admin) - begun >= renewals)  # type: ignore[misc]
        await backend.run_blocking(hang_up, admin)
    assert (lock.lost.is_set(), caplog.messages) == (False, [])


async def test_several_idle_connections_cost_one_try(server: Server, admin: Redis) -> None:
    """They are likely to have ended together."""
    with pyredisson.connect(server.url, retry_attempts=0) as client:
        pool: Any = pool_of(client)
        pool._idle.extend([pool._connect_or_wait() for _ in range(3)])
        hang_up(admin)
        client.get_lock("a").lock()
        assert len(pool._all) == 1


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


class TestPipeline:
    """What a busy event loop finds out before it writes."""

    async def test_what_was_written_before_is_in_doubt_and_nothing_else(self, own_server: Server) -> None:
        pipeline = await connect(Node(pyredisson.Config.of(own_server.url)))
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
        pipeline = await connect(Node(pyredisson.Config.of(server.url)))
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
