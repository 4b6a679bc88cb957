"""A release that enters a waiter of the same client, of each kind that does so: faults, ends, leases, and batches."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import pytest
from redis.exceptions import ResponseError

from pyredisson.errors import ClosedError, LockLostError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend, ServerState, fails, finished, in_turn
from tests.support.faults import HAND_OVER, LOSSES, Lose, sha
from tests.support.inspecting import session_of

from .kinds import BY_TIME, LONG, WAITERS, Orders, handle_of, left, rival_of, set_permits, sleeping

ENTERS = HAND_OVER | {"semaphore": sha("semaphore_hand_over")}
PERMITS = 4
kinds = pytest.mark.parametrize("kind", ENTERS)


class Contention:
    """A permit or a lock, its holder, and another caller of the same client that waits for it."""

    def __init__(self, backend: Backend, state: ServerState, kind: str, url: Any = None, **fields: Any) -> None:
        self.backend, self.kind, self._redis = backend, kind, state.redis
        self.client: Any = backend.connect(url, local_hand_over_time=LONG, **fields)
        self.holder: Any = handle_of(self.client, rival_of(kind), 1)
        self.waiter: Any = handle_of(self.client, kind, 2)

    async def hold(self) -> None:
        await set_permits(self.client, self.kind, 1)
        await self.holder.acquire()

    async def begin(self) -> Self:
        await self.hold()
        self.waiting = await self.backend.begin(self.waiter.acquire, self.asleep)
        return self

    def asleep(self) -> bool:
        return sleeping(self.client, self.kind) == 1

    def holds(self) -> int:
        """How many permits or levels are held on the server, of one that is possible."""
        if self.kind == "semaphore":
            return 1 - int(self._redis.get("orders"))
        return sum(int(level) for level in self._redis.hvals("orders") if level.isdigit())

    async def free(self) -> None:
        """Returns when nobody holds it, and nothing is left of locks."""
        await self.backend.until(lambda: self.holds() == 0)
        if self.kind != "semaphore":
            await self.backend.until(lambda: left(self._redis) <= ({WAITERS} if self.kind == "fair" else set()))
            assert not await self.waiter.is_held()


async def test_the_end_of_a_shorter_lease(backend: Backend, state: ServerState) -> None:
    """Another client acquires the lock then, and not at the end of the lease that it was told."""
    it, far = Contention(backend, state, "lock"), backend.connect()
    await it.hold()
    other = await backend.begin(far.get_lock("orders").lock, lambda: sleeping(far, "lock") == 1)
    short = await backend.begin(partial(it.waiter.lock, lease_time=0.3), it.asleep)
    await in_turn([it.holder.unlock, short.result, other.result])


@kinds
@pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
async def test_a_lost_reply(backend: Backend, proxy: Proxy, state: ServerState, fault: str, kind: str) -> None:
    it = await Contention(backend, state, kind, proxy.url, timeout=0.3).begin()
    struck = getattr(proxy, fault)(ENTERS[kind])
    await it.holder.release()
    await it.waiting.result()
    assert (struck.happened.is_set(), it.holds()) == (True, 1)
    await it.waiter.release()
    await it.free()


@kinds
async def test_a_waiter_whose_time_is_over(backend: Backend, state: ServerState, kind: str) -> None:
    it = Contention(backend, state, kind)
    await it.hold()
    attempt = it.waiter.try_acquire if kind == "semaphore" else it.waiter.try_lock
    assert not await backend.as_another_owner(partial(attempt, wait_time=0.05))
    await it.holder.release()
    await it.free()
    session: Any = session_of(it.client)
    assert session.permits.queues == session.lock_queues == session.fair_queues == {}


@pytest.mark.parametrize("kind", [kind for kind in ENTERS if kind != "semaphore"])
async def test_the_hold_was_lost(backend: Backend, state: ServerState, kind: str) -> None:
    """A release that finds its lock gone enters nobody; the waiter gets the lock all the same."""
    it = await Contention(backend, state, kind).begin()
    state.redis.delete("orders")
    await fails(LockLostError, it.holder.release, match="was lost")
    await it.waiting.result()
    await it.waiter.release()
    assert left(state.redis) == set()


async def test_the_semaphore_was_deleted_or_spoilt(backend: Backend, state: ServerState) -> None:
    """A release makes a new one, and the waiter takes the permit; or it fails as without a waiter, and so does that."""
    it = await Contention(backend, state, "semaphore").begin()
    state.redis.delete("orders")
    assert not await it.holder.release_if_exists()
    assert not it.waiting.done()
    await it.holder.release()
    await it.waiting.result()
    assert state.redis.get("orders") == b"0"
    waiting = await backend.begin(it.waiter.acquire, it.asleep)
    state.redis.set("orders", "text")
    for call in (it.holder.release, waiting.result):
        await fails(ResponseError, call)


@pytest.mark.parametrize(
    ("busy", "kind", "same_client"),
    [
        *((("read", "write"), kind, False) for kind in ("read", "write")),
        *((("read",), "write", True), (("write",), "read", True), (("semaphore",), "semaphore", False)),
    ],
)
async def test_nobody_starves(backend: Backend, busy: Sequence[str], kind: str, same_client: bool) -> None:
    """However long the callers of one client hand permits on, or its readers and writers enter each other."""
    client = backend.connect(**({"local_hand_over_time": LONG} if same_client else {}))
    waiter = handle_of(client if same_client else backend.connect(), kind, 99)
    await set_permits(client, kind, 2)
    ended = False

    async def work(number: int) -> None:
        it = handle_of(client, busy[number % len(busy)], number)
        while not ended:
            await it.acquire()
            await it.release()
            await backend.sleep(0)

    others = [backend.spawn(partial(work, number)) for number in range(8 if kind == "semaphore" else 4)]
    for _ in range(20 if same_client else 3):
        attempt = waiter.try_acquire if kind == "semaphore" else waiter.try_lock
        assert await attempt(wait_time=TIME_LIMIT)
        await waiter.release()
    ended = True
    await finished(others)


class TestTheNextOwner:
    @pytest.mark.parametrize("kind", ["lock", "fair", "read"])
    async def test_has_its_own_lease(self, backend: Backend, state: ServerState, kind: str, caplog: Any) -> None:
        caplog.set_level("INFO", "pyredisson")
        it = Contention(backend, state, kind)
        await it.holder.lock(lease_time=1000)
        other = await backend.begin(lambda: it.waiter.lock(lease_time=20), it.asleep)
        await it.holder.unlock()
        await other.result()
        assert 15_000 < state.redis.pttl("orders") <= 20_000
        assert (await it.waiter.get_hold_count(), "end of its lease" in caplog.text) == (1, False)
        # A nested level, and both of its releases.
        await it.waiter.lock()
        assert it.holds() == 2
        await in_turn([it.waiter.unlock] * 2)
        assert state.redis.keys() == []

    @pytest.mark.parametrize("one_leaves", [False, True])
    async def test_has_a_shorter_lease_and_never_releases(self, backend: Backend, one_leaves: bool) -> None:
        """The waiters behind it have relied on the lease of an earlier holder, which would have ended much later."""
        client = backend.connect(local_hand_over_time=LONG)
        holder, next_owner, leaving, waiter = (client.get_lock("orders", owner=number) for number in range(1, 5))
        await holder.lock()
        others = [await backend.begin(lambda: next_owner.lock(lease_time=4), lambda: sleeping(client, "lock") == 1)]
        if one_leaves:
            leaver = await backend.begin(lambda: leaving.try_lock(wait_time=3), lambda: sleeping(client, "lock") == 2)
        others.append(await backend.begin(waiter.lock, lambda: sleeping(client, "lock") == 2 + one_leaves))
        await holder.unlock()
        await finished(others)
        if one_leaves:
            assert not await leaver.result()
        await waiter.unlock()


@pytest.mark.parametrize("claimed", [False, True])
async def test_one_call_lets_all_readers_in(orders: Orders, claimed: bool) -> None:
    """They know that the writer keeps them out, and make no attempt, neither when they come nor before its turn."""
    read, write, owners = orders.read(99), orders.write(1), range(2, 10 if claimed else 66)
    await read.lock()
    # A writer that waits for a reader: its client knows that it holds the lock, or claims it.
    writing = await orders.waits("write", 1)
    before = orders.scripts()
    readers = await orders.waits("read", *owners) if claimed else []
    await read.unlock()
    await finished(writing)
    readers = readers or await orders.waits("read", *owners)
    await write.unlock()
    await finished(readers)
    # The releases of the first reader and of the writer, and the attempt of the writer.
    assert before + 3 <= orders.scripts() <= before + 3 + BY_TIME
    assert len(orders.holds()) == 1 + len(owners)
    await in_turn(orders.read(owner).unlock for owner in owners)
    assert orders.redis.keys() == []


@kinds
class TestInFlight:
    """While the reply of the hand-over is under way."""

    @pytest.fixture
    async def it(self, tasks: Backend, proxy: Proxy, state: ServerState, kind: str) -> Any:
        """The server has executed the hand-over, and its reply is held up."""
        it: Any = await Contention(tasks, state, kind, proxy.url).begin()
        it.reply = proxy.hold_reply(ENTERS[kind])
        it.releasing = asyncio.ensure_future(it.holder.release())
        assert await asyncio.to_thread(it.reply.held.wait, TIME_LIMIT)
        return it

    async def test_the_waiter_is_cancelled(self, it: Any) -> None:
        it.waiting._task.cancel()
        await fails(asyncio.CancelledError, it.waiting.result)
        it.reply.deliver()
        await it.releasing
        await it.free()
        await it.waiter.acquire()

    @pytest.mark.parametrize("leaves", [False, True])
    async def test_the_release_is_cancelled(self, it: Any, *, leaves: bool) -> None:
        """The waiter finds out that it was entered. If it leaves as well, nobody has the lock."""
        cancelled = [it.releasing, it.waiting._task] if leaves else [it.releasing]
        for call in cancelled:
            call.cancel()
        outcomes = await asyncio.gather(*cancelled, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
        it.reply.deliver()
        if not leaves:
            await it.waiting.result()
            assert it.holds() == 1
            await it.waiter.release()
        await it.free()

    async def test_the_client_is_closed(self, it: Any) -> None:
        await it.client.close()
        await fails(ClosedError, it.waiting.result)
        await fails(ClosedError, lambda: it.releasing)
        await it.backend.until(lambda: it.holds() == 0)


@pytest.mark.parametrize("kind", ["lock", "fair", "write"])
async def test_a_release_cancelled_as_the_waiter_went_on(tasks: Backend, state: ServerState, kind: str) -> None:
    """The waiter goes on as soon as the reply is there, before the task that has sent the command."""
    it: Any = Contention(tasks, state, kind)
    await it.hold()

    async def wait() -> None:
        await it.waiter.acquire()
        assert not it.releasing.done()
        it.releasing.cancel()

    waiting = await tasks.begin(wait, it.asleep)
    it.releasing = asyncio.ensure_future(it.holder.release())
    await waiting.result()
    with pytest.raises(asyncio.CancelledError):
        await it.releasing
    assert (await it.holder.is_held(), await it.waiter.is_held()) == (False, True)
    await it.waiter.release()
    await it.free()


async def test_the_client_is_closed_before_the_waiter_goes_on(tasks: Backend, state: ServerState) -> None:
    """The permit is handed on, and the closed client has released it all the same."""
    it = await Contention(tasks, state, "semaphore").begin()
    await it.holder.release()
    await it.client.close()
    await fails(ClosedError, it.waiting.result)
    await it.free()


class TestBatches:
    """All permits are released at once, for which callers wait. Hand-overs behind one on its way share a command."""

    @pytest.fixture
    def semaphore(self, tasks: Backend, proxy: Proxy) -> Any:
        return tasks.connect(proxy.url, local_hand_over_time=LONG, timeout=0.3).get_semaphore("orders")

    async def release(self, tasks: Backend, semaphore: Any) -> list[asyncio.Future[None]]:
        """All calls, of which the latter half releases permits."""
        await semaphore.try_set_permits(PERMITS)
        await semaphore.acquire(PERMITS)
        waiting = [asyncio.ensure_future(semaphore.acquire()) for _ in range(PERMITS)]
        await tasks.until(lambda: sleeping(tasks._clients[0], "semaphore") == PERMITS)
        return waiting + [asyncio.ensure_future(semaphore.release(1)) for _ in range(PERMITS)]

    async def end(self, semaphore: Any, calls: list[asyncio.Future[None]]) -> None:
        """Returns when all of them have got what they asked for."""
        async with asyncio.timeout(TIME_LIMIT):
            await asyncio.gather(*calls)
        assert await semaphore.available_permits() == 0
        await semaphore.release(PERMITS)
        assert await semaphore.available_permits() == PERMITS

    @pytest.mark.parametrize("refused", [False, True])
    async def test_two_calls_for_many(self, tasks: Backend, semaphore: Any, state: ServerState, refused: bool) -> None:
        calls = await self.release(tasks, semaphore)
        before = state.scripts()
        if refused:
            state.redis.set("orders", "text")
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ResponseError if refused else type(None)] * 2 * PERMITS
        assert refused or state.scripts() - before == 2

    @LOSSES
    async def test_lost_replies(self, tasks: Backend, semaphore: Any, proxy: Proxy, lose: Lose) -> None:
        lose(proxy, ENTERS["semaphore"])
        await self.end(semaphore, await self.release(tasks, semaphore))

    async def test_the_task_that_sends_it_is_cancelled(self, tasks: Backend, semaphore: Any) -> None:
        """By somebody who cancels all tasks of the event loop that he doesn't know."""
        calls = await self.release(tasks, semaphore)
        known = asyncio.all_tasks()
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - known:
            task.cancel()
        await self.end(semaphore, calls)
