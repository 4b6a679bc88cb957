"""`with` blocks: which owner entered each, so that another thread may leave it. Written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar, Union

from pyredisson._api.arguments import deadline_after, renewed_lease_of, wait_of
from pyredisson._api.holds import AnyHolding, Holdable, tell_failed_release
from pyredisson._backends.threads.callers import Callers
from pyredisson._core import Run
from pyredisson._diagnostics import warn_user
from pyredisson._settings.durations import Duration
from pyredisson.logic.owners import Owner

AnyEnterable = TypeVar("AnyEnterable", bound="Enterable")

Entered = Union["Enterable", "Holding[Any]"]
"""What `with` was applied to."""

LEFT_ON_ANOTHER_THREAD = (
    "{!r} was entered on one thread and left on another. It was released for the owner that had entered it; but as long"
    " as the owner is the thread, other work on that thread may enter the same lock again meanwhile. Give the work an"
    " owner of its own: get_lock(name, owner=pyredisson.new_owner())"
)

TAKEN = object()
"""Replaces the caller of a block when an exit has chosen the block."""


class Block:
    """One `with` block that was entered and not left yet.

    The object that `with` was applied to keeps its blocks as a linked list, latest first. The list is changed by single
    assignments, and no function is called between a check and the assignment that relies on it: after a call Python may
    raise a KeyboardInterrupt, or switch to another thread that changes the list.
    """

    __slots__ = ("caller", "outer", "owner")

    def __init__(self, owner: Any, caller: Owner | None) -> None:
        self.owner = owner
        """The owner that entered: an `Owner`, or the `GroupOwner` of a group."""
        self.caller: object = caller
        """That owner, or of a group the owner in its first member's client; or `TAKEN`."""
        self.outer: Block | None = None


class Enterable(Holdable):
    """What can be held for the time of a `with` block."""

    __slots__ = ()

    _blocks: Block | None
    """The latest block that was entered by `with` on this very object and not left yet."""
    _callers: Callers
    _with_owner: Callable[[Any], Enterable]
    """Makes a handle of the same lock for that owner, whichever thread uses it."""

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
        block = Block(owner, self._explicit_owner or self._callers.local.owner)
        _ = Run(self._logic.acquire, owner, None, None).result
        # No function is called from here on. An interrupt after a call would leave a hold without a block, and another
        # thread could change the list between the two assignments.
        block.outer = self._blocks
        self._blocks = block
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # In the usual case no function is called before `unlock`, where an interrupt releases the hold all the same.
        block = self._blocks
        if block is not None and block.caller is (self._explicit_owner or self._callers.local.owner):
            self._blocks = block.outer
        elif block is not None:
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

    _blocks: Block | None

    def __enter__(self) -> AnyEnterable:
        lock = self._lock
        owner = lock._owner()
        block = Block(owner, lock._explicit_owner or lock._callers.local.owner)
        deadline = deadline_after(self._wait)
        if not Run(lock._logic.acquire, owner, self._lease, deadline).result:
            raise Run(lock._logic.timed_out, owner, self._wait or 0.0).result
        # No function is called from here on, as in `Enterable.__enter__`.
        block.outer = self._blocks
        self._blocks = block
        return lock

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # The same steps as in `Enterable.__exit__`. A function for both would be one more call that an interrupt can
        # strike at before the release.
        block, lock = self._blocks, self._lock
        if block is not None and block.caller is (lock._explicit_owner or lock._callers.local.owner):
            self._blocks = block.outer
        elif block is not None:
            leave_elsewhere(self, lock, error)
            return
        try:
            lock.unlock()
        except Exception as failure:  # noqa: BLE001
            tell_failed_release(failure, error)


def leave_elsewhere(entered: Entered, lock: Enterable, error: BaseException | None) -> None:
    """Releases the lock for the block to which this exit belongs, if that isn't the latest block of `entered`.

    It is the latest block of the calling thread. If the thread has no block here, it is the oldest block whose owner
    has a hold of the lock. (Of an exclusive lock, all holds but the latest owner's are lost.)
    """
    caller = lock._explicit_owner or lock._callers.local.owner
    while True:
        latest = next((block for block in _blocks_of(entered) if block.caller is caller), None)
        block = latest or _oldest_with_hold(entered, lock)
        if block is None:
            # No block was entered through this object, so this is the same as `unlock()`.
            elsewhere, releaser = False, lock
            break
        elsewhere = block.caller is not caller
        releaser = lock._with_owner(block.owner) if elsewhere else lock
        # No function is called between these two lines: two exits could choose the same block.
        caller_before = block.caller
        block.caller = TAKEN
        if caller_before is not TAKEN:
            break
    try:
        releaser.unlock()
    except Exception as failure:  # noqa: BLE001
        tell_failed_release(failure, error)
    finally:
        _remove_taken(entered)
    if elsewhere and lock._explicit_owner is None and not lock._callers.warned_of_exit:
        lock._callers.warned_of_exit = True
        warn_user(LEFT_ON_ANOTHER_THREAD.format(lock))


def _blocks_of(entered: Entered) -> Iterator[Block]:
    block = entered._blocks
    while block is not None:
        yield block
        block = block.outer


def _oldest_with_hold(entered: Entered, lock: Enterable) -> Block | None:
    """The oldest block whose owner has a hold; if there is none, the oldest block."""
    oldest = holding = None
    for block in _blocks_of(entered):
        if block.caller is not TAKEN:
            oldest = block
            if lock._logic.hold_of(block.owner.id) is not None:
                holding = block
    return holding or oldest


def _remove_taken(entered: Entered) -> None:
    """Removes the blocks that exits have chosen; by single assignments, as other threads change the list, too."""
    while (head := entered._blocks) is not None and head.caller is TAKEN:
        # Another thread may have added a block since.
        if entered._blocks is head:
            entered._blocks = head.outer
    for block in _blocks_of(entered):
        while block.outer is not None and block.outer.caller is TAKEN:
            block.outer = block.outer.outer
