"""The non-reentrant lock for asyncio."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock


class NonReentrantLock(Lock):
    """A lock that its holder can't acquire again, shared by all processes, also Java's with Redisson.

    While the calling task holds it, `lock`, `try_lock`, `acquire`, `hold` and `async with` raise
    `LockAlreadyHeldError`, and send nothing.
    """

    __slots__ = ()
