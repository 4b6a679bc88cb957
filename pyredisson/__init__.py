"""Redisson's locks and synchronizers for Python, on the same keys as Java Redisson."""

from pyredisson import asyncio
from pyredisson.client import Client, connect
from pyredisson.config import Config
from pyredisson.errors import (
    ClosedError,
    ConfigError,
    LockAlreadyHeldError,
    LockLostError,
    LockNotHeldError,
    LockTimeoutError,
    LockUpgradeError,
    NotReplicatedError,
    PermitNotHeldError,
    RedissonError,
)
from pyredisson.lock import Lock

__all__ = [
    "Client",
    "ClosedError",
    "Config",
    "ConfigError",
    "Lock",
    "LockAlreadyHeldError",
    "LockLostError",
    "LockNotHeldError",
    "LockTimeoutError",
    "LockUpgradeError",
    "NotReplicatedError",
    "PermitNotHeldError",
    "RedissonError",
    "asyncio",
    "connect",
]
