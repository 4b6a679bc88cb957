"""Observers that keep what they are told."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyredisson.events import METHODS, Event

ENDS_WAIT = ("acquired", "timed_out", "failed")

OF_LOCKS = tuple(name for name in METHODS if name != "discovered")
"""The events that follow from what a program does."""


class Recorder:
    """Has all methods, or those named."""

    def __init__(self, *methods: str) -> None:
        self.events: list[Event] = []
        for name in methods or OF_LOCKS:
            setattr(self, name, self.events.append)


def told(client: Any) -> list[Event]:
    """All that the observer of this client was told until now, apart from renewals."""
    return [event for event in everything_told(client) if event.what not in ("renewed", "renewal_failed")]


def everything_told(client: Any) -> list[Event]:
    delivered(client)
    recorder: Recorder = getattr(client, "_target", client)._lifecycle.config.observer
    return recorder.events


def delivered(client: Any) -> None:
    """Returns when the observer of this client was told of everything until now."""
    assert getattr(client, "_target", client)._lifecycle.delivery.drain(30), "the events were not delivered"


def whats(events: Sequence[Event]) -> list[str]:
    return [event.what for event in events]


def check_pairs(events: Sequence[Event], where: str = "") -> None:
    """Each wait and each hold that has begun has ended once, and nothing has ended that has not begun."""
    waits = Counter(event.wait_id for event in events if event.what == "waiting")
    ended_waits = Counter(event.wait_id for event in events if event.what in ENDS_WAIT and event.wait_id)
    holds = Counter(event.hold_id for event in events if event.what == "acquired" and event.hold_id)
    ended_holds = Counter(event.hold_id for event in events if event.what in ("released", "lost"))
    assert waits == ended_waits, (where, events)
    assert holds == ended_holds, (where, events)
    assert set(waits.values()) | set(holds.values()) <= {1}
