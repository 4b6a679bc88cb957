"""The public classes for asyncio: the same names as in `pyredisson`; what waits there must be awaited here."""

from pyredisson._api.aio.client import Client, connect
from pyredisson._api.aio.elections import Election, Term
from pyredisson._api.aio.locks import (
    FairLock,
    FencedLock,
    Lock,
    Lockable,
    MultiLock,
    NonReentrantFairLock,
    NonReentrantLock,
    ReadLock,
    ReadWriteLock,
    RedLock,
    RLock,
    SpinLock,
    WriteLock,
)
from pyredisson._api.aio.semaphores import CountDownLatch, PermitExpirableSemaphore, Semaphore
from pyredisson._api.aio.singletons import Singleton

__all__ = [
    "Client",
    "CountDownLatch",
    "Election",
    "FairLock",
    "FencedLock",
    "Lock",
    "Lockable",
    "MultiLock",
    "NonReentrantFairLock",
    "NonReentrantLock",
    "PermitExpirableSemaphore",
    "RLock",
    "ReadLock",
    "ReadWriteLock",
    "RedLock",
    "Semaphore",
    "Singleton",
    "SpinLock",
    "Term",
    "WriteLock",
    "connect",
]
