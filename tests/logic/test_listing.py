"""Which holds others are told of, and how often the loop that keeps the time wakes for it. The clock is a number."""

from unittest.mock import Mock

import pytest

from pyredisson._core import AcquireCall, Run
from pyredisson.logic.holds import HELD, LOST, Hold, HoldTable
from pyredisson.logic.owners import Owner
from pyredisson.logic.watchdog import LISTED_AFTER, Watchdog

LEASE = 30_000
ROUND = LEASE // 3
OVERSHOOT = 5e-5
"""Seconds by which each look is late, as those of a real clock are."""


COMMANDS = Mock(key=b"orders", kind="lock", renews_fixed_leases=False)


class Scene:
    """A watchdog, its clock, and the holds that the announcer is told of."""

    def __init__(self, lease: int = LEASE) -> None:
        self.now = 1000.0
        self.listed: list[tuple[Hold, float]] = []
        self.looks = -1
        self.woken = False
        wakeup = Mock(set=lambda: setattr(self, "woken", True))
        runtime = Mock(sharded=False, clock=lambda: self.now, wakeup=lambda: wakeup, slot_of=lambda _: 0)
        self.holds = HoldTable(runtime.clock, Mock())
        self.watchdog = Watchdog(self.holds, runtime, lease, Mock())
        self.watchdog.announcer = Mock(add=self.add)
        self.watchdog.started = True
        self.owner = Owner("client", 1)
        self.next_look = 0.0
        self.pass_time(0.0)

    def add(self, hold: Hold) -> None:
        hold.listed = True
        self.listed.append((hold, self.now))

    def hold(self, lease: int | None = None, number: int = 0) -> Hold:
        call = AcquireCall(self.owner, lease, None)
        key = (b"orders", number)
        assert self.holds.begin_attempt(call, key, LEASE) is None
        call.name = self.owner.name
        assert self.holds.begin_hold(call, key, COMMANDS, self.now + call.lease_ms / 1000, self.watchdog)
        held: Hold = call.hold
        self.pass_time(0.0)
        return held

    def pass_time(self, seconds: float) -> None:
        """The loop looks whenever it wants to, or is woken."""
        end = self.now + seconds
        while self.woken or self.next_look <= end:
            if not self.woken:
                self.now = max(self.now, self.next_look) + OVERSHOOT
            self.woken = False
            self.looks += 1
            self.next_look = self.now + Run(self.watchdog._keep_time_once).result
        self.now = max(self.now, end)


@pytest.mark.parametrize("lease", [None, 20_000, 800])
def test_a_hold_is_listed_after_a_second(lease: int | None) -> None:
    scene = Scene()
    scene.pass_time(3.05)
    begun = scene.now
    hold = scene.hold(lease)
    scene.pass_time(0.7)
    assert not scene.listed
    scene.pass_time(0.4)
    if lease == 800:
        assert (scene.listed, hold.state) == ([], LOST)
        return
    [(listed, at)] = scene.listed
    assert listed is hold
    assert begun + 0.85 < at < begun + 1.01
    # It is renewed, or ends, as if nothing had happened.
    step = scene.watchdog._grid.step
    assert hold.due == int(begun * 1000) // step * step + ROUND if lease is None else int(hold.valid_until * 1000) + 1
    scene.pass_time(30)
    assert len(scene.listed) == 1


def test_with_a_short_lease_a_hold_is_listed_when_its_first_renewal_is_due() -> None:
    scene = Scene(lease=1500)
    hold = scene.hold()
    scene.pass_time(0.51)
    assert [listed for listed, _ in scene.listed] == [hold]
    renewer = scene.watchdog._sole
    assert renewer is not None
    assert hold in renewer.due


def test_short_holds_cost_nothing() -> None:
    """None is listed, and the loop is woken once a second at most: not by each of them, which is due before its next
    look."""
    scene = Scene()
    looks, seconds = scene.looks, 20
    for _ in range(seconds * 100):
        hold = scene.hold()
        scene.pass_time(0.005)
        scene.holds.discard(hold)
        scene.pass_time(0.005)
    assert not scene.listed
    assert scene.looks - looks <= seconds + 3
    # Nor does the loop go on looking when nobody locks any more.
    looks = scene.looks
    scene.pass_time(50)
    assert scene.looks - looks <= 50 / (ROUND / 2000) + 2


def test_many_holds_are_listed_together() -> None:
    """Those that began in one step of the grid, with one look. Without an announcer, the renewals alone need looks."""
    scene = Scene()
    looks = scene.looks
    for number in range(1000):
        scene.hold(number=number)
    scene.pass_time(LISTED_AFTER / 1000 + 0.01)
    assert len(scene.listed) == 1000
    assert scene.looks - looks <= 3
    assert all(hold.state is HELD for hold, _ in scene.listed)
    scene = Scene()
    scene.watchdog.announcer = None
    looks = scene.looks
    scene.hold()
    scene.pass_time(4.9)
    assert scene.looks == looks
