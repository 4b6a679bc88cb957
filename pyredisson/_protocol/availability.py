"""Whether a server serves its clients, and one warning whenever that changes."""

from __future__ import annotations

from time import monotonic

from pyredisson._diagnostics import logger

STALE = 60.0
"""Seconds without a failed attempt after which the next failure begins another outage: the end of the former was seen
by nobody, as nobody called."""


class Outage:
    """From the first failed attempt to the first that succeeds."""

    __slots__ = ("began", "seen", "unreachable")

    def __init__(self, now: float, *, unreachable: bool) -> None:
        self.began = now
        self.seen = now
        """When an attempt failed last."""
        self.unreachable = unreachable
        """No connection can be made; else one can, but commands aren't served."""


class Availability:
    """The one state that all connections of a client to a server share; any thread may report.

    A change is one operation on a dict, so it needs no lock, and of several reports at the same time one is logged.
    """

    __slots__ = ("_outage",)

    def __init__(self) -> None:
        self._outage: dict[str, Outage] = {}

    def on_unreachable(self, address: str, error: BaseException) -> None:
        """A connection could not be made."""
        self._failed(address, error, unreachable=True)

    def on_command_failed(self, address: str, error: BaseException) -> None:
        """A command was not served, though there may be a connection."""
        self._failed(address, error, unreachable=False)

    def on_connected(self, address: str) -> None:
        """A connection was made. A server that refused commands before may still do so."""
        outage = self._outage.get("present")
        if outage is not None and outage.unreachable:
            self._over(address)

    def on_command_served(self, address: str) -> None:
        """A command was served after others had failed."""
        self._over(address)

    def _failed(self, address: str, error: BaseException, *, unreachable: bool) -> None:
        now = monotonic()
        present = self._outage.get("present")
        if present is not None and now - present.seen > STALE:
            self._outage.pop("present", None)
        mine = Outage(now, unreachable=unreachable)
        present = self._outage.setdefault("present", mine)
        if present is mine:
            logger.warning("the server %s is not available: %s; calls try again within their limits", address, error)
            return
        present.seen = now
        present.unreachable = present.unreachable or unreachable
        logger.debug("the server %s is still not available: %s", address, error)

    def _over(self, address: str) -> None:
        outage = self._outage.pop("present", None)
        if outage is not None:
            logger.warning("the server %s is available again after %.1f s", address, monotonic() - outage.began)
