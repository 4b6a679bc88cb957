"""Exactly once: a call whose reply is lost or late, or whose request arrives late, has its usual result."""

import contextlib
import socket
from itertools import product
from typing import Any

import pytest
from redis import ConnectionError, InvalidResponse, Redis, TimeoutError

import pyredisson
from pyredisson._core import command
from pyredisson.logic.exactly_once import REMEMBERED
from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend
from tests.support.faults import ACQUIRE, FORCE_RELEASE, LOSSES, RELEASE, Lose, sha

from .kinds import PERMITS, Used, do_all, excluding, kinds, locks, prepare, taken, taken_by_another, used
from .stub import Stub

TIMEOUT = 0.25
"""Of a reply. A call that is late by accident is repeated, which changes no result."""
LEASE = 0.5


@pytest.fixture
def one(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> Used:
    return used(backend, proxy, admin, kind, timeout=TIMEOUT)


@LOSSES
@kinds
async def test_a_call_whose_reply_is_lost_runs_once(one: Used, server: Server, proxy: Proxy, lose: Lose) -> None:
    """And a refusal is a refusal."""
    nested = ["attempt", "release"] if one.kind != "non-reentrant" else []
    held = 0
    for call in ("attempt", "release", "acquire", *nested, "release"):
        fault = lose(proxy, one.releasing if call == "release" else one.acquiring)
        assert await getattr(one, call)() is not False
        assert fault.happened.is_set()
        held += -1 if call == "release" else 1
        assert one.taken() == held * one.each
        if one.is_lock:
            assert await one.backend.do(one.handle.get_hold_count()) == held
            assert bool(one.admin.exists("a")) is bool(held)
    await excluding(one.backend, one.backend.connect(server.url), one.kind)
    before, fault = one.taken(), lose(proxy, one.acquiring)
    assert (await one.attempt(), fault.happened.is_set(), one.taken()) == (False, True, before)
    assert (one.knows_nothing(), one.client._session.permits.in_doubt) == (True, {})


@LOSSES
@locks
async def test_an_extension_whose_reply_is_lost(one: Used, proxy: Proxy, lose: Lose) -> None:
    await one.backend.do(one.handle.lock(lease_time=20))
    fault = lose(proxy, b"$5\r\n60000\r\n")
    await one.backend.do(one.handle.extend(60))
    assert fault.happened.is_set()
    assert 50_000 < one.admin.pttl("a") <= 60_000
    await one.release()
    assert one.knows_nothing()


@kinds
async def test_a_late_copy_never_runs(one: Used, proxy: Proxy) -> None:
    """When it arrives, the caller has gone on over another connection."""
    for sent, held in ((one.acquiring, 0), (one.releasing, 1)):
        late = proxy.hold_request(sent)
        await one.acquire()
        await one.release()
        assert late.held.is_set()
        for _ in range(held):
            await one.acquire()
        # The server was asked to drop that connection before the call was repeated.
        with pytest.raises(OSError, match="closed the connection"):
            late.deliver()
        assert one.taken() == held * one.each


@kinds
async def test_an_acquire_that_comes_after_all(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    """Nothing gets through, the caller gets an error, and then the network delivers what it had kept."""
    one = used(backend, proxy, admin, kind, timeout=TIMEOUT, connect_timeout=TIMEOUT, lock_watchdog_timeout=5)
    await one.connect()
    late = proxy.hold_request(one.acquiring)
    proxy.refuse(True)
    await backend.fails((ConnectionError, TimeoutError), one.attempt, 0.1)
    # The client can't reach the server and have that connection dropped: the late request runs.
    late.deliver()
    assert one.taken() == one.each
    proxy.refuse(False)
    # Long before the lease would end.
    await backend.until(lambda: one.taken() == 0, 3)
    assert one.knows_nothing()


@kinds
@pytest.mark.parametrize("ran", [True, False])
async def test_a_failed_release_is_done(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str, ran: bool) -> None:
    one = used(backend, proxy, admin, kind, timeout=0.8, retry_attempts=0, lock_watchdog_timeout=5)
    await one.acquire()
    fault = proxy.drop_reply(one.releasing, 2) if ran else proxy.cut_request(one.releasing, 2)
    await backend.fails((ConnectionError, TimeoutError), one.release)
    await backend.until(lambda: proxy.seen(one.releasing) >= 3)
    assert fault.happened.is_set()
    await backend.until(lambda: one.taken() == 0)
    assert one.knows_nothing()
    await do_all(backend, one.acquire, one.release)
    assert one.taken() == 0


async def test_a_release_in_doubt_is_repeated_beyond_the_lease(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """The lock has a longer one of its own: it would stay for a minute."""
    lock = backend.connect(proxy.url, lock_watchdog_timeout=1.2, timeout=0.8, retry_attempts=0).get_lock("a")
    await backend.do(lock.lock(lease_time=60))
    proxy.cut_request(RELEASE)
    proxy.refuse(True)
    await backend.fails(ConnectionError, lock.unlock)
    await backend.sleep(1.8)
    assert admin.exists("a")
    proxy.refuse(False)
    await backend.until(lambda: not admin.exists("a"), 5)


@pytest.mark.parametrize(
    ("kind", "answered"), [*product(("lock", "write", "permits"), ("second copy", "both copies")), ("lock", "unknown")]
)
async def test_a_release_in_doubt_that_another_server_answers(backend: RawBackend, kind: str, answered: str) -> None:
    """It may have run, but this server never had it; if the user may not ask for its identity, it is believed.

    Where both copies reach the new server, the first one hasn't released what was never there.
    """
    app: Any = {"username": "app", "password": "secret"} if answered == "unknown" else {}
    options: Any = {"users": ["app on >secret ~* &* +@all -info"]} if answered == "unknown" else {}
    with Server(**options) as server, Proxy(server.host, server.port) as proxy, server.redis() as admin:
        prepare(admin, kind)
        client = backend.connect(proxy.url, **app)
        one = Used(backend, client, kind, owner=1)
        await one.acquire()
        if answered == "both copies":
            await backend.run_blocking(server.restart)
            assert not await backend.do(client.get_lock("other").is_locked())
            fault, releasing = proxy.cut_reply(b"EVALSHA"), backend.start(one.release)
        else:
            fault = proxy.hold_request(b"EVALSHA")
            releasing = await backend.started(fault.happened.is_set, one.release)
            await backend.run_blocking(server.restart)
        if answered == "unknown":
            await releasing.result()
        else:
            await backend.fails((pyredisson.LockLostError, pyredisson.PermitNotHeldError), releasing.result)
        assert fault.happened.is_set()


async def test_an_inner_release_that_finds_nothing_is_a_loss(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """An earlier copy of it would have left the outer hold."""
    _, lock = await backend.locked(proxy.url)
    await backend.do(lock.lock())
    admin.delete("a")
    fault = proxy.cut_reply(RELEASE)
    await backend.fails(pyredisson.LockLostError, lock.unlock)
    assert fault.happened.is_set()


async def test_a_restart_behind_a_unix_socket_cuts_no_other_client(backend: RawBackend, own_server: Server) -> None:
    """All clients have the same address there, and after a restart the same numbers."""
    lock = (await backend.connected(own_server.unix_url, timeout=5, retry_attempts=0)).get_lock("a")
    own_server.pause()
    asking = backend.start(lock.is_locked)
    # By then it was asked.
    await backend.sleep(0.5)
    await backend.run_blocking(own_server.restart)
    await backend.fails(ConnectionError, asking.result)
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(8)]
        for other in others:
            other.connect(own_server.path)
            other.settimeout(5)
        for first in (True, False):
            for other in others:
                other.sendall(b"PING\r\n")
                assert other.recv(100) == b"+PONG\r\n"
            assert not first or not await backend.do(lock.is_locked())


async def test_force_unlock_is_not_sent_twice(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """A second run could take the lock away from its next holder."""
    taken_by_another(admin)
    lock = (await backend.connected(proxy.url, timeout=0.8)).get_lock("a")
    proxy.cut_reply(FORCE_RELEASE)
    await backend.fails(ConnectionError, lock.force_unlock)
    assert proxy.seen(FORCE_RELEASE) == 1


class TestTheLeaseIsOver:
    """When the reply to an acquire arrives, the lease that it granted has ended."""

    @locks
    @pytest.mark.parametrize("contended", [True, False])
    async def test_the_lock_is_asked_for_again(
        self, backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, kind: str, contended: bool
    ) -> None:
        """Without time to wait, it isn't acquired if another owner holds it by then."""
        one = Used(backend, backend.connect(proxy.url), kind)
        await one.connect()
        late = proxy.hold_reply(one.acquiring)

        async def take() -> tuple[bool, bool]:
            wait = 0 if contended else 10
            return await backend.do(one.handle.try_lock(wait, lease_time=LEASE)), one.handle.lost.is_set()

        started = await backend.started(late.held.is_set, take)
        await backend.until(lambda: not admin.exists("a"))
        if not contended:
            late.deliver()
            assert await started.result() == (True, False)
            return
        other = await excluding(backend, backend.connect(server.url), kind)
        late.deliver()
        assert (await started.result())[0] is False
        assert await do_all(backend, one.handle.get_hold_count, other.handle.is_held) == [0, True]
        await other.release()
        assert taken(admin, kind) == 0

    async def test_permits_are_acquired_again(self, backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
        semaphore = await permits_of(backend, proxy.url, 1)
        late = proxy.hold_reply(sha("permit_acquire"))
        started = await backend.started(late.held.is_set, semaphore.try_acquire, 10, 3 * LEASE)
        first: Any = admin.zrange("{a}:timeout", 0, -1)
        await backend.sleep(3 * LEASE)
        late.deliver()
        permit = await started.result()
        assert permit != first[0].hex()
        assert await backend.do(semaphore.get_lease_time(permit)) > 0
        assert await backend.do(semaphore.available_permits()) == 0

    async def test_it_counts_from_the_copy_that_was_answered(self, backend: RawBackend, proxy: Proxy) -> None:
        """Waiting for the lost reply took longer than the lease."""
        lock = (await backend.connected(proxy.url, timeout=1)).get_lock("a")
        fault = proxy.drop_reply(ACQUIRE)
        assert await backend.do(lock.try_lock(3, lease_time=0.9)) is True
        assert (fault.happened.is_set(), lock.lost.is_set()) == (True, False)
        assert await backend.do(lock.is_held())


async def test_an_acquire_with_an_odd_answer_is_undone(backend: RawBackend, server: Server, admin: Redis) -> None:
    """A server's made that answers the first acquire with something else than the server."""
    left = [ACQUIRE]

    def misquote(words: list[bytes]) -> bytes:
        with socket.create_connection((server.host, server.port)) as behind:
            behind.sendall(command(*words))
            reply = behind.recv(1 << 16)
        return b"+OK\r\n" if left and left[0] in words and left.pop() else reply

    with Stub(misquote) as stub:
        lock = (await backend.connected(stub.url)).get_lock("a")
        await backend.fails(InvalidResponse, lock.try_lock, match=r"lock 'a' .*OK")
        await backend.until(lambda: not admin.exists("a"), 5)
        assert await do_all(backend, lock.try_lock, lock.unlock) == [True, None]


PERMIT_ACQUIRE, PERMIT_RELEASE = sha("permit_acquire"), sha("permit_release")


async def permits_of(backend: RawBackend, url: str, permits: int, **fields: Any) -> Any:
    semaphore = backend.connect(url, **fields).get_permit_expirable_semaphore("a")
    await backend.do(semaphore.set_permits(permits))
    return semaphore


async def test_a_doubt_is_forgotten_when_no_copy_can_come_any_more(backend: RawBackend, proxy: Proxy) -> None:
    """Nobody need release a permit: it ends with its lease."""
    semaphore = await permits_of(backend, proxy.url, 9)
    session = semaphore._logic.session
    noted, clock = [], session.clock
    for passed in (0.0, 10.0, REMEMBERED + 5.0, 2 * REMEMBERED + 10.0):
        session.clock = lambda passed=passed: clock() + passed
        proxy.cut_reply(PERMIT_ACQUIRE)
        await backend.do(semaphore.acquire())
        noted.append(len(session.permits.in_doubt))
    assert noted == [1, 2, 2, 1]


@LOSSES
async def test_what_was_released_is_still_known(backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose) -> None:
    """All unknown after a lost reply means released; but one that has ended is known."""
    semaphore = await permits_of(backend, proxy.url, 2, timeout=0.3)
    one = await backend.do(semaphore.acquire())
    lose(proxy, PERMIT_RELEASE)
    assert (await backend.do(semaphore.try_release([one, "0" * 32])), taken(admin, "permits")) == (0, 1)
    ended = await backend.do(semaphore.acquire(0.001))
    await backend.sleep(0.005)
    lose(proxy, PERMIT_RELEASE)
    await backend.fails(pyredisson.PermitNotHeldError, semaphore.release, ended)


@LOSSES
async def test_all_else_whose_reply_is_lost(backend: RawBackend, proxy: Proxy, admin: Redis, lose: Lose) -> None:
    semaphore = backend.connect(proxy.url, timeout=0.3).get_permit_expirable_semaphore("a")

    async def call(script: str, method: str, *args: Any) -> Any:
        fault = lose(proxy, sha(script))
        result = await backend.do(getattr(semaphore, method)(*args))
        assert fault.happened.is_set()
        return result

    assert [await call("semaphore_set", "try_set_permits", permits) for permits in (2, 3)] == [True, False]
    await call("semaphore_add", "add_permits", 3)
    assert (admin.get("a"), taken(admin, "permits")) == (b"5", 0)
    permit = await backend.do(semaphore.acquire())
    await call("permit_set", "set_permits", 3)
    assert (admin.get("a"), taken(admin, "permits")) == (b"2", 1)
    assert await call("permit_lease", "update_lease_time", permit, 50) is True
    assert await call("permit_count", "get_permits") == 3
    assert (await call("exactly_once_delete", "delete"), admin.exists("a", "{a}:timeout")) == (True, 0)


@pytest.mark.parametrize("undone", ["released", "released in parts", "not had", "closed"])
async def test_a_late_copy_that_the_server_could_not_be_asked_to_drop(backend: RawBackend, undone: str) -> None:
    """The user has no right to do so: the copy arrives, and takes nothing."""
    rights = "app on >x ~* &* +@all -client"
    with Server(users=[rights]) as server, server.redis() as redis, Proxy(server.host, server.port) as proxy:
        semaphore = await permits_of(backend, proxy.url, PERMITS, timeout=0.3, username="app", password="x")
        # So that the request is no longer a script's text.
        await backend.do(semaphore.release(await backend.do(semaphore.acquire())))
        late = proxy.hold_request(PERMIT_ACQUIRE)
        asked = 9 if undone == "not had" else 3
        permits = await backend.do(semaphore.try_acquire_many(asked, renew=True))
        assert late.held.is_set()
        if undone.startswith("released"):
            for part in permits if undone == "released in parts" else [permits]:
                await backend.do(semaphore.release(part))
        elif undone == "closed":
            await backend.do(backend._clients[-1].close())
        else:
            await backend.until(lambda: proxy.seen(PERMIT_RELEASE) >= 2)
            redis.set("a", 9)
        await backend.until(lambda: taken(redis, "permits") == 0)
        before = redis.get("a")
        late.deliver()
        assert redis.get("a") == before == (b"9" if undone == "not had" else b"5")
        assert taken(redis, "permits") == 0
        assert all(redis.ttl(key) > 0 for key in redis.keys("pyredisson*"))
