"""Starting a thread."""

import sys
import threading
from collections.abc import Callable


def start_thread(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Starts a thread. RuntimeError: no thread can be started, for example because the interpreter exits.

    Before 3.12 CPython would wait for ever while it exits, as no other thread runs any more.

    An exception of a signal's handler is raised unchanged. If it strikes while CPython waits for the thread, CPython
    releases a lock that it doesn't hold, and raises "release unlocked lock" in its place.
    """
    if sys.is_finalizing():
        raise RuntimeError("can't start a thread while the interpreter exits")
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError as error:
        if str(error) == "release unlocked lock" and error.__context__ is not None:
            raise error.__context__ from None
        raise
    return thread
