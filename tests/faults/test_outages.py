"""An outage of the server: each call waits within its own limits, and the outage is logged once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, ResponseError

from pyredisson import ClosedError
from pyredisson.logic import exactly_once, retry
from pyredisson.testing import Proxy, Server
from tests.support.raw_backends import RawBackend

from .outages import away, done, permits, semaphore

pytestmark = pytest.mark.asyncio
Act = Callable[[Any], Any]
"""What is called on a client; its result may have to be awaited."""


def multi(client: Any) -> Any:
    return client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))


def red(client: Any) -> Any:
    return client.get_red_lock(client.get_lock("a"), client.get_lock("b"), client.get_lock("c"))


WITHOUT_LIMIT: dict[str, Act] = {
    "lock": lambda client: client.get_lock("a").lock(),
    "acquire": lambda client: client.get_lock("a").acquire(),
    "fair": lambda client: client.get_fair_lock("a").lock(),
    "fenced": lambda client: client.get_fenced_lock("a").lock_and_get_token(),
    "spin": lambda client: client.get_spin_lock("a").lock(),
    "non-reentrant": lambda client: client.get_non_reentrant_lock("a").lock(),
    "read": lambda client: client.get_read_write_lock("a").read_lock().lock(),
    "write": lambda client: client.get_read_write_lock("a").write_lock().lock(),
    "multi": lambda client: multi(client).lock(),
    "red": lambda client: red(client).lock(),
    "semaphore": lambda client: semaphore(client).acquire(),
    "permit": lambda client: permits(client).acquire(),
    "latch": lambda client: client.get_count_down_latch("done").wait(),
}
WITHOUT_WAIT: dict[str, Act] = {
    "lock": lambda client: client.get_lock("a").try_lock(),
    "non-blocking": lambda client: client.get_lock("a").acquire(blocking=False),
    "fair": lambda client: client.get_fair_lock("a").try_lock(),
    "fenced": lambda client: client.get_fenced_lock("a").try_lock_and_get_token(),
    "read": lambda client: client.get_read_write_lock("a").read_lock().try_lock(),
    "write": lambda client: client.get_read_write_lock("a").write_lock().try_lock(),
    "multi": lambda client: multi(client).try_lock(),
    "red": lambda client: red(client).try_lock(),
    "semaphore": lambda client: semaphore(client).try_acquire(),
    "permit": lambda client: permits(client).try_acquire(),
    "query": lambda client: client.get_lock("a").is_locked(),
}
WITH_A_LIMIT: dict[str, Callable[[Any, float], Any]] = {
    "lock": lambda client, wait: client.get_lock("a").try_lock(wait),
    "acquire": lambda client, wait: client.get_lock("a").acquire(timeout=wait),
    "fair": lambda client, wait: client.get_fair_lock("a").try_lock(wait),
    "spin": lambda client, wait: client.get_spin_lock("a").try_lock(wait),
    "write": lambda client, wait: client.get_read_write_lock("a").write_lock().try_lock(wait),
    "multi": lambda client, wait: multi(client).try_lock(wait),
    "semaphore": lambda client, wait: semaphore(client).try_acquire(1, wait),
    "permit": lambda client, wait: permits(client).try_acquire(wait),
    "latch": lambda client, wait: client.get_count_down_latch("done").wait(wait),
}


def prepare(admin: Redis) -> None:
    admin.set("permits", 1)
    admin.set("ids", 1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a fiftieth, so that more tries than a call without a limit once had fit into a test."""
    monkeypatch.setattr(retry, "FIRST_DELAY", retry.FIRST_DELAY / 50)
    monkeypatch.setattr(retry, "LONGEST_DELAY", retry.LONGEST_DELAY / 50)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", WITHOUT_LIMIT)
async def test_a_call_without_a_limit_waits_until_the_server_is_back(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever `retry_attempts` says, which is not for it. A warning tells for which server it waits."""
    prepare(admin)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=0)
    away(proxy)
    call = backend.start(lambda: done(backend, WITHOUT_LIMIT[kind], client))
    # Longer than all tries of a call without time to wait.
    await backend.sleep(0.4)
    assert not call.done
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith(f"the server 127.0.0.1:{proxy.port} is not available")
    proxy.refuse(False)
    assert await call.result() is not False


@pytest.mark.parametrize("kind", WITHOUT_WAIT)
async def test_a_call_without_time_to_wait_survives_a_short_outage(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fifth of the usual pauses, and more of them: they bridge at least three seconds.
    monkeypatch.setattr(retry, "FIRST_DELAY", retry.FIRST_DELAY / 5)
    monkeypatch.setattr(retry, "LONGEST_DELAY", retry.LONGEST_DELAY / 5)
    prepare(admin)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=20)
    await backend.do(client.get_lock("z").is_locked())
    away(proxy)
    call = backend.start(lambda: done(backend, WITHOUT_WAIT[kind], client))
    await backend.sleep(0.2)
    assert not call.done
    proxy.refuse(False)
    outcome = await call.result()
    assert outcome is False if kind == "query" else outcome


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", WITHOUT_WAIT)
async def test_a_call_without_time_to_wait_uses_its_tries_up(backend: RawBackend, proxy: Proxy, kind: str) -> None:
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    away(proxy)
    if kind == "red":
        # Nothing is in doubt: the members that a minority granted were released.
        assert not await backend.do(WITHOUT_WAIT[kind](client))
    else:
        with pytest.raises(ConnectionError):
            await backend.do(WITHOUT_WAIT[kind](client))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", WITH_A_LIMIT)
async def test_a_call_with_a_limit_waits_until_it_is_reached(
    backend: RawBackend, proxy: Proxy, admin: Redis, kind: str
) -> None:
    prepare(admin)
    client = backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    away(proxy)
    begun = time.monotonic()
    # Not False: that it isn't taken is not known.
    with pytest.raises(ConnectionError):
        await backend.do(WITH_A_LIMIT[kind](client, 0.5))
    # Without a limit it would be three times the timeout.
    assert 0.5 <= time.monotonic() - begun < 2.2
    call = backend.start(lambda: done(backend, WITH_A_LIMIT[kind], client, 5))
    await backend.sleep(0.4)
    assert not call.done
    proxy.refuse(False)
    assert await call.result() is not False


HELD: dict[str, tuple[Act, Act, Act]] = {
    "lock": (
        lambda client: client.get_lock("a", owner=1).lock(),
        lambda client: client.get_lock("a").lock(),
        lambda client: client.get_lock("a", owner=1).unlock(),
    ),
    "fair": (
        lambda client: client.get_fair_lock("a", owner=1).lock(),
        lambda client: client.get_fair_lock("a").lock(),
        lambda client: client.get_fair_lock("a", owner=1).unlock(),
    ),
    "write, read": (
        lambda client: client.get_read_write_lock("a", owner=1).write_lock().lock(),
        lambda client: client.get_read_write_lock("a").read_lock().lock(),
        lambda client: client.get_read_write_lock("a", owner=1).write_lock().unlock(),
    ),
    "read, write": (
        lambda client: client.get_read_write_lock("a", owner=1).read_lock().lock(),
        lambda client: client.get_read_write_lock("a").write_lock().lock(),
        lambda client: client.get_read_write_lock("a", owner=1).read_lock().unlock(),
    ),
    "spin": (
        lambda client: client.get_spin_lock("a", owner=1).lock(),
        lambda client: client.get_spin_lock("a").lock(),
        lambda client: client.get_spin_lock("a", owner=1).unlock(),
    ),
    "semaphore": (
        lambda client: semaphore(client).acquire(),
        lambda client: semaphore(client).acquire(),
        lambda client: semaphore(client).release(),
    ),
    "permit": (
        lambda client: permits(client).acquire(0.9),
        lambda client: permits(client).acquire(),
        lambda client: permits(client).available_permits(),
    ),
    "latch": (
        lambda client: client.get_count_down_latch("done").try_set_count(1),
        lambda client: client.get_count_down_latch("done").wait(),
        lambda client: client.get_count_down_latch("done").count_down(),
    ),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", HELD)
async def test_an_outage_during_a_wait_does_not_end_it(
    backend: RawBackend, proxy: Proxy, server: Server, admin: Redis, kind: str
) -> None:
    prepare(admin)
    hold, wait, release = HELD[kind]
    holder, waiter = backend.connect(server.url), backend.connect(proxy.url, timeout=0.8, retry_attempts=2)
    await backend.do(hold(holder))
    call = backend.start(lambda: done(backend, wait, waiter))
    if kind == "spin":
        await backend.run_blocking(proxy.wait_for, b"\r\na\r\n")
    else:
        await backend.run_blocking(proxy.wait_for, b"SUBSCRIBE")
    away(proxy)
    await backend.sleep(0.4)
    assert not call.done
    await backend.do(release(holder))
    proxy.refuse(False)
    assert await call.result() is not False


async def test_a_restart_with_the_usual_settings(backend: RawBackend, own_server: Server) -> None:
    client = backend.connect(own_server.url)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())
    for take in (lambda: lock.try_lock(), lambda: lock.lock(), lambda: lock.try_lock(5)):
        own_server.kill()
        taking = backend.start(lambda: done(backend, take))  # noqa: B023 - it ends within the round
        await backend.sleep(0.3)
        await backend.run_blocking(own_server.start)
        assert await taking.result() is not False


async def test_a_silent_server_is_waited_for(backend: RawBackend, proxy: Proxy) -> None:
    client = backend.connect(proxy.url, timeout=0.2, retry_attempts=1)
    await backend.do(client.get_lock("a").is_locked())
    proxy.stall()
    call = backend.start(lambda: done(backend, client.get_lock("a").lock))
    # Two tries and a pause, which is where it used to end.
    await backend.sleep(1.2)
    assert not call.done
    proxy.resume()
    await call.result()


@pytest.mark.parametrize("change", ["resetpass", "-@all +@connection", "resetkeys"])
async def test_an_error_that_waiting_cannot_cure_ends_a_waiting_call(backend: RawBackend, change: str) -> None:
    with Server(users=["alice on >x ~* &* +@all"]) as server, Proxy(server.host, server.port) as proxy:
        client = backend.connect(proxy.url, username="alice", password="x")
        await backend.do(client.get_lock("a").is_locked())
        away(proxy)
        call = backend.start(lambda: done(backend, client.get_lock("a").lock))
        await backend.sleep(0.1)
        assert not call.done
        with server.redis() as admin:
            admin.execute_command("ACL", "SETUSER", "alice", *change.split())
        proxy.refuse(False)
        with pytest.raises((AuthenticationError, NoPermissionError)):
            await call.result()


async def test_a_wrong_type_is_not_waited_for(backend: RawBackend, server: Server, admin: Redis) -> None:
    admin.set("a", "text")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await backend.do(backend.connect(server.url).get_lock("a").lock())


@pytest.mark.parametrize("kind", ["lock", "fair", "multi", "red", "semaphore", "permit", "latch"])
async def test_closing_ends_a_call_that_waits_for_the_server(
    backend: RawBackend, proxy: Proxy, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY", 60.0)
    monkeypatch.setattr(retry, "LONGEST_DELAY", 60.0)
    client = backend.connect(proxy.url, timeout=0.8)
    away(proxy)
    call = backend.start(lambda: done(backend, WITHOUT_LIMIT[kind], client))
    await backend.sleep(0.3)
    assert not call.done
    begun = time.monotonic()
    await backend.do(client.close())
    with pytest.raises(ClosedError):
        await call.result()
    assert time.monotonic() - begun < 2


async def test_a_cancelled_task_leaves_nothing(proxy: Proxy, admin: Redis) -> None:
    backend = RawBackend("asyncio")
    client = backend.connect(proxy.url, timeout=0.8)
    await client.get_lock("a").is_locked()
    # The command runs, its reply is lost, and the server can't be reached.
    fault = proxy.cut_reply(b"\r\na\r\n")
    proxy.refuse(True)
    task = asyncio.create_task(client.get_lock("a").lock())
    assert await asyncio.to_thread(fault.happened.wait, 5)
    assert admin.exists("a")
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.refuse(False)
    await backend.until(lambda: not admin.exists("a"))
    await backend.close()


@pytest.mark.usefixtures("quick")
async def test_a_semaphore_call_that_outlasts_the_servers_memory(
    backend: RawBackend, proxy: Proxy, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The permit of the first copy is released before another copy acquires one: a permit is acquired once."""
    monkeypatch.setattr(exactly_once, "REMEMBERED", 0.3)
    admin.set("permits", 5)
    client = backend.connect(proxy.url, timeout=0.8)
    proxy.cut_reply(b"pyredisson_once")
    proxy.refuse(False)
    await backend.do(client.get_lock("z").is_locked())
    proxy.refuse(True)
    call = backend.start(lambda: done(backend, semaphore(client).acquire, 2))
    await backend.until(lambda: admin.get("permits") == b"3")
    await backend.sleep(0.6)
    assert not call.done
    proxy.refuse(False)
    await call.result()
    await backend.until(lambda: admin.get("permits") == b"3")
