"""The steps in which a waiter joins the queue of a lock, is chosen by a release, and leaves: also when they refuse."""

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.queued_wait import LocalQueue, QueuedWait
from pyredisson.logic.waiting import GIVEN, LEFT, LOOKING, OFFERED, UNKNOWN_WAIT, WAITING

NOW, LONGEST = 100.0, 30.0


class Wakeup(threading.Event):
    """What a waiter sleeps on."""

    alive = True


class Commands:
    """The kind of the lock."""


class Queue:
    """A queue in which one waiter sleeps, and a second waiter that is about to join."""

    def __init__(self) -> None:
        self.queue, self.channel = LocalQueue(), Channel()
        self.queue.channel = self.channel
        self.channel.confirmed = True
        self.waiting: set[Any] = set()
        self.channels = Mock(waiting=self.waiting, mutex=threading.RLock())
        self.ended: list[QueuedWait] = []
        """The waits that the client does not count any more."""
        self.holds: dict[Any, Any] = {}
        self.now, self.limit = NOW, 5.0
        self.first, self.second = self.waiter(1), self.waiter(2)
        self.first.queue, self.first.channel = self.queue, self.channel
        self.queue.waiters[self.first] = None
        self.channel.waiters[self.first.wakeup] = 1
        self.waiting.add(self.first.wakeup)
        self.first.sleep()

    def waiter(self, owner: int) -> QueuedWait:
        session = Mock(runtime=Mock(wakeup=Wakeup), end_waiting=self.ended.append)
        lock = Mock(commands=Commands(), session=session, identity="lock")
        return QueuedWait(lock, AcquireCall(Mock(id=owner), None, None), b"channel")

    def hold(self) -> Hold:
        return Hold(("lock", 3), Commands(), b"owner", None, NOW + 10.0, HELD)

    def join(self) -> bool:
        return self.queue.join_quietly(self.second, 1, self.channels, NOW, LONGEST)

    def choose(self, releaser: ReleaseCall) -> Any:
        return self.queue.offer_to_first(releaser, Commands, self.now, self.limit, self.holds)

    def leave(self, waiter: QueuedWait) -> bool:
        return self.queue.leave_quietly(waiter, self.channels)

    @property
    def tables(self) -> tuple[Any, ...]:
        return dict(self.queue.waiters), dict(self.channel.waiters), set(self.waiting), self.queue.series_ends


@pytest.fixture
def queue() -> Queue:
    return Queue()


REFUSALS: dict[str, tuple[str, Callable[[Queue], Any]]] = {
    "empty": ("join", lambda queue: queue.queue.waiters.clear()),
    "no channel": ("join", lambda queue: setattr(queue.queue, "channel", None)),
    "not confirmed": ("join", lambda queue: setattr(queue.channel, "confirmed", False)),
    "refused": ("join", lambda queue: setattr(queue.channel, "error", Exception())),
    "nobody listens": ("join", lambda queue: queue.channel.waiters.clear()),
    "the first is dead": ("join", lambda queue: setattr(queue.first.wakeup, "alive", False)),
    "empty at a release": ("choose", lambda queue: queue.queue.waiters.clear()),
    "awake": ("choose", lambda queue: queue.first.wake_up()),
    "dead": ("choose", lambda queue: setattr(queue.first.wakeup, "alive", False)),
    # As `give_up` does with a call that waits.
    "its time is over": ("choose", lambda queue: setattr(queue.first.call, "deadline", NOW)),
    "holds": ("choose", lambda queue: queue.holds.update({queue.first.hold_key: queue.hold()})),
    "the series is over": ("choose", lambda queue: setattr(queue.queue, "series_ends", NOW)),
    "another kind": ("choose", lambda queue: setattr(queue.first.lock, "commands", object())),
    "nothing is handed on in no time": ("choose", lambda queue: setattr(queue, "limit", 0.0)),
    "a wakeup to pass on": ("leave", lambda queue: queue.second.wakeup.set()),
    "the leader": ("leave", lambda queue: setattr(queue.channel, "leader", queue.second.wakeup)),
    "the last": ("leave", lambda queue: queue.queue.waiters.pop(queue.first)),
    "the last of the channel": ("leave", lambda queue: queue.channel.waiters.pop(queue.first.wakeup)),
    "before it has a channel": ("leave", lambda queue: setattr(queue.second, "channel", None)),
    "left": ("leave", lambda queue: queue.queue.waiters.pop(queue.second)),
    "left it": ("leave", lambda queue: queue.channel.waiters.pop(queue.second.wakeup)),
}


@pytest.mark.parametrize(("step", "change"), REFUSALS.values(), ids=REFUSALS)
def test_a_refused_step_changes_nothing(queue: Queue, step: str, change: Callable[[Queue], Any]) -> None:
    if step == "leave":
        queue.join()
        queue.second.call.hold = queue.hold()
    change(queue)
    before, states, releaser = queue.tables, (queue.first.state, queue.second.state), ReleaseCall()
    steps: dict[str, Callable[[], object]] = {
        "join": queue.join,
        "choose": lambda: queue.choose(releaser),
        "leave": lambda: queue.leave(queue.second),
    }
    assert not steps[step]()
    assert (queue.tables, (queue.first.state, queue.second.state)) == (before, states)
    assert releaser.successor is None


SLEEPS: dict[str, tuple[Callable[[Queue], Any], Any]] = {
    "for a while": (lambda _: None, UNKNOWN_WAIT),
    "until the lease of the holder ends": (
        lambda queue: queue.queue.set_holder(queue.hold(), queue.channel.events),
        pytest.approx(10.05, abs=0.05),
    ),
    "not for longer than the longest sleep": (lambda queue: setattr(queue.queue, "busy_until", NOW + 1000.0), LONGEST),
}


@pytest.mark.parametrize(("change", "sleeps"), SLEEPS.values(), ids=SLEEPS)
def test_it_joins_behind_another_and_sleeps(queue: Queue, change: Callable[[Queue], Any], sleeps: float) -> None:
    change(queue)
    assert queue.join()
    assert list(queue.queue.waiters) == [queue.first, queue.second]
    assert queue.channel.waiters == {queue.first.wakeup: 1, queue.second.wakeup: 1}
    assert queue.waiting == {queue.first.wakeup, queue.second.wakeup}
    assert (queue.second.queue, queue.second.channel) == (queue.queue, queue.channel)
    assert queue.second.state is WAITING
    assert queue.second.look_at - NOW == sleeps


def a_series_goes_on(queue: Queue) -> None:
    queue.queue.series_ends, queue.now = NOW + 1.0, NOW + 0.9


def it_has_lost_a_hold(queue: Queue) -> None:
    queue.holds[queue.first.hold_key] = lost = queue.hold()
    lost.state = LOST


@pytest.mark.parametrize("before", [Queue.join, a_series_goes_on, it_has_lost_a_hold])
def test_the_first_is_chosen(queue: Queue, before: Callable[[Queue], Any]) -> None:
    before(queue)
    releaser = ReleaseCall()
    assert queue.choose(releaser) is queue.first
    assert queue.first.state is OFFERED
    assert (queue.first.releaser, releaser.successor, releaser.hands_over) == (releaser, queue.first, True)


@pytest.mark.parametrize(
    ("outcome", "state"), [("give", GIVEN), ("refuse", LOOKING), ("decline", LEFT), ("stop", LEFT)]
)
def test_an_offer_has_one_outcome(queue: Queue, outcome: str, state: object) -> None:
    waiter, releaser = queue.first, ReleaseCall()
    assert waiter.choose(releaser)
    assert not waiter.choose(ReleaseCall())
    assert not waiter.wake_up()
    assert (waiter.state, waiter.releaser) == (OFFERED, releaser)
    getattr(waiter, outcome)()
    assert waiter.state is state
    assert outcome == "give" or not waiter.give()
    waiter.stop()
    assert waiter in queue.ended
    assert waiter.state is (GIVEN if outcome == "give" else LEFT)


def test_a_series_of_hand_overs_has_an_end(queue: Queue) -> None:
    """Other clients are passed over for that time at most: the last hand-over begins before it is over."""
    local = queue.queue
    local.end_series(90.0)
    assert local.others_first_until == 0.0
    assert not local.may_hand_over(100.0, 0.0)
    for now in (100.0, 104.0):
        assert local.may_hand_over(now, 5.0)
        local.on_handed_over(now, 5.0)
    assert [local.may_hand_over(now, 5.0) for now in (104.9, 105.0, 1000.0)] == [True, False, False]
    local.end_series(106.0)
    assert local.others_first_until > 106.0
    assert local.may_hand_over(107.0, 5.0)


def test_the_first_that_sleeps_is_woken(queue: Queue) -> None:
    queue.queue.waiters[queue.second] = None
    queue.first.wake_up()
    queue.queue.wake_first()
    assert not queue.second.wakeup.is_set()
    queue.second.sleep()
    queue.queue.wake_first()
    assert queue.second.wakeup.is_set()


@pytest.mark.parametrize("set_aside", [False, True])
def test_the_others_stay_when_one_leaves(queue: Queue, *, set_aside: bool) -> None:
    queue.join()
    queue.second.call.hold = queue.hold()
    if set_aside:
        queue.channel.set_aside(queue.second.wakeup)
        queue.second.wakeup.set()
    assert queue.leave(queue.second)
    assert list(queue.queue.waiters) == [queue.first]
    assert list(queue.channel.waiters) == [queue.first.wakeup]
    assert queue.waiting == {queue.first.wakeup}


def test_messages_go_to_others_than_one_that_is_set_aside(queue: Queue) -> None:
    queue.join()
    assert queue.channel.set_aside(queue.first.wakeup) == 0
    queue.channel.wake(1)
    assert not queue.first.wakeup.is_set()
    assert queue.second.wakeup.is_set()
    queue.channel.take_back(queue.first.wakeup, 1)
    assert queue.channel.waiters[queue.first.wakeup] == 1


@pytest.mark.parametrize(("need", "passed_on", "need_after"), [(3, 3, 0), (-1, 0, -1)])
def test_a_wakeup_that_is_to_be_passed_on(queue: Queue, need: int, passed_on: int, need_after: int) -> None:
    """A negative need: it is leaving."""
    queue.channel.waiters[queue.first.wakeup] = need
    queue.first.wakeup.set()
    assert queue.channel.set_aside(queue.first.wakeup) == passed_on
    assert queue.channel.waiters[queue.first.wakeup] == need_after


@pytest.mark.parametrize("need", [-2, 1])
def test_only_what_was_set_aside_is_taken_back(queue: Queue, need: int) -> None:
    """A negative need: it is leaving."""
    queue.channel.waiters[queue.first.wakeup] = need
    queue.channel.take_back(queue.first.wakeup, 7)
    assert queue.channel.waiters[queue.first.wakeup] == need
    queue.channel.take_back(queue.second.wakeup, 7)
    assert queue.second.wakeup not in queue.channel.waiters


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
    assert queue.first.sleep_seconds(NOW, 1.0) == pytest.approx(expected)
