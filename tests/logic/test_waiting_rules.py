"""Rules of the callers of one client that wait for a lock. They need no server, and the clock stands still."""

from collections.abc import Callable
from itertools import repeat
from typing import Any
from unittest.mock import Mock, PropertyMock

import pytest

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import AcquireCall
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.locks import hand_over, side_wait
from pyredisson.logic.locks.commands import LOCK_FREE
from pyredisson.logic.locks.fair_queue import FairQueue, FairWait, QueueTicket
from pyredisson.logic.locks.queued_wait import LocalQueue
from pyredisson.logic.locks.read_write_lock import ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.permits.permit_queue import PermitQueue
from pyredisson.logic.waiting import WAITING


class Waiters:
    def __init__(self, kind: type[LockLogic] = LockLogic) -> None:
        self.session = session = Mock(clock=lambda: 1.0, closed=False, lease_ms=30_000, lock_queues={}, client=b"me")
        session.channels, session.runtime.wakeup = ChannelRegistry(float), ThreadWakeup
        session.channels.subscriber, session.list_member.return_value = Mock(), b"me:1"
        self.lock = kind(session, b"orders")

    def come(self, seconds: float = 9.0) -> Any:
        """A call waits that was refused for so many seconds."""
        call = AcquireCall(Owner("me", 1), None, None)
        call.member, call.place = b"me:1", 0
        waiter = self.lock.waiter_type(self.lock, call, self.lock.commands.waiting_channel)
        waiter.join(seconds)
        waiter.sleep()
        self.session.channels.on_subscribed(waiter.channel_name)
        for wakeup in waiter.channel.waiters:
            wakeup.clear()
        return waiter


def test_of_readers_that_get_in_together_one_wakes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of some thousands woke all the others, which took seconds."""
    monkeypatch.setattr(LockLogic, "_apply", lambda *_: None)
    waiters = Waiters(ReadLogic)
    readers, woken = [waiters.come() for _ in range(3)], []
    for reader in readers[:2]:
        waiters.lock._apply(reader.call, reader.hold_key, None)
        reader.call.hold = Mock()
        woken.append(readers[2].wakeup.is_set())
        readers[2].wakeup.clear()
        reader.end()
        woken.append(readers[2].wakeup.is_set())
    assert woken == [True, False, False, False]


def queue_of(count: int) -> tuple[FairQueue, list[QueueTicket]]:
    queue, tickets = FairQueue(Mock()), [QueueTicket(Mock(), b"", waiter=Mock()) for _ in range(count)]
    for ticket in tickets:
        queue.join(ticket, 1.0)
    return queue, tickets


def test_a_waiter_whose_event_loop_is_closed_sends_no_heartbeats() -> None:
    """Without heartbeats the others lost their places, and noticed that only within a minute."""
    queue, (first, second, last) = queue_of(3)
    second.waiter = Mock(wakeup=Mock(alive=False))
    queue.leave(last)
    assert queue.heartbeat_sender is first


def test_an_interrupt_leaves_no_queue_without_heartbeats() -> None:
    queue, (first, last) = queue_of(2)
    wakeup: Any = Mock()
    type(wakeup).alive = PropertyMock(side_effect=(KeyboardInterrupt, True))
    first.waiter = Mock(wakeup=wakeup)
    leaving = Mock(_ticket=last, lock=Mock(key=b"orders"), session=Mock(fair_queues={b"orders": queue}))
    with pytest.raises(KeyboardInterrupt):
        FairWait.leave_queue(leaving)
    FairWait.leave_queue(leaving)
    assert queue.heartbeat_sender is first


def test_a_message_reaches_the_first_waiter_in_any_order() -> None:
    """Otherwise nobody made an attempt before the end of the lease of the former holder."""
    waiters = Waiters()
    first, second = waiters.come(), waiters.come()
    # As after two threads that joined at once, one of them without the mutex.
    first.channel.waiters[first.wakeup] = first.channel.waiters.pop(first.wakeup)
    waiters.session.channels.deliver(first.channel_name, b"me:1")
    assert (second.wakeup.is_set(), second.wake_up(), second.is_due()) == (True, True, False)
    assert first.wakeup.is_set()


def test_an_interrupted_end_of_a_claimant_lets_the_readers_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have slept until the end of a claim that is withdrawn, for up to a second."""
    writer, wake = Waiters(WriteLogic).come(), Mock(side_effect=(KeyboardInterrupt, None))
    writer.session.new_member.return_value, writer.queue.claimed_until = b"me:2", 2.0
    monkeypatch.setattr(side_wait, "wake_readers", wake)
    with pytest.raises(KeyboardInterrupt):
        writer.end()
    assert not writer.queue.claimed_until > 0
    writer.end()
    writer.end()
    assert wake.call_count == 2


def test_a_refused_call_that_joins_after_a_hold_of_its_client_makes_another_attempt() -> None:
    """The acquire of that hold has taken the client out of the list."""
    waiters, woken = Waiters(), []
    call, name = waiters.come().call, waiters.lock.commands.waiting_channel
    for released in (False, True):
        call.events = waiters.session.channels.events(name)
        waiters.session.lock_queues.clear()
        if released:
            hand_over.on_released(waiters.lock, LOCK_FREE)
        waiter = waiters.lock.waiter_type(waiters.lock, call, name)
        waiter.join(9.0)
        woken.append(waiter.wakeup.is_set())
    assert woken == [False, True]


@pytest.mark.parametrize("look", [LocalQueue.wake_first, lambda queue: queue.wake_if_later(2.0)])
def test_a_waiter_that_leaves_just_before_it_is_woken_is_passed_over(look: Callable[[LocalQueue], None]) -> None:
    """The others relied on a hold that was lost, until the end of its lease."""
    waiters = Waiters()
    first, second = waiters.come(), waiters.come()
    # Another thread ends it after the look at its state.
    first.wakeup = Mock(alive=True, set=first.end, is_set=lambda: False)
    look(first.queue)
    assert second.wakeup.is_set()


def test_few_of_a_thousand_waiters_are_looked_at_for_the_smallest_need() -> None:
    queue, looks = PermitQueue(repeat(b"me:1")), PropertyMock(return_value=3)
    first, *others = [Mock(permits=2, state=WAITING) for _ in range(1000)]
    for waiter in others:
        # Each mock has a class of its own.
        type(waiter).permits = looks
    for waiter in (first, *others):
        queue.add(waiter)
    assert queue.least() == 2
    queue.remove(first)
    # It looks at all of them, once.
    assert queue.least() == 3
    looks.reset_mock()
    assert {queue.least() for _ in range(10)} == {3}
    assert looks.call_count < 100
