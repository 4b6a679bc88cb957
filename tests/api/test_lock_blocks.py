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

from .blocks import HELD, KINDS, entered_by, kinds


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(server.url) as made:
        yield made


@pytest.fixture
def pools() -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    """Threads on which requests begin, and others on which they end."""
    with ThreadPoolExecutor(16) as first, ThreadPoolExecutor(16) as second:
        yield first, second


@contextlib.contextmanager
def dependency(scope: Any) -> Iterator[None]:
    """As a web framework's, which runs entry and exit on whichever thread of its pool is idle."""
    with scope:
        yield


class TestThreads:
    @kinds
    @entered_by
    def test_exited_on_another_thread(
        self,
        client: pyredisson.Client,
        pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
        server_state: ServerState,
        kind: str,
        enter: Callable[[Any], Any],
    ) -> None:
        first, second = pools
        block = dependency(enter(KINDS[kind](client)))
        first.submit(block.__enter__).result(TIME_LIMIT)
        assert server_state.redis.exists("orders")
        with pytest.warns(RuntimeWarning, match=r"owner=pyredisson.new_owner\(\)"):
            second.submit(block.__exit__, None, None, None).result(TIME_LIMIT)
        assert not server_state.redis.exists(*HELD)

    def test_one_warning_for_each_client(
        self, client: pyredisson.Client, pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor]
    ) -> None:
        first, second = pools
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                block = dependency(client.get_lock("orders"))
                first.submit(block.__enter__).result(TIME_LIMIT)
                second.submit(block.__exit__, None, None, None).result(TIME_LIMIT)
        [warning] = caught
        assert warning.filename == __file__

    def test_requests_that_share_a_pool(
        self, client: pyredisson.Client, pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor], server_state: ServerState
    ) -> None:
        """Each block is left, and nothing raised; but threads of the pool are no owners to rely on."""
        with pytest.warns(RuntimeWarning, match="another"):
            serve(pools, lambda: client.get_lock("orders"), lambda: None)
        assert not server_state.redis.exists("orders")

    def test_requests_with_owners_of_their_own(
        self, client: pyredisson.Client, pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor], server_state: ServerState
    ) -> None:
        account = {"balance": 0}

        def update() -> None:
            balance = account["balance"]
            time.sleep(0.001)
            account["balance"] = balance + 1

        serve(pools, lambda: client.get_lock("orders", owner=pyredisson.new_owner()), update)
        assert account == {"balance": 60}
        assert not server_state.redis.exists("orders")

    def test_two_blocks_of_one_request(
        self, client: pyredisson.Client, pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor], server_state: ServerState
    ) -> None:
        first, second = pools
        owner = pyredisson.new_owner()
        outer = dependency(client.get_lock("orders", owner=owner))
        inner = dependency(client.get_lock("orders", owner=owner).hold(wait_time=1))
        first.submit(outer.__enter__).result(TIME_LIMIT)
        second.submit(inner.__enter__).result(TIME_LIMIT)
        assert client.get_lock("orders", owner=owner).get_hold_count() == 2
        first.submit(inner.__exit__, None, None, None).result(TIME_LIMIT)
        second.submit(outer.__exit__, None, None, None).result(TIME_LIMIT)
        assert not server_state.redis.exists("orders")

    def test_one_handle_of_many_threads(self, client: pyredisson.Client, server_state: ServerState) -> None:
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

    def test_nested_blocks_of_one_handle(self, client: pyredisson.Client) -> None:
        lock = client.get_lock("orders")
        hold = lock.hold()
        with lock, hold, lock, hold:
            assert lock.get_hold_count() == 4
        assert not lock.is_locked()

    @pytest.mark.filterwarnings("ignore:.*left on another")
    def test_a_lost_block_is_not_taken_for_a_later_one(
        self, client: pyredisson.Client, pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor]
    ) -> None:
        """The exit of a block that was lost must not release the lock of who holds it now."""
        lock = client.get_lock("orders")
        first, second = pools
        lost, later = dependency(lock), dependency(lock)
        first.submit(lost.__enter__).result(TIME_LIMIT)
        lock.force_unlock()
        with lock:
            with pytest.raises(pyredisson.LockLostError):
                second.submit(lost.__exit__, None, None, None).result(TIME_LIMIT)
            assert lock.is_held()
        assert not lock.is_locked()
        second.submit(later.__enter__).result(TIME_LIMIT)
        first.submit(later.__exit__, None, None, None).result(TIME_LIMIT)
        assert not lock.is_locked()

    def test_an_exit_without_an_entry(self, client: pyredisson.Client) -> None:
        lock = client.get_lock("orders")
        with contextlib.ExitStack() as stack:
            lock.lock()
            stack.push(lock)
        assert not lock.is_locked()

    @pytest.mark.filterwarnings("ignore:.*left on another")
    def test_the_bodys_exception_wins(
        self, client: pyredisson.Client, pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor]
    ) -> None:
        lock = client.get_lock("orders")
        block = dependency(lock)
        pools[0].submit(block.__enter__).result(TIME_LIMIT)
        lock.force_unlock()
        error = KeyError("mine")
        assert not pools[1].submit(block.__exit__, KeyError, error, None).result(TIME_LIMIT)
        assert any("LockLostError" in note for note in error.__notes__)


def serve(
    pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor], lock: Callable[[], Any], work: Callable[[], None]
) -> None:
    """60 requests, 6 at a time; each enters, works and leaves on threads of the pools that others use as well."""
    first, second = pools

    def request() -> None:
        block = dependency(lock())
        first.submit(block.__enter__).result(TIME_LIMIT)
        try:
            second.submit(work).result(TIME_LIMIT)
        finally:
            second.submit(block.__exit__, None, None, None).result(TIME_LIMIT)

    with ThreadPoolExecutor(6) as server:
        for served in [server.submit(request) for _ in range(60)]:
            served.result(60)
