"""When scripts on a cluster may leave plain messages out: not while subscribers may be on another node.

With `PubSub.AUTO` a script publishes a plain message only if somebody has subscribed to it on the node that runs the
script. That misses a subscriber which is still on the node that had the slot before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import monotonic

from pyredisson._protocol.scripts import as_publishing_both


class Settling:
    """Has all scripts publish both flavours for some time after each change of the map from slots to nodes.

    Any thread may call any method, and each step is one operation on a dict, as an interrupt may strike between any two
    lines.
    """

    def __init__(self, seconds: float = 0.0, clock: Callable[[], float] = monotonic) -> None:
        """`seconds`: how long after a change clients may be subscribed by the former map. 0: it does not matter."""
        self._seconds = seconds
        self._clock = clock
        self._numbers = itertools.count()
        self.changes: dict[int, float] = {}
        """When the time after each change is over. Empty: `command` changes only commands that follow an ASK."""

    def on_change(self) -> None:
        """The map is about to change. No command may be sent by the new map before this has been called."""
        if not self._seconds:
            return
        number = next(self._numbers)
        self.changes[number] = self._clock() + self._seconds
        for earlier in list(self.changes):
            if earlier < number:
                self.changes.pop(earlier, None)

    def command(self, payload: bytes, *, asking: bool = False) -> bytes:
        """A packed command, in the form in which it has to be sent now. To be called when its node has been chosen.

        `asking`: it follows an ASK. Then the subscribers are on the node that still serves the slot.
        """
        if not asking and not self.changes:
            return payload
        now = self._clock()
        for number in list(self.changes):
            if self.changes.get(number, now) < now:
                self.changes.pop(number, None)
        return as_publishing_both(payload) if asking or self.changes else payload
