"""The semaphores and the count-down latch for asyncio."""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable
from typing import Any, Self, overload

from pyredisson._api.aio.releases import release_permit_ids, release_permits
from pyredisson._api.arguments import count_of, deadline_after, deadline_of, permit_id_of, permit_lease_of, wait_of
from pyredisson._api.holds import AnyPermit, Primitive, permit_timeout_error, tell_failed_release
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson.logic.permits.commands import ENDLESS, MAX_COUNT, MOST_AT_ONCE
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic


class Semaphore(Primitive):
    """A number of permits on the server, shared by all processes, also Java's with Redisson.

    As in Redisson, permits have no owners: anyone may release them, and the permits of a process that dies are lost.
    The semaphore must be made once, by `try_set_permits`. Until then there are no permits, which is logged once.
    """

    __slots__ = ()

    _logic: SemaphoreLogic

    def try_set_permits(self, permits: int, ttl: Duration | None = None) -> Coroutine[Any, Any, bool]:
        """Makes the semaphore with so many permits. False: there is one already, and nothing was changed.

        `ttl` (seconds or a timedelta, at least 1 ms): the server removes it after that time. None: never.
        """
        ms = None if ttl is None else lease_ms(ttl, "ttl")
        return self._logic.try_set(count_of(permits, "permits"), ms)

    async def acquire(self, permits: int = 1) -> None:
        """Acquires so many permits, all at once; waits as long as that takes.

        A waiter for several permits can be overtaken for 1 s; then this library leaves it permits, for up to 5 s.

        Raises `NotSetError` if the semaphore must exist (`must_exist=True`) and doesn't, `ClosedError` if the client is
        closed, also while this waits, and redis-py's errors for what the server or the network reports.
        """
        await self._logic.acquire(count_of(permits, "permits"), None)

    def try_acquire(self, permits: int = 1, wait_time: Duration = 0) -> Coroutine[Any, Any, bool]:
        """As `acquire`, but waits at most `wait_time` (seconds or a timedelta; 0: tries once). True: acquired."""
        return self._logic.acquire(count_of(permits, "permits"), deadline_of(wait_time, "wait_time"))

    async def release(self, permits: int = 1) -> None:
        """Releases so many permits. If there is no semaphore, it makes one that has just these, as Redisson does.

        Where replicas confirm acquires, it waits for their confirmation, too, for `replicas_sync_timeout` at most.
        Permits whose release a failover loses all the same stay in use.

        If it raises one of redis-py's errors, or is cancelled, it is still done, once, in the background, as soon as
        the server can be reached, for up to ten minutes. So don't call it again.
        """
        await release_permits(self._logic, permits, only_existing=False)

    def release_if_exists(self, permits: int = 1) -> Coroutine[Any, Any, bool]:
        """As `release`, but makes no semaphore. Returns whether there was one."""
        return release_permits(self._logic, permits, only_existing=True)

    def available_permits(self) -> Coroutine[Any, Any, int]:
        """How many permits are free. Below zero after `reduce_permits`: so many must be released before one is free."""
        return self._logic.available()

    def drain_permits(self) -> Coroutine[Any, Any, int]:
        """Acquires all permits that are free. Returns how many."""
        return self._logic.drain()

    def add_permits(self, permits: int) -> Coroutine[Any, Any, None]:
        """Adds so many free permits to the semaphore."""
        return self._logic.add(count_of(permits, "permits"))

    def reduce_permits(self, permits: int) -> Coroutine[Any, Any, None]:
        """Removes so many permits from the semaphore, including acquired ones if there aren't as many free ones."""
        return self._logic.add(-count_of(permits, "permits"))

    def delete(self) -> Coroutine[Any, Any, bool]:
        """Removes the semaphore. Waiters go on waiting. Returns whether there was one."""
        return self._logic.delete()

    async def __aenter__(self) -> Self:
        await self._logic.acquire(1, None)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await release_permits(self._logic, 1, only_existing=False)
        except Exception as failure:  # noqa: BLE001
            tell_failed_release(failure, error)


class PermitExpirableSemaphore(Primitive):
    """A number of permits on the server, each with an id and a lease, after which it becomes free by itself.

    Shared by all processes, also Java's with Redisson. The id (32 hex digits) is enough to release a permit, in any
    process. The semaphore must be made once, by `try_set_permits` or `set_permits`. Until then there are no permits.
    """

    __slots__ = ()

    _logic: PermitExpirableSemaphoreLogic

    async def acquire(self, lease_time: Duration | None = None, *, renew: bool = False) -> str:
        """Acquires a permit; waits as long as that takes. Returns its id.

        `lease_time` (seconds or a timedelta, at least 1 ms): the permit becomes free by itself after that time. None:
        it doesn't. With `renew=True` and no `lease_time` the lease is `lock_watchdog_timeout` seconds, and the watchdog
        renews it until the permit is released, so the permit of a process that has died becomes free. A renewed permit
        that is lost all the same is logged.

        Raises `ClosedError` if the client is closed, also while this waits, `NotSetError` if the semaphore must exist
        (`must_exist=True`) and doesn't, `ValueError` for a `lease_time` with `renew`, and redis-py's errors.
        """
        ids = await self._logic.acquire(1, permit_lease_of(lease_time, renew), None, renew)
        return ids[0]

    async def try_acquire(
        self, wait_time: Duration = 0, lease_time: Duration | None = None, *, renew: bool = False
    ) -> str | None:
        """As `acquire`, but waits at most `wait_time` (seconds or a timedelta; 0: tries once). None: not acquired."""
        deadline = deadline_of(wait_time, "wait_time")
        ids = await self._logic.acquire(1, permit_lease_of(lease_time, renew), deadline, renew)
        return ids[0] if ids else None

    async def acquire_many(self, permits: int, lease_time: Duration | None = None, *, renew: bool = False) -> list[str]:
        """As `acquire`, for so many permits, all at once. Returns their ids."""
        count = count_of(permits, "permits", MOST_AT_ONCE)
        return await self._logic.acquire(count, permit_lease_of(lease_time, renew), None, renew)

    async def try_acquire_many(
        self, permits: int, wait_time: Duration = 0, lease_time: Duration | None = None, *, renew: bool = False
    ) -> list[str]:
        """As `acquire_many`, but waits at most `wait_time` (seconds or a timedelta). An empty list: not acquired."""
        count = count_of(permits, "permits", MOST_AT_ONCE)
        deadline = deadline_of(wait_time, "wait_time")
        return await self._logic.acquire(count, permit_lease_of(lease_time, renew), deadline, renew)

    def permit(
        self, wait_time: Duration | None = None, lease_time: Duration | None = None, *, renew: bool = False
    ) -> Permit:
        """`async with semaphore.permit(...) as permit_id:` acquires a permit, and releases it at the end of the block.

        `wait_time` (seconds or a timedelta; None: no limit): entering raises `LockTimeoutError` if no permit was
        acquired by then. `lease_time` and `renew` as for `acquire`. The end of the block raises `PermitNotHeldError` if
        the permit has ended; an exception of the body gets that as a note. The object serves one block at a time.
        """
        return Permit(self, wait_of(wait_time, "wait_time"), permit_lease_of(lease_time, renew), renew)

    async def release(self, permits: str | Iterable[str]) -> None:
        """Releases a permit, by its id, or several.

        Raises `PermitNotHeldError` if one of them is unknown or has ended; then none of them is released. If it raises
        one of redis-py's errors, or is cancelled, any of them that exist are still released, in the background.
        """
        await release_permit_ids(self._logic, permits, must=True)

    @overload
    async def try_release(self, permits: str) -> bool: ...
    @overload
    async def try_release(self, permits: Iterable[str]) -> int: ...
    async def try_release(self, permits: str | Iterable[str]) -> bool | int:
        """As `release`, but instead of `PermitNotHeldError` it returns False; for several, how many: all or 0."""
        count = await release_permit_ids(self._logic, permits, must=False)
        return count > 0 if isinstance(permits, str) else count

    async def update_lease_time(self, permit: str, lease_time: Duration | None) -> bool:
        """Sets the lease of a permit to so much time from now (seconds or a timedelta; None: endless).

        A permit that was renewed isn't any more. False: the permit is unknown or has ended.
        """
        return await self._logic.update_lease(permit_id_of(permit), permit_lease_of(lease_time, False))

    async def get_lease_time(self, permit: str) -> float:
        """Seconds until a permit's lease ends, or `math.inf`. `PermitNotHeldError`: it is unknown or has ended."""
        remaining = await self._logic.lease_left(permit_id_of(permit))
        return math.inf if remaining == ENDLESS else remaining / 1000

    async def get_permits(self) -> int:
        """How many permits there are, free or in use."""
        free, used = await self._logic.counts()
        return 0 if free is None else free + used

    async def available_permits(self) -> int:
        """How many permits are free. Below zero after `set_permits`: so many must be released before one is free."""
        free, _ = await self._logic.counts()
        return free or 0

    async def acquired_permits(self) -> int:
        """How many permits are in use."""
        _, used = await self._logic.counts()
        return used

    async def try_set_permits(self, permits: int) -> bool:
        """Makes the semaphore with so many permits. False: there is one already, and nothing was changed."""
        return await self._logic.try_set(count_of(permits, "permits"))

    async def set_permits(self, permits: int) -> None:
        """Sets the number of permits, those in use included. Makes the semaphore if there is none."""
        await self._logic.set(count_of(permits, "permits"))

    async def add_permits(self, permits: int) -> None:
        """Adds so many free permits to the semaphore."""
        await self._logic.add(count_of(permits, "permits"))

    async def delete(self) -> bool:
        """Removes the semaphore and all permits in use. Waiters go on waiting. Returns whether there was one."""
        return await self._logic.delete()


class Permit(AnyPermit):
    """What `permit()` returns: an async context manager for one permit."""

    __slots__ = ()

    async def __aenter__(self) -> str:
        logic = self._semaphore._logic
        deadline = deadline_after(self._wait)
        if self._ids is not None:
            raise RuntimeError("one permit() object serves one block at a time")
        self._ids = []
        try:
            # No function is called between the acquire and this assignment: an interrupt there would lose the id.
            self._ids = await logic.acquire(1, self._lease, deadline, self._renew)
        finally:
            self._ids = self._ids or None
        if self._ids is None:
            raise permit_timeout_error(logic.key, self._wait)
        return self._ids[0]

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ids, self._ids = self._ids or [], None
        try:
            await release_permit_ids(self._semaphore._logic, ids, must=True)
        except Exception as failure:  # noqa: BLE001
            tell_failed_release(failure, error)


class CountDownLatch(Primitive):
    """A count on the server. Waiters go on when it has come down to zero; shared with Java's Redisson.

    A latch that was never set, or was deleted, is open: its count is zero.
    """

    __slots__ = ()

    _logic: CountDownLatchLogic

    def try_set_count(self, count: int) -> Coroutine[Any, Any, bool]:
        """Sets the count of an open latch. False: it isn't open, and nothing was set."""
        return self._logic.try_set(count_of(count, "count", MAX_COUNT))

    def count_down(self) -> Coroutine[Any, Any, None]:
        """Subtracts one from the count; at zero the waiters go on. An open latch stays open.

        If it raises a redis-py error, or is cancelled, it goes on as `Semaphore.release` does: don't call it again.
        """
        return self._logic.count_down()

    def get_count(self) -> Coroutine[Any, Any, int]:
        """The count; 0: the latch is open."""
        return self._logic.count()

    def wait(self, timeout: Duration | None = None) -> Coroutine[Any, Any, bool]:
        """Waits until the latch is open, but at most `timeout` (seconds or a timedelta; None: no limit). True: open.

        Raises `NotSetError` for a latch of `must_exist=True` if it has no count when the wait begins.
        """
        return self._logic.wait(deadline_of(timeout, "timeout"))

    def delete(self) -> Coroutine[Any, Any, bool]:
        """Removes the latch; all waiters go on. Returns whether there was one."""
        return self._logic.delete()
