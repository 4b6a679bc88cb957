"""The timer wheel, compared with a dict and a sort; and its references to objects."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyredisson._core import Timer, Wheel

LAST = 2**63 - 1

# Near ticks, the edges of each level (64, 4096, ...) and the far end.
spans = st.one_of(
    st.integers(0, 200),
    st.builds(lambda power, near: max(0, 2**power + near), st.integers(0, 62), st.integers(-2, 2)),
    st.integers(0, LAST),
)


class WheelAgainstModel(RuleBasedStateMachine):
    @initialize(now=st.just(0) | spans)
    def begin(self, now: int) -> None:
        self.wheel = Wheel(now)
        self.now = now
        self.timers = [Timer() for _ in range(13)]  # the rules use all but the last
        self.model: dict[Timer, tuple[int, int]] = {}  # timer -> due, order of adding
        self.added = 0

    @rule(number=st.integers(0, 11), span=spans)
    def add(self, number: int, span: int) -> None:
        self.add_at_any_tick(number, min(self.now + span, LAST))

    @rule(number=st.integers(0, 11), due=st.integers(-(2**63), LAST))
    def add_at_any_tick(self, number: int, due: int) -> None:
        self.wheel.add(self.timers[number], due)
        self.added += 1
        self.model[self.timers[number]] = (max(due, self.now), self.added)

    @rule(number=st.integers(0, 11))
    def discard(self, number: int) -> None:
        timer = self.timers[number]
        assert self.wheel.discard(timer) == (self.model.pop(timer, None) is not None)

    @rule(span=spans)
    def advance(self, span: int) -> None:
        self.now = min(self.now + span, LAST)
        self.check_taken(self.wheel.advance(self.now))

    @rule()
    def advance_to_the_next(self) -> None:
        bound = self.wheel.next_due()
        if bound is not None:
            self.now = bound
            self.check_taken(self.wheel.advance(bound))

    @rule(back=st.integers(1, LAST))
    def go_back(self, back: int) -> None:
        if back <= self.now:
            assert self.wheel.advance(self.now - back) == []

    def check_taken(self, taken: list[Timer]) -> None:
        due = [timer for timer, entry in self.model.items() if entry[0] <= self.now]
        assert taken == sorted(due, key=self.model.__getitem__)
        for timer in taken:
            del self.model[timer]

    @invariant()
    def agrees(self) -> None:
        assert len(self.wheel) == len(self.model)
        bound = self.wheel.next_due()
        assert (bound is None) is (not self.model)
        assert bound is None or self.now <= bound <= min(due for due, _ in self.model.values())
        references = [sys.getrefcount(timer) for timer in self.timers]
        # The wheel and the model's key refer to a timer that is in. The last one never is: how many refer to it
        # depends on the interpreter.
        assert references == [references[-1] + 2 * (timer in self.model) for timer in self.timers]
        for timer in self.timers:
            assert timer.due == (self.model[timer][0] if timer in self.model else -1)


TestWheelAgainstModel = WheelAgainstModel.TestCase
TestWheelAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_waking_at_next_due_comes_to_every_timer_in_few_steps() -> None:
    wheel, timer, steps = Wheel(), Timer(), 0
    wheel.add(timer, LAST)
    while not (taken := wheel.advance(wheel.next_due() or 0)):
        steps += 1
    assert taken == [timer]
    assert steps <= 11  # one a level


def test_a_timer_is_in_one_wheel_at_a_time() -> None:
    first, second, timer = Wheel(), Wheel(), Timer()
    first.add(timer, 5)
    with pytest.raises(ValueError, match="another wheel"):
        second.add(timer, 9)
    assert (second.discard(timer), timer.due, len(first)) == (False, 5, 1)
    # It outlives its wheel.
    del first
    assert timer.due == -1
    second.add(timer, 9)
    assert second.discard(timer)
    second.add(timer, 7)
    assert second.advance(7) == [timer]


@pytest.mark.parametrize(
    ("error", "call"),
    [
        *((TypeError, lambda wheel, wrong=wrong: wheel.add(wrong, 1)) for wrong in (None, object(), 1)),
        *((TypeError, lambda wheel, wrong=wrong: wheel.discard(wrong)) for wrong in (None, object(), 1)),
        (OverflowError, lambda wheel: wheel.add(Timer(), LAST + 1)),
        (ValueError, lambda _: Wheel(-1)),
        (AttributeError, lambda _: setattr(Timer(), "due", 5)),
    ],
)
def test_what_is_refused(error: type[Exception], call: Callable[[Wheel], object]) -> None:
    wheel = Wheel()
    with pytest.raises(error):
        call(wheel)
    assert len(wheel) == 0


def test_a_timer_that_ends_may_use_the_wheel() -> None:
    wheel, heir = Wheel(), Timer()

    class Last(Timer):
        __slots__ = ()

        def __del__(self) -> None:
            wheel.add(heir, 20)

    wheel.add(Last(), 10)
    taken = wheel.advance(15)
    assert heir.due == -1
    del taken
    assert heir.due == 20
    assert wheel.advance(20) == [heir]


def test_threads_share_a_wheel_without_a_lock() -> None:
    wheel, workers = Wheel(), 4
    start = threading.Barrier(workers + 1)
    taken: list[Timer] = []
    kept: list[Timer] = []

    def work(seed: int) -> None:
        start.wait()
        for number in range(3000):
            timer = Timer()
            wheel.add(timer, (number * seed) % 5000)
            if number % 3 == 0:
                wheel.add(timer, 6000)
            if number % 2 or not wheel.discard(timer):
                kept.append(timer)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(workers) as pool:
            works = [pool.submit(work, seed) for seed in range(1, workers + 1)]
            start.wait()
            for now in range(0, 5000, 10):
                taken.extend(wheel.advance(now))
        assert [each.result() for each in works] == [None] * workers
    finally:
        sys.setswitchinterval(interval)
    taken.extend(wheel.advance(6000))
    assert (len(wheel), wheel.next_due()) == (0, None)
    # One that came due between being added and being added again came out twice; none is missing.
    assert set(map(id, kept)) <= set(map(id, taken))


def test_nothing_leaks() -> None:
    # In a process of its own, as what other tests leave behind would hide a leak or look like one.
    program = """
import gc, sys
from pyredisson._core import Timer, Wheel

def turn():
    wheel = Wheel()
    timers = [Timer() for _ in range(200)]
    for due, timer in enumerate(timers):
        wheel.add(timer, due * due)
        wheel.add(timer, due * due + 1)
    for timer in timers[::4]:
        wheel.discard(timer)
    wheel.advance(10_000)

for _ in range(20):
    turn()
gc.collect()
before = sys.getallocatedblocks()
for _ in range(50):
    turn()
gc.collect()
print(sys.getallocatedblocks() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert abs(int(done.stdout)) < 50  # one lost reference a turn would show at least as many
