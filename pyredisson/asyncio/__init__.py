"""The public classes for asyncio: the same names as in `pyredisson`; what waits there must be awaited here."""

from pyredisson._api.aio.client import Client, connect
from pyredisson._api.aio.count_down_latch import CountDownLatch
from pyredisson._api.aio.elections import Election, Term
from pyredisson._api.aio.fair_lock import FairLock, NonReentrantFairLock
from pyredisson._api.aio.fenced_lock import FencedLock
from pyredisson._api.aio.multi_lock import MultiLock, RedLock
from pyredisson._api.aio.non_reentrant_lock import NonReentrantLock
from pyredisson._api.aio.permit_expirable_semaphore import PermitExpirableSemaphore
from pyredisson._api.aio.read_write_lock import ReadLock, ReadWriteLock, WriteLock
from pyredisson._api.aio.rlock import Lock, Lockable, RLock
from pyredisson._api.aio.semaphore import Semaphore
from pyredisson._api.aio.singletons import Singleton
from pyredisson._api.aio.spin_lock import SpinLock

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
