"""The spin lock for asyncio."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock


class SpinLock(Lock):
    """A re-entrant lock for very short holds: its waiters don't listen for a message, but try again and again.

    Its release publishes nothing, as in Redisson. A `Lock` of the same name that waits learns of the release only when
    the lease that it has read is over.
    """

    __slots__ = ()
