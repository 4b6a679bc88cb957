"""The semaphore for asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from pyredisson._api.aio.releases import release_permits
from pyredisson._api.arguments import Name, add_release_failure, count_of, deadline_of
from pyredisson._backends.aio.operations import discard_result
from pyredisson._backends.clock import clock
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson.logic.permits.semaphore import SemaphoreLogic


class Semaphore:
    """A number of permits on the server, shared by all processes, also Java's with Redisson.

    As in Redisson, permits have no owners: one owner may release what another one acquired, and the permits of a
    process that dies are lost. The semaphore must be made once, by `try_set_permits`. Until then there are no permits,
    which is logged once.
    """

    __slots__ = ("__weakref__", "_logic", "_name")

    def __init__(self, logic: SemaphoreLogic, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """The name as the client's method got it."""
        return self._logic.key.decode() if self._name is None else self._name

    def try_set_permits(self, permits: int, ttl: Duration | None = None) -> Coroutine[Any, Any, bool]:
        """Makes the semaphore with so many permits. False: there is one already, and nothing was changed.

        `ttl` (seconds or a timedelta, at least 1 ms): the server removes it after that time. None: never.
        """
        ms = None if ttl is None else lease_ms(ttl, "ttl")
        return self._logic.try_set(count_of(permits, "permits"), ms)

    def acquire(self, permits: int = 1) -> Coroutine[Any, Any, None]:
        """Acquires so many permits, all at once; waits as long as that takes.

        Others may overtake a waiter for several permits for a second. Then acquires of this library leave permits to
        it, for 5 seconds in a row at most.

        Raises `NotSetError` if the semaphore must exist (`must_exist=True`) and doesn't, `ClosedError` if the client is
        closed, also while this waits, and redis-py's errors for what the server or the network reports.
        """
        return discard_result(self._logic.acquire, count_of(permits, "permits"), None)

    def try_acquire(self, permits: int = 1, wait_time: Duration = 0) -> Coroutine[Any, Any, bool]:
        """As `acquire`, but waits at most `wait_time` (seconds or a timedelta; 0: tries once). True: acquired."""
        deadline = deadline_of(wait_time, "wait_time", clock)
        return self._logic.acquire(count_of(permits, "permits"), deadline)

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await release_permits(self._logic, 1, only_existing=False)
        except Exception as failure:
            if error is None:
                raise
            # The user must see the body's own exception.
            add_release_failure(error, failure)

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.Semaphore {readable(self._logic.key)!r}>"
