"""The thread world's fenced lock: thin and typed over the logic."""

from __future__ import annotations

from pyredisson._api.arguments import deadline_of, lease_of
from pyredisson._api.sync.rlock import Lock
from pyredisson._backends.clock import clock
from pyredisson._backends.threads.operations import run
from pyredisson._core import Run
from pyredisson._settings.durations import Duration
from pyredisson.logic.locks.fenced_lock import FencedLockLogic


class FencedLock(Lock):
    """A reentrant lock that gives a token, an int, with every acquire, above all tokens before it.

    What the lock protects keeps the newest token that it has seen and refuses older ones, as the helpers in
    `pyredisson.fencing` do: then a holder that was paused beyond its lease can't write any more. Tokens grow
    over every acquire, re-entry, `delete()`, expiry and FLUSHALL, and have gaps; 2**53 is never reached.
    """

    __slots__ = ()

    _logic: FencedLockLogic

    def lock_and_get_token(self, lease_time: Duration | None = None) -> int:
        """As `lock`; the token of this acquire."""
        return Run(self._logic.lock_token, self._owner(), lease_of(lease_time)).result

    def try_lock_and_get_token(self, wait_time: Duration = 0, lease_time: Duration | None = None) -> int | None:
        """As `try_lock`; the token of this acquire, None if not had in time."""
        deadline = deadline_of(wait_time, "wait_time", clock)
        return Run(self._logic.try_token, self._owner(), lease_of(lease_time), deadline).result

    @property
    def token(self) -> int:
        """The token of the calling thread's hold, from its latest acquire; also when the hold was lost.

        Asks nobody. Raises `LockNotHeldError` without a hold.
        """
        return self._logic.token_of(self._owner())

    def get_token(self) -> int:
        """The token that was given last, to whoever it was; 0 when there is none yet. For one's own see `token`."""
        return run(self._logic.newest_token)

    def delete(self) -> bool:
        """Removes the lock, whoever holds it, and its counter of tokens; was anything removed.

        The next token is above all others even so.
        """
        return run(self._logic.delete)
