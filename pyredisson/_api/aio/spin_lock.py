"""The asyncio world's spin lock."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock


class SpinLock(Lock):
    """A reentrant lock whose waiters ask again and again instead of listening; for locks held very shortly.

    Giving it back publishes nothing: a waiting `Lock` of the same name learns of it only when the lease that
    it saw is over.
    """

    __slots__ = ()
