"""The thread world's lock: thin and typed over the logic."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

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
from pyredisson._api.sync.blocks import Block, leave_elsewhere
from pyredisson._backends.clock import clock
from pyredisson._backends.threads.callers import Callers
from pyredisson._backends.threads.operations import run
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import HoldLevel, Run
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration
from pyredisson.logic.groups.group import GroupHold
from pyredisson.logic.holds import LOST, Hold, Owner
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.owners import AnyOwner, id_of_owner

LostCallback = TypeVar("LostCallback", bound=Callable[..., object])
AnyLock = TypeVar("AnyLock", bound="Lock")
AnyLockable = TypeVar("AnyLockable", bound="Lockable")


class Lockable:
    """The type of everything that can be locked: locks of all kinds, sides of read-write locks, and groups of locks.

    For annotations and `isinstance`; locks are made by a client.
    """

    __slots__ = ("_block", "_callers", "_given", "_logic")

    _block: Block | None
    """The innermost block that was entered by `with` on this very object and not left yet."""
    _callers: Callers
    _given: Owner | None
    """An explicit owner, of a group its first member's; None: the calling thread."""
    _logic: Logic

    def lock(self, lease_time: Duration | None = None) -> None:
        """Waits as long as it takes.

        `lease_time` (seconds or a timedelta, at least 1 ms): the lock frees itself after that time. None: it
        is kept until released, its lease of `lock_watchdog_timeout` renewed for as long as the process lives.

        Raises `ClosedError` when the client is closed meanwhile, and what Redis reports.
        """
        lease = lease_time if lease_time is None else lease_of(lease_time)
        _ = Run(self._logic.acquire, self._owner(), lease, None).result

    def try_lock(self, wait_time: Duration = 0, lease_time: Duration | None = None) -> bool:
        """As `lock`, but waits no longer than `wait_time` seconds; False if not had in time."""
        deadline = deadline_of(wait_time, "wait_time", clock)
        return Run(self._logic.acquire, self._owner(), lease_of(lease_time), deadline).result

    def unlock(self) -> None:
        """Gives back one hold."""
        raise NotImplementedError

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """`threading.Lock.acquire`: on the same state as `lock` and `try_lock`."""
        return Run(self._logic.acquire, self._owner(), None, timeout_of(blocking, timeout, clock)).result

    def release(self) -> None:
        """`threading.Lock.release`: as `unlock`."""
        self.unlock()

    def hold(self, wait_time: Duration | None = None, lease_time: Duration | None = None) -> Holding[Self]:
        """`with lock.hold(...)`: `LockTimeoutError` when not had in `wait_time` seconds (None: no limit)."""
        return Holding(self, wait_of(wait_time, "wait_time"), lease_of(lease_time))

    def __enter__(self) -> Self:
        owner = self._owner()
        block = Block(owner, self._given or self._callers.local.owner)
        _ = Run(self._logic.acquire, owner, None, None).result
        # No call of a function: a signal could strike after it, or another thread come between.
        block.outer = self._block
        self._block = block
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # No call of a function before the release, as in `__enter__`.
        block = self._block
        if block is not None and block.caller is (self._given or self._callers.local.owner):
            self._block = block.outer
        elif block is not None:
            leave_elsewhere(self, self, error)
            return
        if error is None:
            self.unlock()
            return
        try:
            self.unlock()
        except Exception as failure:  # noqa: BLE001
            # The body's own exception is what the user must see.
            attach(error, failure)

    def on_lost(self, callback: LostCallback) -> LostCallback:
        """Has `callback(lock)` called, on a thread of the client's own, once for each hold of this lock that is lost.

        It stays registered, for every handle of this name, until `remove_on_lost` or the end of the client. Calls of
        one callback are made one after the other; a slow one delays no other callback (16 at the same time).
        """
        if not callable(callback):
            raise TypeError(f"on_lost needs a function, not {type(callback).__name__}")
        self._logic.session.lost_callbacks.add(self._logic.identity, callback, lambda: callback(self))
        return callback

    def remove_on_lost(self, callback: Callable[..., object]) -> bool:
        """Removes what `on_lost` registered, through whichever handle of this name; was it registered.

        One registration for each call, the latest first. A call that is under way or due already still ends.
        """
        return self._logic.session.lost_callbacks.remove(self._logic.identity, callback)

    def _owner(self) -> Any:
        raise NotImplementedError

    def _owned_by(self, owner: Any) -> Lockable:
        """A handle of the same lock for that owner, whichever thread uses it."""
        raise NotImplementedError


class Lock(Lockable):
    """A reentrant lock on the server, shared with every process and with Java Redisson; FIFO it is not.

    Its owner is the calling thread. A lease lock can't exclude a holder that was paused beyond its lease:
    `lost` tells, and fencing tokens protect what must never see a late writer.
    """

    __slots__ = ("_name",)

    _logic: LockLogic

    def __init__(self, logic: LockLogic, callers: Callers, owner: Owner | None, name: Name | None) -> None:
        self._logic = logic
        self._callers = callers
        self._given = owner
        self._name = name
        self._block = None

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._logic.key.decode() if self._name is None else self._name

    def unlock(self) -> None:
        """Gives back one hold.

        Raises `LockLostError` if it was lost meanwhile, `LockNotHeldError` if the calling thread has none.
        """
        logic = self._logic
        owner: Owner | None = None
        hold: Hold | None = None
        level: HoldLevel | None = None
        try:
            # In here, as a signal may strike after any call.
            level = HoldLevel()
            owner = self._owner()
            hold = logic.session.holds.table.get((logic.identity, owner.id))
            _ = Run(logic.release, owner, hold, level).result
        except Exception:
            # The logic has seen to it.
            raise
        except BaseException:
            # Interrupted, perhaps before it came to the logic: nobody else would give this hold back.
            if owner is None or hold is None:
                owner = owner or self._owner()
                hold = logic.hold_of(owner.id)
            if hold is not None:
                logic.release_in_background(owner, hold, level or HoldLevel())
            raise

    def force_unlock(self) -> bool:
        """Removes the lock whoever holds it, and wakes a waiter; was anything removed."""
        return run(self._logic.force_release)

    def delete(self) -> bool:
        """As `force_unlock`; also removes a fair lock's queue, whose living waiters stand in line again."""
        return run(self._logic.delete)

    def is_locked(self) -> bool:
        """Whether anyone holds it."""
        return run(self._logic.is_locked)

    def is_held(self) -> bool:
        """Whether the calling thread holds it: the server says so and the lease hasn't ended by our clock."""
        return self.get_hold_count() > 0

    is_held_by_current_thread = is_held

    def is_held_by(self, owner_id: AnyOwner) -> bool:
        """Whether that owner holds it, through this client: what `get_lock` takes as `owner`, or any owner's id."""
        return run(self._logic.hold_count, id_of_owner(owner_id)) > 0

    def get_hold_count(self) -> int:
        """How many holds the calling thread has; 0: none."""
        return run(self._logic.hold_count, self._owner().id)

    def remain_time_to_live(self) -> float | None:
        """Seconds until the lock frees itself; None when it is free, `math.inf` when it never does."""
        return run(self._logic.remain_time_to_live)

    def locked(self) -> bool:
        """`threading.Lock.locked`: as `is_locked`."""
        return self.is_locked()

    @property
    def lost(self) -> Lost:
        """Tells whether the calling thread's present hold is lost; may be given to other threads."""
        return Lost(self._logic.hold_of(self._owner().id), self._logic.session.holds, self)

    def __repr__(self) -> str:
        return f"<pyredisson.{type(self).__name__} {readable(self._logic.key)!r}>"

    def _owner(self) -> Owner:
        return self._given or self._callers.current()

    def _owned_by(self, owner: Owner) -> Lock:
        return type(self)(self._logic, self._callers, owner, self._name)


class Holding(Generic[AnyLockable]):
    """What `hold` gives: one hold as a context manager."""

    __slots__ = ("_block", "_lease", "_lock", "_wait")

    def __init__(self, lock: AnyLockable, wait: float | None, lease: int | None) -> None:
        self._block: Block | None = None
        self._lock = lock
        self._wait = wait
        self._lease = lease

    def __enter__(self) -> AnyLockable:
        lock = self._lock
        owner = lock._owner()
        block = Block(owner, lock._given or lock._callers.local.owner)
        deadline = deadline_after(self._wait, clock)
        if not Run(lock._logic.acquire, owner, self._lease, deadline).result:
            raise run(lock._logic.timed_out, owner, self._wait or 0.0)
        # As in `Lockable`.
        block.outer = self._block
        self._block = block
        return lock

    def __repr__(self) -> str:
        return hold_shown(self, self._wait, self._lease)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # As in `Lockable`.
        block, lock = self._block, self._lock
        if block is not None and block.caller is (lock._given or lock._callers.local.owner):
            self._block = block.outer
        elif block is not None:
            leave_elsewhere(self, lock, error)
            return
        if error is None:
            lock.unlock()
            return
        try:
            lock.unlock()
        except Exception as failure:  # noqa: BLE001
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

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the hold is lost: True. False when the time (in seconds; None: no limit) is over first,
        or as soon as the hold was given back; without a hold, at once."""
        deadline = None if timeout is None else deadline_of(timeout, "timeout", clock)
        hold = self._hold
        if hold is None:
            return False
        over = ThreadWakeup()

        def ended(_: object) -> None:
            over.set()

        hold.listen(ended)
        try:
            over.wait(threading.TIMEOUT_MAX if deadline is None else max(0.0, deadline - clock()))
        finally:
            hold.unlisten(ended)
        return self.is_set()
