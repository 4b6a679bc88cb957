"""What can go wrong: every error names the object and the owner; Redis's own errors pass through untouched."""

from __future__ import annotations


class RedissonError(Exception):
    """The base of every error that pyredisson itself raises."""


class ConfigError(RedissonError, ValueError):
    """A setting, an address or a configuration file that can't be used."""


class ClosedError(RedissonError, RuntimeError):
    """The client was closed, before the call or while it waited."""


class LockNotHeldError(RedissonError, RuntimeError):
    """Unlock by one who isn't the holder; the message says who is, or since when the hold is gone."""


class LockLostError(LockNotHeldError):
    """The lock was held, and expired or was taken away before it was given back."""


class LockAlreadyHeldError(RedissonError, RuntimeError):
    """A non-reentrant lock was asked for again by its holder."""


class LockUpgradeError(RedissonError, RuntimeError):
    """The write side was asked for by an owner who holds only the read side; waiting would never end."""


class LockTimeoutError(RedissonError, TimeoutError):
    """`hold(wait_time=...)` didn't get the lock in time."""


class PermitNotHeldError(RedissonError, ValueError):
    """A permit id that is unknown or has expired."""


class NotSetError(RedissonError, RuntimeError):
    """A semaphore or a latch of `must_exist=True` doesn't exist: nobody has set it, or it is gone."""


class StaleTokenError(RedissonError):
    """A write with a fencing token older than one that the resource has seen; nothing was written."""


class NotReplicatedError(RedissonError):
    """No replica confirmed the acquire in time; nothing is held."""


__all__ = [
    "ClosedError",
    "ConfigError",
    "LockAlreadyHeldError",
    "LockLostError",
    "LockNotHeldError",
    "LockTimeoutError",
    "LockUpgradeError",
    "NotReplicatedError",
    "NotSetError",
    "PermitNotHeldError",
    "RedissonError",
    "StaleTokenError",
]
