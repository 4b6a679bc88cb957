"""The states of a thread listener: which thread reads, and what ends that."""

from __future__ import annotations

from typing import Any

from pyredisson._backends.threads.reader_role import ListenerState, ReaderRole
from pyredisson._backends.threads.wakeup import ThreadWakeup


class Messages:
    """A reader of messages whose connection only counts how often it is shut down."""

    def __init__(self) -> None:
        self.connection = self
        self.shutdowns = 0

    def shut_down(self) -> None:
        self.shutdowns += 1


def role(messages: Messages) -> tuple[ReaderRole, ThreadWakeup]:
    """A role with a connection, and the wakeup of the listener's thread."""
    thread = ThreadWakeup()
    made = ReaderRole(thread)
    assert state(made) is ListenerState.DISCONNECTED
    connected(made, messages)
    return made, thread


def state(made: ReaderRole) -> ListenerState:
    """The state now; mypy would take a property for a constant."""
    return made.state


def connected(made: ReaderRole, messages: Any) -> None:
    made.connected(messages)


def test_one_thread_reads_at_a_time() -> None:
    made, thread = role(Messages())
    waiter, other = ThreadWakeup(), ThreadWakeup()
    assert state(made) is ListenerState.UNREAD
    assert made.take(thread) is thread
    assert state(made) is ListenerState.THREAD_READS
    assert made.take(waiter) is thread
    assert made.release(waiter) is False
    assert made.release(thread) is True
    assert state(made) is ListenerState.UNREAD
    assert made.take(waiter) is waiter
    assert state(made) is ListenerState.WAITER_READS
    assert made.take(other) is waiter
    assert made.release(waiter) is True
    assert made.release(waiter) is False


def test_a_reader_that_was_interrupted_can_be_released_by_the_thread() -> None:
    made, thread = role(Messages())
    waiter = ThreadWakeup()
    made.take(waiter)
    assert made.take(thread) is waiter
    assert made.release(waiter) is True
    assert made.take(thread) is thread


def test_a_failure_breaks_the_present_connection_only() -> None:
    earlier, present = Messages(), Messages()
    made, _ = role(earlier)
    error = OSError("broken")
    failed: Any = earlier
    made.fail(failed, error)
    assert (state(made), made.failure, earlier.shutdowns) == (ListenerState.BROKEN, error, 1)
    made.disconnected()
    assert state(made) is ListenerState.DISCONNECTED
    connected(made, present)
    assert (state(made), made.failure) == (ListenerState.UNREAD, None)
    # A waiter that read the earlier connection reports late.
    made.fail(failed, error)
    assert (state(made), present.shutdowns) == (ListenerState.UNREAD, 0)
