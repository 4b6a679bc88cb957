"""What all clients of a process do when it forks, when it exits, and, on request, when a signal ends it."""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from types import FrameType

from pyredisson._backends.runtime import clock, start_thread
from pyredisson._client.callbacks import go_on_after_fork, pause_before_fork, paused
from pyredisson._client.lifecycle import CLOSE_TIMEOUT, dropped_clients, live_clients
from pyredisson._diagnostics import logger
from pyredisson.logic import holds


def close_all() -> None:
    """At the exit: closes all clients that are open, and sends what dropped clients have not sent yet."""
    # One deadline for all clients: behind servers that hang, each client would use up a timeout of its own.
    deadline = clock() + CLOSE_TIMEOUT
    # Servers that are known to hang come last: of the ones of a red lock two may hang, and three have to be told.
    for lifecycle in sorted([*live_clients(), *list(dropped_clients)], key=lambda each: each.servers.away):
        try:
            try:
                lifecycle.end()
            finally:
                lifecycle.send_final_releases(deadline - clock())
        except Exception:  # noqa: BLE001
            # Any exception: the other clients must be closed, too.
            logger.exception("a client could not be closed; the others are")


atexit.register(close_all)


# --- A fork. In the child all clients are new: they can neither renew nor release what the parent holds


LONGEST_PAUSE = 0.1
"""Seconds that a fork waits for observers at most."""


def pause_observers() -> None:
    if deliveries := [lifecycle.delivery for lifecycle in live_clients() if lifecycle.delivery is not None]:
        pause_before_fork(deliveries, LONGEST_PAUSE)


def reset_all() -> None:
    """Replaces everything that another thread of the parent may have been changing, and all of the parent's state."""
    # The threads that were about to fork aren't there.
    paused.clear()
    holds.after_fork()
    dropped_clients.clear()
    for lifecycle in live_clients():
        lifecycle.reset_after_fork()


os.register_at_fork(before=pause_observers, after_in_parent=go_on_after_fork, after_in_child=reset_all)


MARGIN = 0.2
"""Seconds beyond the timeout of the final releases for which the handler waits for their threads."""


def release_on_signals(signals: Iterable[int] = (signal.SIGTERM, signal.SIGINT)) -> None:
    """Makes each of these signals release what all clients of this process hold, before it does what it did before.

    By default SIGTERM ends a process at once, and its locks stay until their leases end. With this function, the signal
    first closes all clients, also clients that are made later, which takes about a second at most. Then it calls the
    previous handler, or takes the default action, so that the exit status names the signal. (SIGINT raises
    `KeyboardInterrupt` as before.) A second signal that arrives meanwhile doesn't wait for the release. An ignored
    signal stays ignored.

    For threads and asyncio. Call it once, at the start of the program; in asyncio inside the coroutine that
    `asyncio.run` runs. A handler that is set later, for example by `loop.add_signal_handler`, replaces this one.

    Raises `ValueError` outside the main thread, for a number that is no signal, and for a signal whose handler was not
    set by Python; `OSError` for a signal that can't be caught.
    """
    numbers = [signal.Signals(number) for number in signals]
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("release_on_signals only works in the main thread")
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, before in previous.items():
        if before is None:
            raise ValueError(f"{number.name} has a handler that was not set by Python: it can't be called afterwards")
    with ExitStack() as undo:
        for number, before in previous.items():
            if before not in (signal.SIG_IGN, None) and getattr(before, "func", None) is not _handle:
                undo.callback(signal.signal, number, before)
                signal.signal(number, partial(_handle, before))
        undo.pop_all()


def _handle(before: Callable[[int, FrameType | None], object] | int, number: int, frame: FrameType | None) -> None:
    """Handles a signal. `before`: the handler that it had."""
    _release_all()
    if callable(before):
        before(number, frame)
    elif before == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


# Not an event: its `set` takes a mutex, and a second signal may interrupt this thread while it holds that.
_releasing: list[None] = []


def _release_all() -> None:
    """Closes all clients. Runs in a signal handler: the interrupted frame may be in the middle of any call."""
    if _releasing:
        # A second signal: its sender doesn't want to wait.
        return
    _releasing.append(None)
    try:
        deadline = clock() + CLOSE_TIMEOUT
        # The final releases have threads and connections of their own: the interrupted call may be using its own one.
        threads: list[threading.Thread] = []
        for lifecycle in live_clients():
            try:
                try:
                    # On this thread: mutexes that the interrupted frame holds are re-entrant, but only for this thread.
                    lifecycle.end()
                finally:
                    send = partial(lifecycle.send_final_releases_in_handler, deadline)
                    threads.append(start_thread(send, "pyredisson-signal"))
            except Exception:  # noqa: BLE001
                # Any exception: the other clients must be closed, and the signal must do what it did before.
                logger.exception("a client could not be closed on a signal")
        for thread in threads:
            thread.join(max(0.0, deadline + MARGIN - clock()))
    finally:
        _releasing.clear()
