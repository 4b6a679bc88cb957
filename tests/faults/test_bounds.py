"""Bounds: a call on a broken server ends in time with an error; temporary errors are retried until the deadline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)

from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE, RELEASE
from tests.support.raw_backends import RawBackend
from tests.support.server_state import scripts_run

from .kinds import start

pytestmark = pytest.mark.asyncio
TIMEOUT = 0.3
LONGEST = 2.5
"""About three reply deadlines and a pause, and what a busy machine adds. The default timeout is 3 s, and the
default retries take at least 2.6 s."""


@contextlib.contextmanager
def fails(*errors: type[Exception], match: str | None = None) -> Iterator[None]:
    """What runs in there raises one of these errors, in time."""
    begin = time.monotonic()
    with pytest.raises(errors or (TimeoutError, ConnectionError), match=match):
        yield
    assert time.monotonic() - begin < LONGEST


@contextlib.asynccontextmanager
async def paused(server: Server) -> AsyncIterator[None]:
    """The server hangs in there, and answers again in time for the end of the test."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


class TestAHungServer:
    @pytest.mark.parametrize("connected", [True, False])
    async def test_a_call(self, backend: RawBackend, own_server: Server, connected: bool) -> None:
        lock = backend.connect(own_server.url, timeout=TIMEOUT, retry_attempts=1).get_lock("a")
        if connected:
            await backend.do(lock.is_locked())
        async with paused(own_server):
            for call in (lock.try_lock, lock.is_locked, lambda: lock.try_lock(1.0)):
                with fails():
                    await backend.do(call())
        # What was given up is undone, and all is well again.
        await backend.do(lock.lock())
        assert await backend.do(lock.get_hold_count()) == 1
        await backend.do(lock.unlock())

    async def test_a_release_is_done_later(self, backend: RawBackend, own_server: Server, root: Redis) -> None:
        lock = backend.connect(own_server.url, timeout=TIMEOUT, retry_attempts=1).get_lock("a")
        await backend.do(lock.lock())
        async with paused(own_server):
            with fails():
                await backend.do(lock.unlock())
        await backend.until(lambda: not root.exists("a"), 5)

    async def test_it_does_not_hold_up_closing(self, backend: RawBackend, own_server: Server) -> None:
        client = backend.connect(own_server.url, timeout=TIMEOUT)
        await backend.do(client.get_lock("a").lock())
        async with paused(own_server):
            begin = time.monotonic()
            await backend.do(client.close())
            assert time.monotonic() - begin < LONGEST


async def test_no_server(backend: RawBackend, own_server: Server) -> None:
    own_server.kill()
    lock = backend.connect(own_server.url, timeout=TIMEOUT, retry_attempts=1).get_lock("a")
    # One more try, a quarter of a second later.
    with fails(ConnectionError):
        await backend.do(lock.try_lock())
    with fails(ConnectionError):
        await backend.do(lock.try_lock(0.2))


async def test_a_wrong_password_fails_at_once_and_is_not_tried_again(backend: RawBackend) -> None:
    with Server(password="right") as server, Proxy(server.host, server.port) as proxy:
        lock = backend.connect(proxy.url, password="wrong", timeout=2).get_lock("a")
        for call in (lock.lock, lambda: lock.try_lock(5)):
            with fails(AuthenticationError):
                await backend.do(call())
        # Once for each call; nothing continues in the background.
        await backend.sleep(1.5)
        assert proxy.seen(b"AUTH") == 2
        with fails(AuthenticationError):
            await backend.do(backend.connect(proxy.url, timeout=2).get_lock("a").lock())


async def test_a_full_connection_limit(backend: RawBackend, own_server: Server, root: Redis) -> None:
    root.ping()
    root.config_set("maxclients", 1)
    lock = backend.connect(own_server.url, timeout=TIMEOUT, retry_attempts=1).get_lock("a")
    # What the server says is lost where its RST overtakes it.
    with fails(ConnectionError):
        await backend.do(lock.try_lock())
    with fails(ConnectionError):
        await backend.do(lock.try_lock(0.2))
    root.config_set("maxclients", 100)
    assert await backend.do(lock.try_lock())


async def test_after_a_script_flush_one_more_round_trip_does(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url).get_lock("a")
    await backend.do(lock.lock())
    await backend.do(lock.unlock())
    admin.script_flush()
    before = scripts_run(admin)
    for expected in ([b"EVALSHA", b"EVAL"], [b"EVALSHA"]):
        for call in (lock.lock, lock.unlock):
            proxy.forget()
            await backend.do(call())
            assert [words[0].upper() for words in proxy.commands] == expected
    assert scripts_run(admin) - before <= 6


async def test_a_renewal_survives_a_script_flush(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url, lock_watchdog_timeout=1.2).get_lock("a")
    await backend.do(lock.lock())
    for _ in range(4):
        admin.script_flush()
        await backend.sleep(0.5)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())


def read_only(root: Redis, ends: bool) -> None:
    """As after a failover: the old master is a replica for a while."""
    root.replicaof(*("NO", "ONE") if ends else ("127.0.0.1", "1"))


async def test_readonly_passes_within_the_callers_deadline(
    backend: RawBackend, own_server: Server, root: Redis
) -> None:
    lock = backend.connect(own_server.url, timeout=TIMEOUT).get_lock("a", owner=1)
    await backend.do(lock.is_locked())
    read_only(root, ends=False)
    with fails(ReadOnlyError):
        await backend.do(lock.try_lock(0.3))
    calls: list[Callable[[], Any]] = [lambda: lock.try_lock(10), lock.unlock]
    for call in calls:
        read_only(root, ends=False)
        begun = start(backend, call)
        await backend.sleep(0.2)
        read_only(root, ends=True)
        assert await begun.result() is not False
    assert not root.exists("a")


async def test_a_busy_script_passes_within_the_callers_deadline(
    backend: RawBackend, own_server: Server, root: Redis
) -> None:
    root.config_set("lua-time-limit", 10)
    lock = backend.connect(own_server.url, timeout=2).get_lock("a")
    await backend.do(lock.is_locked())

    def busy() -> None:
        with own_server.redis(socket_timeout=10) as other, contextlib.suppress(RedisError):
            other.eval("while true do end", 0)

    running = start(backend, lambda: backend.run_blocking(busy))
    await backend.until(lambda: is_busy(root))
    with fails(RedisError, match="BUSY"):
        await backend.do(lock.try_lock(0.2))
    taking = start(backend, lock.try_lock, 10)
    await backend.sleep(0.2)
    root.script_kill()
    assert await taking.result() is True
    await running.result()


def is_busy(root: Redis) -> bool:
    try:
        root.get("a")
    except RedisError as error:
        return "BUSY" in str(error)
    return False


@pytest.mark.slow
async def test_loading_passes_within_the_callers_deadline(backend: RawBackend) -> None:
    """A server that restarts with its data answers LOADING for as long as that takes."""
    slowly = {"key-load-delay": "5000", "loading-process-events-interval-bytes": "1024"}
    with Server(config=slowly) as server, server.redis() as root:
        lock = backend.connect(server.url, timeout=2).get_lock("a")
        await backend.do(lock.is_locked())
        root.mset({f"key{number}": "x" * 100 for number in range(500)})
        root.save()
        server.kill()
        # It returns when the data is loaded.
        starting = start(backend, lambda: backend.run_blocking(server.start))
        assert await start(backend, lock.try_lock, 10).result(20) is True
        await starting.result()
        assert root.dbsize() == 501
        stats: dict[str, Any] = root.info("commandstats")
        assert sum(entry["rejected_calls"] for name, entry in stats.items() if "eval" in name) >= 1


@pytest.mark.parametrize("depth", [1, 2])
async def test_out_of_memory_an_acquire_is_an_error_and_a_release_works(
    backend: RawBackend, own_server: Server, root: Redis, depth: int
) -> None:
    lock = backend.connect(own_server.url, timeout=TIMEOUT).get_lock("a")
    for _ in range(depth):
        await backend.do(lock.lock())
    root.config_set("maxmemory", 1)
    with fails(OutOfMemoryError):
        await backend.do(lock.lock())
    assert await backend.do(lock.get_hold_count()) == depth
    for left in reversed(range(depth)):
        await backend.do(lock.unlock())
        assert root.hvals("a") == ([b"%d" % left] if left else [])


async def test_without_the_right_to_name_connections_it_still_works(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    """CLIENT INFO, KILL and SETINFO are courtesies: a user with the scripts' commands alone can lock."""
    commands = ["+@write", "+@read", "+@scripting", "+@pubsub", "+@connection", "-client", "+time", "-acl"]
    admin.acl_setuser("plain", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=commands)
    lock = backend.connect(proxy.url, username="plain", password="any", timeout=TIMEOUT).get_lock("a")
    fault = proxy.cut_reply(ACQUIRE)
    await backend.do(lock.lock())
    assert fault.happened.is_set()
    assert await backend.do(lock.get_hold_count()) == 1
    proxy.drop_reply(RELEASE)
    await backend.do(lock.unlock())
    assert not admin.exists("a")
    admin.acl_deluser("plain")


@pytest.mark.parametrize("command", ["SET", "LPUSH"])
async def test_a_key_of_a_wrong_type_is_an_error_at_once(
    backend: RawBackend, server: Server, admin: Any, command: str
) -> None:
    admin.execute_command(command, "a", "no lock")
    with fails(RedisError, match="WRONGTYPE"):
        await backend.do(backend.connect(server.url).get_lock("a").lock())
