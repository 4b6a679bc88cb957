"""Starting a thread."""

from __future__ import annotations

import threading


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread, so that an exception of a signal's handler is raised unchanged.

    CPython waits on a condition until the thread runs. If a signal's handler raises while the condition acquires its
    lock again, CPython then releases a lock that it doesn't hold, and raises "release unlocked lock" in place of the
    handler's exception.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if str(error) == "release unlocked lock" and error.__context__ is not None:
            raise error.__context__ from None
        raise
