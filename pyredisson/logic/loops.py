"""Loops that run in the background for an object, and don't keep it alive while they wait."""

import contextlib
import traceback
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pyredisson._diagnostics import logger
from pyredisson.logic.ports import Runtime, Wakeup

Loop = Callable[[], Coroutine[Any, Any, None]]
"""Its `__name__` is the name of the loop."""
AFTER_FAILURE = 0.1
"""Seconds after which a loop goes on that has failed."""


class LoopOwner:
    def __init__(self) -> None:
        self.runs: dict[str, object] = {}
        """Of each loop, the run that was the first one."""
        self.keep_alive: dict[str, LoopOwner] = {}
        """Contains the object itself while it must not be collected. Its loops refer to this dict all the time."""

    @property
    def closed(self) -> bool:
        """Whether its loops end."""
        raise NotImplementedError


T = TypeVar("T", bound=LoopOwner)


def weak_loop(owner: T, name: str, runtime: Runtime, wakeup: Wakeup, once: Callable[[T], Awaitable[float]]) -> Loop:
    """A loop that calls `once` until the object is closed or collected. It returns how many seconds to wait at most.

    For a thread that must not keep the object alive.
    """
    reference = weakref.ref(owner)
    keep_alive = owner.keep_alive

    async def run() -> None:
        owner, this = reference(), object()
        # An interrupt after a thread was started, and before that was noted, has the thread started again. Two runs
        # would remove each other's work. One call, in which no other thread runs.
        if owner is not None and owner.runs.setdefault(name, this) is not this:
            owner = None
        while owner is not None:
            # Before `closed` is read: whoever closes the object sets `closed` first and then the wakeup, so that the
            # loop notices one of them.
            wakeup.clear()
            if owner.closed:
                break
            try:
                pause = await once(owner)
            except Exception:  # noqa: BLE001
                # For lack of memory, say. All leases depend on these loops.
                log_exception("a loop of the watchdog failed and goes on")
                pause = AFTER_FAILURE
            # While it waits, this frame must not refer to the object.
            owner = None
            await runtime.wait(wakeup, pause)
            owner = reference()
        keep_alive.clear()

    run.__name__ = name
    return run


def log_exception(what: str) -> None:
    """Logs the exception that is being handled, in a loop that must go on."""
    try:
        logger.exception(what)
    except Exception:  # noqa: BLE001
        # A logging filter may raise, too. Its exception goes to stderr, as `logging` does it, unless that is closed.
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
