"""The errors that pyredisson raises. Messages name object and owner. redis-py's errors pass through unchanged."""

from redis.exceptions import RedisError

from pyredisson.holder import Holder


class RedissonError(Exception):
    """The base of every error that pyredisson itself raises."""


class ConfigError(RedissonError, ValueError):
    """A setting, an address or a configuration file that can't be used."""


class ClosedError(RedissonError, RuntimeError):
    """The client was closed, before the call or while the call waited."""


class _LockError(RedissonError):
    name: str | None
    """The lock's name on the server."""
    owner: str | None
    """The calling owner's name on the server, `client:id`."""
    holder: Holder | None
    """The holder when the server was asked. None: there was none, or the server wasn't asked or didn't reply."""

    def __init__(
        self, message: str = "", *, name: str | None = None, owner: str | None = None, holder: Holder | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        self.owner = owner
        self.holder = holder


class LockNotHeldError(_LockError, RuntimeError):
    """A release by an owner that has no hold. The message names the holder, or says since when the hold is gone.

    Also for a token of `hand_off()` whose hold isn't there any more.
    """

    handed_off = False
    """Whether the owner has no hold because `hand_off()` has ended it. Then a block is left without this error."""


class LockLostError(LockNotHeldError):
    """The owner had a hold, but its lease expired or the lock was removed before the release."""


class LockAlreadyHeldError(RedissonError, RuntimeError):
    """The holder of a non-reentrant lock tried to acquire it again.

    Also a holder that tried to adopt the lock, and one whose hold can't be handed off as it is.
    """


class LockUpgradeError(RedissonError, RuntimeError):
    """An owner that holds only the read side tried to acquire the write side. Its wait would never end."""


class LockTimeoutError(_LockError, TimeoutError):
    """A block of `hold()` got no lock in time, and the message names the holder; or one of `permit()` no permit."""


class PermitNotHeldError(RedissonError, ValueError):
    """A permit id that is unknown, or whose permit was released or has expired."""


class NotSetError(RedissonError, RuntimeError):
    """A semaphore or a latch of `must_exist=True` doesn't exist: nobody has set it, or it was removed."""


class NotReplicatedError(RedissonError):
    """Too few replicas confirmed an acquire within `replicas_sync_timeout`. It was undone: it left no hold.

    The message names the lock, the owner, and how many replicas confirmed.
    """


class StaleTokenError(RedissonError):
    """A write with a fencing token smaller than one that the resource has seen. Nothing was written."""


class UnsupportedServerError(ConfigError, RedisError):
    """The server is too old, or is no single server. Trying again doesn't help."""
