"""Garbage collection that finds only what the test itself has created, and signals."""

import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest


@pytest.fixture
def collector() -> Iterator[Callable[[], object]]:
    """`gc.collect`, with all that was there before the test set aside."""
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has a function called by a signal's handler, every 20 ms."""

    def call(function: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: function())
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    before = signal.getsignal(signal.SIGALRM)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def interrupted_after() -> Callable[[Callable[[], object]], AbstractContextManager[None]]:
    """A signal comes when the function has returned, and the code inside raises KeyboardInterrupt. The signal
    interrupts no system call: as if it had come just before that was entered."""

    @contextlib.contextmanager
    def interrupted(ready: Callable[[], object]) -> Iterator[None]:
        others = {signal.SIGUSR1}
        before = signal.signal(signal.SIGUSR1, signal.default_int_handler)

        def strike() -> None:
            # The kernel gives it to this thread, for the main one has it blocked: that one's call goes on.
            assert ready()
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

        other = threading.Thread(target=strike)
        other.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, others)
        try:
            with pytest.raises(KeyboardInterrupt):
                yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, others)
            signal.signal(signal.SIGUSR1, before)
            other.join()

    return interrupted
