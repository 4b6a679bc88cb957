"""Blocks that one thread or task enters and another one leaves, or nobody; many threads, and those of an event loop."""

import asyncio
import contextlib
import gc
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, Backend, eventually, fails, in_turn, waiters

from .kinds import all_blocks, left, lock_of


def serve(lock: Callable[[], Any], work: Callable[[], None]) -> None:
    """60 requests, 6 at a time, each of which has a lock and works in it."""

    @contextlib.contextmanager
    def dependency() -> Iterator[None]:
        with lock():
            yield

    def request() -> None:
        # As a web framework does it: on threads of one pool it enters blocks, and on others it leaves them.
        block = dependency()
        first.submit(block.__enter__).result(TIME_LIMIT)
        try:
            second.submit(work).result(TIME_LIMIT)
        finally:
            second.submit(block.__exit__, None, None, None).result(TIME_LIMIT)

    with ThreadPoolExecutor(16) as first, ThreadPoolExecutor(16) as second, ThreadPoolExecutor(6) as server:
        for each in [server.submit(request) for _ in range(60)]:
            each.result(60)


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(server.url) as made:
        yield made


@all_blocks
@pytest.mark.filterwarnings("ignore:.*left on another")
async def test_left_by_another_caller(backend: Backend, redis: Any, kind: str) -> None:
    lock = lock_of(backend.connect(), kind)
    for scope in (lock, lock.hold(wait_time=5)):
        await backend.as_another_owner(scope.__aenter__)
        assert redis.exists("orders")
        await backend.as_another_owner(lambda: scope.__aexit__(None, None, None))  # noqa: B023
        assert left(redis) == set()
    # An exit without an entry.
    await lock.lock()
    await lock.__aexit__(None, None, None)
    assert (left(redis), bool(getattr(lock, "_target", lock)._blocks)) == (set(), False)


@pytest.mark.filterwarnings("ignore:.*left on another")
async def test_a_lost_block_is_not_taken_for_a_later_one(backend: Backend) -> None:
    """The exit of a block that was lost must not release the lock of who holds it now."""
    lock: Any = backend.connect().get_lock("orders")
    await backend.as_another_owner(lock.__aenter__)
    await lock.force_unlock()
    async with lock:
        await fails(pyredisson.LockLostError, backend.as_another_owner, lambda: lock.__aexit__(None, None, None))
        assert await lock.is_held()
    assert not await lock.is_locked()
    # The body's exception wins.
    await backend.as_another_owner(lock.__aenter__)
    await lock.force_unlock()
    error = KeyError("mine")
    assert not await backend.as_another_owner(lambda: lock.__aexit__(KeyError, error, None))
    assert any("LockLostError" in note for note in error.__notes__)
    await backend.as_another_owner(lock.__aenter__)
    await backend.as_another_owner(lambda: lock.__aexit__(None, None, None))
    assert not await lock.is_locked()


async def test_each_caller_leaves_its_own_block(backend: Backend) -> None:
    """In whatever order they end."""
    lock = backend.connect().get_read_write_lock("orders").read_lock()
    entered, leave = ([backend.flag() for _ in range(8)] for _ in range(2))

    async def read(number: int) -> int:
        async with lock:
            entered[number].set()
            await leave[number].wait()
            return await lock.get_hold_count()

    readers = [backend.spawn(partial(read, number)) for number in range(8)]
    await in_turn(flag.wait for flag in entered)
    for number in (3, 7, 0, 5, 1, 6, 4, 2):
        leave[number].set()
        assert await readers[number].result() == 1
    assert not await lock.is_locked()
    # The latest one's exit was not the last: nothing is kept of the others.
    assert not getattr(lock, "_target", lock)._blocks


def test_requests_that_share_a_pool(client: pyredisson.Client, redis: Any) -> None:
    """Each block is left, and nothing raised; but threads of the pool are no owners to rely on: one warning says so."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serve(lambda: client.get_lock("orders"), lambda: None)
    [warning] = caught
    assert (warning.filename, warning.category, redis.exists("orders")) == (__file__, RuntimeWarning, False)
    assert "owner=pyredisson.new_owner()" in str(warning.message)


def test_requests_with_owners_of_their_own(client: pyredisson.Client, redis: Any) -> None:
    account = {"balance": 0}

    def update() -> None:
        balance = account["balance"]
        time.sleep(0.001)
        account["balance"] = balance + 1

    serve(lambda: client.get_lock("orders", owner=pyredisson.new_owner()), update)
    assert (account, redis.exists("orders")) == ({"balance": 60}, False)


entered_by = pytest.mark.parametrize("enter", [lambda lock: lock, lambda lock: lock.hold(wait_time=5)])


class TestTasks:
    async def test_an_unfinished_generator(self, tasks: Backend, redis: Any) -> None:
        """The event loop closes it in a task of its own."""
        lock = tasks.connect().get_lock("orders")

        async def numbers() -> AsyncIterator[int]:
            async with lock:
                yield 1

        async for _ in numbers():
            break
        gc.collect()
        await tasks.until(lambda: not redis.exists("orders"))

    @entered_by
    @pytest.mark.parametrize("returned", [False, True])
    async def test_abandoned(self, tasks: Backend, redis: Any, caplog: Any, enter: Any, returned: bool) -> None:
        """By its task, or by what the task has returned it to."""
        client = tasks.connect()

        async def open_it() -> Any:
            block = enter(client.get_lock("orders"))
            await block.__aenter__()
            return block if returned else None

        block = await asyncio.create_task(open_it())
        assert not returned or redis.exists("orders")
        del block
        await tasks.until(lambda: not redis.exists("orders"))
        assert "nobody can leave" in caplog.text

    @pytest.mark.parametrize("side", ["read", "write"])
    async def test_a_writer_whose_task_has_ended(self, tasks: Backend, server: Server, redis: Any, side: str) -> None:
        """A caller that waits in its client relies on it, also a reader. It is woken long before the lease ends."""
        client = tasks.connect(release_when_owner_ends=True, lock_watchdog_timeout=1.2 * TIME_LIMIT)
        both, writes = client.get_read_write_lock("orders"), asyncio.Event()
        first = tasks.connect().get_read_write_lock("orders")

        async def write() -> None:
            await both.write_lock().lock()
            await writes.wait()

        await first.write_lock().lock()
        writer = await tasks.begin(write, lambda: waiters(client, "orders", "write") == 1)
        await first.write_lock().unlock()
        await tasks.until(lambda: waiters(client, "orders", "write") == 0)
        other = await tasks.begin(getattr(both, f"{side}_lock")().lock, lambda: waiters(client, "orders", side) == 1)
        writes.set()
        await writer.result()
        await other.result()

    @entered_by
    async def test_a_task_has_ended_and_another_leaves_its_block(self, tasks: Backend, redis: Any, enter: Any) -> None:
        client, stack = tasks.connect(), contextlib.AsyncExitStack()
        await asyncio.create_task(stack.enter_async_context(enter(client.get_lock("orders"))))
        # An explicit owner isn't tied to a task, and a block of this task isn't tied to its handle.
        await asyncio.create_task(client.get_lock("stock", owner=7).__aenter__())
        await client.get_lock("mine").__aenter__()
        gc.collect()
        await asyncio.sleep(0.05)
        assert redis.exists("orders", "stock", "mine") == 3
        await stack.aclose()
        await client.get_lock("stock", owner=7).unlock()
        await client.get_lock("mine").__aexit__(None, None, None)
        assert redis.keys() == []

    async def test_a_foreign_cancellation_stays_one(self, tasks: Backend) -> None:
        """Of a block that was lost after its task had ended; and while a lost block is left."""
        client = tasks.connect()
        members = [client.get_lock(name) for name in ("orders", "other", "third")]
        hold = members[0].hold()
        await asyncio.create_task(hold.__aenter__())
        await members[0].force_unlock()
        error = asyncio.CancelledError()
        await hold.__aexit__(asyncio.CancelledError, error, None)
        assert "LockLostError" in error.__notes__[0]
        task: asyncio.Task[None]

        async def body() -> None:
            # A red lock awaits the release of its other members then.
            async with client.get_red_lock(*members):
                await in_turn(member.force_unlock for member in members[:2])
                try:
                    await asyncio.sleep(TIME_LIMIT)
                finally:
                    asyncio.get_running_loop().call_soon(task.cancel)

        task = asyncio.create_task(body())
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_abandoned_after_its_event_loop(server: Server, redis: Any) -> None:
    """A loop that ends takes its connections with it: nobody can close those any more, so Python warns."""
    client = pyredisson.asyncio.connect(server.url)

    async def open_it() -> Any:
        return await client.get_lock("orders").__aenter__()

    lock = asyncio.run(open_it())
    assert redis.exists("orders")
    del lock
    eventually(lambda: not redis.exists("orders"))
    asyncio.run(client.close())
    gc.collect()


class TestOnTheThreadOfAnEventLoop:
    """The loop is blocked meanwhile."""

    def test_a_hundred_tasks(self, client: pyredisson.Client) -> None:
        """The first call says that they are one owner."""

        async def transfer() -> int:
            with client.get_lock("acct"):
                await asyncio.sleep(0)
            return 1

        async def transfers() -> int:
            return sum(await asyncio.gather(*(transfer() for _ in range(100))))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Before there is a loop, the thread is an owner as any other.
            with client.get_lock("acct"):
                assert caught == []
            done = asyncio.run(transfers())
        [warning] = caught
        assert (done, warning.filename, warning.category) == (100, __file__, RuntimeWarning)
        assert "pyredisson.asyncio" in str(warning.message)

    def test_an_error_leaves_nothing(self, client: pyredisson.Client) -> None:
        """With warnings turned into errors, nothing is held. Explicit owners differ: there is nothing to warn of."""

        async def enter(owner: pyredisson.ExplicitOwner | None) -> None:
            with client.get_lock("acct", owner=owner):
                await asyncio.sleep(0)
                assert owner is not None

        with pytest.raises(RuntimeWarning, match="event loop"):
            asyncio.run(enter(None))
        assert not client.get_lock("acct").is_locked()
        asyncio.run(enter(pyredisson.new_owner()))

    def test_waiting(self, client: pyredisson.Client) -> None:
        """Also for what has no owner."""

        async def wait() -> bool:
            return client.get_semaphore("permits").try_acquire(wait_time=0.3)

        with pytest.warns(RuntimeWarning, match="event loop"):
            assert not asyncio.run(wait())
