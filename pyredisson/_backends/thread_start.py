"""Starting a thread."""

from __future__ import annotations

import threading


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread; what a signal's handler raises meanwhile is raised as it is.

    CPython waits for the start on a condition. Interrupted where the condition's lock is just taken back, it comes to
    give back a lock that it doesn't have, and says that instead.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if str(error) == "release unlocked lock" and error.__context__ is not None:
            raise error.__context__ from None
        raise
