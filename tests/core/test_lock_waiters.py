"""The steps in which a waiter joins the queue of a lock, is chosen by a release, and leaves: also when they refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson.logic.channels import Channel
from pyredisson.logic.handed_waiter import LOOKING, OFFERED, WAITING
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.local_queue import UNKNOWN_WAIT, LocalQueue, LockWaiter
from pyredisson.logic.owners import OwnerRegistry

NOW, LONGEST, LIMIT = 100.0, 30.0, 5.0


class Wakeup:
    """What a waiter sleeps on."""

    def __init__(self) -> None:
        self.alive = True
        self.flag = False

    def set(self) -> None:
        self.flag = True

    def clear(self) -> None:
        self.flag = False

    def is_set(self) -> bool:
        return self.flag


class Commands:
    """The kind of the lock."""


class Queue:
    """A queue in which one waiter sleeps, and a second waiter that is about to join."""

    def __init__(self) -> None:
        self.owners = OwnerRegistry()
        self.owners.begin("client")
        self.queue, self.channel = LocalQueue(), Channel()
        self.queue.channel = self.channel
        self.channel.confirmed = True
        self.waiting: set[Any] = set()
        self.holds: dict[Any, Any] = {}
        self.first, self.second = self.waiter(1), self.waiter(2)
        self.first.queue, self.first.channel = self.queue, self.channel
        self.queue.waiters[self.first] = None
        self.channel.waiters[self.first.wakeup] = 1
        self.waiting.add(self.first.wakeup)
        self.first.sleep()

    def waiter(self, owner: int) -> LockWaiter[Any]:
        lock = SimpleNamespace(commands=Commands())
        call = AcquireCall(self.owners.new(), None, None)
        return LockWaiter(lock, ("lock", owner), call, Wakeup(), b"channel")

    def hold(self) -> Hold:
        return Hold(("lock", 3), Commands(), b"owner", None, NOW + 10.0, HELD)

    def join(self) -> bool:
        return self.queue.join_quietly(self.second, 1, self.waiting, NOW, LONGEST)

    def choose(self, releaser: ReleaseCall, limit: float = LIMIT, now: float = NOW) -> Any:
        return self.queue.offer_to_first(releaser, Commands, now, limit, self.holds)

    def leave(self, waiter: LockWaiter[Any]) -> bool:
        return self.queue.leave_quietly(waiter, self.waiting)

    @property
    def tables(self) -> tuple[Any, ...]:
        return dict(self.queue.waiters), dict(self.channel.waiters), set(self.waiting), self.queue.series_ends


@pytest.fixture
def queue() -> Queue:
    return Queue()


class TestJoin:
    def test_behind_another(self, queue: Queue) -> None:
        assert queue.join()
        assert list(queue.queue.waiters) == [queue.first, queue.second]
        assert queue.channel.waiters == {queue.first.wakeup: 1, queue.second.wakeup: 1}
        assert queue.waiting == {queue.first.wakeup, queue.second.wakeup}
        assert (queue.second.queue, queue.second.channel) == (queue.queue, queue.channel)
        assert queue.second.state is WAITING
        assert queue.second.look_at == NOW + UNKNOWN_WAIT

    def test_until_the_lease_of_the_holder_ends(self, queue: Queue) -> None:
        queue.queue.set_holder(queue.hold(), queue.channel.events)
        assert queue.join()
        assert NOW + 10.0 < queue.second.look_at < NOW + 10.1

    def test_not_for_longer_than_the_longest_sleep(self, queue: Queue) -> None:
        queue.queue.busy_until = NOW + 1000.0
        assert queue.join()
        assert queue.second.look_at == NOW + LONGEST

    @pytest.mark.parametrize(
        "change",
        [
            lambda queue: queue.queue.waiters.clear(),
            lambda queue: setattr(queue.queue, "channel", None),
            lambda queue: setattr(queue.channel, "confirmed", False),
            lambda queue: setattr(queue.channel, "error", Exception()),
            lambda queue: queue.channel.waiters.clear(),
            lambda queue: setattr(queue.first.wakeup, "alive", False),
        ],
        ids=["empty", "no channel", "not confirmed", "refused", "nobody listens", "the first is dead"],
    )
    def test_refused(self, queue: Queue, change: Any) -> None:
        change(queue)
        before = queue.tables
        assert not queue.join()
        assert queue.tables == before
        assert queue.second.state is LOOKING


class TestChoose:
    def test_the_first(self, queue: Queue) -> None:
        queue.join()
        releaser = ReleaseCall()
        assert queue.choose(releaser) is queue.first
        assert queue.first.state is OFFERED
        assert (queue.first.releaser, releaser.successor, releaser.hands_over) == (releaser, queue.first, True)

    def test_a_series_goes_on_until_its_end(self, queue: Queue) -> None:
        queue.queue.series_ends = NOW + 1.0
        assert queue.choose(ReleaseCall(), now=NOW + 0.9) is queue.first

    def test_a_lost_hold_is_none(self, queue: Queue) -> None:
        queue.holds[queue.first.hold_key] = lost = queue.hold()
        lost.state = LOST
        assert queue.choose(ReleaseCall()) is queue.first

    @pytest.mark.parametrize(
        "change",
        [
            lambda queue: queue.queue.waiters.clear(),
            lambda queue: queue.first.wake_up(),
            lambda queue: setattr(queue.first.wakeup, "alive", False),
            # As `give_up` does with a call that waits.
            lambda queue: setattr(queue.first.call, "deadline", NOW),
            lambda queue: queue.holds.update({queue.first.hold_key: queue.hold()}),
            lambda queue: setattr(queue.queue, "series_ends", NOW),
            lambda queue: setattr(queue.first.lock, "commands", object()),
        ],
        ids=["empty", "awake", "dead", "its time is over", "holds", "the series is over", "another kind"],
    )
    def test_refused(self, queue: Queue, change: Any) -> None:
        change(queue)
        before, releaser = queue.tables, ReleaseCall()
        assert queue.choose(releaser) is None
        assert queue.tables == before
        assert queue.first.state is not OFFERED
        assert releaser.successor is None

    def test_nothing_is_handed_on_in_no_time(self, queue: Queue) -> None:
        assert queue.choose(ReleaseCall(), limit=0.0) is None


class TestLeave:
    @pytest.mark.parametrize("set_aside", [False, True])
    def test_others_stay(self, queue: Queue, *, set_aside: bool) -> None:
        queue.join()
        queue.second.call.hold = queue.hold()
        if set_aside:
            queue.channel.set_aside(queue.second.wakeup)
            queue.second.wakeup.set()
        assert queue.leave(queue.second)
        assert list(queue.queue.waiters) == [queue.first]
        assert list(queue.channel.waiters) == [queue.first.wakeup]
        assert queue.waiting == {queue.first.wakeup}

    @pytest.mark.parametrize(
        "change",
        [
            lambda queue: setattr(queue.second.call, "hold", None),
            lambda queue: queue.second.wakeup.set(),
            lambda queue: setattr(queue.channel, "leader", queue.second.wakeup),
            lambda queue: queue.queue.waiters.pop(queue.first),
            lambda queue: queue.channel.waiters.pop(queue.first.wakeup),
            lambda queue: queue.queue.waiters.pop(queue.second),
            lambda queue: queue.channel.waiters.pop(queue.second.wakeup),
        ],
        ids=["no hold", "a wakeup to pass on", "the leader", "the last", "the last of the channel", "left", "left it"],
    )
    def test_refused(self, queue: Queue, change: Any) -> None:
        queue.join()
        queue.second.call.hold = queue.hold()
        change(queue)
        before = queue.tables
        assert not queue.leave(queue.second)
        assert queue.tables == before

    def test_before_it_has_a_channel(self, queue: Queue) -> None:
        queue.queue.waiters[queue.second] = None
        queue.second.call.hold = queue.hold()
        assert not queue.leave(queue.second)


class TestSetAside:
    def test_messages_go_to_others(self, queue: Queue) -> None:
        queue.join()
        assert queue.channel.set_aside(queue.first.wakeup) == 0
        queue.channel.wake(1)
        assert not queue.first.wakeup.is_set()
        assert queue.second.wakeup.is_set()
        queue.channel.take_back(queue.first.wakeup, 1)
        assert queue.channel.waiters[queue.first.wakeup] == 1

    def test_a_wakeup_that_is_to_be_passed_on(self, queue: Queue) -> None:
        queue.channel.waiters[queue.first.wakeup] = 3
        queue.first.wakeup.set()
        assert queue.channel.set_aside(queue.first.wakeup) == 3

    @pytest.mark.parametrize("need", [-2, 1])
    def test_only_what_was_set_aside_is_taken_back(self, queue: Queue, need: int) -> None:
        """A negative need: it is leaving."""
        queue.channel.waiters[queue.first.wakeup] = need
        queue.channel.take_back(queue.first.wakeup, 7)
        assert queue.channel.waiters[queue.first.wakeup] == need
        queue.channel.take_back(queue.second.wakeup, 7)
        assert queue.second.wakeup not in queue.channel.waiters

    def test_one_that_is_leaving(self, queue: Queue) -> None:
        queue.first.wakeup.set()
        queue.channel.waiters[queue.first.wakeup] = -1
        assert queue.channel.set_aside(queue.first.wakeup) == 0
        assert queue.channel.waiters[queue.first.wakeup] == -1


@pytest.mark.parametrize(
    ("confirmed", "look_at", "deadline", "expected"),
    [
        (True, NOW + 9.0, None, 9.0),
        (False, NOW + 9.0, None, 1.0),
        (True, NOW - 1.0, None, 0.001),
        (True, NOW + 9.0, NOW + 2.0, 2.0),
        (True, NOW + 9.0, NOW - 2.0, -2.0),
    ],
)
def test_how_long_it_sleeps(queue: Queue, confirmed: bool, look_at: float, deadline: float, expected: float) -> None:
    queue.channel.confirmed = confirmed
    queue.first.look_at = look_at
    queue.first.call.deadline = deadline
    assert queue.first.seconds_to_sleep(NOW, 1.0) == pytest.approx(expected)
