"""The asyncio world's fair locks."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock


class FairLock(Lock):
    """A reentrant lock that is had in the order in which it was asked for, by Python and Java Redisson alike.

    A waiter that dies, or whose process stands still, is passed over within about two seconds while others of
    pyredisson wait; where only Java does, by Java's rules, about 8 seconds after its turn has come if it was one of
    the first 16 in line, else after minutes, as Java's own waiters are. A client whose event loop is blocked for 1.5
    seconds may lose its places; its waiters then queue anew.
    """

    __slots__ = ()


class NonReentrantFairLock(FairLock):
    """A fair lock that its holder can't take again.

    Whatever asks for it while the calling task holds it (`lock`, `try_lock`, `acquire`, `hold`, `async with`)
    raises `LockAlreadyHeldError`, and sends nothing.
    """

    __slots__ = ()
