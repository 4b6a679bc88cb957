"""Chores of the watchdog, as the announcement of a client: they run without a hold, and never cost one."""

import logging
from typing import Any

import pytest
from redis import Redis

from pyredisson._protocol.scripts import script
from pyredisson.logic import announcement
from pyredisson.testing import Proxy, Server
from tests.support.chores import Append, Failing
from tests.support.faults import FLAGS, RENEW
from tests.support.raw_backends import RawBackend

pytestmark = pytest.mark.usefixtures("announced")
LEASE = 3.0
KEY = b"chore"
ANNOUNCE = script("client_announce", with_shebang=FLAGS).sha
RIGHTS = (
    "app on >secret resetchannels ~a ~pyredisson_waiting:{a} ~pyredisson_woken:{a} ~pyredisson_client:* &* "
    "+hello +ping +select +client +info +eval +evalsha +hset "
    "+hget +hmget +hdel +time +hkeys +hexists +exists +del +pttl +pexpire +publish +subscribe +unsubscribe"
)


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement is renewed after each third of the lease."""
    monkeypatch.setattr(announcement, "SHORTEST_TTL", 0)


def key_of(client: Any) -> str:
    return f"pyredisson_client:{{{client.id}}}"


def is_complete(admin: Any, client: Any) -> bool:
    """Whether the client is announced, and its hold is listed."""
    fields = admin.hgetall(key_of(client))
    return b"host" in fields and any(field.startswith(b"h:") for field in fields)


@pytest.mark.parametrize("missing", ["~pyredisson_client:*", "+hdel", "+time"])
async def test_without_the_right(backend: RawBackend, missing: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried once, and said once."""
    rights = " ".join(right for right in RIGHTS.split() if right != missing)
    with (
        Server(users=[rights]) as server,
        Proxy(server.host, server.port) as proxy,
        server.redis() as admin,
        caplog.at_level(logging.INFO, "pyredisson"),
    ):
        client = backend.connect(f"redis://app:secret@{proxy.host}:{proxy.port}/0", lock_watchdog_timeout=LEASE)
        lock, other = client.get_lock("a"), client.get_lock("a", owner=1)
        await backend.do(lock.lock())
        # A hold that is to be removed has HDEL run.
        await backend.until(lambda: proxy.seen(RENEW) > 0)
        await backend.do(lock.unlock())
        await backend.do(other.lock())
        await backend.until(lambda: client._session.announcement._is_denied)
        proxy.forget()
        await backend.until(lambda: proxy.seen(RENEW) >= 3)
        assert not proxy.seen(ANNOUNCE)
        assert await backend.do(other.is_held())
        assert len([record for record in caplog.records if "who this client is" in record.getMessage()]) == 1
        assert not admin.exists(key_of(client)) or missing == "+hdel"
        await backend.do(client.close())


@pytest.mark.parametrize("fault", [Proxy.drop_reply, Proxy.cut_reply, Proxy.cut_request])
async def test_a_lost_reply(backend: RawBackend, admin: Any, proxy: Proxy, fault: Any) -> None:
    """The next announcement makes the hash anew, if the server has the one in doubt."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=LEASE)
    lock = client.get_lock("a")
    fault(proxy, ANNOUNCE)
    for _ in range(2):
        await backend.do(lock.lock())
        await backend.until(lambda: is_complete(admin, client))
        assert not lock.lost.is_set()
        fault(proxy, ANNOUNCE)
        await backend.do(lock.unlock())
        await backend.until(lambda: admin.exists(key_of(client)) and not is_complete(admin, client))


async def test_the_server_has_another_one(backend: RawBackend, admin: Any, server: Server) -> None:
    """After a restart or a failover, or because the process stood still for longer than the key lives."""
    client, lock = await backend.locked(server.url, LEASE)
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


async def test_out_of_memory(backend: RawBackend, admin: Any, server: Server) -> None:
    client, lock = await backend.locked(server.url, LEASE)
    others = [client.get_lock(name) for name in "bcd"]
    for each in others:
        await backend.do(each.lock())
    announced = client._session.announcement
    await backend.until(lambda: is_complete(admin, client) and len(announced._listed) == 4)
    admin.config_set("maxmemory", 1)
    try:
        admin.delete(key_of(client))
        renewals = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
        await backend.until(lambda: admin.info("commandstats")["cmdstat_evalsha"]["calls"] > renewals + 3)
        assert not admin.exists(key_of(client))
        for each in others:
            await backend.do(each.unlock())
        # What has ended is forgotten: it would grow without bound.
        await backend.until(lambda: list(announced._changed) == list(announced._listed) != [])
    finally:
        admin.config_set("maxmemory", 0)
    await backend.until(lambda: is_complete(admin, client))
    assert not lock.lost.is_set()


async def test_a_reply_that_does_not_come(backend: RawBackend, admin: Redis, proxy: Proxy) -> None:
    """It delays the renewals by one timeout of the watchdog, which is short enough."""
    client, lock = await backend.locked(proxy.url, LEASE)
    for _ in range(3):
        held = proxy.hold_reply(ANNOUNCE)
        await backend.until(held.held.is_set)
        seen = proxy.seen(RENEW)
        await backend.until(lambda seen=seen: proxy.seen(RENEW) > seen)  # type: ignore[misc]
    await backend.until(lambda: is_complete(admin, client))
    assert not lock.lost.is_set()


async def test_one_that_raises(
    backend: RawBackend, server: Server, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The first chore starts the watchdog's threads. One that raises is logged, and the next one is run."""
    client = backend.connect(server.url)
    assert not client._session.watchdog.started
    chores: list[Any] = [Append(KEY), Failing(KEY), Append(KEY)]
    for chore in chores:
        client._session.watchdog.do(chore)
    await backend.until(lambda: chores[0].done.is_set() and chores[2].done.is_set())
    assert admin.get(KEY) == b"xxx"
    assert client._session.watchdog.started
    assert [record for record in caplog.records if record.exc_info and "other than a renewal" in record.getMessage()]


async def test_none_is_run_during_an_outage(backend: RawBackend, proxy: Proxy) -> None:
    """Each would delay the next try of a renewal. It runs when renewals succeed again."""
    client, lock = await backend.locked(proxy.url, LEASE)
    renewer = client._session.watchdog._sole
    proxy.refuse(True)
    await backend.until(lambda: renewer._failures > 0, 5)
    chore = Append(KEY)
    client._session.watchdog.do(chore)
    failures = renewer._failures
    await backend.until(lambda: renewer._failures > failures + 1, 5)
    assert not chore.failed.is_set()
    proxy.refuse(False)
    await backend.until(chore.done.is_set)
    assert not lock.lost.is_set()


async def test_one_that_asks_for_itself_leaves_time_for_renewals(backend: RawBackend, proxy: Proxy) -> None:
    client, lock = await backend.locked(proxy.url, LEASE)
    watchdog = client._session.watchdog

    class Again(Append):
        async def run(self, runtime: Any) -> None:
            await super().run(runtime)
            if len(self.replies) < 5 or proxy.seen(RENEW) < 3:
                watchdog.do(self)

    chore = Again(KEY)
    watchdog.do(chore)
    await backend.until(lambda: proxy.seen(RENEW) >= 3)
    assert not lock.lost.is_set()
    assert len(chore.replies) >= 5
