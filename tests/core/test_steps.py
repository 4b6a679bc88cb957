"""What the core does in one step: runs a coroutine, changes the table of holds, and the queue of waiters of a lock.

Also where the step is refused: then nothing is changed.
"""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from pyredisson._core import AcquireCall, HoldFields, InOrder, ReleaseCall, RenewalStep, Run, Wheel
from pyredisson.logic.channels import Channel
from pyredisson.logic.holds import HELD, LOST, RELEASED, RELEASING, Hold, HoldKey, HoldTable
from pyredisson.logic.locks.queued_wait import LocalQueue, QueuedWait
from pyredisson.logic.owners import Owner
from pyredisson.logic.waiting import GIVEN, LEFT, LOOKING, OFFERED, UNKNOWN_WAIT, WAITING


class Thing:
    pass


async def give(value: Any) -> Any:
    return value


async def fail(error: BaseException) -> None:
    raise error


def test_the_result_is_what_the_coroutine_returns() -> None:
    """It runs when the result is read."""
    calls = []

    async def note(value: int) -> int:
        calls.append(value)
        return int(await give(value) + await give(1))

    run = Run(note, 41)
    assert not calls
    assert (run.result, calls) == (42, [41])


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (LookupError, "3", Run(fail, LookupError(3))),
        (KeyboardInterrupt, None, Run(fail, KeyboardInterrupt())),
        (TypeError, None, Run(give)),  # type: ignore[call-arg]
        (RuntimeError, "suspended", Run(asyncio.sleep, 0)),
    ],
)
def test_errors(error: type[BaseException], match: str | None, run: Run[Any]) -> None:
    with pytest.raises(error, match=match):
        _ = run.result


def test_nothing_is_kept() -> None:
    thing = Thing()
    before = sys.getrefcount(thing)
    for _ in range(100):
        assert Run(give, thing).result is thing
    assert sys.getrefcount(thing) == before
    gone = weakref.ref(thing)
    del thing
    assert gone() is None


def test_the_fields_of_a_hold() -> None:
    thing, under, wheel = Thing(), Thing(), Wheel()
    hold = HoldFields((b"a", 1), thing, b"me:1", None, 2.5, "held")
    hold.lost_below = under
    assert (hold.key, hold.commands, hold.owner, hold.count, hold.leases) == ((b"a", 1), thing, b"me:1", 1, None)
    found = (hold.valid_until, hold.lost_below, hold.state, hold.reason, hold.listeners)
    assert found == (2.5, under, "held", "", None)
    wheel.add(hold, 5)
    assert wheel.advance(5) == [hold]
    # In a ring it is collected.
    thing.hold = hold  # type: ignore[attr-defined]
    gone = weakref.ref(thing)
    del hold, thing
    gc.collect()
    assert gone() is None


KEY: HoldKey = (b"orders", 1)
RENEWED_LEASE = 30_000
COMMANDS = Mock(key=KEY[0], kind="lock")


class Step(RenewalStep):
    """The step from 100 to 101 s, in which leases are acquired that are renewed at tick 110,000."""

    def __init__(self) -> None:
        self.wheel = Wheel()
        self._step_begins, self._step_ends = 100.0, 101.0
        self._first_due, self._next_look = 110_000, math.inf
        self.woken = 0
        self.others: list[tuple[HoldFields, float]] = []

    def _start_or_wake(self) -> None:
        self.woken += 1

    def _watch_otherwise(self, hold: HoldFields, now: float) -> None:
        self.others.append((hold, now))


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.lost: list[Hold] = []
        self.holds = HoldTable(lambda: self.now, self.lost.append)
        self.step = Step()
        self.holds.wheel = self.step.wheel
        self.owner = Owner("client", 1)

    def attempt(self, lease: int | None = None) -> AcquireCall:
        call = AcquireCall(self.owner, lease, None)
        assert self.holds.begin_attempt(call, KEY, RENEWED_LEASE) is None
        call.name = self.owner.name
        return call

    def begin_hold(self, call: AcquireCall) -> bool:
        return self.holds.begin_hold(call, KEY, COMMANDS, call.sent_at + call.lease_ms / 1000, self.step)

    def hold(self, lease: int | None = None) -> Hold:
        call = self.attempt(lease)
        assert self.begin_hold(call)
        return cast(Hold, call.hold)


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestBeginAttempt:
    @pytest.mark.parametrize("lease", [None, 5])
    def test_the_target(self, scene: Scene, lease: int | None) -> None:
        """A hold, not of another owner."""
        call = AcquireCall(scene.owner, lease, None)
        call.in_doubt = call.overtaken = True
        call.target = object()
        assert scene.holds.begin_attempt(call, KEY, RENEWED_LEASE) is None
        assert (call.target, call.sent_at, call.lease_ms) == (None, 100.0, lease or RENEWED_LEASE)
        assert (call.in_doubt, call.overtaken) == (False, False)
        hold = scene.hold()
        assert scene.attempt().target is hold
        call = AcquireCall(Owner("client", 2), None, None)
        assert scene.holds.begin_attempt(call, (KEY[0], 2), RENEWED_LEASE) is None
        assert call.target is None

    @pytest.mark.parametrize("state", [None, LOST, RELEASING, RELEASED])
    def test_a_hold_that_has_ended(self, scene: Scene, state: Any) -> None:
        """By its lease, or in another state."""
        hold = scene.hold(lease=1000)
        scene.now = 101.0
        if state is not None:
            scene.now, hold.state = 100.5, state
        call = AcquireCall(scene.owner, None, None)
        assert scene.holds.begin_attempt(call, KEY, RENEWED_LEASE) is hold
        assert (call.target, call.sent_at) == (None, scene.now)


class TestBeginHold:
    @pytest.mark.parametrize("next_look", [110_000, 110_001, math.inf])
    def test_it_is_recorded_and_watched(self, scene: Scene, next_look: float) -> None:
        """The watchdog looks in time."""
        scene.step._next_look = next_look
        call = scene.attempt()
        call.token = 7
        assert scene.begin_hold(call)
        hold = call.hold
        assert isinstance(hold, Hold)
        assert scene.holds.table == {KEY: hold}
        assert (hold.state, hold.count, hold.leases, hold.token) == (HELD, 1, None, 7)
        assert (hold.acquired_by, hold.owner, hold.begun) == (scene.owner, scene.owner.name, 100.0)
        assert (hold.valid_until, hold.due, hold.reason) == (130.0, 110_000, "")
        assert (scene.step.others, scene.step.woken) == ([], int(next_look > 110_000))

    @pytest.mark.parametrize(("now", "lease"), [(100.0, 5000), (99.0, None), (101.0, None)])
    def test_another_lease_or_step(self, scene: Scene, now: float, lease: int | None) -> None:
        """A fixed lease, and an acquire that was sent before or after the step, are the watchdog's business."""
        scene.now = now
        hold = scene.hold(lease)
        assert scene.step.others == [(hold, now)]
        assert hold.due == -1

    @pytest.mark.parametrize("overtaken", [True, False])
    def test_not_if_the_call_was_overtaken_or_above_another_hold(self, scene: Scene, overtaken: bool) -> None:
        if overtaken:
            call = scene.attempt()
            call.overtaken = True
        else:
            scene.holds.declare_lost(scene.hold())
            call = AcquireCall(scene.owner, None, None)
            scene.holds.begin_attempt(call, KEY, RENEWED_LEASE)
        before = dict(scene.holds.table), len(scene.step.wheel)
        assert not scene.begin_hold(call)
        assert (call.hold, (scene.holds.table, len(scene.step.wheel))) == (None, before)


class TestRelease:
    def test_each_level(self, scene: Scene) -> None:
        hold = scene.hold()
        ended: list[Hold] = []
        hold.listen(ended.append)
        assert hold.add_level(scene.attempt(), 130.0, HELD)
        assert scene.holds.begin_level_release(hold) == 1
        assert scene.holds.drop_level(hold, ReleaseCall()) == 1
        assert (hold.state, scene.holds.table) == (HELD, {KEY: hold})
        assert scene.holds.begin_level_release(hold) == 0
        assert (hold.state, ended) == (RELEASING, [])
        call = ReleaseCall()
        assert scene.holds.drop_level(hold, call) == 0
        assert (hold.state, hold.count, hold.due, call.dropped) == (RELEASED, 0, -1, True)
        assert (scene.holds.table, ended) == ({}, [hold])
        assert scene.holds.drop_level(hold, call) == -1

    def test_after_the_end_of_the_lease(self, scene: Scene) -> None:
        hold = scene.hold(lease=1000)
        scene.now = 101.0
        assert scene.holds.begin_level_release(hold) == -1
        assert (hold.state, scene.lost) == (LOST, [hold])


def test_the_keys_of_a_dict_that_changes_in_their_order() -> None:
    assert [list(InOrder(dict.fromkeys(keys))) for keys in ("", "a", "abc")] == [[], ["a"], ["a", "b", "c"]]
    keys = dict.fromkeys("abc")
    found = InOrder(keys)
    assert next(found) == "a"
    del keys["a"]
    keys["d"] = None
    assert next(found) == "b"
    del keys["c"]
    assert list(found) == ["c", "d"]


NOW, LONGEST = 100.0, 30.0


class Wakeup(threading.Event):
    """What a waiter sleeps on."""

    alive = True


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
        lock = Mock(commands=Thing(), session=session, identity="lock")
        return QueuedWait(lock, AcquireCall(Mock(id=owner), None, None), b"channel")

    def hold(self) -> Hold:
        return Hold(("lock", 3), Thing(), b"owner", None, NOW + 10.0, HELD)

    def join(self) -> bool:
        return self.queue.join_quietly(self.second, 1, self.channels, NOW, LONGEST)

    def choose(self, releaser: ReleaseCall) -> Any:
        return self.queue.offer_to_first(releaser, Thing, self.now, self.limit, self.holds)

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
    args = {"join": (), "choose": (releaser,), "leave": (queue.second,)}[step]
    assert not getattr(queue, step)(*args)
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
    assert queue.channel.waiters == dict.fromkeys(queue.waiting, 1)
    assert queue.waiting == {queue.first.wakeup, queue.second.wakeup}
    assert (queue.second.queue, queue.second.channel, queue.second.state) == (queue.queue, queue.channel, WAITING)
    assert queue.second.look_at - NOW == sleeps


@pytest.mark.parametrize("before", ["another has joined", "a series goes on", "it has lost a hold"])
def test_the_first_is_chosen(queue: Queue, before: str) -> None:
    if before == "another has joined":
        queue.join()
    elif before == "a series goes on":
        queue.queue.series_ends, queue.now = NOW + 1.0, NOW + 0.9
    else:
        queue.holds[queue.first.hold_key] = lost = queue.hold()
        lost.state = LOST
    releaser = ReleaseCall()
    assert queue.choose(releaser) is queue.first
    assert queue.first.state is OFFERED
    assert (queue.first.releaser, releaser.successor, releaser.hands_over) == (releaser, queue.first, True)


@pytest.mark.parametrize(("end", "state"), [("give", GIVEN), ("refuse", LOOKING), ("decline", LEFT), ("stop", LEFT)])
def test_an_offer_has_one_outcome(queue: Queue, end: str, state: object) -> None:
    waiter, releaser = queue.first, ReleaseCall()
    assert waiter.choose(releaser)
    assert not waiter.choose(ReleaseCall())
    assert not waiter.wake_up()
    assert (waiter.state, waiter.releaser) == (OFFERED, releaser)
    getattr(waiter, end)()
    assert waiter.state is state
    assert end == "give" or not waiter.give()
    waiter.stop()
    assert waiter in queue.ended
    assert waiter.state is (GIVEN if end == "give" else LEFT)


def test_others_come_first_after_a_series_of_hand_overs(queue: Queue) -> None:
    """How long it lasts is tested by `tests/logic/test_local_rules.py`."""
    local = queue.queue
    local.end_series(90.0)
    assert local.others_first_until == 0.0
    local.on_handed_over(100.0, 5.0)
    local.end_series(106.0)
    assert local.others_first_until > 106.0
    assert local.may_hand_over(107.0, 5.0)


def test_the_first_that_sleeps_is_woken(queue: Queue) -> None:
    """Unless its event loop has ended."""
    others = [queue.waiter(3), queue.second, queue.waiter(4)]
    vars(others[0].wakeup)["alive"] = False
    queue.queue.waiters.update(dict.fromkeys(others))
    queue.first.wake_up()
    for woken in ([], [queue.second]):
        queue.queue.wake_first()
        assert [waiter for waiter in others if waiter.wakeup.is_set()] == woken
        for waiter in others:
            waiter.sleep()


@pytest.mark.parametrize("set_aside", [False, True])
def test_the_others_stay_when_one_leaves(queue: Queue, *, set_aside: bool) -> None:
    queue.join()
    queue.second.call.hold = queue.hold()
    if set_aside:
        queue.channel.set_aside(queue.second.wakeup)
        queue.second.wakeup.set()
    assert queue.leave(queue.second)
    first = queue.first.wakeup
    assert (list(queue.queue.waiters), list(queue.channel.waiters), queue.waiting) == ([queue.first], [first], {first})


def test_messages_go_to_others_than_one_that_is_set_aside(queue: Queue) -> None:
    queue.join()
    assert queue.channel.set_aside(queue.first.wakeup) == 0
    queue.channel.wake(1)
    assert not queue.first.wakeup.is_set()
    assert queue.second.wakeup.is_set()
    queue.channel.take_back(queue.first.wakeup, 1)
    assert queue.channel.waiters[queue.first.wakeup] == 1


def test_a_wakeup_that_is_to_be_passed_on(queue: Queue) -> None:
    """A negative need: it is leaving. Only what was set aside is taken back."""
    channel, needs, first = queue.channel, queue.channel.waiters, queue.first.wakeup
    for need, passed_on, need_after in ((3, 3, 0), (-1, 0, -1)):
        needs[first] = need
        first.set()
        assert (channel.set_aside(first), needs[first]) == (passed_on, need_after)
    for need in (-2, 1):
        needs[first] = need
        channel.take_back(first, 7)
        channel.take_back(queue.second.wakeup, 7)
        assert needs == {first: need}


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
    queue.channel.confirmed, queue.first.look_at, queue.first.call.deadline = confirmed, look_at, deadline
    assert queue.first.sleep_seconds(NOW, 1.0) == pytest.approx(expected)
