"""A wakeup that several threads use at the same moment, and one that its waiter does not use."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable

import pytest

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson.logic.channels import Channel, ChannelRegistry
from pyredisson.logic.locks.local_queue import LockChannel
from pyredisson.logic.locks.side_wait import WRITER, ReadWriteChannel
from pyredisson.logic.permits.permit_channel import ExpirablePermitChannel, PermitChannel


class Interrupted:
    """A lock after whose next acquisition the thread is interrupted by another one."""

    def __init__(self, lock: _thread.LockType, other_thread: Callable[[], None]) -> None:
        self._lock = lock
        self._other_thread = other_thread

    def acquire(self, *, timeout: float) -> bool:
        acquired = self._lock.acquire(timeout=timeout)
        self._other_thread()
        return acquired

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


def test_it_is_set_while_its_waiter_wakes() -> None:
    """Two messages may come in quick succession."""
    wakeup = ThreadWakeup()
    wakeup.set()
    wakeup.lock = Interrupted(wakeup.lock, wakeup.set)  # type: ignore[assignment]
    assert wakeup.wait(1)
    assert wakeup.is_set()
    assert wakeup.wait(1)


class NoSubscriber:
    """A subscription connection that does nothing."""

    def subscribe(self, channels: Iterable[bytes]) -> None: ...

    def unsubscribe(self, channels: Iterable[bytes]) -> None: ...


@pytest.mark.parametrize("event", ["a message", "the confirmation"])
@pytest.mark.parametrize(
    ("kind", "need"),
    [(Channel, 1), (LockChannel, 1), (ReadWriteChannel, WRITER), (PermitChannel, 1), (ExpirablePermitChannel, 1)],
)
def test_the_next_waiter_gets_the_wakeup_of_one_that_leaves(kind: type[Channel], need: int, event: str) -> None:
    registry = ChannelRegistry(lambda: 1000.0)
    registry.attach(NoSubscriber())
    first, second = ThreadWakeup(), ThreadWakeup()
    channel = registry.join(b"channel", first, kind, need)
    registry.join(b"channel", second, kind, need)
    registry.on_subscribed(b"channel")
    if event == "a message":
        for wakeup in (first, second):
            wakeup.clear()
        if isinstance(channel, PermitChannel):
            channel.on_refused(channel.begin_attempt(), channel.events, 0)
        registry.deliver(b"channel", b"1" if isinstance(channel, PermitChannel) else b"0")
        assert not second.is_set()
    assert first.is_set()
    registry.leave(b"channel", first)
    assert second.is_set()
    registry.leave(b"channel", second)
    assert channel.waiters == {}
    assert registry.waiting == set()


def test_the_next_waiter_for_several_permits_may_become_the_leader() -> None:
    """It would notice only at its next attempt, up to five seconds later, that it may claim permits."""
    registry = ChannelRegistry(lambda: 1000.0)
    registry.attach(NoSubscriber())
    leader, single, second = ThreadWakeup(), ThreadWakeup(), ThreadWakeup()
    for wakeup, need in ((leader, 3), (single, 1), (second, 2)):
        registry.join(b"channel", wakeup, PermitChannel, need)
    assert registry.become_leader(b"channel", leader)
    registry.leave(b"channel", leader)
    assert second.is_set()
    assert not single.is_set()
    assert registry.become_leader(b"channel", second)
