"""Waiters don't poll, a hand-off wakes one waiter, and no wakeup is lost with a message or a connection."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

import pyredisson
from pyredisson._backends.threads import listener
from pyredisson._backends.threads.operations import run
from pyredisson.logic.locks import queued_wait
from pyredisson.testing import Proxy, Server
from tests.support.raw_backends import BackgroundCall, RawBackend
from tests.support.server_state import listeners, scripts_run
from tests.support.waiting import waiters

pytestmark = pytest.mark.asyncio
CHANNEL = "redisson_lock__channel:{a}"


def taken_by_another(admin: Redis) -> None:
    """As a holder that never goes."""
    admin.hset("a", "another:1", 1)


def given_back(admin: Redis) -> None:
    admin.delete("a")
    admin.publish(CHANNEL, "0")


def waiting(backend: RawBackend, client: Any) -> BackgroundCall:
    """A waiter that takes the lock, says when, and gives it back."""

    async def take() -> float:
        lock = client.get_lock("a")
        await backend.do(lock.lock())
        taken = time.monotonic()
        await backend.do(lock.unlock())
        return taken

    return backend.start(take)


async def test_waiters_send_nothing_while_they_wait(backend: RawBackend, server: Server, admin: Redis) -> None:
    taken_by_another(admin)
    client = backend.connect(server.url)
    before = scripts_run(admin)
    others = [waiting(backend, client) for _ in range(5)]
    await backend.until(lambda: waiters(client, "a") == 5)
    await backend.sleep(0.1)
    # Those that came before anybody waited have tried. When it is known that messages arrive one looks again, and so do
    # those that have tried before and come to wait later: they may have missed a message.
    first = scripts_run(admin)
    assert 2 <= first - before <= 10
    await backend.sleep(1.5)
    assert scripts_run(admin) == first
    given_back(admin)
    for waiter in others:
        await waiter.result()


async def test_a_hand_off_wakes_one_waiter_of_a_client(backend: RawBackend, server: Server, admin: Redis) -> None:
    taken_by_another(admin)
    client = backend.connect(server.url)
    others = [waiting(backend, client) for _ in range(50)]
    await backend.until(lambda: waiters(client, "a") == 50)
    await backend.sleep(0.1)
    before = scripts_run(admin)
    given_back(admin)
    for waiter in others:
        await waiter.result()
    # An acquire by the first one, and a release by each, which enters the next one; an acquire more for each series.
    assert 51 <= scripts_run(admin) - before <= 100


async def test_one_connection_listens_for_all_locks_of_a_client(
    backend: RawBackend, server: Server, admin: Redis
) -> None:
    client = backend.connect(server.url)
    names = [f"a{number}" for number in range(20)]
    for name in names:
        admin.hset(name, "another:1", 1)

    def waiting_for(name: str) -> BackgroundCall:
        async def take() -> bool:
            return bool(await backend.do(client.get_lock(name).try_lock(20)))

        return backend.start(take)

    waiters = [waiting_for(name) for name in names]
    await backend.until(lambda: all(listeners(admin, name) == 1 for name in names))
    subscribed = [entry for entry in admin.client_list() if int(entry["sub"])]
    assert [entry["sub"] for entry in subscribed] == ["20"]
    for name in names:
        admin.delete(name)
        admin.publish(f"redisson_lock__channel:{{{name}}}", "0")
    for waiter in waiters:
        assert await waiter.result() is True


@pytest.mark.slow
async def test_a_waiter_that_leaves_passes_its_wake_up_on(
    backend: RawBackend, proxy: Proxy, server: Server, admin: Redis
) -> None:
    """A woken waiter reaches its timeout while it asks for the lock: the next waiter must be woken."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, timeout=2)

    async def give_up() -> bool:
        return bool(await backend.do(client.get_lock("a").try_lock(1.0)))

    for _ in range(3):
        leaver = backend.start(give_up)
        await backend.until(lambda: listeners(admin, "a") == 1)
        stayer = waiting(backend, client)
        await backend.sleep(0.9)
        # Many releases around the very moment at which the first one leaves; the last one frees the lock.
        for _ in range(40):
            admin.publish(CHANNEL, "0")
            await backend.sleep(0.004)
        assert await leaver.result() is False
        released = time.monotonic()
        given_back(admin)
        assert await stayer.result() - released < 2
        taken_by_another(admin)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_release_published_while_the_subscription_was_down_is_not_missed(
    backend: RawBackend, proxy: Proxy, admin: Redis, reset: bool
) -> None:
    taken_by_another(admin)
    client = backend.connect(proxy.url)
    waiter = waiting(backend, client)
    await backend.until(lambda: listeners(admin, "a") == 1)
    await backend.run_blocking(proxy.refuse, True)
    await backend.run_blocking(proxy.cut, reset)
    await backend.until(lambda: listeners(admin, "a") == 0)
    given_back(admin)
    released = time.monotonic()
    await backend.run_blocking(proxy.refuse, False)
    assert await waiter.result() - released < 5


async def test_a_release_between_the_first_look_and_the_subscription_is_not_missed(
    backend: RawBackend, proxy: Proxy, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_wait, "UNCONFIRMED_WAIT", 60.0)
    taken_by_another(admin)
    client = backend.connect(proxy.url)
    subscribe = proxy.hold_request(b"SUBSCRIBE")
    waiter = waiting(backend, client)
    assert await backend.run_blocking(subscribe.held.wait, 5)
    given_back(admin)
    released = time.monotonic()
    await backend.run_blocking(subscribe.deliver)
    # At once, and not only when it looks because nothing was confirmed.
    assert await waiter.result() - released < 5


async def test_a_subscription_that_goes_silent_is_noticed_and_made_anew(
    backend: RawBackend, proxy: Proxy, server: Server, admin: Redis
) -> None:
    """Nothing shows that the connection is dead: no FIN, no RST, no more messages."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.2, timeout=0.5)
    waiter = waiting(backend, client)
    await backend.until(lambda: listeners(admin, "a") == 1)
    old = [entry["id"] for entry in admin.client_list() if int(entry["sub"])]
    await backend.run_blocking(proxy.blackhole)
    begin = time.monotonic()
    # Its message goes into the hole.
    given_back(admin)
    taken = await waiter.result()
    assert taken - begin < 5
    await backend.until(
        lambda: [entry["id"] for entry in admin.client_list() if int(entry["sub"]) and entry["id"] not in old]
    )


async def test_a_command_without_a_reply_has_the_subscription_checked(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    """The network has lost all connections without a sign. The PING after a silence would come much later."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=600, timeout=0.8)
    waiter = waiting(backend, client)
    await backend.until(lambda: listeners(admin, "a") == 1)
    await backend.run_blocking(proxy.blackhole)
    # Its message goes into the hole.
    given_back(admin)
    assert not await backend.do(client.get_lock("b").is_locked())
    released = time.monotonic()
    assert await waiter.result() - released < 5


async def test_a_ping_whose_reply_comes_with_a_message_is_answered(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.1, timeout=1)
    reply = proxy.hold_reply(b"PING")
    waiter = waiting(backend, client)
    assert await backend.run_blocking(reply.held.wait, 5)
    given_back(admin)
    await backend.run_blocking(reply.deliver)
    await waiter.result()
    taken_by_another(admin)
    waiter = waiting(backend, client)
    await backend.sleep(1.5)
    given_back(admin)
    await waiter.result()
    assert proxy.seen(b"\r\nSUBSCRIBE") == 1, "the connection was replaced"


async def test_a_living_subscription_answers_its_pings_and_stays(
    backend: RawBackend, proxy: Proxy, admin: Redis
) -> None:
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.1, timeout=5)
    waiter = waiting(backend, client)
    await backend.until(lambda: listeners(admin, "a") == 1)
    await backend.until(lambda: proxy.seen(b"PING") >= 3)
    assert proxy.seen(b"\r\nSUBSCRIBE") == 1
    given_back(admin)
    await waiter.result()


async def test_a_waiter_without_permission_to_subscribe_gets_an_error(
    backend: RawBackend, server: Server, admin: Redis
) -> None:
    admin.acl_setuser("deaf", enabled=True, nopass=True, keys=["*"], commands=["+@all"], reset_channels=True)
    taken_by_another(admin)
    client = backend.connect(server.url, username="deaf", password="any")
    with pytest.raises(NoPermissionError):
        await backend.do(client.get_lock("a").try_lock(5))
    admin.delete("a")
    # Alone it can take the lock, and give it back though its message is refused.
    lock = client.get_lock("a")
    await backend.do(lock.lock())
    await backend.do(lock.unlock())
    assert not admin.exists("a")
    admin.acl_deluser("deaf")


async def test_a_bounded_wait_keeps_its_bound_under_steady_contention(
    backend: RawBackend, server: Server, admin: Redis
) -> None:
    taken_by_another(admin)
    client = backend.connect(server.url)

    async def give_up() -> float:
        begin = time.monotonic()
        assert await backend.do(client.get_lock("a").try_lock(0.6)) is False
        return time.monotonic() - begin

    waiter = backend.start(give_up)
    while not waiter.done:
        admin.publish(CHANNEL, "1")
        await backend.sleep(0.002)
    assert 0.6 <= await waiter.result() < 3


async def test_the_holders_silence_wakes_when_its_lease_ends_without_any_message(
    backend: RawBackend, server: Server, admin: Redis
) -> None:
    taken_by_another(admin)
    begin = time.monotonic()
    admin.pexpire("a", 700)
    client = backend.connect(server.url)
    taken = await waiting(backend, client).result()
    assert 0.69 < taken - begin < 5


async def test_a_thread_that_waits_for_something_else_does_not_read_messages(
    server: Server, admin: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that stops waiting for messages hands the reading over to the listener's own thread."""
    monkeypatch.setattr(listener, "LINGER", 0.01)
    with pyredisson.connect(server.url) as client:
        admin.hset("a", "another:1", 1)
        assert not client.get_lock("a").try_lock(0.1)
        runtime = client._session.runtime
        signal = runtime.wakeup()
        other = threading.Thread(target=run, args=(runtime.wait, signal, 20))
        other.start()

        def take_and_give_back() -> None:
            with client.get_lock("a"):
                pass

        waiters = [threading.Thread(target=take_and_give_back) for _ in range(2)]
        for waiter in waiters:
            waiter.start()
        time.sleep(0.5)
        given_back(admin)
        for waiter in waiters:
            waiter.join(5)
            assert not waiter.is_alive()
        signal.set()
        other.join(5)
    assert caplog.messages == []
