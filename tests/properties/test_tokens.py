"""Fencing tokens only grow, whatever happens to the lock and to its counter."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import pyredisson
from pyredisson import LockLostError, LockNotHeldError
from pyredisson._protocol.scripts import script
from pyredisson.testing import Server

LOCK, COUNTER = "orders", "redisson_lock_token:{orders}"
DELETED = "pyredisson_fenced_newest:{orders}"
LEASE = 60_000

OURS = st.sampled_from([(client, owner) for client in (0, 1) for owner in (1, 2)])
JAVAS = st.sampled_from(["0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:7", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:8"])
COPIES = st.sampled_from(["b983c153-7421-469a-addb-44fb92259a1b:1", "b983c153-7421-469a-addb-44fb92259a1b:2"])


class Tokens(RuleBasedStateMachine):
    """Two clients with two owners each, Redisson in Java, copies of commands, and an administrator."""

    server: Server

    @initialize()
    def begin(self) -> None:
        self._open = ExitStack()
        self.admin: Any = self._open.enter_context(self.server.redis())
        self.admin.flushall()
        self.clients = [self._open.enter_context(pyredisson.connect(self.server.url)) for _ in range(2)]
        self.newest = 0
        self.counted: int | None = None
        """What the counter stands at since one of ours took the lock; None: it begins anew."""
        self.ahead = False

    def teardown(self) -> None:
        self._open.close()

    def lock(self, who: tuple[int, int]) -> pyredisson.FencedLock:
        client, owner = who
        return self.clients[client].get_fenced_lock(LOCK, owner=owner)

    def may_take(self, name: str) -> bool:
        """As the server sees it: it is free, or this owner's."""
        return not self.admin.exists(LOCK) or self.holds(name)

    def holds(self, name: str) -> bool:
        """Whether an owner holds the lock, under its name or under that of a later epoch."""
        return any(field == name or field.startswith(f"{name}:") for field in map(bytes.decode, self.admin.hkeys(LOCK)))

    def given(self, token: int) -> None:
        assert token > self.newest
        self.newest = self.counted = token

    def begins_anew(self) -> None:
        self.counted = None
        if self.ahead:
            # From the clock: what somebody counted ahead of it is forgotten.
            self.newest, self.ahead = 0, False

    @rule(who=OURS, plain=st.booleans())
    def take(self, who: tuple[int, int], plain: bool) -> None:
        lock = self.lock(who)
        free = self.may_take(f"{self.clients[who[0]].id}:{who[1]}")
        if plain:
            assert lock.try_lock() is free
            token = lock.token if free else None
        else:
            token = lock.try_lock_and_get_token()
        assert (token is not None) is free
        if token is not None:
            assert token == lock.token
            self.given(token)

    @rule(who=COPIES, holds=st.integers(1, 3))
    def a_command_that_is_sent_twice(self, who: str, holds: int) -> None:
        known = script("fenced_acquire", with_shebang=self.server.version >= (7,))
        taken = self.admin.hexists(LOCK, who) or (holds == 1 and not self.admin.exists(LOCK))
        for _ in range(2):
            reply = self.admin.eval(known.text, 3, LOCK, COUNTER, DELETED, who, holds, LEASE)
            assert isinstance(reply, list) is taken
            if taken:
                self.given(reply[0])
                assert self.admin.hget(LOCK, who) == b"%d" % holds

    @rule(who=JAVAS)
    def java_takes(self, who: str) -> None:
        if self.may_take(who):
            token = self.admin.incr(COUNTER)
            self.admin.hincrby(LOCK, who, 1)
            self.admin.pexpire(LOCK, LEASE)
            if self.counted is not None:
                self.given(token)

    @rule(by=st.one_of(st.integers(1, 3), st.just(10**12)))
    def somebody_counts(self, by: int) -> None:
        """Few, for which as many microseconds pass meanwhile; or far ahead of the clock."""
        if self.counted is not None:
            self.counted = self.newest = self.admin.incrby(COUNTER, by)
            self.ahead |= by > 3

    @rule(who=OURS)
    def give_back(self, who: tuple[int, int]) -> None:
        lock = self.lock(who)
        held = self.holds(f"{self.clients[who[0]].id}:{who[1]}")
        try:
            lock.unlock()
        except (LockNotHeldError, LockLostError):
            assert not held
        else:
            assert held

    @rule(who=JAVAS)
    def java_gives_back(self, who: str) -> None:
        if self.admin.hexists(LOCK, who) and self.admin.hincrby(LOCK, who, -1) == 0:
            self.admin.delete(LOCK)

    @rule()
    def the_lease_ends(self) -> None:
        self.admin.pexpire(LOCK, 0)

    @rule(who=OURS)
    def force_unlock(self, who: tuple[int, int]) -> None:
        there = bool(self.admin.exists(LOCK))
        assert self.lock(who).force_unlock() is there
        assert not self.admin.exists(LOCK)

    @rule(who=OURS)
    def delete(self, who: tuple[int, int]) -> None:
        there = bool(self.admin.exists(LOCK, COUNTER))
        assert self.lock(who).delete() is there
        assert set(self.admin.keys()) <= {DELETED.encode()}
        # What somebody counted ahead of the clock is not forgotten.
        self.counted = None

    @rule()
    def flushall(self) -> None:
        self.admin.flushall()
        self.begins_anew()

    @invariant()
    def the_counter_is_as_redisson_reads_it(self) -> None:
        if self.counted is not None:
            assert self.admin.get(COUNTER) == b"%d" % self.counted
            assert self.lock((0, 1)).get_token() == self.counted
        assert self.admin.ttl(COUNTER) in (-1, -2)
        assert self.admin.pttl(LOCK) != -1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tokens_only_grow(server: Server) -> None:
    class Here(Tokens):
        pass

    Here.server = server
    run_state_machine_as_test(Here, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
