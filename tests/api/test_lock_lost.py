"""Lost locks: the event `lost`, the release of a lost hold, and the number of losses that are remembered."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from pyredisson import ClosedError, LockLostError, LockNotHeldError
from pyredisson.asyncio import Lock
from tests.support.backends import TIME_LIMIT, WOKEN, Backend
from tests.support.server_state import ServerState

from .kinds import REENTRANT, lock_of

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def lock(backend: Backend) -> Lock:
    """A watchdog looks at it soon."""
    return backend.connect(lock_watchdog_timeout=0.9).get_lock("orders", owner=1)


async def lose(lock: Any) -> None:
    """Its holder loses the lock."""
    await lock.lock(60)
    await lock.force_unlock()


class TestEvent:
    """`lock.lost`."""

    async def test_a_hold_in_good_health(self, backend: Backend, lock: Lock) -> None:
        assert lock.lost.is_set() is False
        assert await lock.lost.wait() is False
        assert await lock.lost.wait(timedelta(seconds=1)) is False
        await lock.lock(60)
        started = time.monotonic()
        assert await lock.lost.wait(0.1) is False
        assert 0.1 <= time.monotonic() - started < WOKEN
        assert lock.lost.is_set() is False

    async def test_the_end_of_the_lease(self, backend: Backend, lock: Lock) -> None:
        await lock.lock(0.5)
        lost = lock.lost
        assert not lost.is_set()
        # Any owner may wait for it, and has a hold of its own.
        waiting = backend.spawn(lambda: lost.wait(TIME_LIMIT))
        assert await lost.wait(TIME_LIMIT) is True
        assert await waiting.result() is True
        assert lost.is_set() is True
        assert not await lock.is_held()
        assert await lock.get_hold_count() == 0
        other = backend.connect().get_lock("orders")
        assert not other.lost.is_set()
        await other.lock()
        assert lost.is_set()

    async def test_another_owner_of_the_handle_has_another_hold(self, backend: Backend) -> None:
        lock = backend.connect().get_lock("orders")
        await lock.lock(0.05)
        assert await lock.lost.wait(TIME_LIMIT)

        async def work() -> bool:
            return lock.lost.is_set()

        assert await backend.as_another_owner(work) is False

    async def test_no_later_than_the_servers_end(self, backend: Backend, server_state: ServerState, lock: Lock) -> None:
        await lock.lock(0.1)
        # Not PTTL: it says 0 in the key's last millisecond, in which the key is still there.
        while server_state.redis.exists("orders"):
            await backend.sleep(0.001)
        assert lock.lost.is_set()

    async def test_the_clock_alone_is_enough(self, lock: Lock) -> None:
        await lock.lock(0.05)
        # Blocks the event loop, too: no other code can have reported the loss.
        time.sleep(0.06)
        assert lock.lost.is_set()

    @pytest.mark.parametrize("taken", [False, True])
    async def test_the_watchdog_finds_it(self, server_state: ServerState, lock: Lock, *, taken: bool) -> None:
        await lock.lock()
        server_state.redis.delete("orders")
        if taken:
            server_state.redis.hset("orders", "somebody:1", 1)
            server_state.redis.pexpire("orders", 60_000)
        assert await lock.lost.wait(TIME_LIMIT) is True
        assert server_state.holds("orders") == ({"somebody:1": "1"} if taken else {})
        assert not taken or server_state.redis.pttl("orders") > 50_000

    async def test_the_answer_to_a_question_counts(self, server_state: ServerState, lock: Lock) -> None:
        """No watchdog looks after a fixed lease: what the server says in between is news."""
        await lock.lock(60)
        server_state.redis.delete("orders")
        assert not await lock.is_held()
        assert lock.lost.is_set()

    @pytest.mark.parametrize("end", ["unlock", "close"])
    async def test_what_ends_the_wait_without_a_loss(self, backend: Backend, end: str) -> None:
        client = backend.connect()
        lock = client.get_lock("orders", owner=1)
        await lock.lock()
        lost = lock.lost
        waiting = backend.flag()

        async def work() -> bool:
            waiting.set()
            return await lost.wait()

        other = backend.spawn(work)
        await waiting.wait()
        if end == "unlock":
            await lock.unlock()
            assert await other.result() is False
            assert lost.is_set() is False
        else:
            await client.close()
            # Closing gave it back; that the client is closed is no wrong answer, either.
            with contextlib.suppress(ClosedError):
                assert await other.result() is False

    async def test_a_new_hold_is_not_lost(self, lock: Lock) -> None:
        await lock.lock(0.05)
        old = lock.lost
        assert await old.wait(TIME_LIMIT)
        await lock.lock()
        assert not lock.lost.is_set()
        assert old.is_set()
        assert await lock.is_held()


class TestGivingBack:
    """`unlock` and the end of a block, after the loss."""

    async def test_each_nested_hold_is_reported(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        lock = client.get_lock("orders", owner=1)
        started = time.monotonic()
        await lock.lock(0.5)
        await lock.lock(0.5)
        assert await lock.lost.wait(TIME_LIMIT)
        await backend.sleep(0.25)
        for _ in range(2):
            with pytest.raises(LockLostError, match=f"orders.*{client.id}:1") as caught:
                await lock.unlock()
            [ago] = re.findall(r"lost (\d\.\d{3}) s ago", str(caught.value))
            assert 0.2 < float(ago) < time.monotonic() - started
        # By the server's clock the lease ends a moment later, and what was lost is released in the background.
        await backend.until(lambda: not server_state.redis.exists("orders"))
        with pytest.raises(LockNotHeldError, match="is free") as again:
            await lock.unlock()
        assert not isinstance(again.value, LockLostError)

    @pytest.mark.parametrize("how", ["deleted", "taken", "forced"])
    async def test_deleted_by_somebody(self, backend: Backend, server_state: ServerState, lock: Lock, how: str) -> None:
        await lock.lock(60)
        if how == "forced":
            await backend.connect().get_lock("orders").force_unlock()
        else:
            server_state.redis.delete("orders")
        if how == "taken":
            server_state.redis.hset("orders", "somebody:1", 1)
        with pytest.raises(LockLostError, match="orders"):
            await lock.unlock()
        assert server_state.holds("orders") == ({"somebody:1": "1"} if how == "taken" else {})

    async def test_forced_by_the_holder_itself(self, lock: Lock) -> None:
        await lose(lock)
        assert lock.lost.is_set()
        # A new hold above it.
        await lock.lock()
        assert not lock.lost.is_set()
        await lock.unlock()
        assert not await lock.is_locked()
        with pytest.raises(LockLostError, match="force"):
            await lock.unlock()

    @pytest.mark.parametrize("kind", REENTRANT)
    async def test_a_nested_acquire_finds_the_loss(
        self, backend: Backend, server_state: ServerState, kind: str
    ) -> None:
        lock = lock_of(backend.connect(), kind)
        await lock.lock(60)
        lost = lock.lost
        server_state.redis.delete("orders")
        await lock.lock(60)
        assert lost.is_set()
        assert "1" in server_state.holds("orders").values()
        assert await lock.get_hold_count() == 1
        await lock.unlock()
        assert not server_state.redis.exists("orders")
        with pytest.raises(LockLostError):
            await lock.unlock()

    async def test_leaving_a_block(self, backend: Backend, server_state: ServerState) -> None:
        lock = backend.connect().get_lock("orders")
        with pytest.raises(LockLostError, match="orders"):
            async with lock.hold(lease_time=0.05):
                await backend.sleep(0.1)
        with pytest.raises(LockLostError, match="orders"):
            async with lock:
                server_state.redis.delete("orders")
        with pytest.raises(KeyError) as caught:
            async with lock:
                server_state.redis.delete("orders")
                raise KeyError("mine")
        [note] = caught.value.__notes__
        assert re.search("LockLostError.*orders", note)


class TestManyLosses:
    """The losses that are remembered are bounded; those that were seen to don't count."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pyredisson.logic.losses.MOST_LOST", 20)

    async def seen_to(self, lock: Any, count: int) -> None:
        """It was lost and released so many times."""
        for _ in range(count):
            await lose(lock)
            with pytest.raises(LockLostError):
                await lock.unlock()

    async def test_a_loss_before_many_that_were_released(self, backend: Backend) -> None:
        client = backend.connect()
        fresh = client.get_lock("stock")
        await lose(fresh)
        await self.seen_to(client.get_lock("orders"), 26)
        with pytest.raises(LockLostError):
            await fresh.unlock()

    async def test_a_loss_of_a_lock_that_was_lost_before(self, backend: Backend) -> None:
        client = backend.connect()
        lock = client.get_lock("orders")
        await self.seen_to(lock, 24)
        await lose(lock)
        for number in range(15):
            await lose(client.get_lock(f"other:{number}"))
        with pytest.raises(LockLostError):
            await lock.unlock()

    async def test_losses_that_are_never_released_are_bounded(self, backend: Backend) -> None:
        client = backend.connect()
        locks = [client.get_lock(f"orders:{number}") for number in range(50)]
        for lock in locks:
            await lose(lock)
        assert len(client._session.holds.table) <= 20
        for lock in locks[-18:]:
            with pytest.raises(LockLostError):
                await lock.unlock()

    async def test_of_groups(self, backend: Backend) -> None:
        client = backend.connect()
        member = client.get_lock("orders")
        group = client.get_multi_lock(member, client.get_lock("stock"))
        for number in range(25):
            await group.lock(60)
            await member.force_unlock()
            if number < 24:
                with pytest.raises(LockLostError):
                    await group.unlock()
        for number in range(15):
            await client.get_multi_lock(client.get_lock(f"a:{number}")).lock(60)
            await client.get_lock(f"a:{number}").force_unlock()
        with pytest.raises(LockLostError):
            await group.unlock()
