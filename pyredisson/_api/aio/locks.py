"""The locks for asyncio, and groups of locks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyredisson._api.aio.blocks import Enterable
from pyredisson._api.aio.releases import GroupReleases, LockReleases, wait_for_end
from pyredisson._api.arguments import deadline_of, deadline_of_acquire, lease_of, renewed_lease_of, wait_of
from pyredisson._api.holds import AnyLock, AnyLost, Group, Primitive
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson.holder import Holder, Waiter
from pyredisson.inspection.states import Inspector
from pyredisson.logic.groups.multi_lock import MultiLockLogic
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.owners import AnyOwner, id_of_owner


class Lockable(Enterable):
    """The base of everything that can be locked: all kinds of locks, both sides of a read-write lock, groups of locks.

    It serves annotations and `isinstance`. A client makes the locks.
    """

    __slots__ = ()

    def lock(self, lease_time: Duration | None = None, *, at_most: Duration | None = None) -> Coroutine[Any, Any, None]:
        """Acquires the lock; waits as long as that takes.

        `lease_time` (seconds or a timedelta, at least 1 ms): the server frees the lock after that time. None: it is
        held until it is released. While the process lives, its lease of `lock_watchdog_timeout` seconds is renewed.

        `at_most` (as `lease_time`): renewed, but the hold is lost so long after the acquire: no hanging job keeps it.

        Raises `ClosedError` if the client is closed, also during the wait, and redis-py's errors of server and network.
        """
        renewed = lease_time is None and at_most is None
        lease = None if renewed else renewed_lease_of(self._logic.renewed_ms, lease_time, at_most)
        # The result is True, although the type says None: an `async def` would cost one more coroutine.
        return self._logic.acquire(self._owner(), lease, None)  # type: ignore[return-value]

    def try_lock(
        self, wait_time: Duration = 0, lease_time: Duration | None = None, *, at_most: Duration | None = None
    ) -> Coroutine[Any, Any, bool]:
        """As `lock`, but waits at most `wait_time` (seconds or a timedelta; 0: tries once). True: acquired."""
        lease = renewed_lease_of(self._logic.renewed_ms, lease_time, at_most)
        return self._logic.acquire(self._owner(), lease, deadline_of(wait_time, "wait_time"))

    def extend(self, lease_time: Duration) -> Coroutine[Any, Any, None]:
        """Has the calling task's hold last for `lease_time` (seconds or a timedelta) from now on.

        For work of unknown length with a `lease_time`: the lock stays held only while the work gets on. A lease never
        becomes shorter, and a lock that is renewed goes on being renewed.

        Raises `LockLostError` if the hold is lost, and `LockNotHeldError` if there is none. After an error of the
        server or the network the lease may be extended or not.
        """
        return self._logic.extend_hold(self._owner(), lease_ms(lease_time))

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Coroutine[Any, Any, bool]:
        """`threading.Lock.acquire`, awaited: the arguments and rules of the standard library, on the same lock."""
        return self._logic.acquire(self._owner(), None, deadline_of_acquire(blocking, timeout))

    def release(self) -> Coroutine[Any, Any, None]:
        """`threading.Lock.release`, awaited: the same as `unlock`."""
        return self.unlock()

    def is_held(self) -> Coroutine[Any, Any, bool]:
        """Whether the calling task holds the lock, as the server says and the local clock confirms."""
        return self._logic.is_held(self._owner())

    is_held_by_current_thread = is_held

    @property
    def lost(self) -> Lost:
        """Whether the calling task's present hold is lost, as an object that may be passed to other tasks."""
        return Lost(self._logic.hold_of(self._owner().id), self)


class Lock(LockReleases, Lockable, AnyLock):
    """A re-entrant lock on the server, shared by all processes, also Java's with Redisson.

    The owner of a hold is the task that calls the method.
    The owner stays the same if another task awaits the result, as in `asyncio.gather` and `asyncio.wait_for`.

    A lock with a lease can't exclude a holder that was paused for longer than the lease. `lost` reports the loss to
    such a holder, and a fencing token (`FencedLock`) protects a resource from its late writes.
    """

    __slots__ = ()

    def hand_off(self) -> Coroutine[Any, Any, str]:
        """Gives the calling task's hold away, without a release, and returns a token: `client.adopt(token)` takes it.

        That may be a client of another process. In between nobody else gets the lock. The token is valid until the
        lease ends, which nobody renews meanwhile: of a lock that is renewed it begins now. Whoever has the token can
        take the hold, so it is a secret.

        Raises `LockAlreadyHeldError` if the lock is held several times, or the owner reads and writes at the same time;
        `LockNotHeldError` or `LockLostError` without a hold; `NotImplementedError` for a lock with `at_least`. After
        any other error, or if this is cancelled, the lock is released in the background.

        Then `unlock()` raises `LockNotHeldError`, and a block that has held the lock is left without an error.
        """
        owner = self._owner()
        return self._logic.hand_off(owner, self._logic.hold_of(owner.id), self._name)

    async def force_unlock(self) -> bool:
        """Removes the lock, whoever holds it, and wakes a waiter. Returns whether anything was removed."""
        return await self._logic.force_release()

    async def delete(self) -> bool:
        """As `force_unlock`. Of a fair lock it also removes the queue; waiters that are alive join it again.

        Of a fenced lock it also removes the counter of tokens. The next token is larger than all before it even so.
        """
        return await self._logic.delete()

    async def is_locked(self) -> bool:
        """Whether any owner holds the lock, as the server says. `locked` is the name that `threading.Lock` has."""
        return await self._logic.is_locked()

    locked = is_locked

    async def is_held_by(self, owner_id: AnyOwner) -> bool:
        """Whether that owner holds the lock through this client. `owner_id`: as for `owner=`, or any owner's id."""
        return await self._logic.hold_count(id_of_owner(owner_id)) > 0

    def get_hold_count(self) -> Coroutine[Any, Any, int]:
        """How many holds the calling task has, as the server says; 0: none."""
        return self._logic.hold_count(self._owner().id)

    async def remain_time_to_live(self) -> float | None:
        """Seconds until the server frees the lock. None: it is free. `math.inf`: it has no lease."""
        return await self._logic.remain_time_to_live()

    async def holder(self) -> Holder | None:
        """Who holds the lock, as the server says. None: nobody.

        Of several readers it is one of them, and of a writer that also reads the writer: both sides of a read-write
        lock answer alike. It may have changed when this returns, and `since` may belong to a hold of the same owner
        that was released some milliseconds ago. Of holders in Java only the ids and the remaining time are known. So it
        is for clients that are not announced: with `announce=False`, without the right to it, or younger than 0.25 s.
        """
        return await self._logic.holder()

    async def waiters(self) -> list[Waiter]:
        """The waiters for the lock, on both sides of a read-write lock; in order if it is fair, else the oldest first.

        Of a fair lock each waiter is known, also in Java. Of others these are known: calls of this library that have
        waited for a second or two, in clients that the server knows to wait or that hold the lock. So waiters for a
        spin lock, and in clients that are not announced, aren't known. It takes the rights of `pyredisson inspect`.
        """
        logic = Inspector(self._logic.session)
        return await logic.waiters(self._logic.key)


RLock = Lock
"""The name that `threading` and Redisson have for the re-entrant lock."""


class Lost(AnyLost):
    """Whether one hold is lost. Once it is, that doesn't change any more."""

    __slots__ = ()

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the hold has ended, but at most `timeout` (seconds or a timedelta; None: no limit).

        True: it is lost. False: it was released, or the time is over; at once if there was no hold.
        """
        limit = wait_of(timeout, "timeout")
        if self._hold is None:
            return False
        await wait_for_end(self._hold, limit)
        return self.is_set()


class FairLock(Lock):
    """A re-entrant lock that owners get in the order in which they asked for it, in Python and in Java.

    The queue is on the server, in Redisson's format. A waiter that has died, or whose process is stopped, is skipped
    within about two seconds while another waiter of pyredisson is in the queue. If only Java's waiters are, Redisson's
    own rules apply: the waiter is skipped about 8 seconds after its turn came if it was one of the first 16 in the
    queue, else after minutes, as Redisson's own waiters are. A client that doesn't run for 1.5 seconds, because its
    process is stopped or its event loop is blocked, may lose its places; its waiters then join the queue again.
    """

    __slots__ = ()


class NonReentrantFairLock(FairLock):
    """A fair lock that its holder can't acquire again, as `NonReentrantLock`."""

    __slots__ = ()


class NonReentrantLock(Lock):
    """A lock that its holder can't acquire again, shared by all processes, also Java's with Redisson.

    Acquires by the task that holds it raise `LockAlreadyHeldError`, also by `async with`, and send nothing.
    """

    __slots__ = ()


class SpinLock(Lock):
    """A re-entrant lock for very short holds: its waiters don't listen for a message, but try again and again.

    Its release publishes nothing, as in Redisson: a `Lock` of that name waits until the lease that it has read is over.
    """

    __slots__ = ()


class FencedLock(Lock):
    """A re-entrant lock with fencing tokens: every acquire gets an int that is larger than all tokens before it.

    The resource behind the lock remembers the largest token that it has seen and refuses smaller ones; the functions of
    `pyredisson.fencing` do that. Then a holder that was paused for longer than its lease can't write any more. Tokens
    grow with every acquire, also a nested one, and over `delete()`, expiry and FLUSHALL; with gaps, below 2**53.
    """

    __slots__ = ()

    _logic: FencedLockLogic

    def lock_and_get_token(self, lease_time: Duration | None = None) -> Coroutine[Any, Any, int]:
        """As `lock`. Returns the token of this acquire."""
        return self._logic.lock_token(self._owner(), lease_of(lease_time))

    def try_lock_and_get_token(
        self, wait_time: Duration = 0, lease_time: Duration | None = None
    ) -> Coroutine[Any, Any, int | None]:
        """As `try_lock`. Returns the token of this acquire; None: not acquired."""
        deadline = deadline_of(wait_time, "wait_time")
        return self._logic.try_token(self._owner(), lease_of(lease_time), deadline)

    @property
    def token(self) -> int:
        """The token of the calling task's last acquire, also if lost. Sends nothing. `LockNotHeldError`: no hold."""
        return self._logic.token_of(self._owner())

    async def get_token(self) -> int:
        """The latest token on the server, whoever got it; 0: none yet. The calling task's own one is `token`."""
        return await self._logic.newest_token()


class ReadLock(Lock):
    """The read side of a `ReadWriteLock`: many owners may hold it at a time, while no other owner holds the write side.

    Re-entrant. The holder of the write side may acquire it, too. While a writer of this library waits for readers to
    finish, only owners that already hold this side can acquire it; so a reader must not wait for another task's new
    read lock. Redisson has no such rule: in Java a stream of readers keeps a writer waiting.
    """

    __slots__ = ()


class WriteLock(Lock):
    """The write side of a `ReadWriteLock`: one owner may hold it, while no other owner holds the read side.

    Re-entrant. A waiting writer gets the lock as soon as those readers have finished that held it at that moment: later
    readers of this library wait until the writer has finished. Readers in Java don't wait for it.

    An owner that holds only the read side gets `LockUpgradeError` at once, as its wait would never end. An owner that
    holds both sides and releases this one goes on reading, and other readers can join.
    """

    __slots__ = ()


class ReadWriteLock(Primitive):
    """A pair of locks for many readers or one writer, shared by all processes, also Java's with Redisson."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: ReadLock, write: WriteLock) -> None:
        super().__init__(read._logic, read._name)
        self._read = read
        self._write = write

    def read_lock(self) -> ReadLock:
        """The side for owners that only read."""
        return self._read

    def write_lock(self) -> WriteLock:
        """The side for the owner that writes."""
        return self._write


# --- Groups of locks


class LockGroup(Group[Lock], GroupReleases, Lockable):
    """Several locks as one. A method that makes no sense for a group raises `NotImplementedError`."""

    __slots__ = ()

    _member = Lock


class MultiLock(LockGroup):
    """Several locks as one, all or none of them. They may be of any kind, and of different clients.

    Every program begins in the same order, so two programs that list them in different orders don't wait for
    each other for ever. A member that isn't acquired within some seconds makes the group release the others and start
    again, with that member: programs that acquire the same locks one by one, and Java's MultiLock, use other orders. A
    fixed lease begins when all members are acquired. The group is lost when any member is lost.
    """

    __slots__ = ()

    _kind = MultiLockLogic


class RedLock(LockGroup):
    """One lock on several independent masters, usually 3 or 5. It is held while a majority of its members is held.

    This is the Redlock algorithm of the Redis documentation. All members are asked at the same time, so a server that
    is down doesn't matter while a majority answers. Slow servers get a tenth of the lease (or of
    `lock_watchdog_timeout`), and less once enough others have answered. The lock is acquired if a majority of the
    leases isn't over, counted from when they were asked for, after subtracting 1 % of the lease and 2 ms, as the
    servers' clocks may run at different speeds. It is lost as soon as that is true of no majority any more.

    While no majority answers, `lock()` goes on trying, and `try_lock` until its time is over. An error of a server is
    raised if it lasts, as a wrong password does, and leaves no majority.
    """

    __slots__ = ()

    _kind = RedLockLogic
