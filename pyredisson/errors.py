"""What can go wrong: every error names the object and the owner; Redis's own errors pass through untouched."""

from __future__ import annotations

from redis.exceptions import RedisError

from pyredisson.holder import Holder


class RedissonError(Exception):
    """The base of every error that pyredisson itself raises."""


class ConfigError(RedissonError, ValueError):
    """A setting, an address or a configuration file that can't be used."""


class ClosedError(RedissonError, RuntimeError):
    """The client was closed, before the call or while it waited."""


class _OfLock(RedissonError):
    """An error that tells which lock it is about, and who holds that."""

    name: str | None
    """The lock's name, as it is on the server."""
    owner: str | None
    """The caller, as the server knows it: `client:id`."""
    holder: Holder | None
    """Who held the lock when the server was asked; None: nobody, or it was not asked, or didn't answer."""

    def __init__(
        self, message: str = "", *, name: str | None = None, owner: str | None = None, holder: Holder | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        self.owner = owner
        self.holder = holder


class LockNotHeldError(_OfLock, RuntimeError):
    """Unlock by one who isn't the holder; the message says who is, or since when the hold is gone."""


class LockLostError(LockNotHeldError):
    """The lock was held, and expired or was taken away before it was given back."""


class LockAlreadyHeldError(RedissonError, RuntimeError):
    """A non-reentrant lock was asked for again by its holder."""


class LockUpgradeError(RedissonError, RuntimeError):
    """The write side was asked for by an owner who holds only the read side; waiting would never end."""


class LockTimeoutError(_OfLock, TimeoutError):
    """`hold(wait_time=...)` didn't get the lock in time, and says who holds it; or `permit(...)` got no permit."""


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


class UnsupportedServerError(ConfigError, RedisError):
    """The server is too old, or not a single one; trying again doesn't help."""
