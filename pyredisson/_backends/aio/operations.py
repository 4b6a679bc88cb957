"""Ways of waiting, for work that blocks a thread or for a task; ending something in its own event loop."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pyredisson._backends.runtime import start_thread


async def until_ended(
    task: asyncio.Future[Any], on_cancelled: Callable[[], object] | None = None
) -> asyncio.CancelledError | None:
    """Waits until the task has ended, however often the caller is cancelled meanwhile.

    `on_cancelled` is called at the first cancellation. Returns that cancellation, which the caller has to raise later.
    For what must have ended before the next step: in a `finally` a second `cancel()` ends an `await`, and the scopes of
    anyio repeat a cancellation until they are left.
    """
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            if cancellation is None:
                cancellation = error
                if on_cancelled is not None:
                    on_cancelled()
    return cancellation


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and waits until it has ended, whatever its outcome. Raises a cancellation of the caller then."""
    task.cancel()
    cancellation = await until_ended(task)
    if not task.cancelled():
        # Without this look the event loop would report an exception that nobody has asked for.
        task.exception()
    if cancellation is not None:
        raise cancellation


def run_in_thread(work: Callable[[], object], name: str) -> asyncio.Future[None]:
    """Starts work that blocks on a thread of its own: the program may keep the loop's executor busy for any time.

    The future is done when the work ends, with the exception that it raised.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        report: Callable[[], object] = partial(done.set_result, None)
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised where the future is awaited
            report = partial(done.set_exception, error)
        # If the loop was closed meanwhile, nothing there awaits the future any more.
        call_in(loop, lambda: done.done() or report())

    try:
        start_thread(run, name)
    except RuntimeError:
        # No thread can be started, as at the interpreter's end. Blocking the loop is better than not doing the work.
        run()
    return done


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Has that event loop call a function, unless the loop is closed. It can be called on any thread."""
    if not loop.is_closed():
        # The loop's own thread may close it meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function)


def end_in(
    loop: asyncio.AbstractEventLoop, end: Callable[[], object], done: asyncio.Future[Any]
) -> list[asyncio.Future[Any]]:
    """Calls `end` in `loop`, unless that is closed. Returns `done` to wait for, if `loop` is the running loop."""
    if loop.is_closed():
        return []
    if loop is not asyncio.get_running_loop():
        call_in(loop, end)
        return []
    end()
    return [done]
