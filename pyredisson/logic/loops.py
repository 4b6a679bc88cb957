"""Loops that run in the background for an object, and don't keep it alive while they wait."""

from __future__ import annotations

import contextlib
import traceback
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from pyredisson._diagnostics import logger
from pyredisson.logic.ports import Runtime, Wakeup

Loop = Callable[[], Coroutine[Any, Any, None]]
"""Its `__name__` is the name of the loop."""


class HasLoops(Protocol):
    """What loops need to know of the object that they run for."""

    keep_alive: dict[str, Any]
    """Contains the object itself while it must not be collected. Its loops refer to this dict all the time."""

    @property
    def closed(self) -> bool:
        """Whether its loops end."""

    def claim(self, loop: str) -> bool:
        """Whether this run of a loop is the first one."""


T = TypeVar("T", bound=HasLoops)


async def run_loop(
    reference: weakref.ref[T],
    name: str,
    runtime: Runtime,
    wakeup: Wakeup,
    once: Callable[[T], Awaitable[float]],
) -> None:
    """Calls `once` until the object is closed or collected. It returns how many seconds to wait at most."""
    owner = reference()
    if owner is None or not owner.claim(name):
        return
    while owner is not None:
        # Before `closed` is read: whoever closes the object sets `closed` first and then the wakeup, so that the loop
        # notices one of them.
        wakeup.clear()
        if owner.closed:
            return
        pause = await once(owner)
        # While it waits, this frame must not refer to the object.
        owner = None
        await runtime.wait(wakeup, pause)
        owner = reference()


def weak_loop(owner: HasLoops, name: str) -> Loop:
    """The loop that is the method `name`, for a thread that must not keep the object alive."""
    reference = weakref.ref(owner)
    keep_alive = owner.keep_alive

    async def run() -> None:
        owner = reference()
        if owner is not None:
            running = getattr(owner, name)()
            owner = None
            await running
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
