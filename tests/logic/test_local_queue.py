"""The waiters of one lock in one client: for how long it is handed on among them."""

from __future__ import annotations

from typing import Any

import pytest

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson.logic.locks.queued_wait import LocalQueue, LockWaiter
from pyredisson.logic.owners import OwnerRegistry
from pyredisson.logic.waiting import GIVEN, LEFT, LOOKING, OFFERED, WAITING


class Wakeup:
    """Counts how often it was set."""

    alive = True

    def __init__(self) -> None:
        self.count = 0

    def set(self) -> None:
        self.count += 1

    def clear(self) -> None: ...

    def is_set(self) -> bool:
        return False


@pytest.fixture
def waiter() -> LockWaiter:
    registry = OwnerRegistry()
    registry.begin("client")
    lock: Any = None
    return LockWaiter(lock, ("lock", 1), AcquireCall(registry.new(), None, None), Wakeup(), b"channel")


def test_a_series_of_hand_overs_has_an_end(waiter: LockWaiter) -> None:
    """Other clients are passed over for that time at most: the last hand-over begins before it is over."""
    queue = LocalQueue()
    queue.waiters[waiter] = None
    assert queue.may_hand_over(100.0, 5.0)
    queue.on_handed_over(100.0, 5.0)
    queue.on_handed_over(104.0, 5.0)
    assert queue.may_hand_over(104.9, 5.0)
    assert not queue.may_hand_over(105.0, 5.0)
    assert not queue.may_hand_over(1000.0, 5.0)
    queue.end_series(106.0)
    assert queue.others_first_until > 106.0
    assert queue.may_hand_over(107.0, 5.0)


def test_nothing_is_handed_over_in_no_time(waiter: LockWaiter) -> None:
    queue = LocalQueue()
    queue.waiters[waiter] = None
    assert not queue.may_hand_over(100.0, 0.0)


def test_others_come_first_only_after_a_series(waiter: LockWaiter) -> None:
    queue = LocalQueue()
    queue.waiters[waiter] = None
    queue.end_series(100.0)
    assert queue.others_first_until == 0.0


def test_only_a_waiter_that_sleeps_is_chosen(waiter: LockWaiter) -> None:
    releaser = ReleaseCall()
    assert not waiter.choose(releaser)
    assert releaser.successor is None
    assert waiter.sleep()
    assert waiter.choose(releaser)
    assert releaser.successor is waiter
    assert not waiter.choose(ReleaseCall())
    assert not waiter.wake_up()
    assert waiter.releaser is releaser


@pytest.mark.parametrize(
    ("outcome", "state"), [("give", GIVEN), ("refuse", LOOKING), ("decline", LEFT), ("stop", LEFT)]
)
def test_an_offer_has_one_outcome(waiter: LockWaiter, outcome: str, state: object) -> None:
    waiter.sleep()
    waiter.choose(ReleaseCall())
    assert waiter.state is OFFERED
    getattr(waiter, outcome)()
    assert waiter.state is state
    if outcome != "give":
        assert not waiter.give()
    waiter.stop()
    assert waiter.state is (GIVEN if outcome == "give" else LEFT)


def test_the_first_that_sleeps_is_woken(waiter: LockWaiter) -> None:
    queue = LocalQueue()
    queue.waiters[waiter] = None
    queue.wake_first()
    assert isinstance(waiter.wakeup, Wakeup)
    assert waiter.wakeup.count == 0
    waiter.sleep()
    assert waiter.state is WAITING
    queue.wake_first()
    assert waiter.wakeup.count == 1
