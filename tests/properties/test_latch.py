"""Each count-down counts exactly once, whatever is lost, late, repeated or interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis
from redis.exceptions import ConnectionError

from pyredisson._backends.threads.operations import run
from pyredisson.logic.permits.count_down_latch import CountDownLatchLogic
from pyredisson.testing import Server

from .flaky import CUTS, INTERRUPTS, MOST_CUTS, Fate, Flaky, Interrupted

CHANNEL = "redisson_countdownlatch__channel__{done}"
fates = st.lists(st.sampled_from([Fate.FINE, *CUTS, *INTERRUPTS]), max_size=6)
answered = st.lists(st.sampled_from(CUTS), max_size=MOST_CUTS)
"""Such that the caller learns the outcome."""


class Latch(RuleBasedStateMachine):
    """One client of ours, and Java beside it."""

    def __init__(self, server: Server, admin: Any) -> None:
        super().__init__()
        self.redis = admin
        self.redis.flushall()
        self.flaky = Flaky(server.url)
        self.latch = CountDownLatchLogic(self.flaky.session, b"done")
        self.ear = self.redis.pubsub()
        self.ear.subscribe(CHANNEL)
        assert self.ear.get_message(timeout=5)["type"] == "subscribe"
        self.counted: set[bytes] = set()
        """The count-downs that the server has executed, counted at each request."""
        self.expected = 0
        self.opened = 0
        self.changed = 0
        self.messages: list[bytes] = []
        self._execute, self.flaky.execute = self.flaky.execute, self.watched  # type: ignore[method-assign]

    def teardown(self) -> None:
        while self.flaky.posted:
            self.flaky.run_posted(0)
        self.as_expected()
        self.ear.close()
        run(self.flaky.close)

    def count(self) -> int:
        return int(self.redis.get("done") or 0)

    def watched(self, payload: bytes) -> Any:
        """A request of any kind arrives: a count-down counts the first time, and nothing else does."""
        before = self.count()
        reply = self._execute(payload)
        if self.flaky.scripts.latch_count_down in payload:
            if payload not in self.counted:
                self.counted.add(payload)
                if before:
                    self.expected -= 1
                    self.opened += before == 1
            assert self.count() == self.expected
        return reply

    def call(self, fates: list[Fate], operation: Any, *args: Any) -> Any:
        """The reply; None if the call raised an exception."""
        self.flaky.fates = list(fates)
        try:
            return run(operation, *args)
        except (ConnectionError, Interrupted):
            return None
        finally:
            self.flaky.fates = []

    @rule(count=st.integers(0, 4), fates=answered)
    def set(self, count: int, fates: list[Fate]) -> None:
        was_open = self.count() == 0
        assert self.call(fates, self.latch.try_set, count) is was_open
        if was_open and count:
            self.expected = count
            self.changed += 1

    @rule(fates=fates)
    def count_down(self, fates: list[Fate]) -> None:
        before = len(self.flaky.posted)
        counted = len(self.counted)
        reply = self.call(fates, self.latch.count_down)
        assert reply is None
        # It has been executed, or will be by the background.
        assert len(self.counted) == counted + 1 or len(self.flaky.posted) == before + 1

    @rule(fates=answered)
    def delete(self, fates: list[Fate]) -> None:
        was_there = self.count() > 0
        assert self.call(fates, self.latch.delete) is was_there
        self.expected = 0
        self.changed += was_there

    @rule()
    def java_counts_down(self) -> None:
        count = self.redis.decr("done")
        if count <= 0:
            self.redis.delete("done")
        if count == 0:
            self.redis.publish(CHANNEL, "0")
            self.opened += 1
        self.expected = max(0, count)

    @rule()
    def somebody_waits(self) -> None:
        assert run(self.latch.wait, 0.0) is (self.expected == 0)

    @precondition(lambda self: self.flaky.copies)
    @rule(which=st.integers(0, 999))
    def a_copy_comes(self, which: int) -> None:
        """Executed before or not."""
        self.flaky.execute(self.flaky.copies[which % len(self.flaky.copies)])

    @precondition(lambda self: self.flaky.posted)
    @rule(which=st.integers(0, 99))
    def the_background_works(self, which: int) -> None:
        self.flaky.run_posted(which)

    @invariant()
    def as_expected(self) -> None:
        """The count is what was set and counted; `0` was published at each opening, `1` at each other change."""
        assert self.count() == self.expected
        self.redis.publish(CHANNEL, "end")
        while (message := self.ear.get_message(timeout=5)["data"]) != b"end":
            self.messages.append(message)
        assert self.messages.count(b"0") == self.opened
        assert self.messages.count(b"1") == self.changed == len(self.messages) - self.opened


@pytest.mark.slow
def test_a_latch_counts_each_call_once_and_opens_once(server: Server, admin: Redis) -> None:
    machine: Any = lambda: Latch(server, admin)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
