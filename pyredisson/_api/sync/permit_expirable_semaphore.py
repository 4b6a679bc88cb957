"""The thread world's semaphore with expiring permits: thin and typed over the logic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import TracebackType
from typing import overload

from pyredisson._api.arguments import (
    Name,
    attach,
    count_of,
    deadline_of,
    id_of,
    ids_of,
    lease_of,
    lease_of_permits,
    permit_timeout,
    wait_of,
)
from pyredisson._backends.clock import clock
from pyredisson._backends.threads.operations import run
from pyredisson._core import Run
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration
from pyredisson.logic.permits.expirable_acquire import MOST_AT_ONCE
from pyredisson.logic.permits.permit_expirable_semaphore import (
    ENDLESS,
    PermitExpirableSemaphoreLogic,
)


class PermitExpirableSemaphore:
    """A number of permits on the server, each with an id of its own and a lease, after which it comes back by itself.

    Shared with every process and with Java Redisson. An id (32 hex digits) is all that it takes to give a permit
    back, in whichever process. The semaphore has to be made once, by `try_set_permits` or `set_permits`; until
    then there are no permits.
    """

    __slots__ = ("_logic", "_name")

    def __init__(self, logic: PermitExpirableSemaphoreLogic, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._logic.key.decode() if self._name is None else self._name

    def acquire(self, lease_time: Duration | None = None, *, renew: bool = False) -> str:
        """Waits for a permit as long as it takes; its id.

        `lease_time` (seconds or a timedelta, at least 1 ms): it comes back by itself after that time. None: never;
        or, with `renew=True`, when this process has ended: it is taken for `lock_watchdog_timeout` seconds, which
        the watchdog renews until it is given back. One that is lost all the same is logged.

        Raises `ClosedError` when the client is closed meanwhile, `NotSetError` if the semaphore must exist
        (`must_exist=True`) and doesn't, `ValueError` for a `lease_time` with `renew`, and what Redis reports.
        """
        return Run(self._logic.acquire, 1, lease_of_permits(lease_time, renew), None, renew).result[0]

    def try_acquire(
        self, wait_time: Duration = 0, lease_time: Duration | None = None, *, renew: bool = False
    ) -> str | None:
        """As `acquire`, but waits no longer than `wait_time` seconds; None if not had in time."""
        lease = lease_of_permits(lease_time, renew)
        deadline = deadline_of(wait_time, "wait_time", clock)
        ids = Run(self._logic.acquire, 1, lease, deadline, renew).result
        return ids[0] if ids else None

    def acquire_many(self, permits: int, lease_time: Duration | None = None, *, renew: bool = False) -> list[str]:
        """As `acquire`, for so many permits, all at once; their ids."""
        lease = lease_of_permits(lease_time, renew)
        return Run(self._logic.acquire, count_of(permits, "permits", MOST_AT_ONCE), lease, None, renew).result

    def try_acquire_many(
        self, permits: int, wait_time: Duration = 0, lease_time: Duration | None = None, *, renew: bool = False
    ) -> list[str]:
        """As `acquire_many`, but waits no longer than `wait_time` seconds; empty if not had in time."""
        count = count_of(permits, "permits", MOST_AT_ONCE)
        lease = lease_of_permits(lease_time, renew)
        deadline = deadline_of(wait_time, "wait_time", clock)
        return Run(self._logic.acquire, count, lease, deadline, renew).result

    def permit(
        self, wait_time: Duration | None = None, lease_time: Duration | None = None, *, renew: bool = False
    ) -> Permit:
        """`with semaphore.permit(...) as permit_id:` takes one permit, and releases it at the end of the block.

        `LockTimeoutError` if it isn't acquired in `wait_time` seconds (None: no limit); `lease_time` and `renew` as for
        `acquire`. Leaving the block raises `PermitNotHeldError` if the permit has ended meanwhile; an exception of the
        body gets that as a note. The object is for one block at a time.
        """
        return Permit(self, wait_of(wait_time, "wait_time"), lease_of_permits(lease_time, renew), renew)

    def release(self, permits: str | Iterable[str]) -> None:
        """Gives back a permit, by its id, or several.

        Raises `PermitNotHeldError` if one of them is unknown or has ended: then none is given back. When it raises
        what Redis reports, or is interrupted, what is there of them is still given back, in the background.
        """
        self._release(permits, must=True)

    @overload
    def try_release(self, permits: str) -> bool: ...
    @overload
    def try_release(self, permits: Iterable[str]) -> int: ...
    def try_release(self, permits: str | Iterable[str]) -> bool | int:
        """As `release`, but only says whether it was done; of several, how many were given back: all or 0."""
        count = self._release(permits, must=False)
        return count > 0 if isinstance(permits, str) else count

    def _release(self, permits: str | Iterable[str], *, must: bool) -> int:
        ids: list[bytes] | None = None
        try:
            ids = ids_of(permits)
            return Run(self._logic.release, ids, must).result
        except Exception:
            # The logic has seen to it.
            raise
        except BaseException:
            # Interrupted, perhaps before it came to the logic: nobody else would give these back.
            self._logic.release_in_background(ids_of(permits) if ids is None else ids)
            raise

    def update_lease_time(self, permit: str, lease_time: Duration | None) -> bool:
        """Has a permit last for so many seconds from now (None: for ever); False if it is unknown or has ended.

        One that was renewed isn't any more.
        """
        return run(self._logic.update_lease, id_of(permit), lease_of(lease_time))

    def get_lease_time(self, permit: str) -> float:
        """For how many seconds a permit lasts; `math.inf`: for ever.

        Raises `PermitNotHeldError` if it is unknown or has ended.
        """
        left = run(self._logic.lease_left, id_of(permit))
        return math.inf if left == ENDLESS else left / 1000

    def get_permits(self) -> int:
        """How many permits there are, free or in use."""
        free, used = run(self._logic.counts)
        return 0 if free is None else free + used

    def available_permits(self) -> int:
        """How many permits are free; below zero after `set_permits`: so many must come back before one is."""
        free, _ = run(self._logic.counts)
        return free or 0

    def acquired_permits(self) -> int:
        """How many permits are in use."""
        _, used = run(self._logic.counts)
        return used

    def try_set_permits(self, permits: int) -> bool:
        """Makes the semaphore with so many permits; False if there is one."""
        return run(self._logic.try_set, count_of(permits, "permits"))

    def set_permits(self, permits: int) -> None:
        """Has the semaphore, new or not, have so many permits, those in use included."""
        run(self._logic.set, count_of(permits, "permits"))

    def add_permits(self, permits: int) -> None:
        """Makes the semaphore larger by so many permits, which are free."""
        run(self._logic.add, count_of(permits, "permits"))

    def delete(self) -> bool:
        """Removes the semaphore with all permits in use; was there one. Who waits goes on waiting."""
        return run(self._logic.delete)

    def __repr__(self) -> str:
        return f"<pyredisson.PermitExpirableSemaphore {readable(self._logic.key)!r}>"


class Permit:
    """What `permit` gives: one permit as a context manager."""

    __slots__ = ("_entered", "_ids", "_lease", "_renew", "_semaphore", "_wait")

    def __init__(self, semaphore: PermitExpirableSemaphore, wait: float | None, lease: int | None, renew: bool) -> None:
        self._semaphore = semaphore
        self._wait = wait
        self._lease = lease
        self._renew = renew
        self._entered = False
        self._ids: list[str] = []

    def __enter__(self) -> str:
        logic = self._semaphore._logic
        deadline = None if self._wait is None else clock() + self._wait
        if self._entered:
            raise RuntimeError("one permit() object serves one block at a time")
        self._entered = True
        try:
            # Nothing is called between the server's answer and noting it: no signal can strike there.
            self._ids = Run(logic.acquire, 1, self._lease, deadline, self._renew).result
        except BaseException:
            self._entered = False
            raise
        if not self._ids:
            self._entered = False
            raise permit_timeout(logic.key, self._wait)
        return self._ids[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ids, self._ids, self._entered = self._ids, [], False
        try:
            self._semaphore._release(ids, must=True)
        except Exception as failure:
            if error is None:
                raise
            # The body's own exception is what the user must see.
            attach(error, failure)

    def __repr__(self) -> str:
        return f"<pyredisson.Permit of {self._semaphore!r}: {self._ids[0] if self._ids else 'not acquired'}>"
