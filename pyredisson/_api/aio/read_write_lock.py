"""The read-write lock for asyncio: a pair of locks."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock
from pyredisson._api.arguments import Name
from pyredisson._diagnostics import readable


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


class ReadWriteLock:
    """A pair of locks for many readers or one writer, shared by all processes, also Java's with Redisson."""

    __slots__ = ("__weakref__", "_read", "_write")

    def __init__(self, read: ReadLock, write: WriteLock) -> None:
        self._read = read
        self._write = write

    @property
    def name(self) -> Name:
        """The name as the client's method got it."""
        return self._read.name

    def read_lock(self) -> ReadLock:
        """The side for owners that only read."""
        return self._read

    def write_lock(self) -> WriteLock:
        """The side for the owner that writes."""
        return self._write

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.ReadWriteLock {readable(self._read._logic.key)!r}>"
