"""Handlers of signals that run in the middle of an operation, and the exceptions that they raise there."""

from __future__ import annotations

import signal
import threading

# The function behind `signal.getsignal`, which takes much longer as it makes an enum of each result.
from _signal import getsignal  # type: ignore[import-not-found]

RAISES_SOCKET_ERRORS = frozenset(("pyredisson", "socket", "ssl", "encodings"))
"""The packages in which a failed operation on a socket may raise."""

SIGNALS = tuple(map(int, signal.valid_signals()))


def may_run_handlers() -> bool:
    """Whether the calling thread may run the user's handler of a signal: on the main thread, if there is one."""
    if threading.current_thread() is not threading.main_thread():
        return False
    # Python's own handler of SIGINT only raises KeyboardInterrupt.
    return any(callable(handler := getsignal(each)) and handler is not signal.default_int_handler for each in SIGNALS)


def raised_by_handler(error: BaseException) -> bool:
    """Whether the handler of a signal raised `error`, and not the operation that the signal has interrupted.

    A handler may raise an OSError, as the built-in TimeoutError of many recipes for a time limit. It is meant for the
    caller, and says nothing about the connection. The innermost frame of its traceback is the handler's. An
    operation that fails is written in C, and has no frame.
    """
    trace = error.__traceback__
    if trace is None or threading.current_thread() is not threading.main_thread():
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] not in RAISES_SOCKET_ERRORS
