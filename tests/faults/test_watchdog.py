"""Renewal: no single failure costs a lock, a lost hold is never renewed, and an owner that has ended is reported."""

import _thread
import asyncio
import logging
import threading
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson
from pyredisson._backends.threads.runtime import start as start_loop
from pyredisson.logic.loops import weak_loop
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.watchdog import Watchdog
from pyredisson.testing import Proxy, Server
from tests.support.faults import LOSSES, RELEASE, RENEW, Credentials, Lose
from tests.support.kinds import LOCKS
from tests.support.raw_backends import RawBackend
from tests.support.waiting import TIME_LIMIT, eventually, within

from .kinds import Log, Output, Patch, Trouble, busy, lock_of, out_of_memory, taken, unreachable, usual

LEASE = 2.0


async def lives(backend: RawBackend, lock: Any) -> None:
    """It is still held, and can be released."""
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    await backend.do(lock.unlock())


class TestNoLockIsLost:
    @LOSSES
    async def test_a_lost_renewal_is_tried_again(self, backend: RawBackend, proxy: Proxy, lose: Lose) -> None:
        """Within the lease. The reply deadline is longer than that: waiting for it would cost the lock."""
        _, lock = await backend.locked(proxy.url, LEASE)
        fault = lose(proxy, RENEW)
        await backend.until(fault.happened.is_set)
        await backend.sleep(1.5 * LEASE)
        await lives(backend, lock)

    @pytest.mark.parametrize("trouble", [unreachable, out_of_memory, busy])
    async def test_server_errors(self, backend: RawBackend, own_server: Server, root: Redis, trouble: Trouble) -> None:
        """For half of the lease; OOM for as long as it likes, as a renewal needs no memory."""
        with Proxy(own_server.host, own_server.port) as proxy:
            _, lock = await backend.locked(proxy.url, 2 * LEASE)
            # Renewed once, so that its connection is there: a new one would not get past BUSY.
            await backend.until(lambda: proxy.seen(RENEW) > 0)
            proxy.forget()
            trouble(root)
            await backend.until(lambda: proxy.seen(RENEW) > 0)
            await backend.sleep(3 * LEASE if trouble is out_of_memory else LEASE / 2)
            usual(root, trouble)
            await backend.until(lambda: root.pttl("a") > 1900 * LEASE * 0.9, 5)
            await lives(backend, lock)
        assert not root.exists("a")

    async def test_a_server_that_hangs_for_less_than_the_lease(self, backend: RawBackend, own_server: Server) -> None:
        _, lock = await backend.locked(own_server.url, 3 * LEASE, timeout=0.2)
        for _ in range(2):
            own_server.pause()
            await backend.sleep(LEASE * 1.3)
            own_server.resume()
            await backend.sleep(LEASE)
        await lives(backend, lock)

    async def test_one_batch_fails_or_has_a_wrong_key(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        """It stops no other one."""
        client = backend.connect(proxy.url, lock_watchdog_timeout=2 * LEASE)
        locks = [client.get_lock(f"a{number}") for number in range(250)]
        for lock in locks:
            await backend.do(lock.lock())
        notified: list[Any] = []
        for number in (0, 99, 120, 249):
            locks[number].on_lost(notified.append)
            admin.delete(f"a{number}")
            admin.lpush(f"a{number}", "not a lock")
        fault = proxy.cut_request(RENEW)
        await backend.until(lambda: len(notified) == 4)
        assert fault.happened.is_set()
        await backend.sleep(2.5 * LEASE)
        assert len(notified) == sum(lock.lost.is_set() for lock in locks) == 4
        assert admin.exists(*[lock.name for lock in locks]) == 250
        assert min(admin.pttl(lock.name) for lock in locks[1:99]) > 0

    async def test_two_threads_serve_all_locks(self, backend: RawBackend, server: Server, admin: Redis) -> None:
        client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
        locks = [client.get_lock(f"a{number}") for number in range(500)]
        before = set(threading.enumerate())
        for lock in locks:
            await backend.do(lock.lock())
        await backend.until(lambda: admin.pttl("a499") < LEASE * 1000 * 0.8)
        await backend.until(lambda: admin.pttl("a499") > LEASE * 1000 * 0.9, 5)
        new = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("pyredisson")]
        assert len(new) == 2
        assert not any(lock.lost.is_set() for lock in locks)

    async def test_short_nested_leases_never_put_the_renewal_off(self, backend: RawBackend, server: Server) -> None:
        _, lock = await backend.locked(server.url, LEASE)
        # More often than once in a third of the lease, for two leases.
        for _ in range(12):
            await backend.sleep(LEASE / 6)
            assert not lock.lost.is_set()
            await backend.do(lock.lock(lease_time=0.01))
            await backend.do(lock.unlock())
        await lives(backend, lock)

    async def test_renewal_follows_to_the_new_master(self, backend: RawBackend) -> None:
        """The old master lives on as a replica and keeps its connections; new ones reach the new master."""
        with (
            Server() as old,
            Server() as new,
            Proxy(old.host, old.port) as proxy,
            old.redis() as was,
            new.redis() as now,
        ):
            _, lock = await backend.locked(proxy.url, 2 * LEASE)
            await backend.until(lambda: proxy.seen(RENEW) > 0)
            now.hset("a", mapping=was.hgetall("a"))
            now.pexpire("a", was.pttl("a"))
            proxy._server = new.host, new.port
            was.replicaof("127.0.0.1", 1)
            for _ in range(2):
                await backend.until(lambda: now.pttl("a") < LEASE * 1600, 5)
                await backend.until(lambda: now.pttl("a") > LEASE * 1700, 5)
            await lives(backend, lock)
            assert not now.exists("a")

    async def test_one_failure_of_a_credential_provider(self, backend: RawBackend) -> None:
        """It costs no release either."""
        with Server(password="secret") as server, Proxy(server.host, server.port) as proxy, server.redis() as root:
            provider = Credentials("secret", failing="pyredisson-renew")
            _, lock = await backend.locked(proxy.url, LEASE, credential_provider=provider)
            await backend.until(provider.failed.is_set)
            await backend.sleep(1.5 * LEASE)
            await lives(backend, lock)
            provider = Credentials("secret", failing="pyredisson-renew")
            _, lock = await backend.locked(proxy.url, 30, credential_provider=provider, retry_attempts=0, timeout=0.8)
            proxy.cut_request(RELEASE)
            proxy.refuse(True)
            await backend.fails(ConnectionError, lock.unlock)
            await backend.until(provider.failed.is_set)
            proxy.refuse(False)
            await backend.until(lambda: not root.exists("a"))

    @pytest.mark.parametrize("known", [True, False], ids=["known script", "unknown script"])
    async def test_repairs_delay_no_renewal(self, tasks: RawBackend, proxy: Proxy, admin: Redis, known: bool) -> None:
        """A cut connection under as many tasks leaves them; one by one they would take longer than the lease."""
        client, lock = await tasks.locked(proxy.url, 2 * LEASE)
        await tasks.until(lambda: proxy.seen(RENEW) > 0)
        proxy.stall()
        gone = [client.get_lock(f"gone{number}") for number in range(100)]
        calls = [asyncio.ensure_future(each.lock()) for each in gone]
        await asyncio.sleep(0.01)
        for each in calls:
            each.cancel()
        await asyncio.wait(calls)
        if not known:
            admin.script_flush()
        proxy.forget()
        proxy.latency(0.02)
        proxy.cut()
        proxy.resume()
        await tasks.until(lambda: proxy.seen(RELEASE) >= len(gone))
        await asyncio.sleep(3 * LEASE)
        await tasks.until(lambda: admin.keys() == [b"a"])
        await lives(tasks, lock)


async def test_a_release_during_a_renewal_is_no_loss(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    _, lock = await backend.locked(proxy.url, LEASE)
    notified: list[object] = []
    lock.on_lost(notified.append)
    late = proxy.hold_request(RENEW)
    await backend.until(late.held.is_set)
    await backend.do(lock.unlock())
    late.deliver()
    assert not admin.exists("a")
    await backend.do(lock.lock())
    await backend.sleep(LEASE / 2)
    assert notified == []
    await lives(backend, lock)
    assert taken(admin, "lock") == 0


async def test_a_hung_server_costs_the_lock_by_the_end_of_its_lease(backend: RawBackend, own_server: Server) -> None:
    """The holder knows before the server can give the lock to anybody else."""
    _, lock = await backend.locked(own_server.url, LEASE, timeout=0.2)
    notified: list[object] = []
    lock.on_lost(notified.append)
    lost = lock.lost
    own_server.pause()
    with within(LEASE + 2):
        assert await backend.do(lost.wait(5))
    await backend.until(lambda: notified)
    own_server.resume()
    assert await backend.do(backend.connect(own_server.url).get_lock("a").try_lock(2 * LEASE))
    await backend.fails(pyredisson.LockLostError, lock.unlock)


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
    await backend.fails(pyredisson.LockLostError, lock.unlock)


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


async def test_a_loop_that_was_started_twice_runs_once(server: Server) -> None:
    """An interrupt right after a thread was started has it started again: two that repair would lose commands."""
    with pyredisson.connect(server.url) as client, client.get_lock("a"):
        watchdog = client._session.watchdog
        (renewer,) = watchdog._renewers.values()
        eventually(lambda: watchdog.runs and renewer.runs)
        runtime = watchdog._runtime
        for loop in (
            weak_loop(renewer, "renew", runtime, renewer._wakeup, Renewer._renew_once),
            weak_loop(watchdog, "keep_time", runtime, watchdog._time_wakeup, Watchdog._keep_time_once),
        ):
            again = start_loop(loop, "again")
            again.join(TIME_LIMIT)
            assert not again.is_alive()


SHORT_LEASE = 1.8
SAID = "is renewed although the thread or task that took it"


async def take_and_end(backend: RawBackend, *locks: Any) -> None:
    async def scenario() -> None:
        for lock in locks:
            await backend.do(lock.lock())

    await backend.start(scenario).result()


async def test_it_is_logged_once_for_each_hold(backend: RawBackend, server: Server, admin: Redis, caplog: Log) -> None:
    """Fixed leases, explicit owners and owners that live are nothing to talk about."""
    client = backend.connect(server.url, lock_watchdog_timeout=SHORT_LEASE)

    async def others() -> None:
        await backend.do(client.get_lock("fixed").lock(60))
        await backend.do(client.get_read_write_lock("reader").read_lock().lock(60))
        await backend.do(client.get_lock("explicit", owner=pyredisson.new_owner()).lock())

    with caplog.at_level(logging.WARNING, "pyredisson"):
        if backend.threads:
            # A thread that Python did not start.
            _thread.start_new_thread(client.get_lock("a").lock, ())
            await take_and_end(backend, client.get_lock("b"))
        else:
            await take_and_end(backend, *map(client.get_lock, "ab"))
        await backend.start(others).result()
        await backend.do(client.get_lock("mine").lock())
        await backend.until(lambda: caplog.text.count(SAID) == 2)
        # Two more rounds.
        await backend.sleep(2 * SHORT_LEASE / 3 + 0.1)
    said = [record.getMessage() for record in caplog.records if SAID in record.getMessage()]
    assert len(said) == 2
    assert all("'a'" in line or "'b'" in line for line in said)
    assert client.id in caplog.text
    assert admin.exists("a", "b", "mine") == 3


@pytest.mark.parametrize("kind", [kind for kind in LOCKS if kind not in ("read", "write")])
async def test_on_request_it_is_released(backend: RawBackend, server: Server, admin: Redis, kind: str) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=SHORT_LEASE, release_when_owner_ends=True)
    lock = lock_of(client, kind)
    notified = threading.Event()
    lock.on_lost(lambda _: notified.set())
    mine = client.get_lock("mine")
    await backend.do(mine.lock())
    await take_and_end(backend, lock, *([lock] if kind == "lock" else []))
    await backend.until(lambda: not admin.exists("a"))
    await backend.until(notified.is_set)
    # The release meets no new hold, and a living owner's hold is kept.
    assert await backend.do(lock.try_lock())
    await backend.sleep(SHORT_LEASE)
    assert admin.exists("mine", "a") == 2
    assert not lock.lost.is_set()


async def test_a_logging_filter_that_raises_costs_no_other_lock(
    backend: RawBackend, server: Server, admin: Any, monkeypatch: Patch, capsys: Output
) -> None:
    """As one does that misses something in a record."""
    refused: list[str] = []

    def refuse(record: logging.LogRecord) -> bool:
        refused.append(record.getMessage())
        raise LookupError("no request id")

    monkeypatch.setattr(logging.getLogger("pyredisson"), "filters", [refuse])
    client = backend.connect(server.url, lock_watchdog_timeout=SHORT_LEASE)
    held, gone, over = (client.get_lock(name) for name in ("held", "gone", "over"))
    await backend.do(gone.lock())
    await backend.do(over.lock(lease_time=0.05))
    await backend.do(held.lock())
    owner = pyredisson.new_owner()
    mine = [held, *(client.get_lock(f"mine{number}", owner=owner) for number in range(20))]
    # Due in the same round as the hold that is logged, and before it.
    await take_and_end(backend, *mine[1:], client.get_lock("a"))
    admin.delete("gone")
    # The thread that keeps the time, and twice the one that renews.
    for text in ("'over'", "'gone'", SAID):
        await backend.until(lambda text=text: any(text in each for each in refused))  # type: ignore[misc]
    await backend.sleep(1.5 * SHORT_LEASE)
    assert not [lock for lock in mine if lock.lost.is_set()]
    assert admin.exists(*[lock.name for lock in mine]) == len(mine)
    # It keeps time, too.
    notified: list[object] = []
    later = client.get_lock("later")
    later.on_lost(notified.append)
    await backend.do(later.lock(lease_time=0.05))
    await backend.until(lambda: notified, 3)
    assert "no request id" in capsys.readouterr().err
