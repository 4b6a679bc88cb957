"""No wakeup is lost with a message, a connection, a right, or a hold that vanishes.

And no place in the queue of a fair lock with a reply.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from pyredisson._backends.aio import listener as aio_listener
from pyredisson._backends.threads import listener
from pyredisson._backends.threads.runtime import run
from pyredisson.logic import channels
from pyredisson.testing import Proxy, Server
from tests.support.backends import OtherOwner
from tests.support.faults import LOSSES, Lose
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners, scripts_run

from .kinds import Log, Patch, given_back, lock_of, sha, taken_by_another

LONG = 30.0
"""Seconds: what a waiter reads as the time left to the holder."""
SOON = 2.5
"""Seconds: the half that lies between two renewals of the holder, and what a busy machine takes."""
NOTICE = sha("lock_wake_waiters")
ACQUIRE, HEARTBEAT = sha("fair_acquire"), sha("fair_heartbeat")
QUEUE, SCORES = "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"
SHORT = 0.1
"""Seconds without a message after which the client sends a PING, and unsubscribes."""


def waiting(backend: RawBackend, client: Any, kind: str = "lock") -> OtherOwner[Any]:
    """A waiter that takes the lock, says when, and gives it back."""
    lock = lock_of(client, kind)

    async def take() -> float:
        await backend.do(lock.lock())
        taken = time.monotonic()
        await backend.do(lock.unlock())
        return taken

    return backend.start(take)


async def contended(
    backend: RawBackend, admin: Redis, url: str, other: str, kind: str = "lock", wanted: str = "lock", **fields: Any
) -> OtherOwner[Any]:
    """A client at `url` holds the lock, and a client at `other` waits for it."""
    lock = lock_of(backend.connect(url, **({"lock_watchdog_timeout": 1.5} | fields)), kind)
    await backend.do(lock.lock(LONG))
    await backend.do(lock.lock())
    waiter = waiting(backend, backend.connect(other), wanted)
    await backend.until(lambda: any(b"{a}" in channel for channel in admin.pubsub_channels()))
    # The waiter looks once more when it is known that messages arrive.
    await backend.sleep(0.1)
    return waiter


async def test_a_waiter_without_a_subscription_polls(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """The subscription is broken, and commands work: the waiter must not sleep until the end of the lease."""
    taken_by_another(admin)
    client = backend.connect(proxy.url)
    before = scripts_run(admin)
    waiter = await backend.started(lambda: scripts_run(admin) - before == 2, client.get_lock("a").try_lock, 25)
    proxy.refuse(True)
    admin.client_kill_filter(_type="pubsub")
    await backend.until(lambda: listeners(admin, "a") == 0)
    admin.delete("a")
    assert await waiter.result(5) is True


async def test_a_thread_that_waits_for_something_else_does_not_read_messages(
    threads: RawBackend, server: Server, admin: Redis, caplog: Log, monkeypatch: Patch
) -> None:
    """A thread that stops waiting for messages hands the reading over to the listener's own thread."""
    monkeypatch.setattr(listener, "LINGER", 0.01)
    client = threads.connect(server.url)
    taken_by_another(admin)
    assert not client.get_lock("a").try_lock(0.1)
    runtime = client._session.runtime
    signal = runtime.wakeup()
    other = threads.start(run, runtime.wait, signal, 20)
    waiters = [waiting(threads, client) for _ in range(2)]
    await threads.sleep(0.5)
    given_back(admin)
    for waiter in waiters:
        await waiter.result(5)
    signal.set()
    await other.result(5)
    assert caplog.messages == []


async def test_one_connection_listens_for_all_locks(backend: RawBackend, server: Server, admin: Redis) -> None:
    """To a channel of its own for each, and to Redisson's, as the holders may be Java's."""
    client = backend.connect(server.url)
    names = [f"a{number}" for number in range(20)]
    for name in names:
        taken_by_another(admin, name)
    calls = [backend.start(client.get_lock(name).try_lock, 20) for name in names]
    await backend.until(lambda: all(listeners(admin, name) == 1 for name in names))
    assert [entry["sub"] for entry in admin.client_list() if int(entry["sub"])] == ["40"]
    for name in names:
        given_back(admin, name)
    for call in calls:
        assert await call.result() is True


@pytest.mark.parametrize("by", ["a PING", "a command without a reply"])
async def test_a_silent_subscription_is_made_anew(backend: RawBackend, proxy: Proxy, admin: Redis, by: str) -> None:
    """Nothing shows that all connections are dead: no FIN, no RST, no more messages."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.2 if by == "a PING" else 600, timeout=0.8)
    waiter = waiting(backend, client)
    await backend.until(lambda: listeners(admin, "a") == 1)
    proxy.blackhole()
    released = time.monotonic()
    # Its message goes into the hole.
    given_back(admin)
    if by != "a PING":
        assert not await backend.do(client.get_lock("b").is_locked())
    assert await waiter.result() - released < 5


async def test_a_living_subscription_answers_pings_and_stays(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """Also where the reply to a PING comes together with a message."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.1, timeout=1)
    reply = proxy.hold_reply(b"PING")
    waiter = waiting(backend, client)
    await backend.until(reply.held.is_set)
    given_back(admin)
    reply.deliver()
    await waiter.result()
    taken_by_another(admin)
    waiter = waiting(backend, client)
    proxy.forget()
    # Longer than a reply may take.
    await backend.sleep(1.5)
    await backend.until(lambda: proxy.seen(b"PING") >= 3)
    given_back(admin)
    await waiter.result()
    assert proxy.seen(b"\r\nSUBSCRIBE") == 0, "the connection was replaced"


@pytest.mark.parametrize(
    ("held", "wanted"),
    [(kind, kind) for kind in ("lock", "fair", "fenced", "multi")]
    + [("lock", "non-reentrant"), ("read", "write"), ("write", "read")],
)
async def test_waiters_of_a_lock_that_is_gone_are_woken(
    backend: RawBackend, server: Server, admin: Redis, proxy: Proxy, held: str, wanted: str
) -> None:
    """A notice that is lost is sent again."""
    waiter = await contended(backend, admin, proxy.url, server.url, held, wanted, timeout=0.8)
    fault = proxy.cut_request(NOTICE, times=2) if held == wanted == "lock" else None
    gone = time.monotonic()
    admin.flushall()
    assert await waiter.result() - gone < SOON
    assert fault is None or fault.happened.is_set()


@pytest.mark.usefixtures("restarts_noticed")
async def test_closed_connections_show_a_loss(backend: RawBackend, server: Server, admin: Redis, proxy: Proxy) -> None:
    """No renewal is due for 40 s."""
    waiter = await contended(backend, admin, proxy.url, server.url, lock_watchdog_timeout=120)
    admin.delete("a")
    proxy.cut()
    await waiter.result()


@pytest.mark.parametrize("refused", ["resetkeys", "resetchannels"])
async def test_a_notice_that_is_refused_is_not_repeated(backend: RawBackend, refused: str) -> None:
    with Server(users=["alice on >x ~* &* +@all"]) as own, Proxy(own.host, own.port) as proxy, own.redis() as admin:
        client = backend.connect(proxy.url, username="alice", password="x", lock_watchdog_timeout=0.9)
        await backend.do(client.get_lock("a").lock())
        admin.execute_command("ACL", "SETUSER", "alice", refused)
        if refused == "resetchannels":
            admin.delete("a")
        await backend.until(lambda: proxy.seen(NOTICE) > 0)
        # A failed renewal is repeated ten times a round.
        await backend.sleep(0.3)
        assert proxy.seen(NOTICE) == 1


@pytest.fixture(params=["ping", "unsubscribe"])
def refused(request: pytest.FixtureRequest, admin: Redis, monkeypatch: Patch) -> Iterator[bytes]:
    """The user `app` may do everything but this."""
    for module in (channels, listener, aio_listener):
        monkeypatch.setattr(module, "LINGER", SHORT)
    admin.acl_setuser(
        "app", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", f"-{request.param}"]
    )
    yield request.param.encode()
    admin.acl_deluser("app")


async def test_a_refusal_belongs_to_the_command_that_was_refused(
    backend: RawBackend, proxy: Proxy, server: Server, admin: Redis, refused: bytes, caplog: Log
) -> None:
    """The reply to the refused command comes when a SUBSCRIBE, which is allowed, is on its way behind it."""
    for name in "ab":
        taken_by_another(admin, name)
    client = backend.connect(proxy.url, username="app", password="any", ping_interval=SHORT)
    held = proxy.hold_reply(refused.upper())

    async def wait_for(name: str, seconds: float) -> Any:
        return await backend.do(client.get_lock(name).try_lock(seconds))

    assert await wait_for("a", SHORT) is False
    if refused == b"ping":
        first = backend.start(wait_for, "a", 5)
    await backend.run_blocking(held.held.wait, 5)
    waiting = backend.start(wait_for, "b", 5)
    await backend.run_blocking(
        proxy.wait_for, lambda: proxy.seen(b"SUBSCRIBE\r\n$26\r\nredisson_lock__channel:{b}") > 0
    )
    await backend.run_blocking(held.deliver)
    await backend.until(lambda: listeners(admin, "b") == 1)
    for name in "ab":
        given_back(admin, name)
    assert await waiting.result(2) is True
    if refused == b"ping":
        assert await first.result(2) is True
    assert not caplog.messages


def queued(admin: Redis) -> int:
    return int(admin.llen(QUEUE))


async def in_line(backend: RawBackend, admin: Redis, client: Any) -> OtherOwner[Any]:
    """A waiter behind all that are in the queue already."""
    before = queued(admin)
    waiter = waiting(backend, client, "fair")
    await backend.until(lambda: queued(admin) == before + 1)
    return waiter


@pytest.fixture
async def holder(backend: RawBackend, server: Server) -> Any:
    """The lock, held by another client than those that wait for it."""
    lock = backend.connect(server.url).get_fair_lock("a", owner=9)
    await backend.do(lock.lock())
    return lock


@LOSSES
@pytest.mark.parametrize("moment", ["enters the queue", "its turn has come"])
async def test_a_waiter_whose_acquire_is_lost_keeps_its_place(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, holder: Any, lose: Lose, moment: str
) -> None:
    waiter, client = await backend.connected(proxy.url, timeout=0.8), backend.connect(server.url)
    enters = moment == "enters the queue"
    fault = lose(proxy, ACQUIRE) if enters else None
    first = await in_line(backend, admin, waiter)
    # It hears that its turn has come, or has looked again.
    await backend.until(lambda: len(admin.pubsub_channels("redisson_lock__channel:{a}:*")) == 1)
    second = await in_line(backend, admin, client)
    if fault is None:
        fault = lose(proxy, ACQUIRE)
    else:
        await backend.until(lambda: fault.happened.is_set() and proxy.seen(ACQUIRE) >= 2)
        assert queued(admin) == 2
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()
    assert fault.happened.is_set()
    await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))


async def test_a_heartbeat_or_a_subscription_that_is_lost_costs_no_turn(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Any, holder: Any
) -> None:
    fault = proxy.drop_reply(HEARTBEAT)
    first = await in_line(backend, admin, backend.connect(proxy.url, timeout=0.8))
    await backend.until(fault.happened.is_set)
    second = await in_line(backend, admin, backend.connect(server.url))
    admin.client_kill_filter(_type="pubsub")
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()
