"""The sum of free and used permits is right, whatever is copied, late, undone or ended, and whatever Java does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from pyredisson.logic.permits.commands import ENDLESS

from .servers import Memory, play

FREE, USED, CHANNEL = "p", "{p}:timeout", "redisson_sc:{p}"
WITHDRAWN, CLAIM, TURN = "pyredisson_permit_withdrawn:{p}:", "pyredisson_claim:{p}", "pyredisson_turn:{p}"
ONCE = "pyredisson_once:{p}:me:0"
FOREVER = 922337203685477
LEASES = st.sampled_from([30_000, 60_000, ENDLESS])
LATE = 600_000
"""Milliseconds after which no copy of a command arrives any more."""
COPIES = st.integers(1, 2)


@dataclass
class Call:
    """An acquire of ours, and whether its caller still wants what it takes."""

    ids: list[bytes]
    lease: int
    doubted: bool
    sent_at: int
    wanted: bool = True


class Permits(RuleBasedStateMachine):
    """Clients of ours that send commands, more than once and late; Java; an administrator; and time."""

    calls: Bundle[Call] = Bundle("calls")
    javas: Bundle[bytes] = Bundle("javas")

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.do = self.memory.command
        self.number = self.settings = self.total = 0
        self.held: set[bytes] = set()
        """Permits that somebody was given and nobody gave back: they are in use until they end."""
        self.doubted: set[bytes] = set()
        """The first permit of each call of which copies may come late."""

    @initialize(total=st.integers(0, 6))
    def begin(self, total: int) -> None:
        self.set_permits(total)

    def new_id(self) -> bytes:
        self.number += 1
        return b"%016d" % self.number

    def free(self) -> int:
        return int(self.do("GET", FREE) or 0)

    def used(self) -> dict[bytes, int]:
        """As Redisson reads it."""
        words = self.do("ZRANGE", USED, 0, -1, "WITHSCORES")
        return {permit: int(ends) for permit, ends in zip(words[::2], words[1::2], strict=True)}

    def live(self) -> set[bytes]:
        return {permit for permit, ends in self.used().items() if ends > self.memory.now}

    def arrive(self, call: Call) -> None:
        """A copy of an acquire comes to the server."""
        before, live = (self.free(), self.used()), self.live()
        keys = (FREE, USED, WITHDRAWN + call.ids[0].hex(), CLAIM, TURN)
        reply = self.memory.script("permit_acquire", *keys, args=(CHANNEL, call.lease, "", *call.ids))
        there = before[1].keys() & set(call.ids)
        if there == set(call.ids):
            assert reply is None
            assert self.used().keys() == before[1].keys()
        elif there:
            # Some were given back since, or have ended: the call was decided long ago, and nobody reads this reply.
            assert reply == [-2, 0]
            assert (self.free(), self.used()) == before
        elif call.wanted:
            assert (reply is None) is (self.total - len(live) >= len(call.ids))
            assert (self.live() == live | set(call.ids)) is (reply is None)
            if reply is None:
                self.held.update(call.ids)
        else:
            assert (self.free(), self.used()) == before

    def give(self, ids: list[bytes], *, all_or_none: bool) -> Any:
        """The reply to a release: how many are unknown, and those that are not held."""
        marks = [WITHDRAWN + permit.hex() for permit in ids if permit in self.doubted]
        return self.memory.script("permit_release", FREE, USED, *marks, args=(CHANNEL, int(all_or_none), *ids))

    @rule(target=calls, permits=st.integers(1, 3), lease=LEASES, doubted=st.booleans(), copies=st.integers(0, 2))
    def acquire(self, permits: int, lease: int, doubted: bool, copies: int) -> Call:
        call = Call([self.new_id() for _ in range(permits)], lease, doubted or copies != 1, self.memory.now)
        if call.doubted:
            self.doubted.add(call.ids[0])
        for _ in range(copies):
            self.arrive(call)
        return call

    @rule(call=calls)
    def a_late_copy(self, call: Call) -> None:
        if call.doubted and self.memory.now - call.sent_at < LATE:
            self.arrive(call)

    @rule(call=calls, copies=COPIES)
    def give_up(self, call: Call, copies: int) -> None:
        """Before it ran, after it ran, or after some of it was given back."""
        if call.doubted:
            free = self.free() + len(self.used().keys() & set(call.ids))
            for _ in range(copies):
                assert self.give(call.ids, all_or_none=False) == []
                assert not self.used().keys() & set(call.ids)
                assert self.free() == free
            call.wanted = False
            self.held.difference_update(call.ids)

    @rule(chosen=st.lists(calls, min_size=1, max_size=2, unique_by=id), copies=COPIES, part=st.booleans())
    def release(self, chosen: list[Call], copies: int, part: bool) -> None:
        ids = [permit for call in chosen for permit in (call.ids[-1:] if part else call.ids)]
        before, live = (self.free(), self.used()), self.live()
        reply = self.give(ids, all_or_none=True)
        if live >= set(ids):
            assert reply == []
            assert self.used().keys() == before[1].keys() - set(ids)
            self.held.difference_update(ids)
            for call in chosen:
                call.wanted = not set(ids) >= set(call.ids)
        else:
            assert reply == [len(set(ids) - before[1].keys()), *[permit for permit in ids if permit not in live]]
            assert (self.free(), self.used()) == before
        after = self.free(), self.used()
        for _ in range(copies - 1):
            assert self.give(ids, all_or_none=True)[0] == len(set(ids) - after[1].keys())
            assert (self.free(), self.used()) == after

    @rule(chosen=st.lists(calls, min_size=1, max_size=3, unique_by=id), lease=st.sampled_from([0, 30_000]))
    def renew(self, chosen: list[Call], lease: int) -> None:
        ids = [permit for call in chosen for permit in call.ids]
        before, live = self.used(), self.live()
        for _ in range(2):
            replies = self.memory.script("permit_renew", *[USED] * len(ids), args=(lease, *ids))
            assert replies == [int(permit in live) for permit in ids]
        after = self.used()
        assert after.keys() == before.keys()
        assert all(after[permit] >= ends for permit, ends in before.items())

    @rule(call=calls, lease=LEASES)
    def update(self, call: Call, lease: int) -> None:
        live = self.live()
        reply = self.memory.script("permit_lease", USED, args=(call.ids[0], lease))
        assert reply == (lease if call.ids[0] in live else None)
        assert self.live() == live

    @rule()
    def count(self) -> None:
        live = self.live()
        reply = self.memory.script("permit_count", FREE, USED, args=(CHANNEL,))
        assert [reply[0] or 0, reply[1]] == [self.total - len(live), len(live)]
        assert self.used().keys() == live

    @rule(total=st.integers(0, 8), copies=COPIES)
    def set_permits(self, total: int, copies: int = 1) -> None:
        self.settings += 1
        for _ in range(copies):
            reply = self.memory.script("permit_set", FREE, USED, ONCE, args=(self.settings, total, CHANNEL))
            assert reply == total - self.total
        self.total = total

    @rule(ms=st.sampled_from([29_999, 1, 30_000]))
    def time_passes(self, ms: int) -> None:
        self.memory.advance_time(ms)
        self.held &= self.live()

    @rule(target=javas, lease=LEASES)
    def java_acquires(self, lease: int) -> bytes:
        permit, now = self.new_id(), self.memory.now
        for ended in self.do("ZRANGEBYSCORE", USED, 0, now, "LIMIT", 0, 1):
            self.do("ZREM", USED, ended)
            self.do("INCR", FREE)
        if self.free() >= 1:
            self.do("DECR", FREE)
            self.do("ZADD", USED, FOREVER if lease == ENDLESS else now + lease, permit)
            self.held.add(permit)
        return permit

    @rule(permit=javas, ours=st.booleans())
    def javas_permit_is_released(self, permit: bytes, ours: bool) -> None:
        if ours:
            held = permit in self.live()
            assert (self.give([permit], all_or_none=True) == []) is held
        elif self.do("ZREM", USED, permit):
            self.do("INCR", FREE)
        self.held.discard(permit)

    @invariant()
    def none_is_lost_and_none_is_made(self) -> None:
        used = self.used()
        assert self.free() + len(used) == self.total
        assert self.held <= self.live()
        # As Redisson reads it, and what is ours ends.
        assert all(len(permit) == 16 and ends <= FOREVER for permit, ends in used.items())
        assert all(left >= 0 for key, (_, left) in self.memory.keys().items() if key.startswith(b"pyredisson"))


def test_none_is_lost_and_none_is_made() -> None:
    play(Permits, examples=200)
