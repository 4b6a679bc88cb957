"""A release that enters a waiter of the same client, of each kind that does so: faults, ends, and fairness."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from pyredisson._protocol.scripts import script
from pyredisson.errors import ClosedError
from pyredisson.testing import Proxy
from tests.support.backends import TIME_LIMIT, Backend, OtherOwner
from tests.support.faults import FLAGS
from tests.support.server_state import ServerState
from tests.support.waiting import permit_waiters

from .fair_queue import WAITERS
from .kinds import left, lock_of, rival_of, sleeping

pytestmark = pytest.mark.asyncio
HAND_OVER = {
    # The end of the holder's name, and the beginning of the name of the owner whom its release enters: no other command
    # has both. Between them a fair lock has the time of a place in its queue, and readers their client in the list.
    "lock": b":1\r\n$38\r\n",
    "fair": b":1\r\n$6\r\n300000\r\n$38\r\n",
    "read": b":1:write\r\n$40\r\n",
    "write": b":1:write\r\n$44\r\n",
    "permit": script("semaphore_hand_over", with_shebang=FLAGS).sha,
}
kinds = pytest.mark.parametrize("kind", HAND_OVER)


class Contention:
    """A permit or a lock, its holder, and another caller of the same client that waits for it."""

    releasing: asyncio.Future[None]
    reply: Any
    waiting: OtherOwner[Any]

    def __init__(
        self, backend: Backend, server_state: ServerState, kind: str, url: str | None = None, **fields: Any
    ) -> None:
        self.backend, self.kind = backend, kind
        self._redis = server_state.redis
        # The time for hand-overs doesn't end in a test.
        self.client: Any = backend.connect(url, local_hand_over_time=60, **fields)
        self.holder: Any = handle(self.client, kind, 1, rival_of(kind))
        self.waiter: Any = handle(self.client, kind, 2)

    async def hold(self) -> None:
        if self.kind == "permit":
            await self.holder.try_set_permits(1)
        await self.holder.acquire()

    async def begin(self) -> None:
        await self.hold()
        self.waiting = await self.wait()

    async def wait(self) -> OtherOwner[Any]:
        """Another caller that waits."""
        before = self.sleepers()
        waiting = self.backend.spawn(self.waiter.acquire)
        await self.backend.until(lambda: self.sleepers() == before + 1)
        return waiting

    async def strike(self, proxy: Proxy) -> None:
        """The server has executed the hand-over, and its reply is held up."""
        await self.begin()
        self.reply = proxy.hold_reply(HAND_OVER[self.kind])
        self.releasing = asyncio.ensure_future(self.holder.release())
        assert await asyncio.to_thread(self.reply.held.wait, TIME_LIMIT)

    def sleepers(self) -> int:
        return permit_waiters(self.client, "stock") if self.kind == "permit" else sleeping(self.client, self.kind)

    def holds(self) -> int:
        """How many permits or levels are held on the server, of one that is possible."""
        if self.kind == "permit":
            return 1 - int(self._redis.get("stock"))
        return sum(int(level) for level in self._redis.hvals("orders") if level.isdigit())

    async def free(self) -> None:
        """Returns when nobody holds it, and nothing is left of locks."""
        await self.backend.until(lambda: self.holds() == 0)
        remaining = {WAITERS} if self.kind == "fair" else set()
        if self.kind != "permit":
            await self.backend.until(lambda: left(self._redis) <= remaining)
            assert not await self.waiter.is_held()


def handle(client: Any, kind: str, owner: int, lock: str | None = None) -> Any:
    return client.get_semaphore("stock") if kind == "permit" else lock_of(client, lock or kind, owner=owner)


@kinds
@pytest.mark.parametrize("fault", ["drop_reply", "cut_reply", "cut_request"])
async def test_a_lost_reply(backend: Backend, proxy: Proxy, server_state: ServerState, fault: str, kind: str) -> None:
    it = Contention(backend, server_state, kind, proxy.url, timeout=0.3)
    await it.begin()
    struck = getattr(proxy, fault)(HAND_OVER[kind])
    await it.holder.release()
    await it.waiting.result()
    assert struck.happened.is_set()
    assert it.holds() == 1
    await it.waiter.release()
    await it.free()


@kinds
async def test_a_waiter_whose_time_is_over(backend: Backend, server_state: ServerState, kind: str) -> None:
    it = Contention(backend, server_state, kind)
    await it.hold()
    attempt = it.waiter.try_acquire if kind == "permit" else it.waiter.try_lock
    assert not await backend.as_another_owner(partial(attempt, wait_time=0.05))
    await it.holder.release()
    await it.free()
    session = getattr(it.client, "_target", it.client)._session
    assert session.permits.queues == session.lock_queues == session.local_queues == {}


@pytest.mark.parametrize("kind", ["read", "write", "permit"])
async def test_another_client_gets_its_turn(backend: Backend, kind: str) -> None:
    """However long the callers of one client hand permits on, or its readers and writers enter each other."""
    busy, other = backend.connect(), backend.connect()
    if kind == "permit":
        await other.get_semaphore("stock").try_set_permits(2)
    ended = False

    async def work(number: int) -> None:
        it = handle(busy, kind, number, ("read", "write")[number % 2])
        while not ended:
            await it.acquire()
            await it.release()
            await backend.sleep(0)

    others = [backend.spawn(partial(work, number)) for number in range(8 if kind == "permit" else 4)]
    theirs = handle(other, kind, 1)
    for _ in range(3):
        attempt = theirs.try_acquire if kind == "permit" else theirs.try_lock
        assert await attempt(wait_time=TIME_LIMIT)
        await theirs.release()
    ended = True
    for each in others:
        await each.result()


@kinds
class TestInFlight:
    """While the reply of the hand-over is under way."""

    @pytest.fixture
    def it(self, tasks: Backend, proxy: Proxy, server_state: ServerState, kind: str) -> Contention:
        return Contention(tasks, server_state, kind, proxy.url)

    async def test_the_waiter_is_cancelled(self, it: Contention, proxy: Proxy) -> None:
        await it.strike(proxy)
        it.waiting._task.cancel()  # type: ignore[attr-defined]
        with pytest.raises(asyncio.CancelledError):
            await it.waiting.result()
        it.reply.deliver()
        await it.releasing
        await it.free()
        await it.waiter.acquire()

    @pytest.mark.parametrize("leaves", [False, True])
    async def test_the_release_is_cancelled(self, it: Contention, proxy: Proxy, *, leaves: bool) -> None:
        """The waiter finds out that it was entered. If it leaves as well, nobody has the lock."""
        await it.strike(proxy)
        cancelled = [it.releasing, it.waiting._task] if leaves else [it.releasing]  # type: ignore[attr-defined]
        for call in cancelled:
            call.cancel()
        for call in cancelled:
            with pytest.raises(asyncio.CancelledError):
                await call
        it.reply.deliver()
        if not leaves:
            await it.waiting.result()
            assert it.holds() == 1
            await it.waiter.release()
        await it.free()

    async def test_the_client_is_closed(self, it: Contention, proxy: Proxy) -> None:
        await it.strike(proxy)
        await it.client.close()
        for ended in (it.waiting.result(), it.releasing):
            with pytest.raises(ClosedError):
                await ended
        await it.backend.until(lambda: it.holds() == 0)


@pytest.mark.parametrize("kind", ["lock", "write", "permit"])
async def test_another_waiter_gets_what_a_cancelled_one_has_left(
    tasks: Backend, proxy: Proxy, server_state: ServerState, kind: str
) -> None:
    it = Contention(tasks, server_state, kind, proxy.url)
    await it.strike(proxy)
    it.waiter = handle(it.client, kind, 3)
    another = await it.wait()
    it.waiting._task.cancel()  # type: ignore[attr-defined]
    it.reply.deliver()
    await it.releasing
    await another.result()
    await tasks.until(lambda: it.holds() == 1)


@pytest.mark.parametrize("kind", ["lock", "fair", "write"])
async def test_a_release_that_is_cancelled_when_the_waiter_has_gone_on(
    tasks: Backend, server_state: ServerState, kind: str
) -> None:
    """The waiter goes on as soon as the reply is there, before the task that has sent the command."""
    it = Contention(tasks, server_state, kind)
    await it.hold()

    async def wait() -> None:
        await it.waiter.acquire()
        assert not it.releasing.done()
        it.releasing.cancel()

    waiting = tasks.spawn(wait)
    await tasks.until(lambda: it.sleepers() == 1)
    it.releasing = asyncio.ensure_future(it.holder.release())
    await waiting.result()
    with pytest.raises(asyncio.CancelledError):
        await it.releasing
    assert not await it.holder.is_held()
    assert await it.waiter.is_held()
    await it.waiter.release()
    await it.free()
