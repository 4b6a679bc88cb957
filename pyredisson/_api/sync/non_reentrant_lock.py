"""The thread world's non-reentrant lock."""

from __future__ import annotations

from pyredisson._api.sync.rlock import Lock


class NonReentrantLock(Lock):
    """A lock that its holder can't take again, shared with every process and with Java Redisson.

    Whatever asks for it while the calling thread holds it (`lock`, `try_lock`, `acquire`, `hold`, `with`)
    raises `LockAlreadyHeldError`, and sends nothing.
    """

    __slots__ = ()
