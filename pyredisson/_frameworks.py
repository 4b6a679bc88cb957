"""What the helpers for frameworks have in common."""

from __future__ import annotations

from pyredisson._api.aio.rlock import Lock as AioLock
from pyredisson._api.sync.rlock import Lock
from pyredisson._diagnostics import readable
from pyredisson.errors import LockLostError


def is_loss_of(error: LockLostError, lock: Lock | AioLock) -> bool:
    """Whether that lock was lost. The error has the name on the server, after `name_mapper`."""
    return error.name == readable(lock._logic.key)
