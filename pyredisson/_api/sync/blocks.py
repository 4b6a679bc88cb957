"""`with` blocks: which owner entered each, so that another thread may leave it. Written by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self, TypeVar, Union

from pyredisson._api.arguments import deadline_after, renewed_lease_of, wait_of
from pyredisson._api.holds import AnyHolding, Holdable, tell_failed_release
from pyredisson._backends.threads.callers import Callers
from pyredisson._core import Blocks, Run
from pyredisson._diagnostics import warn_user
from pyredisson._settings.durations import Duration

AnyEnterable = TypeVar("AnyEnterable", bound="Enterable")

Entered = Union["Enterable", "Holding[Any]"]
"""What `with` was applied to."""

LEFT_ON_ANOTHER_THREAD = (
    "{!r} was entered on one thread and left on another. It was released for the owner that had entered it; but as long"
    " as the owner is the thread, other work on that thread may enter the same lock again meanwhile. Give the work an"
    " owner of its own: get_lock(name, owner=pyredisson.new_owner())"
)


class Enterable(Holdable):
    """What can be held for the time of a `with` block."""

    __slots__ = ()

    _new_blocks = Blocks
    _blocks: Blocks
    """The blocks that were entered by `with` on this very object and not left yet."""
    _callers: Callers

    def unlock(self) -> None:
        """Releases one hold."""
        raise NotImplementedError

    def hold(
        self, wait_time: Duration | None = None, lease_time: Duration | None = None, *, at_most: Duration | None = None
    ) -> Holding[Self]:
        """`with lock.hold(...)`: the block holds the lock. It may be entered again and again, by any thread.

        `wait_time` (seconds or a timedelta; None: no limit): entering raises `LockTimeoutError` if the lock wasn't
        acquired by then. `lease_time` and `at_most` as for `lock`.

        When the hold is lost, the end of the block raises `LockLostError`; `lost` reports it earlier.
        """
        lease = renewed_lease_of(self._logic.renewed_ms, lease_time, at_most)
        return Holding(self, wait_of(wait_time, "wait_time"), lease)

    def __enter__(self) -> Self:
        owner = self._owner()
        # Of a group: the owner in its first member's client.
        caller = self._explicit_owner or self._callers.local.owner
        _ = Run(self._logic.acquire, owner, None, None).result
        # No function is called from here on: an interrupt after a call would leave a hold without a block.
        self._blocks[caller] = owner
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # In the usual case no function is called before `unlock`, where an interrupt releases the hold all the same.
        if self._blocks[self._explicit_owner or self._callers.local.owner] is None:
            leave_elsewhere(self, self, error)
            return
        try:
            self.unlock()
        except Exception as failure:  # noqa: BLE001
            tell_failed_release(failure, error)

    def _notification(self, callback: Callable[..., object]) -> Callable[[], object]:
        return lambda: callback(self)


class Holding(AnyHolding[AnyEnterable]):
    """What `hold()` returns: a context manager, for any thread and any number of blocks."""

    __slots__ = ()

    _blocks: Blocks

    def __enter__(self) -> AnyEnterable:
        lock = self._lock
        owner = lock._owner()
        caller = lock._explicit_owner or lock._callers.local.owner
        deadline = deadline_after(self._wait)
        if not Run(lock._logic.acquire, owner, self._lease, deadline).result:
            raise Run(lock._logic.timed_out, owner, self._wait or 0.0).result
        # No function is called from here on, as in `Enterable.__enter__`.
        self._blocks[caller] = owner
        return lock

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # The same steps as in `Enterable.__exit__`. A function for both would be one more call that an interrupt can
        # strike at before the release.
        lock = self._lock
        if self._blocks[lock._explicit_owner or lock._callers.local.owner] is None:
            leave_elsewhere(self, lock, error)
            return
        try:
            lock.unlock()
        except Exception as failure:  # noqa: BLE001
            tell_failed_release(failure, error)


def leave_elsewhere(entered: Entered, lock: Enterable, error: BaseException | None) -> None:
    """Leaves the block to which this exit belongs, on a thread that has no block here.

    It is the oldest block whose owner has a hold of the lock; if there is none, the oldest block. (Of an exclusive
    lock, all holds but the latest owner's are lost.) If no block was entered here, this is the same as `unlock()`.
    """
    while blocks := list(entered._blocks):
        caller, owner = next((block for block in blocks if lock._logic.hold_of(block[1].id) is not None), blocks[0])
        # A handle of the same lock for that owner, whichever thread uses it.
        releaser = copy.copy(lock)
        releaser._explicit_owner = owner
        # Another exit may have chosen the same block. After this line no function is called before the release.
        if entered._blocks[caller] is not None:
            elsewhere = lock._explicit_owner is None
            break
    else:
        elsewhere, releaser = False, lock
    try:
        releaser.unlock()
    except Exception as failure:  # noqa: BLE001
        tell_failed_release(failure, error)
    if elsewhere and not lock._callers.warned_of_exit:
        lock._callers.warned_of_exit = True
        warn_user(LEFT_ON_ANOTHER_THREAD.format(lock))
