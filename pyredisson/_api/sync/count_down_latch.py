"""The thread world's count-down latch: thin and typed over the logic."""

from __future__ import annotations

from pyredisson._api.arguments import MOST_CALLS, Name, count_of, deadline_of
from pyredisson._backends.clock import clock
from pyredisson._backends.threads.operations import run
from pyredisson._diagnostics import readable
from pyredisson._settings.durations import Duration
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic


class CountDownLatch:
    """Lets those who wait go on when a count has come down to zero; shared with Java Redisson.

    One that was never set, or was deleted, is open: its count is zero.
    """

    __slots__ = ("_logic", "_name")

    def __init__(self, logic: CountDownLatchLogic, name: Name | None) -> None:
        self._logic = logic
        self._name = name

    @property
    def name(self) -> Name:
        """As it was given."""
        return self._logic.key.decode() if self._name is None else self._name

    def try_set_count(self, count: int) -> bool:
        """Sets the count of an open latch; False if it is still counting."""
        return run(self._logic.try_set, count_of(count, "count", MOST_CALLS))

    def count_down(self) -> None:
        """Counts down by one; at zero those who wait go on. An open latch stays open.

        When it raises what Redis reports, or is interrupted, it is still done, once, in the background, as soon as
        the server can be reached (ten minutes at most): don't call it again.
        """
        run(self._logic.count_down)

    def get_count(self) -> int:
        """The count; 0: open."""
        return run(self._logic.count)

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until the latch is open: True. False if it isn't after `timeout` seconds (None: no limit).

        Raises `NotSetError` if nothing is being counted when it begins, for a latch of `must_exist=True`.
        """
        deadline = None if timeout is None else deadline_of(timeout, "timeout", clock)
        return run(self._logic.wait, deadline)

    def delete(self) -> bool:
        """Removes the latch, so that all who wait go on; False if there was none."""
        return run(self._logic.delete)

    def __repr__(self) -> str:
        return f"<pyredisson.CountDownLatch {readable(self._logic.key)!r}>"
