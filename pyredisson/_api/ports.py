"""What the public API asks of the logic of a lock, or of several locks as one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from pyredisson.errors import LockLostError, LockTimeoutError
from pyredisson.logic.session import Session


class Logic(Protocol):
    """The logic of a lock or a group. Owners are `Owner` or `GroupOwner`, holds are `Hold` or `GroupHold`."""

    session: Session
    identity: Hashable

    async def acquire(self, owner: Any, lease: int | None, deadline: float | None) -> bool: ...
    async def release(self, owner: Any, hold: Any) -> None: ...
    def hold_of(self, owner_id: Any) -> Any: ...
    def named(self, owner: Any) -> str: ...
    def loss_of(self, owner: Any, hold: Any) -> LockLostError: ...
    async def timed_out(self, owner: Any, wait: float) -> LockTimeoutError: ...


class HoldChecker(Protocol):
    """What decides by the clock whether a hold is lost."""

    def expire_if_due(self, hold: Any) -> bool:
        """Declares the hold lost if its lease has ended. True: it is not held any more."""
