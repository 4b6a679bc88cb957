"""Threads only: owners of threads, waiters that share a subscription, and clients on the thread of an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import pytest

import pyredisson
from pyredisson import LockNotHeldError
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, WOKEN, WORK_LIMIT
from tests.support.server_state import ServerState
from tests.support.waiting import eventually, waiters


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    """The client itself, without the other backend's manners."""
    with pyredisson.connect(server.url) as client:
        yield client


class TestOwner:
    def test_with(self, client: pyredisson.Client) -> None:
        with client.get_lock("orders") as lock:
            assert isinstance(lock, pyredisson.Lock)
            assert lock.is_held()
            with lock.hold(wait_time=0, lease_time=60) as inner:
                assert inner is lock
                assert lock.get_hold_count() == 2

    def test_it_is_the_thread(self, client: pyredisson.Client) -> None:
        lock = client.get_lock("orders")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lock.lock).result(TIME_LIMIT)
            assert not lock.try_lock()
            with pytest.raises(LockNotHeldError, match=client.id):
                lock.unlock()
            assert pool.submit(lock.try_lock).result(TIME_LIMIT)
            assert pool.submit(lock.get_hold_count).result(TIME_LIMIT) == 2

    def test_a_thread_with_the_id_of_a_dead_one_is_another_one(self, client: pyredisson.Client) -> None:
        """CPython gives a dead thread's `get_ident()` to the next one."""
        lock = client.get_lock("orders")
        idents = []
        acquired = []

        def work() -> None:
            idents.append(threading.get_ident())
            acquired.append((lock.is_held(), lock.try_lock()))

        for _ in range(4):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(TIME_LIMIT)
        assert acquired == [(False, True)] + [(False, False)] * 3
        assert len(set(idents)) < len(idents), "no ident was used again: this shows nothing"


def test_many_threads_of_one_client_pass_over_nobody(client: pyredisson.Client) -> None:
    """Between two acquisitions of one thread each other one has about one; 20 times as many would be a convoy."""
    threads, rounds = 64, 30
    order: list[int] = []
    together = threading.Barrier(threads)

    def work(place: int) -> None:
        lock = client.get_lock("orders")
        together.wait(TIME_LIMIT)
        for _ in range(rounds):
            with lock:
                order.append(place)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, place) for place in range(threads)]:
            done.result(WORK_LIMIT)
    assert len(order) == threads * rounds
    for place in range(threads):
        turns = [turn for turn, who in enumerate(order) if who == place]
        assert max(later - turn for turn, later in pairwise(turns)) <= 20 * threads


def test_many_threads_of_two_clients_never_overlap(server: Server, client: pyredisson.Client) -> None:
    inside = {"a": 0, "b": 0}
    longest = [0.0]

    def work(client: pyredisson.Client, name: str) -> None:
        lock = client.get_lock(name)
        for _ in range(25):
            begin = time.monotonic()
            with lock:
                longest[0] = max(longest[0], time.monotonic() - begin)
                inside[name] += 1
                assert inside[name] == 1
                time.sleep(0.0005)
                inside[name] -= 1

    with pyredisson.connect(server.url) as other, ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work, each, name) for each in (client, other) for name in "ab" for _ in range(3)]:
            done.result(30)
    # A lost wakeup would cost a whole lease.
    assert longest[0] < 10


class TestSharedSubscription:
    """Threads of one client share one subscription, and take turns at reading it."""

    @pytest.fixture
    def pool(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(8) as pool:
            yield pool

    def start(self, pool: ThreadPoolExecutor, client: pyredisson.Client, name: str, wait: float) -> Future[bool]:
        """A thread that waits for a lock."""
        waiting = pool.submit(client.get_lock(name).try_lock, wait, 60)
        eventually(lambda: waiters(client, name) == 1)
        return waiting

    def free(self, server_state: ServerState, name: str) -> None:
        """As Java does it: the key first, then the message."""
        server_state.redis.delete(name)
        server_state.redis.publish(f"redisson_lock__channel:{{{name}}}", "0")

    def test_another_reads_on_when_the_reader_gives_up(
        self, client: pyredisson.Client, pool: ThreadPoolExecutor, server_state: ServerState
    ) -> None:
        for name in ("a", "b"):
            server_state.redis.hset(name, "somebody:1", 1)
        first = self.start(pool, client, "a", 1.0)
        second = self.start(pool, client, "b", TIME_LIMIT)
        assert not first.result(TIME_LIMIT)
        self.free(server_state, "b")
        assert second.result(WOKEN)

    def test_the_reading_thread_receives_messages_for_others(
        self, client: pyredisson.Client, pool: ThreadPoolExecutor, server_state: ServerState
    ) -> None:
        names = [f"lock:{i}" for i in range(6)]
        for name in names:
            server_state.redis.hset(name, "somebody:1", 1)
        waiting = {name: self.start(pool, client, name, TIME_LIMIT) for name in names}
        for name in [*names[3:], *names[:3]]:
            self.free(server_state, name)
            assert waiting[name].result(WOKEN), f"nobody heard of {name}"


class TestOnTheThreadOfAnEventLoop:
    """The loop is blocked meanwhile."""

    def test_a_hundred_tasks(self, client: pyredisson.Client) -> None:
        """The first call says that they are one owner."""
        done = 0

        async def transfer() -> None:
            nonlocal done
            with client.get_lock("acct"):
                await asyncio.sleep(0)
            done += 1

        async def transfers() -> None:
            await asyncio.gather(*(transfer() for _ in range(100)))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Before there is a loop, the thread is an owner as any other.
            with client.get_lock("acct"):
                assert caught == []
            asyncio.run(transfers())
        [warning] = caught
        assert done == 100
        assert warning.category is RuntimeWarning
        assert "pyredisson.asyncio" in str(warning.message)
        assert warning.filename == __file__

    def test_an_error_leaves_nothing(self, client: pyredisson.Client) -> None:
        """With warnings turned into errors, nothing is held."""

        async def enter() -> None:
            with client.get_lock("acct"):
                pytest.fail("it was entered")

        with pytest.raises(RuntimeWarning, match="event loop"):
            asyncio.run(enter())
        assert not client.get_lock("acct").is_locked()

    def test_waiting(self, client: pyredisson.Client) -> None:
        """Also for what has no owner."""

        async def wait() -> bool:
            return client.get_semaphore("permits").try_acquire(wait_time=0.3)

        with pytest.warns(RuntimeWarning, match="event loop"):
            assert not asyncio.run(wait())

    def test_explicit_owners(self, client: pyredisson.Client) -> None:
        """They differ, so the only problem is that the loop is blocked for a moment."""

        async def enter() -> None:
            with client.get_lock("acct", owner=pyredisson.new_owner()):
                await asyncio.sleep(0)

        asyncio.run(enter())
