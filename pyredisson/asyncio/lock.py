"""The asyncio world's lock: thin and typed over the logic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pyredisson.aio import Callers
from pyredisson.durations import Duration
from pyredisson.errors import LockLostError, LockTimeoutError
from pyredisson.faces import Name, attach, deadline_of, known_owner, lease_of, timeout_of, wait_of
from pyredisson.groups import Logic, Prover
from pyredisson.logic.group import GroupHold
from pyredisson.logic.holds import LOST, Hold, Owner, shown
from pyredisson.logic.lock import LockLogic
from pyredisson.signals import AioSignal
from pyredisson.threads import clock

LostCallback = TypeVar("LostCallback", bound=Callable[..., object])
AnyLock = TypeVar("AnyLock", bound="Lock")
AnyLockable = TypeVar("AnyLockable", bound="Lockable")


class Lockable:
    """What can be locked: a lock, or a group of locks."""

    __slots__ = ()

    _callers: Callers
    _logic: Logic

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
        await self._enter(self._logic.place, None, None, cancel_on_lost=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave(self._logic.place, error)

    def on_lost(self, callback: LostCallback) -> LostCallback:
        """Has `callback(lock)` called, on a thread of its own, once for each hold of this lock that is lost.

        A coroutine function runs on the event loop that registered it. It stays registered, for every
        handle of this name, as long as the client lives.
        """
        if not callable(callback):
            raise TypeError(f"on_lost needs a function, not {type(callback).__name__}")
        if asyncio.iscoroutinefunction(callback):
            loop = asyncio.get_running_loop()

            def schedule() -> None:
                asyncio.run_coroutine_threadsafe(callback(self), loop).result()

            self._logic.shared.on_lost(self._logic.place, schedule)
        else:
            self._logic.shared.on_lost(self._logic.place, lambda: callback(self))
        return callback

    def _owner(self) -> Any:
        raise NotImplementedError

    async def _enter(self, block: object, wait: float | None, lease: int | None, *, cancel_on_lost: bool) -> None:
        scope = Scope(self, block)
        await scope.enter(wait, lease, cancel_on_lost=cancel_on_lost)
        self._callers.current_blocks().append(scope)

    async def _leave(self, block: object, error: BaseException | None) -> None:
        scopes = self._callers.current_blocks()
        for i in reversed(range(len(scopes))):
            if scopes[i].block == block:
                await scopes.pop(i).leave(error)
                return
        # Entered by another task, in the name of an explicit owner.
        await self.unlock()


class Lock(Lockable):
    """A reentrant lock on the server, shared with every process and with Java Redisson; FIFO it is not.

    Its owner is the task that calls the method, also where another task is made to await the result
    (`asyncio.gather`, `asyncio.wait_for`). A lease lock can't exclude a holder that was paused beyond its
    lease: `lost` tells, and fencing tokens protect what must never see a late writer.
    """

    __slots__ = ("_callers", "_logic", "_name", "_owner_id")

    _logic: LockLogic

    def __init__(self, logic: LockLogic, callers: Callers, owner: int | None, name: Name | None) -> None:
        self._logic = logic
        self._callers = callers
        self._owner_id = owner
        self._name = name

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._logic.key.decode() if self._name is None else self._name

    async def force_unlock(self) -> bool:
        """Removes the lock whoever holds it, and wakes a waiter; was anything removed."""
        return await self._logic.force_release()

    async def delete(self) -> bool:
        """As `force_unlock`."""
        return await self._logic.force_release()

    async def is_locked(self) -> bool:
        """Whether anyone holds it."""
        return await self._logic.is_locked()

    def is_held(self) -> Coroutine[Any, Any, bool]:
        """Whether the calling task holds it: the server says so and the lease hasn't ended by our clock."""
        return self.is_held_by(self._owner().id)

    is_held_by_current_thread = is_held

    async def is_held_by(self, owner_id: int) -> bool:
        """Whether the owner of that id (see `get_lock`) holds it, through this client."""
        return await self._logic.hold_count(known_owner(owner_id)) > 0

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
        return Lost(self._logic.hold_of(self._owner().id), self._logic.shared.holds)

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.{type(self).__name__} {shown(self._logic.key)!r}>"

    def _owner(self) -> Owner:
        if self._owner_id is not None:
            return self._logic.shared.given_owner(self._owner_id)
        return self._callers.current()


class Holding(Generic[AnyLockable]):
    """What `hold` gives: a context manager for any task, and as often as it likes."""

    __slots__ = ("_cancel_on_lost", "_lease", "_lock", "_wait")

    def __init__(self, lock: AnyLockable, wait: float | None, lease: int | None, cancel_on_lost: bool) -> None:
        self._lock = lock
        self._wait = wait
        self._lease = lease
        self._cancel_on_lost = cancel_on_lost

    async def __aenter__(self) -> AnyLockable:
        await self._lock._enter(self, self._wait, self._lease, cancel_on_lost=self._cancel_on_lost)
        return self._lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._lock._leave(self, error)


class Scope:
    """One `async with` block around one hold: it ends its body when the hold is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_hold", "_lock", "_owner", "_task", "block")

    def __init__(self, lock: Lockable, block: object) -> None:
        self.block = block
        """Which block it is of those that the task is in."""
        self._lock = lock
        self._owner = lock._owner()
        self._cancelled = False
        self._cancelling = 0
        self._hold: Hold | None = None
        self._task: asyncio.Task[Any] | None = None

    async def enter(self, wait: float | None, lease: int | None, *, cancel_on_lost: bool) -> None:
        """Takes the lock. Raises `LockTimeoutError` when it isn't had in `wait` seconds."""
        logic = self._lock._logic
        deadline = None if wait is None else clock() + wait
        if not await logic.acquire(self._owner, lease, deadline):
            raise LockTimeoutError(f"{logic.named(self._owner)} was not had in {wait:g} s")
        if cancel_on_lost:
            self._task = asyncio.current_task()
            self._cancelling = 0 if self._task is None else self._task.cancelling()
            self._hold = logic.hold_of(self._owner.id)
            if self._hold is not None:
                self._hold.listen(self._ended)

    async def leave(self, error: BaseException | None) -> None:
        """Gives the lock back, after a body that ended with `error`."""
        logic = self._lock._logic
        task, self._task = self._task, None
        if self._hold is not None:
            self._hold.unlisten(self._ended)
        ours = False
        if self._cancelled and task is not None:
            # As asyncio.timeout: the cancellation is ours alone if nobody else asked for one.
            ours = task.uncancel() <= self._cancelling
        try:
            await logic.release(self._owner, logic.hold_of(self._owner.id))
        except asyncio.CancelledError:
            if ours and self._hold is not None:
                # The body ended before it could be cancelled.
                raise LockLostError(logic.loss_of(self._owner, self._hold)) from None
            raise
        except Exception as failure:
            if error is None or (ours and isinstance(error, asyncio.CancelledError)):
                raise
            # The body's own exception is what the user must see.
            attach(error, failure)

    def _ended(self, hold: Hold) -> None:
        task = self._task
        if hold.state is LOST and task is not None:
            loop = task.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


class Lost:
    """Whether one hold is lost: once set, it stays so."""

    __slots__ = ("_hold", "_holds")

    def __init__(self, hold: Hold | GroupHold | None, holds: Prover) -> None:
        self._hold = hold
        self._holds = holds

    def is_set(self) -> bool:
        """Whether the hold can no longer be proven. Asks the clock, not the server. False without a hold."""
        return self._hold is not None and not self._holds.proven(self._hold) and self._hold.state is LOST

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the hold is lost: True. False when the time (in seconds; None: no limit) is over first,
        or as soon as the hold was given back; without a hold, at once."""
        bound = wait_of(timeout, "timeout")
        hold = self._hold
        if hold is None:
            return False
        loop = asyncio.get_running_loop()
        over = AioSignal()

        def ended(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(over.set)

        hold.listen(ended)
        try:
            await over.wait(bound)
        finally:
            hold.unlisten(ended)
        return self.is_set()
