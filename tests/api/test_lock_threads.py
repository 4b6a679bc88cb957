"""Threads only: thread pools, owners of threads, and calls from several threads."""

from __future__ import annotations

import asyncio
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

import pyredisson
from pyredisson import LockNotHeldError
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, WORK_LIMIT, Backend


@pytest.fixture
def client(threads: Backend) -> pyredisson.Client:
    """The client itself, without the other backend's manners."""
    return pyredisson.connect(threads.url)


def test_with(client: pyredisson.Client) -> None:
    with client, client.get_lock("orders") as lock:
        assert isinstance(lock, pyredisson.Lock)
        assert lock.is_held()
        with lock.hold(wait_time=0, lease_time=60) as inner:
            assert inner is lock
            assert lock.get_hold_count() == 2


def test_the_owner_is_the_thread(client: pyredisson.Client) -> None:
    with client, ThreadPoolExecutor(1) as pool:
        lock = client.get_lock("orders")
        pool.submit(lock.lock).result(TIME_LIMIT)
        assert not lock.try_lock()
        with pytest.raises(LockNotHeldError, match=client.id):
            lock.unlock()
        assert pool.submit(lock.try_lock).result(TIME_LIMIT)
        assert pool.submit(lock.get_hold_count).result(TIME_LIMIT) == 2


def test_a_thread_with_the_id_of_a_dead_one_is_another_owner(client: pyredisson.Client) -> None:
    """CPython gives a dead thread's `get_ident()` to the next one."""
    with client:
        lock = client.get_lock("orders")
        idents = []

        def take() -> None:
            idents.append(threading.get_ident())
            lock.lock()

        def enter() -> None:
            idents.append(threading.get_ident())
            assert not lock.is_held()
            assert not lock.try_lock()

        for work in (take, enter, enter, enter):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(TIME_LIMIT)
        assert len(set(idents)) < len(idents), "no ident was used again: this shows nothing"


def test_a_lock_goes_from_thread_to_thread(client: pyredisson.Client) -> None:
    with client, ThreadPoolExecutor(2) as pool:
        pool.submit(client.get_lock("orders", owner=3).lock).result(TIME_LIMIT)
        handed_over = client.get_lock("orders", owner=3)
        assert handed_over.is_held()
        handed_over.unlock()
        assert not handed_over.is_locked()


def test_threads_take_turns(client: pyredisson.Client) -> None:
    inside = 0
    seen = []

    def work() -> None:
        nonlocal inside
        for _ in range(25):
            with client.get_lock("orders"):
                inside += 1
                seen.append(inside)
                inside -= 1

    with client, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(8)]:
            done.result(TIME_LIMIT)
    assert seen == [1] * 200


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

    with client, ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, place) for place in range(threads)]:
            done.result(WORK_LIMIT)
    assert len(order) == threads * rounds
    for place in range(threads):
        turns = [turn for turn, who in enumerate(order) if who == place]
        assert max(later - turn for turn, later in pairwise(turns)) <= 20 * threads


def test_on_the_thread_of_an_event_loop(server: Server) -> None:
    """A hundred tasks and a client for threads: the first call says that they are one owner."""
    done = 0

    async def transfer(client: pyredisson.Client) -> None:
        nonlocal done
        with client.get_lock("acct"):
            await asyncio.sleep(0)
        done += 1

    async def transfers(client: pyredisson.Client) -> None:
        await asyncio.gather(*(transfer(client) for _ in range(100)))

    with pyredisson.connect(server.url) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Before there is a loop, the thread is an owner as any other.
        with client.get_lock("acct"):
            assert caught == []
        asyncio.run(transfers(client))
    [warning] = caught
    assert done == 100
    assert warning.category is RuntimeWarning
    assert "pyredisson.asyncio" in str(warning.message)
    assert warning.filename == __file__


def test_an_error_on_the_thread_of_an_event_loop_leaves_nothing(server: Server) -> None:
    """With warnings turned into errors, nothing is held."""

    async def enter(client: pyredisson.Client) -> None:
        with client.get_lock("acct"):
            pytest.fail("it was entered")

    with pyredisson.connect(server.url) as client:
        with pytest.raises(RuntimeWarning, match="event loop"):
            asyncio.run(enter(client))
        assert not client.get_lock("acct").is_locked()


def test_waiting_on_the_thread_of_an_event_loop(server: Server) -> None:
    """Also for what has no owner."""

    async def wait(client: pyredisson.Client) -> bool:
        return client.get_semaphore("permits").try_acquire(wait_time=0.3)

    with pyredisson.connect(server.url) as client, pytest.warns(RuntimeWarning, match="event loop"):
        assert not asyncio.run(wait(client))


async def enter(client: pyredisson.Client, owner: pyredisson.ExplicitOwner) -> None:
    with client.get_lock("acct", owner=owner):
        await asyncio.sleep(0)


def test_explicit_owners_on_the_thread_of_an_event_loop(server: Server) -> None:
    """Their owners differ, so the only problem is that the loop is blocked for a moment."""
    with pyredisson.connect(server.url) as client:
        asyncio.run(enter(client, pyredisson.new_owner()))
