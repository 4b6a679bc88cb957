"""What the charts of the dashboard show: a few numbers of each moment of the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from pyredisson.inspection.model import ClientState

MINUTES = 5
"""How far back the charts go."""
MOST_POINTS = 600
MOST_CLIENTS = 20_000
"""Clients whose last counts are remembered."""


class Point(NamedTuple):
    """The numbers of one moment."""

    time: float
    """Seconds since the epoch."""
    held: int
    """Locks and permits that are held, as far as they are listed."""
    waiting: int
    clients: int
    waits: int
    """Calls that had to wait, since the point before."""
    waited: float
    """Seconds for which they have waited together."""
    lost: int
    """Holds that were lost, since the point before."""


class History:
    """The points of the last minutes. Differences are made from the counts that clients announce."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MOST_POINTS)
        self._counts: dict[str, tuple[int, float, int]] = {}
        """What each client has announced last: its waits, the seconds of them, and its losses."""
        self._begun = False

    def add(self, time: float, held: int, waiting: int, clients: Iterable[ClientState]) -> None:
        """Adds a point. Points that are too old are dropped."""
        known = list(clients)
        waits, waited, lost = self._differences(known)
        self._points.append(Point(time, held, waiting, len(known), waits, waited, lost))
        while self._points[0].time < time - MINUTES * 60:
            self._points.popleft()

    def since(self, time: float) -> list[Point]:
        """The points after that moment, the oldest first."""
        return [point for point in self._points if point.time > time]

    def _differences(self, clients: list[ClientState]) -> tuple[int, float, int]:
        waits, waited, lost = 0, 0.0, 0
        for client in clients:
            now = (client.waits, client.waited, client.lost)
            # What a client has counted before the dashboard began is older than the charts. One that comes later is
            # a new one. If its counts decrease, its announcement was replaced: it counts again from there.
            before = self._counts.get(client.id, (0, 0.0, 0) if self._begun else now)
            waits += max(now[0] - before[0], 0)
            waited += max(now[1] - before[1], 0.0)
            lost += max(now[2] - before[2], 0)
            # Last in the dict: first the clients are dropped that have been gone for the longest time.
            self._counts.pop(client.id, None)
            self._counts[client.id] = now
        self._begun = True
        while len(self._counts) > MOST_CLIENTS:
            del self._counts[next(iter(self._counts))]
        return waits, waited, lost
