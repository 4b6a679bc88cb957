"""Renewal: one failure costs no lock, a lost hold is never renewed, and its holder is notified once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

import pyredisson
from pyredisson._backends.threads.operations import start
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE, RENEW
from tests.support.raw_backends import RawBackend
from tests.support.waiting import TIME_LIMIT, eventually

LEASE = 2.0


def unreachable(admin: Redis) -> None:
    """The server becomes a replica of nobody there: it keeps its data and says READONLY."""
    admin.replicaof("127.0.0.1", 1)


def out_of_memory(admin: Redis) -> None:
    admin.config_set("maxmemory", 1)


def usual(admin: Redis) -> None:
    admin.replicaof("NO", "ONE")
    admin.config_set("maxmemory", 0)


@pytest.fixture
def root(own_server: Server) -> Iterator[Redis]:
    """A plain client of this test's own server."""
    with own_server.redis() as client:
        yield client


@pytest.fixture
def own_proxy(own_server: Server) -> Iterator[Proxy]:
    """Before this test's own server."""
    with Proxy(own_server.host, own_server.port) as running:
        yield running


async def renewed_again(backend: RawBackend, admin: Redis, name: str = "a") -> None:
    """Waits until the lease has been extended."""
    await backend.until(lambda: admin.pttl(name) > LEASE * 1000 * 0.9, 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("lose", [Proxy.drop_reply, Proxy.cut_reply, Proxy.cut_request])
async def test_a_lost_renewal_is_tried_again_within_the_lease(
    backend: RawBackend, proxy: Proxy, admin: Redis, lose: Callable[..., Any]
) -> None:
    # The reply deadline is the default, and longer than the lease: waiting for it would cost the lock.
    lock = backend.connect(proxy.url, lock_watchdog_timeout=LEASE).get_lock("a")
    await backend.do(lock.lock())
    fault = lose(proxy, RENEW)
    assert await backend.run_blocking(fault.happened.wait, 5)
    await backend.sleep(1.5 * LEASE)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


@pytest.mark.asyncio
async def test_all_connections_cut_cost_no_lock(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url, lock_watchdog_timeout=LEASE).get_lock("a")
    await backend.do(lock.lock())
    for _ in range(6):
        await backend.sleep(LEASE / 3)
        await backend.run_blocking(proxy.cut, True)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", [unreachable, out_of_memory])
async def test_errors_of_the_server_cost_no_lock(
    backend: RawBackend, own_server: Server, own_proxy: Proxy, root: Redis, trouble: Callable[[Redis], None]
) -> None:
    """READONLY for half of the lease; OOM for as long as it likes, as a renewal needs no memory."""
    lock = backend.connect(own_proxy.url, lock_watchdog_timeout=2 * LEASE).get_lock("a")
    await backend.do(lock.lock())
    seconds = LEASE / 2 if trouble is unreachable else 3 * LEASE
    own_proxy.forget()
    trouble(root)
    await backend.run_blocking(own_proxy.wait_for, RENEW)
    await backend.sleep(seconds)
    usual(root)
    assert not lock.lost.is_set()
    await backend.until(lambda: root.pttl("a") > 1900 * LEASE * 0.9, 5)
    assert not lock.lost.is_set()
    await backend.do(lock.unlock())
    assert not root.exists("a")


@pytest.mark.asyncio
async def test_a_busy_script_costs_no_lock(
    backend: RawBackend, own_server: Server, own_proxy: Proxy, root: Redis
) -> None:
    # The name that every version knows.
    root.config_set("lua-time-limit", 10)
    lock = backend.connect(own_proxy.url, lock_watchdog_timeout=2 * LEASE).get_lock("a")
    await backend.do(lock.lock())
    # Renewed once, so that its connection is there: a new one would not get past BUSY.
    await backend.run_blocking(own_proxy.wait_for, RENEW)

    def run_for_ever() -> None:
        with own_server.redis(socket_timeout=10) as other:
            try:
                other.eval("while true do end", 0)
            except RedisError as error:
                ended.append(str(error))

    ended: list[str] = []
    script = threading.Thread(target=run_for_ever)
    script.start()
    own_proxy.forget()
    await backend.run_blocking(own_proxy.wait_for, RENEW)
    await backend.sleep(LEASE / 2)
    root.script_kill()
    script.join()
    assert ended
    await backend.until(lambda: root.pttl("a") > 1900 * LEASE * 0.9, 5)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


@pytest.mark.asyncio
async def test_a_deleted_key_is_reported_once_at_the_next_renewal(
    backend: RawBackend, server: Server, admin: Redis
) -> None:
    lock = backend.connect(server.url, lock_watchdog_timeout=3 * LEASE).get_lock("a")
    notified: list[object] = []
    lock.on_lost(notified.append)
    await backend.do(lock.lock())
    admin.delete("a")
    begin = time.monotonic()
    assert await backend.do(lock.lost.wait(5))
    # A third of the lease, and not all of it.
    assert time.monotonic() - begin < 3 * LEASE * 0.9
    await backend.until(lambda: notified)
    with pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())
    await backend.sleep(1.5 * LEASE)
    assert len(notified) == 1
    assert not admin.exists("a")


@pytest.mark.asyncio
async def test_a_released_permit_is_not_renewed(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url, lock_watchdog_timeout=LEASE).get_lock("a")
    for _ in range(20):
        await backend.do(lock.lock())
        await backend.do(lock.unlock())
    # Held with a lease of its own: it isn't renewed either, however often it was before.
    await backend.do(lock.lock(2 * LEASE))
    proxy.forget()
    await backend.sleep(1.2 * LEASE)
    assert proxy.seen(RENEW) == 0
    assert not lock.lost.is_set()
    await backend.do(lock.unlock())


@pytest.mark.asyncio
async def test_a_release_during_a_renewal_is_no_loss(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url, lock_watchdog_timeout=LEASE).get_lock("a")
    notified: list[object] = []
    lock.on_lost(notified.append)
    await backend.do(lock.lock())
    late = proxy.hold_request(RENEW)
    assert await backend.run_blocking(late.held.wait, 5)
    await backend.do(lock.unlock())
    await backend.run_blocking(late.deliver)
    assert not admin.exists("a")
    await backend.do(lock.lock())
    await backend.sleep(LEASE / 2)
    assert notified == []
    assert await backend.do(lock.get_hold_count()) == 1
    await backend.do(lock.unlock())


@pytest.mark.asyncio
async def test_a_lost_lock_is_neither_renewed_nor_made_again(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url, lock_watchdog_timeout=LEASE).get_lock("a")
    await backend.do(lock.lock())
    admin.delete("a")
    assert await backend.do(lock.lost.wait(5))
    admin.hset("a", "another:1", 1)
    proxy.forget()
    await backend.sleep(LEASE)
    assert proxy.seen(RENEW) == 0
    assert admin.hgetall("a") == {b"another:1": b"1"}
    assert admin.pttl("a") == -1


@pytest.mark.asyncio
async def test_an_interrupted_acquire_is_never_renewed(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    client = backend.connect(proxy.url, lock_watchdog_timeout=LEASE, timeout=0.8, retry_attempts=0)
    lock = client.get_lock("a")
    await backend.do(lock.is_locked())
    proxy.drop_reply(ACQUIRE, times=2)
    with pytest.raises(RedisError):
        await backend.do(lock.try_lock())
    await backend.until(lambda: not admin.exists("a"), 5)
    proxy.forget()
    await backend.sleep(LEASE)
    assert proxy.seen(RENEW) == 0
    assert not admin.exists("a")


@pytest.mark.asyncio
async def test_one_key_of_a_wrong_type_stops_no_other_renewal(
    backend: RawBackend, server: Server, admin: Redis
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=2 * LEASE)
    locks = [client.get_lock(f"a{number}") for number in range(250)]
    for lock in locks:
        await backend.do(lock.lock())
    notified: list[Any] = []
    for number in (0, 99, 120, 249):
        locks[number].on_lost(notified.append)
        admin.delete(f"a{number}")
        admin.lpush(f"a{number}", "not a lock")
    await backend.until(lambda: len(notified) == 4)
    await backend.sleep(2 * LEASE)
    assert len(notified) == 4
    assert sum(lock.lost.is_set() for lock in locks) == 4
    assert admin.exists(*[lock.name for lock in locks]) == 250
    assert min(admin.pttl(lock.name) for lock in locks[1:99]) > 0


@pytest.mark.asyncio
async def test_a_batch_that_fails_stops_no_other_batch(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """The batch with that lock fails once with every kind of loss, and all locks live on."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=2 * LEASE)
    locks = [client.get_lock(f"a{number}") for number in range(250)]
    for lock in locks:
        await backend.do(lock.lock())
    fault = proxy.cut_request(RENEW)
    assert await backend.run_blocking(fault.happened.wait, 5)
    await backend.sleep(2.5 * LEASE)
    assert not any(lock.lost.is_set() for lock in locks)
    assert admin.exists(*[lock.name for lock in locks]) == 250


@pytest.mark.asyncio
async def test_two_threads_serve_all_locks(backend: RawBackend, server: Server, admin: Redis) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    locks = [client.get_lock(f"a{number}") for number in range(500)]
    before = set(threading.enumerate())
    for lock in locks:
        await backend.do(lock.lock())
    await backend.until(lambda: admin.pttl("a499") < LEASE * 1000 * 0.8)
    await renewed_again(backend, admin, "a499")
    new = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("pyredisson")]
    assert len(new) == 2
    assert not any(lock.lost.is_set() for lock in locks)


@pytest.mark.asyncio
async def test_a_hung_server_costs_the_lock_no_later_than_the_lease_ends(
    backend: RawBackend, own_server: Server
) -> None:
    lock = backend.connect(own_server.url, lock_watchdog_timeout=LEASE, timeout=0.2).get_lock("a")
    notified: list[object] = []
    lock.on_lost(notified.append)
    await backend.do(lock.lock())
    lost = lock.lost
    own_server.pause()
    begin = time.monotonic()
    assert await backend.do(lost.wait(5))
    assert time.monotonic() - begin < LEASE + 2
    await backend.until(lambda: notified)
    own_server.resume()
    with pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())


@pytest.mark.asyncio
async def test_a_server_that_hangs_for_less_than_the_lease_costs_no_lock(
    backend: RawBackend, own_server: Server
) -> None:
    lock = backend.connect(own_server.url, lock_watchdog_timeout=3 * LEASE, timeout=0.2).get_lock("a")
    await backend.do(lock.lock())
    for _ in range(2):
        own_server.pause()
        await backend.sleep(LEASE * 1.3)
        own_server.resume()
        await backend.sleep(LEASE)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


@pytest.mark.asyncio
@pytest.mark.usefixtures("restarts_noticed")
@pytest.mark.parametrize("lease", [None, 100.0], ids=["renewed", "fixed-lease"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not-connected"])
async def test_an_idle_holder_learns_that_the_server_was_restarted_empty(
    backend: RawBackend, own_server: Server, lease: float | None, connected: bool
) -> None:
    """No renewal is due for 40 s, and the client makes no call. Its watchdog has a connection, or none yet."""
    lock = backend.connect(own_server.url, lock_watchdog_timeout=120).get_lock("a")
    await backend.do(lock.lock(lease))
    if connected:
        with own_server.redis() as admin:
            await backend.until(lambda: len(admin.client_list()) >= 3, TIME_LIMIT)
    own_server.restart()
    with own_server.redis() as admin:
        await backend.until(lock.lost.is_set, TIME_LIMIT)
        assert not admin.exists("a")
    with pytest.raises(pyredisson.LockLostError):
        await backend.do(lock.unlock())


@pytest.mark.asyncio
@pytest.mark.usefixtures("restarts_noticed")
async def test_a_server_that_closes_connections_costs_no_lock(backend: RawBackend, own_server: Server) -> None:
    locks = [backend.connect(own_server.url, lock_watchdog_timeout=120).get_lock(name) for name in "ab"]
    for lock, lease in zip(locks, (None, 100), strict=True):
        await backend.do(lock.lock(lease))
    with own_server.redis() as admin:
        # Each client and its watchdog.
        await backend.until(lambda: len(admin.client_list()) >= 5, TIME_LIMIT)
        admin.pexpire("a", 60_000)
        admin.client_kill_filter(_type="normal", skipme=True)
        # The check extends what the watchdog renews.
        await backend.until(lambda: admin.pttl("a") > 60_000, TIME_LIMIT)
        assert 60_000 < admin.pttl("b") <= 100_100
    for lock in locks:
        assert not lock.lost.is_set()
        await backend.do(lock.unlock())


def test_a_loop_that_was_started_twice_runs_once(server: Server) -> None:
    """An interrupt right after a thread was started has it started again: two that repair would lose commands."""
    with pyredisson.connect(server.url) as client, client.get_lock("a"):
        watchdog = client._session.watchdog
        (renewer,) = watchdog._renewers.values()
        eventually(lambda: watchdog._runs and renewer._runs)
        for loop in (renewer.renew, watchdog.keep_time):
            again = start(loop, "again")
            again.join(TIME_LIMIT)
            assert not again.is_alive()
