"""The sum of free and acquired permits is right, whatever is lost, late, repeated or interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis
from redis.exceptions import ConnectionError

from pyredisson._backends.threads.operations import run
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.testing import Server

from .flaky import CUTS, INTERRUPTS, MOST_CUTS, Fate, Flaky, Interrupted

CHANNEL = "redisson_sc:{stock}"
fates = st.lists(st.sampled_from([Fate.FINE, Fate.OVERTAKEN, *CUTS, *INTERRUPTS]), max_size=6)
answered = st.lists(st.sampled_from(CUTS), max_size=MOST_CUTS)
"""Such that the caller learns the outcome."""
permits = st.integers(1, 4)
MANY = 10**6


class Permits(RuleBasedStateMachine):
    """One client of ours, and Java beside it."""

    def __init__(self, server: Server, admin: Redis) -> None:
        super().__init__()
        self.redis: Any = admin
        self.redis.flushall()
        self.flaky = Flaky(server.url)
        self.flaky.overtake = self.take_and_give_back
        self.semaphore = SemaphoreLogic(self.flaky.session, b"stock")
        self.size = 0
        self.held: list[int] = []
        self.java = 0
        self.owed: dict[bytes, int] = {}
        """Permits that commands in the background may still release."""

    def teardown(self) -> None:
        while self.flaky.posted:
            self.flaky.run_posted(0)
        self.forget_what_ran()
        self.conserved()
        run(self.flaky.close)

    def free(self) -> int:
        return int(self.redis.get("stock") or 0)

    def taken(self) -> int:
        return sum(self.held) + self.java

    def call(self, fates: list[Fate], owes: int, operation: Callable[..., Any], *args: Any) -> Any:
        """The reply; None if the call raised an exception."""
        before = len(self.flaky.posted)
        self.flaky.fates = list(fates)
        try:
            return run(operation, *args)
        except (ConnectionError, Interrupted):
            return None
        finally:
            self.flaky.fates = []
            self.owed.update(dict.fromkeys(self.flaky.posted[before:], owes))

    def take_and_give_back(self) -> None:
        if run(self.semaphore.acquire, 1, 0.0):
            run(self.semaphore.release, 1)

    def forget_what_ran(self) -> None:
        self.owed = {payload: owes for payload, owes in self.owed.items() if payload in self.flaky.posted}

    @initialize(size=st.integers(0, 6), fates=answered)
    def make(self, size: int, fates: list[Fate]) -> None:
        assert self.call(fates, 0, self.semaphore.try_set, size, None) is True
        self.size = size

    @rule(fates=answered)
    def make_again(self, fates: list[Fate]) -> None:
        assert self.call(fates, 0, self.semaphore.try_set, 3, None) is False

    @rule(wanted=permits, fates=fates)
    def acquire(self, wanted: int, fates: list[Fate]) -> None:
        if self.call(fates, wanted, self.semaphore.acquire, wanted, 0.0):
            self.held.append(wanted)

    @rule(wanted=permits, fates=answered)
    def acquire_and_be_told(self, wanted: int, fates: list[Fate]) -> None:
        free, owed = self.free(), sum(self.owed.values())
        taken = self.call(fates, wanted, self.semaphore.send_acquire, wanted, None)
        assert taken is not None
        had = taken > 0
        assert had is (wanted <= free)
        assert had or -taken == max(0, free)
        assert sum(self.owed.values()) == owed or not had
        if had:
            self.held.append(wanted)

    @rule(fates=fates)
    def drain(self, fates: list[Fate]) -> None:
        if drained := self.call(fates, MANY, self.semaphore.drain):
            self.held.append(drained)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), fates=fates, existing=st.booleans())
    def release(self, which: int, fates: list[Fate], existing: bool) -> None:
        """The release is done, whatever the caller gets as a reply."""
        back = self.held.pop(which % len(self.held))
        self.call(fates, back, self.semaphore.release, back, existing)

    @rule(more=st.integers(-4, 4), fates=answered)
    def resize(self, more: int, fates: list[Fate]) -> None:
        self.call(fates, 0, self.semaphore.add, more)
        self.size += more

    @rule(more=permits)
    def refused_in_doubt_and_then_a_copy_comes(self, more: int) -> None:
        """A caller to whom a reply reported too few permits doesn't get permits that became free later."""
        wanted = max(0, self.free()) + more
        first = len(self.flaky.copies)
        assert self.call([Fate.REQUEST_LOST], wanted, self.semaphore.send_acquire, wanted, None) <= 0
        self.redis.incrby("stock", wanted)
        self.size += wanted
        self.flaky.execute(self.flaky.copies[first])

    @rule(wanted=permits)
    def java_acquires(self, wanted: int) -> None:
        if self.free() >= wanted:
            self.redis.decrby("stock", wanted)
            self.java += wanted

    @precondition(lambda self: self.java)
    @rule()
    def java_releases(self) -> None:
        self.redis.publish(CHANNEL, self.redis.incrby("stock", self.java))
        self.java = 0

    @precondition(lambda self: self.flaky.copies)
    @rule(which=st.integers(0, 999))
    def a_copy_comes(self, which: int) -> None:
        """Executed before or not."""
        self.flaky.execute(self.flaky.copies[which % len(self.flaky.copies)])

    @precondition(lambda self: self.flaky.posted)
    @rule(which=st.integers(0, 99))
    def the_background_works(self, which: int) -> None:
        self.flaky.run_posted(which)
        self.forget_what_ran()

    @invariant()
    def conserved(self) -> None:
        """No permit was created or lost, except those that the background will still release."""
        missing = self.size - self.taken() - self.free()
        assert 0 <= missing <= sum(self.owed.values())


@pytest.mark.slow
def test_permits_are_neither_made_nor_lost(server: Server, admin: Redis) -> None:
    machine: Any = lambda: Permits(server, admin)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
