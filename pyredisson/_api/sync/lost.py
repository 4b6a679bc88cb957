"""How programs with threads learn of a lost hold: they wait for it, or have a function called. Written by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson.logic.groups.group import GroupHold
from pyredisson.logic.holds import Hold

AnyLockable = TypeVar("AnyLockable")


def wait_for_end(hold: Hold | GroupHold, seconds: float | None) -> None:
    """Waits until the hold has ended, lost or released, but at most so many seconds (None: no limit)."""
    wakeup = ThreadWakeup()

    def hold_ended(_: object) -> None:
        wakeup.set()

    hold.listen(hold_ended)
    try:
        wakeup.wait(threading.TIMEOUT_MAX if seconds is None else seconds)
    finally:
        hold.unlisten(hold_ended)


def notification(callback: Callable[[AnyLockable], object], lock: AnyLockable) -> Callable[[], object]:
    """What a thread of the client has to call when a hold of `lock` is lost."""
    return lambda: callback(lock)
