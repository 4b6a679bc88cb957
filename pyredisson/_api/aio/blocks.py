"""`async with` blocks. Each is a `Scope`: the body's task is cancelled when the hold is lost. Written by hand."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar, Union

from redis.exceptions import RedisError

from pyredisson._api.arguments import deadline_after, renewed_lease_of, wait_of
from pyredisson._api.holds import AnyHolding, Holdable, release_left, tell_failed_release
from pyredisson._backends.aio.callers import Callers
from pyredisson._backends.aio.operations import call_in
from pyredisson._diagnostics import logger
from pyredisson._settings.durations import Duration
from pyredisson.errors import RedissonError
from pyredisson.logic.groups.group import GroupLogic
from pyredisson.logic.holds import LOST, Hold

AnyEnterable = TypeVar("AnyEnterable", bound="Enterable")

Entered = Union["Enterable", "Holding[Any]"]
"""What `async with` was applied to."""


class Enterable(Holdable):
    """What can be held for the time of an `async with` block."""

    __slots__ = ()

    _new_blocks = dict
    _blocks: dict[Scope, None]
    """The blocks that were entered by `async with` on this very object and not left yet, oldest first."""
    _callers: Callers

    async def unlock(self) -> None:
        """Releases one hold."""
        raise NotImplementedError

    def hold(
        self,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        *,
        at_most: Duration | None = None,
        cancel_on_lost: bool = True,
    ) -> Holding[Self]:
        """`async with lock.hold(...)`: the block holds the lock. It may be entered again and again, by any task.

        `wait_time` (seconds or a timedelta; None: no limit): entering raises `LockTimeoutError` if the lock wasn't
        acquired by then. `lease_time` and `at_most` as for `lock`.

        When the hold is lost, the body is cancelled at that moment, and the block raises `LockLostError`; with
        `cancel_on_lost=False` the body runs on, and only the end of the block raises.
        """
        lease = renewed_lease_of(self._logic.renewed_ms, lease_time, at_most)
        return Holding(self, wait_of(wait_time, "wait_time"), lease, cancel_on_lost)

    async def __aenter__(self) -> Self:
        await Scope(self, self, self._logic.identity).enter(None, None, cancel_on_lost=True)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await leave(self, self, error)

    def _notification(self, callback: Callable[..., object]) -> Callable[[], object]:
        """`RuntimeError` for a coroutine function without an event loop."""
        if not inspect.iscoroutinefunction(callback):
            return lambda: callback(self)
        loop = asyncio.get_running_loop()

        def run_on_loop() -> None:
            # The thread waits for the result: calls of one callback are made one after the other.
            asyncio.run_coroutine_threadsafe(callback(self), loop).result()

        return run_on_loop


class Holding(AnyHolding[AnyEnterable]):
    """What `hold()` returns: an async context manager, for any task and any number of blocks."""

    __slots__ = ("__weakref__", "_cancel_on_lost")

    _blocks: dict[Scope, None]

    def __init__(self, lock: AnyEnterable, wait: float | None, lease: int | None, cancel_on_lost: bool) -> None:
        super().__init__(lock, wait, lease)
        self._cancel_on_lost = cancel_on_lost

    async def __aenter__(self) -> AnyEnterable:
        await Scope(self._lock, self).enter(self._wait, self._lease, cancel_on_lost=self._cancel_on_lost)
        return self._lock

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await leave(self._lock, self, error)


class Scope:
    """One `async with` block and its hold.

    Two places refer to it: the list of blocks of the task that entered (`Callers.blocks`), and `_blocks` of the object
    that `async with` was applied to. It refers to that object weakly: once the task has ended and the object is
    collected, no code can leave the block any more, and the scope releases the hold itself.
    """

    def __init__(self, lock: Enterable, entered: Entered, identity: object = None) -> None:
        """`identity`: the lock's, if any handle of it may run the block's exit in the same task; else None."""
        self.identity = identity
        self.owner = lock._owner()
        self.entering_task: asyncio.Task[Any] | None = None
        self.entered = weakref.ref(entered)
        self._has_explicit_owner = lock._explicit_owner is not None
        self._callers = lock._callers
        self._logic = lock._logic
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._hold: Any = None
        self._task_to_cancel: asyncio.Task[Any] | None = None
        """The task to cancel when the hold is lost; None: no task."""
        self._cancelled = False
        """Whether this scope has cancelled the task."""
        self._cancel_requests_before = 0
        """The task's number of cancellation requests when it entered."""

    async def enter(self, wait: float | None, lease: int | None, *, cancel_on_lost: bool) -> None:
        """Acquires the lock. Raises `LockTimeoutError` if that took longer than `wait` seconds."""
        logic = self._logic
        deadline = deadline_after(wait)
        if not await logic.acquire(self.owner, lease, deadline):
            raise await logic.timed_out(self.owner, wait or 0.0)
        self.begin(cancel_on_lost=cancel_on_lost)

    def begin(self, *, cancel_on_lost: bool) -> None:
        """The lock is acquired: the body begins, in this task."""
        task = self.entering_task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if cancel_on_lost:
            self._task_to_cancel = task
            self._cancel_requests_before = 0 if task is None else task.cancelling()
            self._hold = self._present_hold()
            if self._hold is not None:
                self._hold.listen(self._hold_ended)
        self._callers.current_blocks().append(self)
        if (entered := self.entered()) is not None:
            entered._blocks[self] = None

    async def leave(self, error: BaseException | None) -> None:
        """Releases the lock, after a body that ended with `error`."""
        logic = self._logic
        task, self._task_to_cancel = self._task_to_cancel, None
        self._forget()
        only_ours = False
        if self._cancelled and task is not None and task is asyncio.current_task():
            # The rule of asyncio.timeout(): the cancellation ends here only if no other code has requested one.
            task.uncancel()
            only_ours = self._is_not_cancelled(task)
        try:
            await logic.release(self.owner, self._present_hold())
        except asyncio.CancelledError:
            if only_ours and self._hold is not None and self._is_not_cancelled(task):
                # The body ended before the cancellation was delivered, so it was delivered at the `await` above.
                raise logic.loss_of(self.owner, self._hold) from None
            raise
        except Exception as failure:  # noqa: BLE001
            is_ours = only_ours and isinstance(error, asyncio.CancelledError)
            tell_failed_release(failure, None if is_ours else error)

    def _present_hold(self) -> Any:
        return self._logic.hold_of(self.owner.id)

    def _is_not_cancelled(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether no other code has requested a cancellation of the task since it entered."""
        return task is not None and task.cancelling() <= self._cancel_requests_before

    def orphaned(self) -> None:
        """Called when the task that entered has ended. Another task may still leave, through the entered object."""
        # The task's result may be the entered object. If the scope kept the task, the object would never be collected.
        self.entering_task = self._task_to_cancel = None
        if self._has_explicit_owner:
            # Any task may release the lock in the name of that owner.
            return
        if (entered := self.entered()) is None:
            self._release_abandoned()
        else:
            self._finalizer = weakref.finalize(entered, self._entered_was_collected)
            self._finalizer.atexit = False

    def _forget(self) -> None:
        """Removes the scope from wherever it is registered."""
        if self._hold is not None:
            self._hold.unlisten(self._hold_ended)
        if self._finalizer is not None:
            self._finalizer.detach()
        blocks = self._callers.blocks.get(self.entering_task)
        if blocks is not None and self in blocks:
            blocks.remove(self)
        if (entered := self.entered()) is not None:
            entered._blocks.pop(self, None)

    def _entered_was_collected(self) -> None:
        # The garbage collector may call this on any thread, on any line, so the event loop does the work.
        try:
            self._loop.call_soon_threadsafe(self._release_abandoned)
        except RuntimeError:
            # That event loop is closed. The client's threads do the work.
            self._logic.session.run_callback(self._release_in_background)

    def _release_abandoned(self) -> None:
        self._forget()
        if self._present_hold() is not None:
            what = self._logic.named(self.owner)
            logger.warning("%s is released: the task that entered it has ended, and nobody can leave the block", what)
            self._logic.session.runtime.spawn(self._release)

    async def _release(self) -> None:
        try:
            await self._logic.release(self.owner, self._present_hold())
        except (RedissonError, RedisError) as error:
            logger.info("a block whose task has ended could not be released: %s", error)

    def _release_in_background(self) -> None:
        self._forget()
        if isinstance(self._logic, GroupLogic):
            self._logic.release_in_background(self.owner, self._present_hold())
        else:
            release_left(self._logic, self.owner)

    def _hold_ended(self, hold: Hold) -> None:
        if hold.state is LOST and (task := self._task_to_cancel) is not None:
            call_in(task.get_loop(), self._cancel)

    def _cancel(self) -> None:
        if self._task_to_cancel is not None and not self._cancelled:
            # `cancel` returns False for a task that has ended. Another task will leave the block then.
            self._cancelled = self._task_to_cancel.cancel()


async def leave(lock: Enterable, entered: Entered, error: BaseException | None) -> None:
    """Leaves the block to which this exit of `entered` belongs, whichever task runs the exit.

    This is the latest block of the calling task. If the task has no block here, it is the oldest block whose owner has
    a hold of the lock. (Of an exclusive lock, all holds but the latest owner's are lost.)
    """
    blocks_of_task = lock._callers.blocks.get(asyncio.current_task(), ())
    scope = next((scope for scope in reversed(blocks_of_task) if scope.entered() is entered), None)
    if scope is None and entered is lock:
        identity = lock._logic.identity
        scope = next((scope for scope in reversed(blocks_of_task) if scope.identity == identity), None)
    if scope is None and (others := list(entered._blocks)):
        holding = (other for other in others if lock._logic.hold_of(other.owner.id) is not None)
        scope = next(holding, others[0])
    if scope is not None:
        await scope.leave(error)
        return
    try:
        await lock.unlock()
    except Exception as failure:  # noqa: BLE001
        tell_failed_release(failure, error)
