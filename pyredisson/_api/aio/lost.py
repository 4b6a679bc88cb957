"""How asyncio programs learn of a lost hold: they wait for it, or have a function called. Written by hand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TypeVar

from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson.logic.groups.group import GroupHold
from pyredisson.logic.holds import Hold

AnyLockable = TypeVar("AnyLockable")


async def wait_for_end(hold: Hold | GroupHold, seconds: float | None) -> None:
    """Waits until the hold has ended, lost or released, but at most so many seconds (None: no limit)."""
    loop = asyncio.get_running_loop()
    wakeup = AioWakeup()

    def hold_ended(_: object) -> None:
        # Called on any thread.
        if not loop.is_closed():
            loop.call_soon_threadsafe(wakeup.set)

    hold.listen(hold_ended)
    try:
        await wakeup.wait(seconds)
    finally:
        hold.unlisten(hold_ended)


def notification(callback: Callable[[AnyLockable], object], lock: AnyLockable) -> Callable[[], object]:
    """What a thread of the client has to call when a hold of `lock` is lost. `RuntimeError` without an event loop."""
    if not inspect.iscoroutinefunction(callback):
        return lambda: callback(lock)
    loop = asyncio.get_running_loop()

    def run_on_loop() -> None:
        # The thread waits for the result: calls of one callback are made one after the other.
        asyncio.run_coroutine_threadsafe(callback(lock), loop).result()

    return run_on_loop
