"""Whether a server serves its clients, and one warning whenever that changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from pyredisson._diagnostics import logger, with_notes

FORGOTTEN_AFTER = 60.0
"""Seconds without a failed attempt after which the next failure begins another outage. The end of the earlier outage
was not observed, because no call was made."""

Observe = Callable[[str, str, BaseException | None], None]
"""Is called with `discovered`, `disconnected` or `connected`, the server's address, and the error; on any thread. Must
not block."""


class Outage:
    """The time from the first failed attempt to the first one that succeeds."""

    __slots__ = ("began", "last_failure", "unreachable")

    def __init__(self, now: float, *, unreachable: bool) -> None:
        self.began = now
        self.last_failure = now
        self.unreachable = unreachable
        """No connection can be made. Otherwise one can be made, but commands are not served."""


class Availability:
    """The state of one server, shared by all connections of a client to it. Any thread may report.

    Each change is a single operation on a dict. So no mutex is needed, and when several threads report the same
    change at the same time, only one of them logs it.
    """

    __slots__ = ("_connected_at", "_observe", "_outage")

    def __init__(self) -> None:
        self._observe: Observe | None = None
        self._outage: dict[str, Outage] = {}
        """The present outage under the key "present", or nothing."""
        self._connected_at = -math.inf
        """When the latest connection was made."""

    def tell(self, observe: Observe | None, address: str) -> None:
        """Has `observe` told of each change, and now that the client knows the server."""
        self._observe = observe
        if observe is not None:
            observe("discovered", address, None)

    def on_unreachable(self, address: str, error: BaseException, began: float) -> None:
        """A connection could not be made. The attempt began at `began`, on the clock `monotonic`."""
        if began < self._connected_at:
            # An outage that begins now would last until the next connection is made, which may be in hours.
            logger.debug("another connection to the server %s was made since this attempt began: %s", address, error)
            return
        self._on_failure(address, error, unreachable=True)

    def on_command_failed(self, address: str, error: BaseException) -> None:
        """A command was not served, though a connection may exist."""
        self._on_failure(address, error, unreachable=False)

    def on_connected(self, address: str) -> None:
        """A connection was made. A server that failed to serve commands before may still fail to serve them."""
        self._connected_at = monotonic()
        outage = self._outage.get("present")
        if outage is not None and outage.unreachable:
            self._end_outage(address)

    def on_command_served(self, address: str) -> None:
        """A command was served after others had failed."""
        self._end_outage(address)

    def _on_failure(self, address: str, error: BaseException, *, unreachable: bool) -> None:
        now = monotonic()
        present = self._outage.get("present")
        if present is not None and now - present.last_failure > FORGOTTEN_AFTER:
            self._outage.pop("present", None)
        new = Outage(now, unreachable=unreachable)
        present = self._outage.setdefault("present", new)
        if present is new:
            if self._observe is not None:
                self._observe("disconnected", address, error)
            reason = with_notes(str(error) or "timed out", error)  # asyncio's timeouts have no text
            logger.warning("the server %s is not available: %s; calls try again within their limits", address, reason)
            return
        present.last_failure = now
        present.unreachable = present.unreachable or unreachable
        logger.debug("the server %s is still not available: %s", address, error)

    def _end_outage(self, address: str) -> None:
        outage = self._outage.pop("present", None)
        if outage is not None:
            if self._observe is not None:
                self._observe("connected", address, None)
            logger.warning("the server %s is available again after %.1f s", address, monotonic() - outage.began)
