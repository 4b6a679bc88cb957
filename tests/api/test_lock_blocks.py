"""`with` blocks that are entered on one thread and left on another."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT
from tests.support.server_state import ServerState

from .kinds import all_blocks, left, lock_of


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(server.url) as made:
        yield made


class Pools:
    """Enters blocks on threads of one pool and leaves them on others, as a web framework does with dependencies."""

    def __init__(self, first: ThreadPoolExecutor, second: ThreadPoolExecutor) -> None:
        self.first, self.second = first, second

    def enter(self, scope: Any) -> contextlib.AbstractContextManager[None]:
        @contextlib.contextmanager
        def dependency() -> Iterator[None]:
            with scope:
                yield

        block = dependency()
        self.first.submit(block.__enter__).result(TIME_LIMIT)
        return block

    def leave(self, block: Any, error: BaseException | None = None) -> Any:
        kind = None if error is None else type(error)
        return self.second.submit(block.__exit__, kind, error, None).result(TIME_LIMIT)

    def serve(self, lock: Callable[[], Any], work: Callable[[], None]) -> None:
        """60 requests, 6 at a time; each works on a thread that others use as well."""

        def request() -> None:
            block = self.enter(lock())
            try:
                self.second.submit(work).result(TIME_LIMIT)
            finally:
                self.leave(block)

        with ThreadPoolExecutor(6) as server:
            for served in [server.submit(request) for _ in range(60)]:
                served.result(60)


@pytest.fixture
def pools() -> Iterator[Pools]:
    with ThreadPoolExecutor(16) as first, ThreadPoolExecutor(16) as second:
        yield Pools(first, second)


@all_blocks
@pytest.mark.filterwarnings("ignore:.*left on another")
def test_left_on_another_thread(client: pyredisson.Client, pools: Pools, server_state: ServerState, kind: str) -> None:
    lock = lock_of(client, kind)
    for scope in (lock, lock.hold(wait_time=5)):
        block = pools.enter(scope)
        assert server_state.redis.exists("orders")
        pools.leave(block)
        assert left(server_state.redis) == set()


def test_one_warning_for_each_client(client: pyredisson.Client, pools: Pools) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            pools.leave(pools.enter(client.get_lock("orders")))
    [warning] = caught
    assert warning.filename == __file__
    assert warning.category is RuntimeWarning
    assert "owner=pyredisson.new_owner()" in str(warning.message)


def test_requests_that_share_a_pool(client: pyredisson.Client, pools: Pools, server_state: ServerState) -> None:
    """Each block is left, and nothing raised; but threads of the pool are no owners to rely on."""
    with pytest.warns(RuntimeWarning, match="another"):
        pools.serve(lambda: client.get_lock("orders"), lambda: None)
    assert not server_state.redis.exists("orders")


def test_requests_with_owners_of_their_own(client: pyredisson.Client, pools: Pools, server_state: ServerState) -> None:
    account = {"balance": 0}

    def update() -> None:
        balance = account["balance"]
        time.sleep(0.001)
        account["balance"] = balance + 1

    pools.serve(lambda: client.get_lock("orders", owner=pyredisson.new_owner()), update)
    assert account == {"balance": 60}
    assert not server_state.redis.exists("orders")


def test_two_blocks_of_one_request(client: pyredisson.Client, pools: Pools, server_state: ServerState) -> None:
    owner = pyredisson.new_owner()
    outer = pools.enter(client.get_lock("orders", owner=owner))
    swapped = Pools(pools.second, pools.first)
    inner = swapped.enter(client.get_lock("orders", owner=owner).hold(wait_time=1))
    assert client.get_lock("orders", owner=owner).get_hold_count() == 2
    swapped.leave(inner)
    pools.leave(outer)
    assert not server_state.redis.exists("orders")


def test_one_handle_of_many_threads(client: pyredisson.Client, server_state: ServerState) -> None:
    """Each thread leaves its own block, in whatever order they end."""
    lock = client.get_read_write_lock("orders").read_lock()
    inside = threading.Barrier(9)
    leave = [threading.Event() for _ in range(8)]

    def read(mine: threading.Event) -> int:
        with lock:
            inside.wait(TIME_LIMIT)
            assert mine.wait(TIME_LIMIT)
            return lock.get_hold_count()

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, mine) for mine in leave]
        inside.wait(TIME_LIMIT)
        for i in (3, 7, 0, 5, 1, 6, 4, 2):
            leave[i].set()
            assert readers[i].result(TIME_LIMIT) == 1
    assert not server_state.redis.exists("orders")
    # The latest one's exit was not the last: nothing is kept of the others.
    assert lock._blocks is None


def test_nested_blocks_of_one_handle(client: pyredisson.Client) -> None:
    lock = client.get_lock("orders")
    hold = lock.hold()
    with lock, hold, lock, hold:
        assert lock.get_hold_count() == 4
    assert not lock.is_locked()


@pytest.mark.filterwarnings("ignore:.*left on another")
def test_a_lost_block_is_not_taken_for_a_later_one(client: pyredisson.Client, pools: Pools) -> None:
    """The exit of a block that was lost must not release the lock of who holds it now."""
    lock = client.get_lock("orders")
    lost = pools.enter(lock)
    lock.force_unlock()
    with lock:
        with pytest.raises(pyredisson.LockLostError):
            pools.leave(lost)
        assert lock.is_held()
    assert not lock.is_locked()
    swapped = Pools(pools.second, pools.first)
    swapped.leave(swapped.enter(lock))
    assert not lock.is_locked()


def test_an_exit_without_an_entry(client: pyredisson.Client) -> None:
    lock = client.get_lock("orders")
    with contextlib.ExitStack() as stack:
        lock.lock()
        stack.push(lock)
    assert not lock.is_locked()


@pytest.mark.filterwarnings("ignore:.*left on another")
def test_the_bodys_exception_wins(client: pyredisson.Client, pools: Pools) -> None:
    lock = client.get_lock("orders")
    block = pools.enter(lock)
    lock.force_unlock()
    error = KeyError("mine")
    assert not pools.leave(block, error)
    assert any("LockLostError" in note for note in error.__notes__)
