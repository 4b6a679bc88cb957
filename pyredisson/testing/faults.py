"""The faults that a test asks a proxy for, and which request each fault applies to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto

__all__ = ["Action", "Conditions", "Fault", "Hold"]


class Action(Enum):
    DROP_REPLY = auto()
    CUT_REPLY = auto()
    HOLD_REPLY = auto()
    CUT_REQUEST = auto()
    HOLD_REQUEST = auto()


class Fault:
    """Strikes the next `times` requests that contain `match`; `happened` is set by the first of them."""

    def __init__(self, action: Action, match: bytes, times: int = 1) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, not {times}")
        self.action = action
        self.match = match
        self.left = times
        self.happened = threading.Event()


class Hold(Fault):
    """Keeps one request or reply back, and everything behind it on that connection in that direction.

    `delivered` is set once the server has answered the request, or once the reply was sent on to the client.
    """

    def __init__(self, action: Action, match: bytes, release: Callable[[Hold], None]) -> None:
        super().__init__(action, match)
        self.delivered = threading.Event()
        self._release = release

    @property
    def held(self) -> threading.Event:
        """Set once a request or reply is being held."""
        return self.happened

    def deliver(self, timeout: float = 5.0) -> None:
        """Send on what is held, even if the client is gone by now, and wait for `delivered`.

        Raises:
            RuntimeError: nothing has been held yet.
            ConnectionError: the server closed the connection while the request was held.
            TimeoutError: the server has not answered within `timeout` seconds.
        """
        if not self.held.is_set():
            raise RuntimeError(f"nothing containing {self.match!r} has been held yet")
        self._release(self)
        if not self.delivered.wait(timeout):
            raise TimeoutError(f"what was held for {self.match!r} was not answered within {timeout:g} s")


class Conditions:
    """The state that all connections of one proxy share: the pending faults, and how bytes are passed on."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.stalled = False
        self.latency = 0.0

    def choose(self, request: bytes) -> Fault | None:
        """Return the oldest fault that matches, and count it as used once. At most one fault applies to a request."""
        for fault in self.faults:
            if fault.match in request:
                fault.left -= 1
                if fault.left == 0:
                    self.faults.remove(fault)
                return fault
        return None
