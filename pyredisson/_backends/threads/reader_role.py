"""Which thread reads the subscription connection: the states of a thread listener and their transitions."""

from __future__ import annotations

from enum import Enum

from pyredisson._backends.threads.message_reader import MessageReader
from pyredisson._backends.threads.wakeup import ThreadWakeup


class ListenerState(Enum):
    """What the subscription connection is doing."""

    DISCONNECTED = "there is no connection; the listener's thread makes one, or is about to"
    UNREAD = "connected, and no thread reads at this moment"
    THREAD_READS = "the listener's thread reads"
    WAITER_READS = "a waiter reads"
    BROKEN = "the connection has failed; the listener's thread is about to replace it"


class ReaderRole:
    """The state of one listener. Each transition is a single operation that an interrupt can't leave half done.

    `connected`: DISCONNECTED to UNREAD. `take`: UNREAD to THREAD_READS or WAITER_READS. `release`: back to UNREAD.
    `fail`: any state with a connection to BROKEN. `disconnected`: any state to DISCONNECTED.
    """

    def __init__(self, thread_wakeup: ThreadWakeup) -> None:
        self.messages: MessageReader | None = None
        """Reads the present connection. None: there is no connection."""
        self.failure: BaseException | None = None
        """Why the present connection is broken."""
        self._thread_wakeup = thread_wakeup
        self._reader: dict[str, ThreadWakeup] = {}
        """The wakeup of the thread that reads, under the key "reader"."""

    @property
    def state(self) -> ListenerState:
        if self.messages is None:
            return ListenerState.DISCONNECTED
        if self.failure is not None:
            return ListenerState.BROKEN
        reader = self._reader.get("reader")
        if reader is None:
            return ListenerState.UNREAD
        return ListenerState.THREAD_READS if reader is self._thread_wakeup else ListenerState.WAITER_READS

    def connected(self, messages: MessageReader) -> None:
        """A connection is ready to be read."""
        self.failure = None
        self.messages = messages

    def take(self, wakeup: ThreadWakeup) -> ThreadWakeup:
        """Makes the thread with this wakeup the reader, if no other thread reads. Returns the reader's wakeup."""
        # One operation on a dict, which also says who reads. If a mutex were acquired here instead, an interrupt right
        # after that would leave it locked for ever. Here `release` finds out whether this thread became the reader,
        # and the listener's thread finds out whether the reader still waits.
        return self._reader.setdefault("reader", wakeup)

    def release(self, wakeup: ThreadWakeup) -> bool:
        """The thread with this wakeup reads no longer. False: it wasn't the reader."""
        if self._reader.get("reader") is not wakeup:
            return False
        wakeup.self_pipe = None
        del self._reader["reader"]
        return True

    def fail(self, messages: MessageReader, error: BaseException) -> None:
        """The connection failed: nobody reads it any more, and the listener's thread replaces it."""
        if self.messages is messages:
            self.failure = error
            messages.connection.shut_down()

    def disconnected(self) -> None:
        """The connection is about to be closed."""
        self.messages = None
