"""The asyncio world: the same names as `pyredisson`, awaited."""

from pyredisson.asyncio.client import Client, connect
from pyredisson.asyncio.count_down_latch import CountDownLatch
from pyredisson.asyncio.fair_lock import FairLock, NonReentrantFairLock
from pyredisson.asyncio.fenced_lock import FencedLock
from pyredisson.asyncio.lock import Lock, Lockable
from pyredisson.asyncio.multi_lock import MultiLock, RedLock
from pyredisson.asyncio.non_reentrant_lock import NonReentrantLock
from pyredisson.asyncio.permit_expirable_semaphore import PermitExpirableSemaphore
from pyredisson.asyncio.read_write_lock import ReadLock, ReadWriteLock, WriteLock
from pyredisson.asyncio.semaphore import Semaphore
from pyredisson.asyncio.spin_lock import SpinLock

__all__ = [
    "Client",
    "CountDownLatch",
    "FairLock",
    "FencedLock",
    "Lock",
    "Lockable",
    "MultiLock",
    "NonReentrantFairLock",
    "NonReentrantLock",
    "PermitExpirableSemaphore",
    "ReadLock",
    "ReadWriteLock",
    "RedLock",
    "Semaphore",
    "SpinLock",
    "WriteLock",
    "connect",
]
