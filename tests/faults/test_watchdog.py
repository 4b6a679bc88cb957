"""The watchdog: no failure or chore costs a lock, no lost hold is renewed, an owner that has ended is reported."""

import _thread
import asyncio
import logging
import threading
from functools import partial
from typing import Any

import pytest
from redis import ConnectionError, Redis

import pyredisson
from pyredisson._backends.runtime import start_thread
from pyredisson._backends.threads.runtime import run
from pyredisson.logic import announcement
from pyredisson.logic.loops import weak_loop
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.watchdog import Watchdog
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, RawBackend, eventually, within
from tests.support.faults import LOSSES, RELEASE, RENEW, Append, Credentials, Lose, sha
from tests.support.inspecting import key_of
from tests.support.kinds import LOCKS

from .kinds import Log, Output, Patch, Trouble, busy, do_all, lock_of, out_of_memory, taken, unreachable, usual

LEASE, LONGER = 2.0, 3.0


async def lives(backend: RawBackend, lock: Any) -> None:
    """It is still held, and can be released."""
    assert not lock.lost.is_set()
    assert await do_all(backend, lock.is_held, lock.unlock) == [True, None]


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
        await do_all(backend, *[lock.lock for lock in locks])
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
        await do_all(backend, *[lock.lock for lock in locks])
        await backend.until(lambda: admin.pttl("a499") < LEASE * 1000 * 0.8)
        await backend.until(lambda: admin.pttl("a499") > LEASE * 1000 * 0.9, 5)
        assert sum(thread.name.startswith("pyredisson") for thread in set(threading.enumerate()) - before) == 2
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

    async def test_renewal_follows_to_a_new_master(self, backend: RawBackend, own_server: Server, root: Redis) -> None:
        """The old master lives on as a replica and keeps its connections; new ones reach the new master."""
        with Server() as new, Proxy(own_server.host, own_server.port) as proxy, new.redis() as now:
            _, lock = await backend.locked(proxy.url, 2 * LEASE)
            await backend.until(lambda: proxy.seen(RENEW) > 0)
            now.hset("a", mapping=root.hgetall("a"))
            now.pexpire("a", root.pttl("a"))
            proxy._server = new.host, new.port
            root.replicaof("127.0.0.1", 1)
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

    @pytest.mark.parametrize(("loop", "step"), [(Watchdog, "_when_to_look"), (Renewer, "_look_for_restart")])
    async def test_no_memory_at_one_step(
        self, backend: RawBackend, server: Server, monkeypatch: Patch, loop: type, step: str
    ) -> None:
        def once(*args: Any) -> Any:
            if struck.is_set():
                return original(*args)
            struck.set()
            raise MemoryError

        struck, original = threading.Event(), getattr(loop, step)
        _, lock = await backend.locked(server.url, LEASE)
        monkeypatch.setattr(loop, step, once)
        await backend.until(struck.is_set)
        await backend.sleep(1.5 * LEASE)
        await lives(backend, lock)

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
    await do_all(backend, locks[0].lock, partial(locks[1].lock, 100))
    with own_server.redis() as admin:
        # Each client and its watchdog.
        await backend.until(lambda: len(admin.client_list()) >= 5, TIME_LIMIT)
        admin.pexpire("a", 60_000)
        admin.client_kill_filter(_type="normal", skipme=True)
        # The check extends what the watchdog renews.
        await backend.until(lambda: admin.pttl("a") > 60_000, TIME_LIMIT)
        assert 60_000 < admin.pttl("b") <= 100_100
    assert not any(lock.lost.is_set() for lock in locks)
    await do_all(backend, *[lock.unlock for lock in locks])


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
            again = start_thread(partial(run, loop), "again")
            again.join(TIME_LIMIT)
            assert not again.is_alive()


SHORT_LEASE = 1.8
SAID = "is renewed although the thread or task that took it"


async def take_and_end(backend: RawBackend, *locks: Any) -> None:
    await backend.start(do_all, backend, *[lock.lock for lock in locks]).result()


async def test_it_is_logged_once_for_each_hold(backend: RawBackend, server: Server, admin: Redis, caplog: Log) -> None:
    """Fixed leases, explicit owners and owners that live are nothing to talk about."""
    client = backend.connect(server.url, lock_watchdog_timeout=SHORT_LEASE)
    fixed = client.get_lock("fixed"), client.get_read_write_lock("reader").read_lock()
    others = *(partial(lock.lock, 60) for lock in fixed), client.get_lock("explicit", owner=pyredisson.new_owner()).lock

    with caplog.at_level(logging.WARNING, "pyredisson"):
        if backend.threads:
            # A thread that Python did not start.
            _thread.start_new_thread(client.get_lock("a").lock, ())
        await take_and_end(backend, *map(client.get_lock, "b" if backend.threads else "ab"))
        await backend.start(do_all, backend, *others).result()
        await backend.do(client.get_lock("mine").lock())
        await backend.until(lambda: caplog.text.count(SAID) == 2)
        # Two more rounds.
        await backend.sleep(2 * SHORT_LEASE / 3 + 0.1)
    said = [message for message in caplog.messages if SAID in message]
    assert ["'a'" in line or "'b'" in line for line in said] == [True, True]
    assert client.id in caplog.text
    assert admin.exists("a", "b", "mine") == 3


@pytest.mark.parametrize("kind", [kind for kind in LOCKS if kind not in ("read", "write")])
async def test_on_request_it_is_released(backend: RawBackend, server: Server, admin: Redis, kind: str) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=SHORT_LEASE, release_when_owner_ends=True)
    lock = lock_of(client, kind)
    notified = threading.Event()
    lock.on_lost(lambda _: notified.set())
    await backend.do(client.get_lock("mine").lock())
    await take_and_end(backend, lock, *([lock] if kind == "lock" else []))
    await backend.until(lambda: not admin.exists("a"))
    await backend.until(notified.is_set)
    # The release meets no new hold, and a living owner's hold is kept.
    assert await backend.do(lock.try_lock())
    await backend.sleep(SHORT_LEASE)
    assert (admin.exists("mine", "a"), lock.lost.is_set()) == (2, False)


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
    await do_all(backend, gone.lock, partial(over.lock, lease_time=0.05), held.lock)
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


ANNOUNCE = sha("client_announce")
RIGHTS = (
    "app on >secret resetchannels ~a ~pyredisson_waiting:{a} ~pyredisson_woken:{a} ~pyredisson_client:* &* "
    "+hello +ping +select +client +info +eval +evalsha +hset "
    "+hget +hmget +hdel +time +hkeys +hexists +exists +del +pttl +pexpire +publish +subscribe +unsubscribe"
)


def is_complete(admin: Any, client: Any) -> bool:
    """Whether the client is announced, and its hold is listed."""
    fields = admin.hgetall(key_of(client))
    return b"host" in fields and any(field.startswith(b"h:") for field in fields)


class TestChores:
    """They run without a hold, as the announcement of a client, and never cost one."""

    @pytest.fixture(autouse=True)
    def short_ticks(self, announced: None, monkeypatch: Patch) -> None:
        """An announcement is renewed after each third of the lease."""
        monkeypatch.setattr(announcement, "SHORTEST_TTL", 0)

    @pytest.mark.parametrize("missing", ["~pyredisson_client:*", "+hdel", "+time"])
    async def test_without_the_right(self, backend: RawBackend, missing: str, caplog: Log) -> None:
        """It is tried once, and said once."""
        rights = " ".join(right for right in RIGHTS.split() if right != missing)
        caplog.set_level(logging.INFO, "pyredisson")
        with Server(users=[rights]) as server, Proxy(server.host, server.port) as proxy, server.redis() as admin:
            client = backend.connect(f"redis://app:secret@{proxy.host}:{proxy.port}/0", lock_watchdog_timeout=LONGER)
            lock, other = client.get_lock("a"), client.get_lock("a", owner=1)
            await backend.do(lock.lock())
            # A hold that is to be removed has HDEL run.
            await backend.until(lambda: proxy.seen(RENEW) > 0)
            await do_all(backend, lock.unlock, other.lock)
            await backend.until(lambda: client._session.announcement._is_denied)
            proxy.forget()
            await backend.until(lambda: proxy.seen(RENEW) >= 3)
            assert not proxy.seen(ANNOUNCE)
            assert await backend.do(other.is_held())
            assert sum("who this client is" in message for message in caplog.messages) == 1
            assert not admin.exists(key_of(client)) or missing == "+hdel"
            await backend.do(client.close())

    @LOSSES
    async def test_a_lost_reply(self, backend: RawBackend, admin: Any, proxy: Proxy, lose: Lose) -> None:
        """The next announcement makes the hash anew, if the server has the one in doubt."""
        client = backend.connect(proxy.url, lock_watchdog_timeout=LONGER)
        lock = client.get_lock("a")
        lose(proxy, ANNOUNCE)
        for _ in range(2):
            await backend.do(lock.lock())
            await backend.until(lambda: is_complete(admin, client))
            assert not lock.lost.is_set()
            lose(proxy, ANNOUNCE)
            await backend.do(lock.unlock())
            await backend.until(lambda: admin.exists(key_of(client)) and not is_complete(admin, client))

    async def test_the_server_has_another_one(self, backend: RawBackend, admin: Any, server: Server) -> None:
        """After a restart or a failover, or because the process stood still for longer than the key lives."""
        client, lock = await backend.locked(server.url, LONGER)
        key = key_of(client)

        def make_older() -> None:
            # In this order: once the number is older, the next announcement writes everything anew.
            admin.hdel(key, "host")
            admin.hset(key, "n", 0)

        for change in (lambda: admin.delete(key), make_older, lambda: admin.delete(key) and admin.set(key, "text")):
            await backend.until(lambda: admin.type(key) == b"hash" and is_complete(admin, client))
            change()
        await backend.until(lambda: admin.type(key) == b"hash" and is_complete(admin, client))
        assert await backend.do(lock.is_held())

    async def test_out_of_memory(self, backend: RawBackend, own_server: Server, root: Any) -> None:
        client, lock = await backend.locked(own_server.url, LONGER)
        others = [client.get_lock(name) for name in "bcd"]
        await do_all(backend, *[each.lock for each in others])
        announced = client._session.announcement
        await backend.until(lambda: is_complete(root, client) and len(announced._listed) == 4)
        root.config_set("maxmemory", 1)
        root.delete(key_of(client))
        renewals = root.info("commandstats")["cmdstat_evalsha"]["calls"]
        await backend.until(lambda: root.info("commandstats")["cmdstat_evalsha"]["calls"] > renewals + 3)
        assert not root.exists(key_of(client))
        await do_all(backend, *[each.unlock for each in others])
        # What has ended is forgotten: it would grow without bound.
        await backend.until(lambda: list(announced._changed) == list(announced._listed) != [])
        root.config_set("maxmemory", 0)
        await backend.until(lambda: is_complete(root, client))
        assert not lock.lost.is_set()

    async def test_a_reply_that_does_not_come(self, backend: RawBackend, admin: Redis, proxy: Proxy) -> None:
        """It delays the renewals by one timeout of the watchdog, which is short enough."""
        client, lock = await backend.locked(proxy.url, LONGER)
        for _ in range(3):
            held = proxy.hold_reply(ANNOUNCE)
            await backend.until(held.held.is_set)
            seen = proxy.seen(RENEW)
            await backend.until(lambda seen=seen: proxy.seen(RENEW) > seen)  # type: ignore[misc]
        await backend.until(lambda: is_complete(admin, client))
        assert not lock.lost.is_set()

    async def test_one_that_raises(self, backend: RawBackend, server: Server, admin: Redis, caplog: Log) -> None:
        """The first chore starts the watchdog's threads. One that raises is logged, and the next one is run."""
        client = backend.connect(server.url)
        assert not client._session.watchdog.started
        chores: list[Any] = [Append(b"chore"), Append(b"chore", fails=True), Append(b"chore")]
        for chore in chores:
            client._session.watchdog.do(chore)
        await backend.until(lambda: chores[0].done.is_set() and chores[2].done.is_set())
        assert admin.get(b"chore") == b"xxx"
        assert client._session.watchdog.started
        assert any(record.exc_info and "other than a renewal" in record.getMessage() for record in caplog.records)

    async def test_none_is_run_during_an_outage(self, backend: RawBackend, proxy: Proxy) -> None:
        """Each would delay the next try of a renewal. It runs when renewals succeed again."""
        client, lock = await backend.locked(proxy.url, LONGER)
        renewer = client._session.watchdog._renewer_of(client._session.runtime.shard_of(b""))
        proxy.refuse(True)
        await backend.until(lambda: renewer._failures > 0, 5)
        chore = Append(b"chore")
        client._session.watchdog.do(chore)
        failures = renewer._failures
        await backend.until(lambda: renewer._failures > failures + 1, 5)
        assert not chore.failed.is_set()
        proxy.refuse(False)
        await backend.until(chore.done.is_set)
        assert not lock.lost.is_set()

    async def test_one_that_asks_for_itself_leaves_time_for_renewals(self, backend: RawBackend, proxy: Proxy) -> None:
        client, lock = await backend.locked(proxy.url, LONGER)
        watchdog = client._session.watchdog

        class Again(Append):
            async def run(self, runtime: Any) -> None:
                await super().run(runtime)
                if len(self.replies) < 5 or proxy.seen(RENEW) < 3:
                    watchdog.do(self)

        chore = Again(b"chore")
        watchdog.do(chore)
        await backend.until(lambda: proxy.seen(RENEW) >= 3)
        assert not lock.lost.is_set()
        assert len(chore.replies) >= 5
