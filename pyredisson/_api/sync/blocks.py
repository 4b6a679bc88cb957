"""`with` blocks of the thread world: which owner entered each, so that its exit may run on another thread."""

from __future__ import annotations

from typing import Any, Protocol

from pyredisson._api.arguments import attach
from pyredisson._backends.threads.callers import Callers
from pyredisson._diagnostics import warn_user
from pyredisson.logic.holds import Owner

LEFT_ELSEWHERE = (
    "{!r} was entered on one thread and left on another. It was released for the owner that had entered it; but as long"
    " as the owner is the thread, other work on that thread may enter the same lock again meanwhile. Give the work an"
    " owner of its own: get_lock(name, owner=pyredisson.new_owner())"
)


LEFT = object()
"""In place of a block's caller: an exit has taken the block."""


class Block:
    """One block that was entered by `with` and not left yet.

    The object that `with` was given keeps its blocks as a linked list, the latest first. It is changed by single
    assignments, without a call of a function between what they rest on and them: neither another thread nor a
    signal can come between.
    """

    __slots__ = ("caller", "outer", "owner")

    def __init__(self, owner: Any, caller: Owner | None) -> None:
        self.owner = owner
        """Who entered: an owner, or the owners of a group's members."""
        self.caller: object = caller
        """The owner itself, of a group that of one member; `LEFT`."""
        self.outer: Block | None = None


class Entered(Protocol):
    """What `with` was given: a lock, or what its `hold` returned."""

    _block: Block | None


class Handle(Protocol):
    """What blocks ask of a lock."""

    _callers: Callers
    _given: Owner | None

    @property
    def _logic(self) -> Any: ...
    def unlock(self) -> None: ...
    def _owned_by(self, owner: Any) -> Handle: ...


def leave_elsewhere(entered: Entered, lock: Handle, error: BaseException | None) -> None:
    """Releases the lock for the block that this exit belongs to, where that isn't the latest one.

    That is the latest one of the calling thread; if it has none here, the oldest one that holds the lock: of an
    exclusive lock, only the youngest owner's hold isn't lost.
    """
    caller = lock._given or lock._callers.local.owner
    while True:
        block = _own(entered, caller) or _oldest(entered, lock)
        if block is None:
            # None was entered through this object: as `unlock()`.
            elsewhere, releaser = False, lock
            break
        elsewhere = block.caller is not caller
        releaser = lock._owned_by(block.owner) if elsewhere else lock
        # No call of a function: two exits could take the same block.
        taken = block.caller
        block.caller = LEFT
        if taken is not LEFT:
            break
    try:
        releaser.unlock()
    except Exception as failure:
        if error is None:
            raise
        # The body's own exception is what the user must see.
        attach(error, failure)
    finally:
        _drop_left(entered)
    if elsewhere and lock._given is None and not lock._callers.left_elsewhere:
        lock._callers.left_elsewhere = True
        warn_user(LEFT_ELSEWHERE.format(lock))


def _own(entered: Entered, caller: Owner | None) -> Block | None:
    block = entered._block
    while block is not None and block.caller is not caller:
        block = block.outer
    return block


def _oldest(entered: Entered, lock: Handle) -> Block | None:
    oldest = holding = None
    block = entered._block
    while block is not None:
        if block.caller is not LEFT:
            oldest = block
            if lock._logic.hold_of(block.owner.id) is not None:
                holding = block
        block = block.outer
    return holding or oldest


def _drop_left(entered: Entered) -> None:
    """Takes off the list what exits have taken; each step is one assignment, as other threads change the list, too."""
    while (head := entered._block) is not None and head.caller is LEFT:
        # Only if it is still the first.
        if entered._block is head:
            entered._block = head.outer
    block = entered._block
    while block is not None:
        while block.outer is not None and block.outer.caller is LEFT:
            block.outer = block.outer.outer
        block = block.outer
