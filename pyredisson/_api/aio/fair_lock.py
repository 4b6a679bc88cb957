"""The fair locks for asyncio."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock


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
    """A fair lock that its holder can't acquire again.

    While the calling task holds it, `lock`, `try_lock`, `acquire`, `hold` and `async with` raise
    `LockAlreadyHeldError`, and send nothing.
    """

    __slots__ = ()
