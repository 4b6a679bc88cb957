"""The fenced lock for asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyredisson._api.aio.rlock import Lock
from pyredisson._api.arguments import deadline_of, lease_of
from pyredisson._backends.clock import clock
from pyredisson._settings.durations import Duration
from pyredisson.logic.locks.fenced_lock import FencedLockLogic


class FencedLock(Lock):
    """A re-entrant lock with fencing tokens: every acquire gets an int that is larger than all tokens before it.

    The resource behind the lock remembers the largest token that it has seen and refuses smaller ones; the functions of
    `pyredisson.fencing` do that. Then a holder that was paused for longer than its lease can't write any more. Tokens
    grow with every acquire, re-entry included, and also over `delete()`, expiry and FLUSHALL. They have gaps, and stay
    below 2**53.
    """

    __slots__ = ()

    _logic: FencedLockLogic

    def lock_and_get_token(self, lease_time: Duration | None = None) -> Coroutine[Any, Any, int]:
        """As `lock`. Returns the token of this acquire."""
        return self._logic.lock_token(self._owner(), lease_of(lease_time))

    def try_lock_and_get_token(
        self, wait_time: Duration = 0, lease_time: Duration | None = None
    ) -> Coroutine[Any, Any, int | None]:
        """As `try_lock`. Returns the token of this acquire; None: not acquired."""
        deadline = deadline_of(wait_time, "wait_time", clock)
        return self._logic.try_token(self._owner(), lease_of(lease_time), deadline)

    @property
    def token(self) -> int:
        """The token of the calling task's hold, from its latest acquire; also if the hold was lost.

        Sends nothing to the server. Raises `LockNotHeldError` without a hold.
        """
        return self._logic.token_of(self._owner())

    async def get_token(self) -> int:
        """The latest token on the server, whoever got it; 0: none yet. The calling task's own one is `token`."""
        return await self._logic.newest_token()

    async def delete(self) -> bool:
        """Removes the lock, whoever holds it, and its counter of tokens. Returns whether anything was removed.

        The next token is larger than all before it even so.
        """
        return await self._logic.delete()
