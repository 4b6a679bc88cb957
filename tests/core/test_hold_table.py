"""Running a coroutine that never suspends; and what acquires and releases do with the table of holds, in one step."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import weakref
from typing import Any, cast
from unittest.mock import Mock

import pytest

from pyredisson._core import AcquireCall, HoldFields, InOrder, ReleaseCall, RenewalStep, Run, Wheel
from pyredisson.logic.holds import HELD, LOST, RELEASED, RELEASING, Hold, HoldKey, HoldTable
from pyredisson.logic.owners import Owner


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
    assert run.result == 42
    assert calls == [41]


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
    assert wheel.advance(5) == {0: [hold]}
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
        self._first_due = 110_000
        self._next_look = math.inf
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
    def test_without_a_hold(self, scene: Scene, lease: int | None) -> None:
        call = AcquireCall(scene.owner, lease, None)
        call.in_doubt = call.overtaken = True
        call.target = object()
        assert scene.holds.begin_attempt(call, KEY, RENEWED_LEASE) is None
        assert (call.target, call.sent_at, call.lease_ms) == (None, 100.0, lease or RENEWED_LEASE)
        assert (call.in_doubt, call.overtaken) == (False, False)

    def test_a_hold_is_the_target(self, scene: Scene) -> None:
        hold = scene.hold()
        assert scene.attempt().target is hold
        # Not of another owner.
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
    def test_it_is_recorded_and_watched(self, scene: Scene) -> None:
        call = scene.attempt()
        call.token = 7
        assert scene.begin_hold(call)
        hold = call.hold
        assert isinstance(hold, Hold)
        assert scene.holds.table == {KEY: hold}
        assert (hold.state, hold.count, hold.leases, hold.token) == (HELD, 1, None, 7)
        assert (hold.acquired_by, hold.owner, hold.begun) == (scene.owner, scene.owner.name, 100.0)
        assert (hold.valid_until, hold.due, hold.reason) == (130.0, 110_000, "")
        assert not scene.step.others

    @pytest.mark.parametrize("next_look", [110_000, 110_001])
    def test_the_watchdog_looks_in_time(self, scene: Scene, next_look: int) -> None:
        scene.step._next_look = next_look
        scene.hold()
        assert scene.step.woken == (next_look > 110_000)

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
        assert scene.holds.add_level(hold, scene.attempt(), 130.0)
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
