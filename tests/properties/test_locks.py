"""Fencing tokens only grow: in any order of calls and of their copies, of Java's steps and of a counter's changes.

And the last millisecond of a reader's lease.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyredisson.logic.locks.commands import LOCK_FREE, OTHERS_LISTEN
from tests.lua import locks
from tests.lua import read_write as ours
from tests.lua.locks import COUNTER, LIST, NEWEST, WOKEN

from .servers import Memory, play

LOCK = "orders"
WATCHDOG = 30_000
SHORT, FAR = 50, 10**12
TAKERS, JAVAS = st.sampled_from(["ours:1", "ours:2", "others:1"]), st.sampled_from(["java:1", "java:2"])
COPIES = st.sampled_from([1, 2])


@pytest.mark.parametrize(("passed", "left"), [(SHORT - 1, 1), (SHORT, 1), (SHORT + 1, None)])
@pytest.mark.parametrize("asked", [False, True])
def test_a_readers_lease_is_valid_to_its_very_end(passed: int, left: int | None, asked: bool) -> None:
    """Another reader leaves, or the watchdog asks for a hold with a fixed lease."""
    memory = Memory()
    assert [memory.call(ours.read(*reader)) for reader in (("me:1", 1, SHORT), ("you:1", 1, 30_000))] == [None, None]
    memory.advance_time(passed)
    if asked:
        assert memory.call(ours.renew((LOCK, "me:1", 0))) == [int(left is not None)]
    else:
        assert memory.call(ours.read_release("you:1", 0)) == (1 if left is None else 0)
        assert memory.command("PTTL", LOCK) == (left or -2)
        assert memory.command("HEXISTS", LOCK, "me:1") == (left is not None)


class Tokens(RuleBasedStateMachine):
    """Owners whose commands may be sent twice, Redisson in Java, an administrator, and a clock that is set back."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.do, self.call = self.memory.command, self.memory.call
        self.newest = 0
        self.counted: int | None = None
        """What the counter stands at since one of ours took the lock; None: it begins anew."""
        self.ahead = False
        """Whether the counter may be ahead of the clock."""

    def listed(self) -> Any:
        """The members of the list of waiting clients."""
        return self.do("ZRANGE", LIST, 0, -1)

    def levels(self, who: str) -> int:
        return int(self.do("HGET", LOCK, who) or 0)

    def given(self, token: int) -> None:
        assert token > self.newest
        self.newest = self.counted = token

    @rule(who=TAKERS, wanted=st.integers(0, 2), waits=st.booleans(), copies=COPIES)
    def take(self, who: str, wanted: int, waits: bool, copies: int) -> None:
        """One level more, or a number of levels that a late copy asks for. Who is refused may wait in the list."""
        levels = wanted or self.levels(who) + 1
        client = who.partition(":")[0]
        member = client.encode() + b":1"
        free = levels == 1 and not self.do("EXISTS", LOCK)
        woken, exclusive = self.do("HMGET", WOKEN, "member", "exclusive")
        reserved = exclusive == b"1" and woken.partition(b":")[0] != client.encode()
        taken = self.levels(who) > 0 or (free and not reserved)
        for _ in range(copies):
            call = locks.acquire(member.decode(), owner=who, level=levels, waits=waits, kind="fenced")
            reply = self.call(call)
            assert isinstance(reply, list) is taken
            if taken:
                self.given(reply[0])
                assert self.levels(who) == levels
                assert not free or member not in self.listed()
            elif waits and reply != -2:
                _, before, _ = map(int, reply.split())
                assert self.listed()[before] == member

    @rule(client=st.sampled_from(["ours", "others"]))
    def leave(self, client: str) -> None:
        member = f"{client}:1"
        self.call(locks.leave(member))
        assert member.encode() not in (*self.listed(), self.do("HGET", WOKEN, "member"))

    @rule(who=TAKERS, following=TAKERS, copies=COPIES)
    def hand_over(self, who: str, following: str, copies: int) -> None:
        known = self.levels(who) > 0 or self.levels(following) > 0
        for _ in range(copies if who != following else 0):
            reply = self.call(locks.hand_over("ours:1", owner=who, following=following, kind="fenced"))
            assert isinstance(reply, list) is known
            if known:
                self.given(reply[0])
                assert self.do("HKEYS", LOCK) == [following.encode()]

    @rule(who=JAVAS)
    def java_takes(self, who: str) -> None:
        if not self.do("EXISTS", LOCK) or self.levels(who):
            token = self.do("INCR", COUNTER)
            self.do("HINCRBY", LOCK, who, 1)
            self.do("PEXPIRE", LOCK, WATCHDOG)
            if self.counted is not None:
                self.given(token)

    @rule(by=st.sampled_from([1, 2, 3, FAR]))
    def somebody_counts(self, by: int) -> None:
        """Few, for which as many microseconds pass meanwhile; or far ahead of the clock."""
        if self.counted is not None:
            self.memory.advance_time(1)
            self.counted = self.newest = self.do("INCRBY", COUNTER, by)
            self.ahead |= by == FAR

    @rule(who=TAKERS)
    def give_back(self, who: str) -> None:
        left = self.levels(who) - 1
        waiting = self.listed() and not self.do("EXISTS", WOKEN)
        reply = self.call(locks.release(max(0, left), owner=who))
        assert (reply in (LOCK_FREE, OTHERS_LISTEN)) if left == 0 else (reply == (None if left < 0 else 0))
        assert not (waiting and left == 0) or self.do("EXISTS", WOKEN)

    @rule(who=JAVAS)
    def java_gives_back(self, who: str) -> None:
        if self.levels(who) and self.do("HINCRBY", LOCK, who, -1) == 0:
            self.do("DEL", LOCK)

    @rule()
    def the_lease_ends(self) -> None:
        self.do("PEXPIRE", LOCK, 0)

    @rule(back=st.sampled_from([0, 1, 40_000]))
    def time_passes(self, back: int) -> None:
        """Or the clock is set back: no token is given twice, unless the server has forgotten all of them."""
        self.memory.advance_time(-back or 1)
        self.ahead |= back > 0
        if back and self.counted is None and not self.do("EXISTS", NEWEST):
            self.newest = 0

    @rule()
    def force_unlock(self) -> None:
        there = self.do("EXISTS", LOCK)
        assert self.call(locks.force_release()) == there
        assert not self.do("EXISTS", LOCK)

    @rule()
    def delete(self) -> None:
        there = self.do("EXISTS", LOCK, COUNTER) > 0
        assert self.call(locks.DELETE) == there
        assert self.memory.keys().keys() <= {key.encode() for key in (NEWEST, LIST, WOKEN)}
        self.counted = None

    @rule()
    def flushall(self) -> None:
        self.do("FLUSHALL")
        self.memory.advance_time(1)
        self.counted = None
        if self.ahead:
            # From the clock: what somebody counted ahead of it is forgotten.
            self.newest, self.ahead = 0, False

    @invariant()
    def the_counter_is_as_redisson_reads_it(self) -> None:
        if self.counted is not None:
            assert self.do("GET", COUNTER) == b"%d" % self.counted
        assert self.do("PTTL", COUNTER) in (-1, -2)
        assert self.do("PTTL", LOCK) != -1


def test_tokens_only_grow() -> None:
    play(Tokens, examples=200)
