"""Releasing what all clients of this process hold when a signal ends it: only on request."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType

from pyredisson._backends.clock import clock
from pyredisson._client.lifecycle import FAREWELL, ClientLifecycle, close_at_once, lifecycles
from pyredisson._diagnostics import logger

MARGIN = 0.2
"""Seconds more than a farewell may take that the handler waits for its threads."""

Previous = Callable[[int, FrameType | None], object] | int


def release_on_signals(signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
    """Has each of these signals release what all clients of this process hold, then do what it did before.

    By default SIGTERM ends a process at once, and its locks stay until their leases end. With this, all clients, also
    those made later, are closed first, in about a second at most; then the previous handler is called, or the default
    action is taken, so that the exit status is that of the signal. (SIGINT raises `KeyboardInterrupt` as before.) A
    second signal that comes meanwhile doesn't wait. A signal that is ignored stays ignored.

    For threads and asyncio. To be called once, at the program's start; in asyncio inside the coroutine that
    `asyncio.run` runs. A handler that is set later, as `loop.add_signal_handler` does, replaces this one.

    Raises `ValueError` outside the main thread, for what is no signal, and where a signal has a handler that Python
    doesn't know; `OSError` for a signal that can't be caught.
    """
    numbers = [signal.Signals(number) for number in signals]
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("release_on_signals only works in the main thread")
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, before in previous.items():
        if before is None:
            raise ValueError(f"{number.name} has a handler that was not set by Python: it can't be called afterwards")
    done: list[signal.Signals] = []
    try:
        for number, before in previous.items():
            if before is not signal.SIG_IGN and not isinstance(before, _Handler) and before is not None:
                done.append(number)
                signal.signal(number, _Handler(before))
    except BaseException:
        for number in done:
            signal.signal(number, previous[number])
        raise


class _Handler:
    """Stands before what a signal did."""

    def __init__(self, before: Previous) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _release()
        before = self._before
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


# Not an event: setting that takes a lock, which a second signal could strike in the middle of.
_under_way: list[None] = []


def _release() -> None:
    """Closes all clients. Runs in a signal handler: the frame that it interrupts may be in the middle of any call."""
    if _under_way:
        # A second signal: whoever sent it doesn't want to wait.
        return
    _under_way.append(None)
    try:
        deadline = clock() + FAREWELL
        # On threads of their own, over connections of their own: the interrupted call is in the middle of its own.
        threads = [_closing(lifecycle, deadline) for lifecycle in lifecycles()]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, deadline + MARGIN - clock()))
    finally:
        _under_way.clear()


def _closing(lifecycle: ClientLifecycle, deadline: float) -> threading.Thread | None:
    try:
        # Here, not on the thread: mutexes are re-entrant for this one, which may have them.
        lifecycle.end()
        thread = threading.Thread(
            target=close_at_once, args=(lifecycle, deadline), name="pyredisson-signal", daemon=True
        )
        thread.start()
    except Exception:  # noqa: BLE001
        # Whatever it was: the other clients, and what the signal did before.
        logger.exception("a client could not be closed on a signal")
        return None
    return thread
