"""The thread world's read-write lock: a pair of locks over the logic."""

from __future__ import annotations

from pyredisson._api.arguments import Name
from pyredisson._api.sync.rlock import Lock


class ReadLock(Lock):
    """The side of a `ReadWriteLock` that many may hold at a time, while nobody else writes.

    Reentrant; the writer may take it, too. It is not had while a writer of this library waits for readers
    to leave, but by those who read already: so who reads must not wait for another thread's new read lock.
    """

    __slots__ = ()


class WriteLock(Lock):
    """The side of a `ReadWriteLock` that one may hold, while nobody else reads.

    Reentrant. A writer that waits comes in as soon as those who read at that moment have left: later
    readers of this library wait until it is done. Readers in Java don't wait for it.

    Who holds the read side only gets `LockUpgradeError` at once; who holds both and gives back this one goes
    on reading, and lets other readers in.
    """

    __slots__ = ()


class ReadWriteLock:
    """Many readers or one writer, shared with every process and with Java Redisson."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: ReadLock, write: WriteLock) -> None:
        self._read = read
        self._write = write

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._read.name

    def read_lock(self) -> ReadLock:
        """The side for those who look."""
        return self._read

    def write_lock(self) -> WriteLock:
        """The side for the one who changes."""
        return self._write

    def __repr__(self) -> str:
        return repr(self._read).replace("ReadLock", "ReadWriteLock")
