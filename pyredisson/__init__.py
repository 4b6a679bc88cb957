"""Redisson's locks and synchronizers for threads, on the same keys as in Java. For asyncio: `pyredisson.asyncio`."""

try:
    from pyredisson._core import Run as _Run  # noqa: F401 - tests whether the core is compiled
except ModuleNotFoundError as error:
    if error.name != "pyredisson._core":
        raise
    raise ImportError(
        f"pyredisson is imported from {__path__[0]}, where its core isn't compiled: probably the source folder in the"
        " current directory, found before the installed package. Compile it there by `make venv` or `pip install -e .`,"
        " or run Python in another directory"
    ) from error

from pyredisson import asyncio
from pyredisson._api.sync.client import Client, connect
from pyredisson._api.sync.elections import Election, Term
from pyredisson._api.sync.locks import (
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
from pyredisson._api.sync.semaphores import CountDownLatch, PermitExpirableSemaphore, Semaphore
from pyredisson._api.sync.singletons import Singleton
from pyredisson._api.terms import ElectionState
from pyredisson._client.process import release_on_signals
from pyredisson._settings.config import Config
from pyredisson.backoff import ConstantBackoff, ExponentialBackoff
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
from pyredisson.events import Event, Observer
from pyredisson.holder import Hold, Holder, Waiter
from pyredisson.owners import ExplicitOwner, new_owner
from pyredisson.version import VERSION as _VERSION

__version__ = _VERSION

__all__ = [
    "Client",
    "ClosedError",
    "Config",
    "ConfigError",
    "ConstantBackoff",
    "CountDownLatch",
    "Election",
    "ElectionState",
    "Event",
    "ExplicitOwner",
    "ExponentialBackoff",
    "FairLock",
    "FencedLock",
    "Hold",
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
    "Observer",
    "PermitExpirableSemaphore",
    "PermitNotHeldError",
    "RLock",
    "ReadLock",
    "ReadWriteLock",
    "RedLock",
    "RedissonError",
    "Semaphore",
    "Singleton",
    "SpinLock",
    "StaleTokenError",
    "Term",
    "Waiter",
    "WriteLock",
    "__version__",
    "asyncio",
    "connect",
    "new_owner",
    "release_on_signals",
]
