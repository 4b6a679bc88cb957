"""Groups of locks when servers fail or callers are interrupted: nothing remains locked."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._backends import runtime
from pyredisson.logic.groups import multi_lock, parallel
from pyredisson.logic.locks.releasing import ReleasingLock
from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend, cancel_after, listeners
from tests.support.faults import RENEW, InterruptAt

from .kinds import Patch, away, do_all, given_back, taken_by_another

groups = pytest.mark.parametrize("kind", ["multi", "red"])


@pytest.fixture
def patient(monkeypatch: Patch) -> None:
    """A red lock that has a majority waits for the other members, however busy the machine is."""
    monkeypatch.setattr(parallel, "SHORTEST_GRACE", 1.0)


def make(kind: str, backend: RawBackend, places: list[Any], owner: int | None = None, **fields: Any) -> Any:
    """A group of locks "a", each of a client at one of these places."""
    clients = [backend.connect(each.url, **fields) for each in places]
    locks = [client.get_lock("a", owner=owner) for client in clients]
    return clients[0].get_red_lock(*locks) if kind == "red" else clients[0].get_multi_lock(*locks)


def left(redises: list[Any]) -> bool:
    return any(redis.exists("a") for redis in redises)


def all_once(redises: list[Any]) -> bool:
    return [redis.hvals("a") for redis in redises] == [[b"1"]] * 3


def held_locally(backend: RawBackend) -> int:
    return sum(len(client._session.holds.table) for client in backend._clients)


@pytest.mark.usefixtures("patient")
@groups
async def test_a_nested_call(tasks: RawBackend, servers: list[Server], redises: list[Any], kind: str) -> None:
    """Cancelled: an acquire is undone and a release is done; the outer holds stay."""
    group = make(kind, tasks, servers, owner=7)
    await group.lock()
    for turns in range(30):
        if not await cancel_after(turns, asyncio.ensure_future(do_all(tasks, group.lock))):
            await group.unlock()
        await tasks.until(lambda: all_once(redises), 5)
        if turns < 20:
            await group.lock()
            # A task that never ran has not called it.
            await cancel_after(1 + turns, asyncio.ensure_future(do_all(tasks, group.unlock)))
            await tasks.until(lambda: all_once(redises), 5)
        assert [member.hold_of(7).count for member in group._logic.members] == [1, 1, 1]
    await cancel_after(1, asyncio.ensure_future(do_all(tasks, group.unlock)))
    await tasks.until(lambda: not left(redises), 5)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("moment", [threading.Thread.start, runtime.start_thread])
async def test_interrupted_before_asking(threads: RawBackend, servers: list[Server], redises: Any, moment: Any) -> None:
    group = make("red", threads, servers)
    with group:
        pass
    with InterruptAt(moment) as interrupt, pytest.raises(KeyboardInterrupt):
        group.lock()
    assert interrupt.happened
    # Nobody believes that a member still owes an answer, and leaves it out.
    with group:
        assert all_once(redises)


@groups
async def test_servers_that_hang(backend: RawBackend, proxies: list[Proxy], redises: list[Any], kind: str) -> None:
    """The error is redis-py's own."""
    group = make(kind, backend, proxies, timeout=0.1, retry_attempts=0, lock_watchdog_timeout=0.5)
    await backend.do(group.lock(60))
    for each in proxies:
        each.stall()
    for method in (group.is_held, group.unlock):
        assert type(await backend.fails(TimeoutError, method)) is TimeoutError
    for each in proxies:
        each.resume()
    await backend.until(lambda: not left(redises))


class TestMultiLock:
    async def test_one_server_is_down(self, backend: RawBackend, proxies: list[Proxy], redises: list[Any]) -> None:
        """What Redis reports is raised, and no other member stays locked."""
        group = make("multi", backend, proxies, retry_attempts=0)
        for number, down in enumerate(proxies):
            away(down)
            await backend.fails(RedisError, group.try_lock)
            assert not held_locally(backend)
            down.refuse(False)
            await backend.until(lambda: not left(redises))
            await backend.do(group.lock())
            away(down)
            await backend.fails(RedisError, group.unlock)
            # The other members were released before the error was raised.
            assert not left(redises[:number] + redises[number + 1 :])
            assert not held_locally(backend)
            down.refuse(False)
            await backend.until(lambda: not left(redises))

    @pytest.mark.parametrize("fault", ["cut_reply", "cut_request"])
    async def test_a_lost_extension(
        self, backend: RawBackend, proxies: list[Proxy], redises: list[Any], monkeypatch: Patch, fault: str
    ) -> None:
        monkeypatch.setattr(multi_lock, "EXTEND_AFTER", -1.0)
        group = make("multi", backend, proxies)
        ports = [member.session.server for member in group._logic.members]
        first, last = (next(i for i, proxy in enumerate(proxies) if f":{proxy.port}/" in ports[n]) for n in (0, 2))
        taken_by_another(redises[last])
        taking = await backend.started(lambda: listeners(redises[last], "a"), group.lock, 5)
        struck = getattr(proxies[first], fault)(RENEW)
        given_back(redises[last])
        await taking.result()
        assert struck.happened.is_set()
        assert all_once(redises)
        # As another owner: the task that acquired it has ended.
        assert held_locally(backend) == 3

    async def test_cancelled_while_members_that_were_acquired_one_by_one_are_released(
        self, tasks: RawBackend, proxies: list[Proxy], redises: list[Any]
    ) -> None:
        group = make("multi", tasks, proxies, owner=7)
        for member in group._locks:
            await member.lock()
        for proxy in proxies:
            proxy.stall()
        assert await cancel_after(5, asyncio.ensure_future(do_all(tasks, group.unlock)))
        for proxy in proxies:
            proxy.resume()
        await tasks.until(lambda: not left(redises))

    async def test_several_members_on_a_server_that_is_away(
        self, backend: RawBackend, proxies: list[Proxy], redises: list[Any], monkeypatch: Patch
    ) -> None:
        """The call tries for as long as for one lock. The other members are released in the background."""
        client = backend.connect(proxies[0].url, retry_attempts=0)
        group = client.get_multi_lock(*map(client.get_lock, "abc"))
        await backend.do(group.lock())
        tried: list[bytes] = []
        release = ReleasingLock.release

        def counted(lock: ReleasingLock, *args: Any) -> Any:
            tried.append(lock.key)
            return release(lock, *args)

        monkeypatch.setattr(ReleasingLock, "release", counted)
        away(proxies[0])
        assert type(await backend.fails(ConnectionError, group.unlock)) is ConnectionError
        assert tried == [b"c"]
        assert not held_locally(backend)
        proxies[0].refuse(False)
        await backend.until(lambda: not redises[0].exists(*"abc"))


async def test_a_wrong_password_on_one_server_of_a_red_lock(backend: RawBackend, servers: list[Server]) -> None:
    with Server(password="secret") as closed:
        wrong = SimpleNamespace(url=closed.url.replace("secret", "wrong"))
        group = make("red", backend, [*servers[:2], wrong])
        assert await do_all(backend, group.try_lock, group.unlock) == [True, None]
