"""The thread world's semaphore: thin and typed over the logic."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyredisson._api.arguments import Name, attach, count_of, deadline_of
from pyredisson._backends.clock import clock
from pyredisson._backends.threads.operations import run
from pyredisson._core import Run
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.permits.semaphore import SemaphoreLogic


class Semaphore:
    """A number of permits on the server, shared with every process and with Java Redisson.

    Permits have no owners: anyone may give back what another took, and those of a process that dies don't
    come back. It has to be made once, by `try_set_permits`; until then there are no permits, which the log says once.
    """

    __slots__ = ("_logic", "_name")

    def __init__(self, logic: SemaphoreLogic, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._logic.key.decode() if self._name is None else self._name

    def try_set_permits(self, permits: int, ttl: Duration | None = None) -> bool:
        """Makes the semaphore with so many permits; False if there is one.

        `ttl` (seconds or a timedelta, at least 1 ms): it ends after that time. None: never.
        """
        ms = None if ttl is None else lease_ms(ttl, "ttl")
        return run(self._logic.try_set, count_of(permits, "permits"), ms)

    def acquire(self, permits: int = 1) -> None:
        """Takes so many permits, all at once, and waits for them as long as it takes.

        Who wants several is passed over by others for a second; then others leave it some, for 5 s at most in a row.
        Raises `NotSetError` if the semaphore must exist (`must_exist=True`) and doesn't, `ClosedError` when the client
        is closed meanwhile, and what Redis reports.
        """
        _ = Run(self._logic.acquire, count_of(permits, "permits"), None).result

    def try_acquire(self, permits: int = 1, wait_time: Duration = 0) -> bool:
        """As `acquire`, but waits no longer than `wait_time` seconds; False if not had in time."""
        deadline = deadline_of(wait_time, "wait_time", clock)
        return Run(self._logic.acquire, count_of(permits, "permits"), deadline).result

    def release(self, permits: int = 1) -> None:
        """Gives back so many permits; where there is no semaphore, makes one of them.

        When it raises what Redis reports, or is interrupted, it is still done, once, in the background, as soon as
        the server can be reached (ten minutes at most): don't call it again.
        """
        self._release(permits, only_existing=False)

    def release_if_exists(self, permits: int = 1) -> bool:
        """As `release`, but makes no semaphore; was there one."""
        return self._release(permits, only_existing=True)

    def _release(self, permits: int, *, only_existing: bool) -> bool:
        logic = self._logic
        slot: SessionSlot | None = None
        try:
            count = count_of(permits, "permits")
            slot = logic.session.slots.take()
            return Run(logic.release, count, only_existing, slot).result
        except Exception:
            # The logic has seen to it.
            raise
        except BaseException:
            # Interrupted, perhaps before it came to the logic: nobody else would give these back.
            logic.release_in_background(count_of(permits, "permits"), only_existing, slot)
            raise

    def available_permits(self) -> int:
        """How many permits are free; below zero after `reduce_permits`: so many must come back before one is."""
        return run(self._logic.available)

    def drain_permits(self) -> int:
        """Takes all permits that are free, and says how many."""
        return Run(self._logic.drain).result

    def add_permits(self, permits: int) -> None:
        """Makes the semaphore larger by so many permits, which are free."""
        run(self._logic.add, count_of(permits, "permits"))

    def reduce_permits(self, permits: int) -> None:
        """Makes the semaphore smaller by so many permits, also by such as are taken."""
        run(self._logic.add, -count_of(permits, "permits"))

    def delete(self) -> bool:
        """Removes the semaphore; was there one. Who waits goes on waiting."""
        return run(self._logic.delete)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._release(1, only_existing=False)
            return
        try:
            self._release(1, only_existing=False)
        except Exception as failure:  # noqa: BLE001
            # The body's own exception is what the user must see.
            attach(error, failure)

    def __repr__(self) -> str:
        return f"<pyredisson.Semaphore {readable(self._logic.key)!r}>"
