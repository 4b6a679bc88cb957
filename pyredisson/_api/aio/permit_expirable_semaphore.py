"""The semaphore whose permits have ids and leases, for asyncio."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import TracebackType
from typing import overload

from pyredisson._api.aio.releases import release_permit_ids
from pyredisson._api.arguments import (
    Name,
    add_release_failure,
    count_of,
    deadline_of,
    lease_of,
    lease_of_permits,
    permit_id_of,
    permit_timeout_error,
    wait_of,
)
from pyredisson._backends.clock import clock
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration
from pyredisson.logic.permits.permit_commands import ENDLESS, MOST_AT_ONCE
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic


class PermitExpirableSemaphore:
    """A number of permits on the server, each with an id and a lease, after which it becomes free by itself.

    Shared by all processes, also Java's with Redisson. The id (32 hex digits) is enough to release a permit, in any
    process. The semaphore must be made once, by `try_set_permits` or `set_permits`. Until then there are no permits.
    """

    __slots__ = ("__weakref__", "_logic", "_name")

    def __init__(self, logic: PermitExpirableSemaphoreLogic, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """The name as the client's method got it."""
        return self._logic.key.decode() if self._name is None else self._name

    async def acquire(self, lease_time: Duration | None = None, *, renew: bool = False) -> str:
        """Acquires a permit; waits as long as that takes. Returns its id.

        `lease_time` (seconds or a timedelta, at least 1 ms): the permit becomes free by itself after that time. None:
        it doesn't. With `renew=True` and no `lease_time` the lease is `lock_watchdog_timeout` seconds, and the watchdog
        renews it until the permit is released, so the permit of a process that has died becomes free. A renewed permit
        that is lost all the same is logged.

        Raises `ClosedError` if the client is closed, also while this waits, `NotSetError` if the semaphore must exist
        (`must_exist=True`) and doesn't, `ValueError` for a `lease_time` with `renew`, and redis-py's errors for what
        the server or the network reports.
        """
        lease = lease_of_permits(lease_time, renew)
        ids = await self._logic.acquire(1, lease, None, renew)
        return ids[0]

    async def try_acquire(
        self, wait_time: Duration = 0, lease_time: Duration | None = None, *, renew: bool = False
    ) -> str | None:
        """As `acquire`, but waits at most `wait_time` (seconds or a timedelta; 0: tries once). None: not acquired."""
        lease = lease_of_permits(lease_time, renew)
        deadline = deadline_of(wait_time, "wait_time", clock)
        ids = await self._logic.acquire(1, lease, deadline, renew)
        return ids[0] if ids else None

    async def acquire_many(self, permits: int, lease_time: Duration | None = None, *, renew: bool = False) -> list[str]:
        """As `acquire`, for so many permits, all at once. Returns their ids."""
        lease = lease_of_permits(lease_time, renew)
        count = count_of(permits, "permits", MOST_AT_ONCE)
        return await self._logic.acquire(count, lease, None, renew)

    async def try_acquire_many(
        self, permits: int, wait_time: Duration = 0, lease_time: Duration | None = None, *, renew: bool = False
    ) -> list[str]:
        """As `acquire_many`, but waits at most `wait_time` (seconds or a timedelta). An empty list: not acquired."""
        count = count_of(permits, "permits", MOST_AT_ONCE)
        lease = lease_of_permits(lease_time, renew)
        deadline = deadline_of(wait_time, "wait_time", clock)
        return await self._logic.acquire(count, lease, deadline, renew)

    def permit(
        self, wait_time: Duration | None = None, lease_time: Duration | None = None, *, renew: bool = False
    ) -> Permit:
        """`async with semaphore.permit(...) as permit_id:` acquires a permit, and releases it at the end of the block.

        `wait_time` (seconds or a timedelta; None: no limit): entering raises `LockTimeoutError` if no permit was
        acquired by then. `lease_time` and `renew` as for `acquire`. The end of the block raises `PermitNotHeldError` if
        the permit has ended meanwhile; an exception of the body gets that as a note instead. The object serves one
        block at a time.
        """
        return Permit(self, wait_of(wait_time, "wait_time"), lease_of_permits(lease_time, renew), renew)

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
        """As `release`, but doesn't raise `PermitNotHeldError`.

        Returns for an id whether it was released, for several ids how many were: all or 0.
        """
        count = await release_permit_ids(self._logic, permits, must=False)
        return count > 0 if isinstance(permits, str) else count

    async def update_lease_time(self, permit: str, lease_time: Duration | None) -> bool:
        """Sets the lease of a permit to so much time from now (seconds or a timedelta; None: endless).

        A permit that was renewed isn't any more. False: the permit is unknown or has ended.
        """
        return await self._logic.update_lease(permit_id_of(permit), lease_of(lease_time))

    async def get_lease_time(self, permit: str) -> float:
        """Seconds until a permit's lease is over; `math.inf`: it is endless.

        Raises `PermitNotHeldError` if the permit is unknown or has ended.
        """
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

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.PermitExpirableSemaphore {readable(self._logic.key)!r}>"


class Permit:
    """What `permit()` returns: an async context manager for one permit."""

    __slots__ = ("_entered", "_ids", "_lease", "_renew", "_semaphore", "_wait")

    def __init__(self, semaphore: PermitExpirableSemaphore, wait: float | None, lease: int | None, renew: bool) -> None:
        self._semaphore = semaphore
        self._wait = wait
        self._lease = lease
        self._renew = renew
        self._entered = False
        self._ids: list[str] = []

    async def __aenter__(self) -> str:
        logic = self._semaphore._logic
        deadline = None if self._wait is None else clock() + self._wait
        if self._entered:
            raise RuntimeError("one permit() object serves one block at a time")
        self._entered = True
        try:
            # No function is called between the acquire and this assignment: an interrupt there would lose the id.
            self._ids = await logic.acquire(1, self._lease, deadline, self._renew)
        except BaseException:
            self._entered = False
            raise
        if not self._ids:
            self._entered = False
            raise permit_timeout_error(logic.key, self._wait)
        return self._ids[0]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ids, self._ids, self._entered = self._ids, [], False
        try:
            await release_permit_ids(self._semaphore._logic, ids, must=True)
        except Exception as failure:
            if error is None:
                raise
            # The user must see the body's own exception.
            add_release_failure(error, failure)

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.Permit of {self._semaphore!r}: {self._ids[0] if self._ids else 'not acquired'}>"
