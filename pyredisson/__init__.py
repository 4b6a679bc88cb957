"""Redisson's locks and synchronizers for Python, on the same keys as Java Redisson."""

try:
    from pyredisson._core import Run as _Run  # noqa: F401 - whether there is a core at all
except ModuleNotFoundError as error:
    if error.name != "pyredisson._core":
        raise
    raise ImportError(
        f"pyredisson is imported from {__path__[0]}, where its core isn't compiled: probably the source folder in the"
        " current directory, found before the installed package. Compile it there by `make venv` or `pip install -e .`,"
        " or run Python in another directory"
    ) from error

from pyredisson import asyncio
from pyredisson.at_signals import release_on_signals
from pyredisson.backoff import ConstantBackoff, ExponentialBackoff
from pyredisson.client import Client, connect
from pyredisson.config import Config
from pyredisson.count_down_latch import CountDownLatch
from pyredisson.errors import (
    ClosedError,
    ConfigError,
    LockAlreadyHeldError,
    LockLostError,
    LockNotHeldError,
    LockTimeoutError,
    LockUpgradeError,
    NotReplicatedError,
    NotSetError,
    PermitNotHeldError,
    RedissonError,
    StaleTokenError,
)
from pyredisson.fair_lock import FairLock, NonReentrantFairLock
from pyredisson.fenced_lock import FencedLock
from pyredisson.holder import Holder
from pyredisson.lock import Lock, Lockable
from pyredisson.multi_lock import MultiLock, RedLock
from pyredisson.non_reentrant_lock import NonReentrantLock
from pyredisson.owners import ExplicitOwner, new_owner
from pyredisson.permit_expirable_semaphore import PermitExpirableSemaphore
from pyredisson.read_write_lock import ReadLock, ReadWriteLock, WriteLock
from pyredisson.semaphore import Semaphore
from pyredisson.spin_lock import SpinLock
from pyredisson.version import VERSION as _VERSION

__version__ = _VERSION

__all__ = [
    "Client",
    "ClosedError",
    "Config",
    "ConfigError",
    "ConstantBackoff",
    "CountDownLatch",
    "ExplicitOwner",
    "ExponentialBackoff",
    "FairLock",
    "FencedLock",
    "Holder",
    "Lock",
    "LockAlreadyHeldError",
    "LockLostError",
    "LockNotHeldError",
    "LockTimeoutError",
    "LockUpgradeError",
    "Lockable",
    "MultiLock",
    "NonReentrantFairLock",
    "NonReentrantLock",
    "NotReplicatedError",
    "NotSetError",
    "PermitExpirableSemaphore",
    "PermitNotHeldError",
    "ReadLock",
    "ReadWriteLock",
    "RedLock",
    "RedissonError",
    "Semaphore",
    "SpinLock",
    "StaleTokenError",
    "WriteLock",
    "__version__",
    "asyncio",
    "connect",
    "new_owner",
    "release_on_signals",
]
