"""The asyncio world's lock: thin and typed over the logic."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Union

from redis.exceptions import RedisError

from pyredisson._api.arguments import (
    Name,
    attach,
    deadline_after,
    deadline_of,
    hold_shown,
    lease_of,
    lost_shown,
    timeout_of,
    wait_of,
)
from pyredisson._api.groups import Logic, Prover
from pyredisson._backends.aio.callers import Callers
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._backends.clock import clock
from pyredisson._core import HoldLevel
from pyredisson._diagnostics import logger, readable
from pyredisson._settings.durations import Duration
from pyredisson.errors import RedissonError
from pyredisson.logic.groups.group import GroupHold, GroupLogic
from pyredisson.logic.holds import LOST, Hold, Owner
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.owners import AnyOwner, id_of_owner

LostCallback = TypeVar("LostCallback", bound=Callable[..., object])
AnyLock = TypeVar("AnyLock", bound="Lock")
AnyLockable = TypeVar("AnyLockable", bound="Lockable")

Scopes = dict["Scope", None]
Entered = Union["Lockable", "Holding[Any]"]
"""What `async with` is given."""


class Lockable:
    """The type of everything that can be locked: locks of all kinds, sides of read-write locks, and groups of locks.

    For annotations and `isinstance`; locks are made by a client.
    """

    __slots__ = ("__weakref__", "_callers", "_given", "_logic", "_scopes")

    _callers: Callers
    _given: Owner | None
    """An explicit owner, of a group its first member's; None: the calling task."""
    _logic: Logic
    _scopes: Scopes | None
    """The blocks that were entered by `async with` on this very object and not left yet, oldest first."""

    def lock(self, lease_time: Duration | None = None) -> Coroutine[Any, Any, None]:
        """Waits as long as it takes.

        `lease_time` (seconds or a timedelta, at least 1 ms): the lock frees itself after that time. None: it
        is kept until released, its lease of `lock_watchdog_timeout` renewed for as long as the process lives.

        Raises `ClosedError` when the client is closed meanwhile, and what Redis reports.
        """
        taken: Coroutine[Any, Any, Any] = self._logic.acquire(self._owner(), lease_of(lease_time), None)
        return taken

    def try_lock(self, wait_time: Duration = 0, lease_time: Duration | None = None) -> Coroutine[Any, Any, bool]:
        """As `lock`, but waits no longer than `wait_time` seconds; False if not had in time."""
        deadline = deadline_of(wait_time, "wait_time", clock)
        return self._logic.acquire(self._owner(), lease_of(lease_time), deadline)

    def unlock(self) -> Coroutine[Any, Any, None]:
        """Gives back one hold.

        Raises `LockLostError` if it was lost meanwhile, `LockNotHeldError` if the calling task has none.
        """
        owner = self._owner()
        return self._logic.release(owner, self._logic.hold_of(owner.id))

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Coroutine[Any, Any, bool]:
        """`threading.Lock.acquire`, awaited: on the same state as `lock` and `try_lock`."""
        return self._logic.acquire(self._owner(), None, timeout_of(blocking, timeout, clock))

    def release(self) -> Coroutine[Any, Any, None]:
        """`threading.Lock.release`, awaited: as `unlock`."""
        return self.unlock()

    def hold(
        self,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        *,
        cancel_on_lost: bool = True,
    ) -> Holding[Self]:
        """`async with lock.hold(...)`: `LockTimeoutError` when not had in `wait_time` seconds (None: no limit).

        When the hold is lost its body is cancelled at that moment, and the block raises `LockLostError`;
        `cancel_on_lost=False` lets the body run on.
        """
        return Holding(self, wait_of(wait_time, "wait_time"), lease_of(lease_time), cancel_on_lost)

    async def __aenter__(self) -> Self:
        await Scope(self, self, self._logic.identity).enter(None, None, cancel_on_lost=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await leave(self, self, error)

    def on_lost(self, callback: LostCallback) -> LostCallback:
        """Has `callback(lock)` called, on a thread of the client's own, once for each hold of this lock that is lost.

        A coroutine function runs on the event loop that registered it. It stays registered, for every handle of this
        name, until `remove_on_lost` or the end of the client. Calls of one callback are made one after the other; a
        slow one delays no other callback (16 at the same time).
        """
        if not callable(callback):
            raise TypeError(f"on_lost needs a function, not {type(callback).__name__}")
        if asyncio.iscoroutinefunction(callback):
            loop = asyncio.get_running_loop()

            def schedule() -> None:
                asyncio.run_coroutine_threadsafe(callback(self), loop).result()

            self._logic.session.lost_callbacks.add(self._logic.identity, callback, schedule)
        else:
            self._logic.session.lost_callbacks.add(self._logic.identity, callback, lambda: callback(self))
        return callback

    def remove_on_lost(self, callback: Callable[..., object]) -> bool:
        """Removes what `on_lost` registered, through whichever handle of this name; was it registered.

        One registration for each call, the latest first. A call that is under way or due already still ends.
        """
        return self._logic.session.lost_callbacks.remove(self._logic.identity, callback)

    def _owner(self) -> Any:
        raise NotImplementedError


class Lock(Lockable):
    """A reentrant lock on the server, shared with every process and with Java Redisson; FIFO it is not.

    Its owner is the task that calls the method, also where another task is made to await the result
    (`asyncio.gather`, `asyncio.wait_for`). A lease lock can't exclude a holder that was paused beyond its
    lease: `lost` tells, and fencing tokens protect what must never see a late writer.
    """

    __slots__ = ("_name",)

    _logic: LockLogic

    def __init__(self, logic: LockLogic, callers: Callers, owner: Owner | None, name: Name | None) -> None:
        self._logic = logic
        self._callers = callers
        self._given = owner
        self._name = name
        self._scopes = None

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._logic.key.decode() if self._name is None else self._name

    async def force_unlock(self) -> bool:
        """Removes the lock whoever holds it, and wakes a waiter; was anything removed."""
        return await self._logic.force_release()

    async def delete(self) -> bool:
        """As `force_unlock`; also removes a fair lock's queue, whose living waiters stand in line again."""
        return await self._logic.delete()

    async def is_locked(self) -> bool:
        """Whether anyone holds it."""
        return await self._logic.is_locked()

    def is_held(self) -> Coroutine[Any, Any, bool]:
        """Whether the calling task holds it: the server says so and the lease hasn't ended by our clock."""
        return self.is_held_by(self._owner().id)

    is_held_by_current_thread = is_held

    async def is_held_by(self, owner_id: AnyOwner) -> bool:
        """Whether that owner holds it, through this client: what `get_lock` takes as `owner`, or any owner's id."""
        return await self._logic.hold_count(id_of_owner(owner_id)) > 0

    def get_hold_count(self) -> Coroutine[Any, Any, int]:
        """How many holds the calling task has; 0: none."""
        return self._logic.hold_count(self._owner().id)

    async def remain_time_to_live(self) -> float | None:
        """Seconds until the lock frees itself; None when it is free, `math.inf` when it never does."""
        return await self._logic.remain_time_to_live()

    async def locked(self) -> bool:
        """`threading.Lock.locked`, awaited: as `is_locked`."""
        return await self._logic.is_locked()

    @property
    def lost(self) -> Lost:
        """Tells whether the calling task's present hold is lost; may be given to other tasks."""
        return Lost(self._logic.hold_of(self._owner().id), self._logic.session.holds, self)

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.{type(self).__name__} {readable(self._logic.key)!r}>"

    def _owner(self) -> Owner:
        return self._given or self._callers.current()


class Holding(Generic[AnyLockable]):
    """What `hold` gives: a context manager for any task, and as often as it likes."""

    __slots__ = ("__weakref__", "_cancel_on_lost", "_lease", "_lock", "_scopes", "_wait")

    def __init__(self, lock: AnyLockable, wait: float | None, lease: int | None, cancel_on_lost: bool) -> None:
        self._scopes: Scopes | None = None
        self._lock = lock
        self._wait = wait
        self._lease = lease
        self._cancel_on_lost = cancel_on_lost

    async def __aenter__(self) -> AnyLockable:
        await Scope(self._lock, self).enter(self._wait, self._lease, cancel_on_lost=self._cancel_on_lost)
        return self._lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await leave(self._lock, self, error)

    def __repr__(self) -> str:
        return hold_shown(self, self._wait, self._lease)


class Scope:
    """One `async with` block around one hold: it ends its body when the hold is lost.

    It is known to the task that entered it, by the task's `blocks`, and to the object that `async with` was given,
    by its `_scopes`; it refers to that object weakly, so that its end can be noticed.
    """

    __slots__ = (
        "_callers",
        "_cancelled",
        "_cancelling",
        "_collected",
        "_entered",
        "_explicit",
        "_hold",
        "_logic",
        "_loop",
        "_task",
        "identity",
        "owner",
        "task",
    )

    def __init__(self, lock: Lockable, entered: Entered, place: object = None) -> None:
        """`identity` is that of the lock where any of its handles may run the exit in the same task."""
        self.identity = place
        self.owner = lock._owner()
        self._entered = weakref.ref(entered)
        self._explicit = lock._given is not None
        self._callers = lock._callers
        self._logic = lock._logic
        self._collected: weakref.finalize[Any, Any] | None = None
        self._cancelled = False
        self._cancelling = 0
        self._hold: Hold | None = None
        self.task: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        """Who is to be cancelled when the hold is lost."""

    def of(self, entered: Entered) -> bool:
        """Whether it was entered through that object."""
        return self._entered() is entered

    async def enter(self, wait: float | None, lease: int | None, *, cancel_on_lost: bool) -> None:
        """Takes the lock. Raises `LockTimeoutError` when it isn't had in `wait` seconds."""
        logic = self._logic
        self.task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        deadline = deadline_after(wait, clock)
        if not await logic.acquire(self.owner, lease, deadline):
            raise await logic.timed_out(self.owner, wait or 0.0)
        if cancel_on_lost:
            self._task = self.task
            self._cancelling = 0 if self._task is None else self._task.cancelling()
            self._hold = logic.hold_of(self.owner.id)
            if self._hold is not None:
                self._hold.listen(self._ended)
        self._callers.current_blocks().append(self)
        if (entered := self._entered()) is not None:
            if entered._scopes is None:
                entered._scopes = {}
            entered._scopes[self] = None

    async def leave(self, error: BaseException | None) -> None:
        """Gives the lock back, after a body that ended with `error`."""
        logic = self._logic
        task, self._task = self._task, None
        self._close()
        ours = False
        if self._cancelled and task is not None and task is asyncio.current_task():
            # As asyncio.timeout: the cancellation is ours alone if nobody else asked for one.
            ours = task.uncancel() <= self._cancelling
        try:
            await logic.release(self.owner, logic.hold_of(self.owner.id))
        except asyncio.CancelledError:
            if ours and self._hold is not None:
                # The body ended before it could be cancelled.
                raise logic.loss_of(self.owner, self._hold) from None
            raise
        except Exception as failure:
            if error is None or (ours and isinstance(error, asyncio.CancelledError)):
                raise
            # The body's own exception is what the user must see.
            attach(error, failure)

    def orphaned(self) -> None:
        """The task that entered has ended: nobody can leave the block once the object is gone that was entered."""
        # It may have the object in its result, which nobody could collect then.
        self.task = self._task = None
        if self._explicit:
            # Any task may release the lock in the name of that owner.
            return
        if (entered := self._entered()) is None:
            self._give_back()
        else:
            self._collected = weakref.finalize(entered, self._abandoned)
            self._collected.atexit = False

    def _close(self) -> None:
        if self._hold is not None:
            self._hold.unlisten(self._ended)
        if self._collected is not None:
            self._collected.detach()
        blocks = self._callers.blocks.get(self.task)
        if blocks is not None and self in blocks:
            blocks.remove(self)
        if (entered := self._entered()) is not None and entered._scopes is not None:
            entered._scopes.pop(self, None)

    def _abandoned(self) -> None:
        # The garbage collector may call from any thread, on any line.
        try:
            self._loop.call_soon_threadsafe(self._give_back)
        except RuntimeError:
            # That loop is closed: the client's threads do it.
            self._logic.session.run_callback(self._release_in_background)

    def _give_back(self) -> None:
        self._close()
        if self._logic.hold_of(self.owner.id) is not None:
            what = self._logic.named(self.owner)
            logger.warning("%s is released: the task that entered it has ended, and nobody can leave the block", what)
            self._logic.session.runtime.spawn(self._release)

    async def _release(self) -> None:
        try:
            await self._logic.release(self.owner, self._logic.hold_of(self.owner.id))
        except (RedissonError, RedisError) as error:
            logger.info("releasing a block that was abandoned: %s", error)

    def _release_in_background(self) -> None:
        self._close()
        logic, hold = self._logic, self._logic.hold_of(self.owner.id)
        if isinstance(logic, GroupLogic):
            logic.release_in_background(self.owner, hold)
        elif isinstance(logic, LockLogic) and hold is not None:
            logic.release_in_background(self.owner, hold, HoldLevel())

    def _ended(self, hold: Hold) -> None:
        task = self._task
        if hold.state is LOST and task is not None:
            loop = task.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            # False of a task that has ended: another one will leave the block.
            self._cancelled = self._task.cancel()


async def leave(lock: Lockable, entered: Entered, error: BaseException | None) -> None:
    """Leaves the block that this exit of `entered` belongs to, whichever task runs it.

    That is the calling task's latest one; if it has none here, the oldest one of another task that holds the lock:
    of an exclusive lock, only the youngest owner's hold isn't lost.
    """
    mine = lock._callers.blocks.get(asyncio.current_task(), ())
    scope = next((scope for scope in reversed(mine) if scope.of(entered)), None)
    if scope is None and entered is lock:
        place = lock._logic.identity
        scope = next((scope for scope in reversed(mine) if scope.identity == place), None)
    if scope is None and entered._scopes:
        others = list(entered._scopes)
        holding = (other for other in others if lock._logic.hold_of(other.owner.id) is not None)
        scope = next(holding, others[0])
    if scope is not None:
        await scope.leave(error)
        return
    try:
        await lock.unlock()
    except Exception as failure:
        if error is None:
            raise
        attach(error, failure)


class Lost:
    """Whether one hold is lost: once set, it stays so."""

    __slots__ = ("_hold", "_holds", "_lock")

    def __init__(self, hold: Hold | GroupHold | None, holds: Prover, lock: Lockable) -> None:
        self._hold = hold
        self._holds = holds
        self._lock = lock

    def is_set(self) -> bool:
        """Whether the hold can no longer be proven. Asks the clock, not the server. False without a hold."""
        return self._hold is not None and not self._holds.proven(self._hold) and self._hold.state is LOST

    def __repr__(self) -> str:
        return lost_shown(self)

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the hold is lost: True. False when the time (in seconds; None: no limit) is over first,
        or as soon as the hold was given back; without a hold, at once."""
        bound = wait_of(timeout, "timeout")
        hold = self._hold
        if hold is None:
            return False
        loop = asyncio.get_running_loop()
        over = AioWakeup()

        def ended(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(over.set)

        hold.listen(ended)
        try:
            await over.wait(bound)
        finally:
            hold.unlisten(ended)
        return self.is_set()
