"""The count-down latch for asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyredisson._api.arguments import MAX_COUNT, Name, count_of, deadline_of
from pyredisson._backends.clock import clock
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic


class CountDownLatch:
    """A count on the server. Waiters go on when it has come down to zero; shared with Java's Redisson.

    A latch that was never set, or was deleted, is open: its count is zero.
    """

    __slots__ = ("__weakref__", "_logic", "_name")

    def __init__(self, logic: CountDownLatchLogic, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """The name as the client's method got it."""
        return self._logic.key.decode() if self._name is None else self._name

    def try_set_count(self, count: int) -> Coroutine[Any, Any, bool]:
        """Sets the count of an open latch. False: it isn't open, and nothing was set."""
        return self._logic.try_set(count_of(count, "count", MAX_COUNT))

    def count_down(self) -> Coroutine[Any, Any, None]:
        """Subtracts one from the count; at zero the waiters go on. An open latch stays open.

        If it raises one of redis-py's errors, or is cancelled, it is still done, once, in the background, as soon as
        the server can be reached, for up to ten minutes. So don't call it again.
        """
        return self._logic.count_down()

    def get_count(self) -> Coroutine[Any, Any, int]:
        """The count; 0: the latch is open."""
        return self._logic.count()

    def wait(self, timeout: Duration | None = None) -> Coroutine[Any, Any, bool]:
        """Waits until the latch is open, but at most `timeout` (seconds or a timedelta; None: no limit). True: open.

        Raises `NotSetError` for a latch of `must_exist=True` if it has no count when the wait begins.
        """
        deadline = None if timeout is None else deadline_of(timeout, "timeout", clock)
        return self._logic.wait(deadline)

    def delete(self) -> Coroutine[Any, Any, bool]:
        """Removes the latch; all waiters go on. Returns whether there was one."""
        return self._logic.delete()

    def __repr__(self) -> str:
        return f"<pyredisson.asyncio.CountDownLatch {readable(self._logic.key)!r}>"
