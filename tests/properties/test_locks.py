"""Exclusion of the read-write lock, and fencing tokens that only grow: in any order of calls and of their copies.

Also undone calls, Java's steps, a counter that somebody changes, and time.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyredisson.logic.locks.commands import LOCK_FREE, OTHERS_LISTEN
from tests.lua import locks
from tests.lua import read_write as ours
from tests.lua.locks import COUNTER, LIST, NEWEST, WOKEN, client_of
from tests.lua.read_write import CLAIM, TURN, lease_key

from .servers import Memory, play

LOCK = "orders"
WATCHDOG = 30_000
CLOSE = 10
"""Milliseconds: the lock need not outlive a reader's lease if another one ends so close to the end of the lock."""
OURS, JAVA = ("ours:1", "ours:2"), ("java:1", "java:2")
OWNERS, JAVAS = st.sampled_from(OURS), st.sampled_from(JAVA)
LEASE = st.sampled_from([20_000, 60_000, 200_000])
LEASES = st.lists(LEASE, min_size=1, max_size=3)
COPIES = st.sampled_from([1, 2])


Beliefs = dict[str, tuple[int, int]]
"""How many levels each owner of ours believes to hold of one side, and until when."""


class ReadWrite(RuleBasedStateMachine):
    """Two owners of ours, two of Java's, and what the server says to each."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.call, self.java = self.memory.call, ours.Java(self.memory.command)
        self.reads: Beliefs = {}
        self.writes: Beliefs = {}
        self.foreign: dict[str, int] = {}
        """When Java's lease keys end: no script of pyredisson may change that."""
        self.shortened = False
        """Whether Java may have cut the lock down to less than its readers' leases since it was last free."""
        self.names = 0

    def fields(self) -> dict[str, str]:
        """The fields of the lock."""
        found = self.memory.server.keyspace.hash(LOCK.encode())
        return {field.decode(): value.decode() for field, value in found.items()}

    def times(self) -> dict[str, int]:
        """The remaining time of each key."""
        return {key.decode(): left for key, (_, left) in self.memory.keys().items()}

    def believed(self, beliefs: Beliefs, owner: str) -> int:
        """The number of levels that this owner believes to have."""
        count, ends = beliefs.get(owner, (0, 0))
        return count if ends >= self.memory.now else 0

    def believers(self) -> list[str]:
        return [owner for owner in OURS if self.believed(self.reads, owner) or self.believed(self.writes, owner)]

    def come_in(self, beliefs: Beliefs, owner: str, count: int, lease: int) -> None:
        before = beliefs[owner][1] if count > 1 else 0
        beliefs[owner] = count, max(before, self.memory.now + lease)

    def may_read(self, owner: str, count: int) -> bool:
        fields = self.fields()
        if owner in fields:
            return True
        if count > 1:
            return False
        if fields.get("mode") == "write":
            return owner + ":write" in fields
        return not self.memory.command("EXISTS", CLAIM)

    @rule(owner=OWNERS, leases=LEASES, copies=COPIES)
    def read(self, owner: str, leases: list[int], copies: int) -> None:
        for lease in leases:
            self.read_once(owner, lease, copies)

    def read_once(self, owner: str, lease: int, copies: int) -> None:
        count = self.believed(self.reads, owner) + 1
        allowed = self.may_read(owner, count)
        # The first copy may find the lock free. A later copy must not change that result.
        replies = [self.call(ours.read(owner, count, lease)) for _ in range(copies)]
        assert [reply is None for reply in replies] == [allowed] * copies
        assert allowed or replies[0] > 0
        if allowed:
            self.come_in(self.reads, owner, count, lease)

    @rule(owner=OWNERS, leases=LEASES, inner=st.just([]) | LEASES, copies=COPIES, waits=st.booleans())
    def write(self, owner: str, leases: list[int], inner: list[int], copies: int, waits: bool) -> None:
        """And then read, perhaps."""
        for lease in leases:
            self.write_once(owner, lease, copies, waits)
        for lease in inner:
            self.read_once(owner, lease, copies)

    def write_once(self, owner: str, lease: int, copies: int, waits: bool) -> None:
        count = self.believed(self.writes, owner) + 1
        if count == 1 and self.believed(self.reads, owner):
            return  # LockUpgradeError
        fields = self.fields()
        allowed = owner + ":write" in fields or (not fields and count == 1)
        replies = [self.call(ours.write(owner + ":write", count, lease, waits=waits)) for _ in range(copies)]
        assert [reply is None for reply in replies] == [allowed] * copies
        if allowed:
            self.come_in(self.writes, owner, count, lease)
            if count == 1:
                assert not self.memory.command("EXISTS", CLAIM)
        elif fields.get("mode") == "read" and waits:
            remaining, _, _ = replies[0].split()
            assert int(remaining) <= 1_000
            assert self.memory.command("EXISTS", CLAIM)

    @rule(owner=OWNERS, writes=st.booleans(), left=st.integers(0, 2), copies=COPIES)
    def release(self, owner: str, writes: bool, left: int, copies: int) -> None:
        beliefs = self.writes if writes else self.reads
        if left >= self.believed(beliefs, owner):
            return
        call = ours.write_release(left, owner + ":write") if writes else ours.read_release(owner, left)
        replies = [self.call(call) for _ in range(copies)]
        assert replies[0] is not None
        assert (replies[-1] is None) == (copies > 1 and left == 0)
        if left:
            beliefs[owner] = left, beliefs[owner][1]
        else:
            del beliefs[owner]

    @rule(owner=OWNERS, lease=LEASE, copies=st.integers(0, 2), undone=COPIES, writes=st.booleans())
    def an_acquire_that_is_undone(self, owner: str, lease: int, copies: int, undone: int, writes: bool) -> None:
        """An interrupted acquire: whichever copies of it have run, nothing remains."""
        self.names += 1
        name = f"{owner}:{self.names}"
        before = self.fields()
        if writes:
            acquire, undo = ours.write(name + ":write", 1, lease), ours.write_release(0, name + ":write")
        else:
            acquire, undo = ours.read(name, 1, lease, owner + ":write"), ours.read_release(name, 0)
        for call in [acquire] * copies + [undo] * undone:
            self.call(call)
        after = self.fields()
        # It may have been the last reader, beside readers whose leases had ended.
        assert after == before if after else not self.believers()

    @rule(owner=OWNERS)
    def give_up(self, owner: str) -> None:
        before, client = self.fields(), client_of(owner)
        member = client + ":1"
        claimed = self.memory.command("GET", CLAIM) == client.encode()
        listed = self.memory.command("ZRANK", ours.LISTS[0], member) is not None
        assert self.call(ours.leave(member)) == int(claimed or listed)
        assert self.call(ours.leave(member)) == 0
        assert self.fields() == before

    @rule(owner=OWNERS, extended=st.booleans(), copies=COPIES)
    def renew(self, owner: str, extended: bool, copies: int) -> None:
        if self.believed(self.reads, owner):
            for _ in range(copies):
                assert self.renewed(owner, WATCHDOG if extended else 0)
            if extended:
                count, ends = self.reads[owner]
                self.reads[owner] = count, max(ends, self.memory.now + WATCHDOG)

    @rule(owner=JAVAS, lease=LEASE)
    def java_reads(self, owner: str, lease: int) -> None:
        fields = self.fields()
        if self.java.read(owner, lease):
            self.foreign[lease_key(owner, int(fields.get(owner, 0)) + 1)] = self.memory.now + lease

    @rule(owner=JAVAS)
    def java_leaves(self, owner: str) -> None:
        count = self.fields().get(owner, "0")
        self.java.leave(owner)
        self.foreign.pop(lease_key(owner, int(count)), None)

    @rule(owner=JAVAS)
    def java_renews(self, owner: str) -> None:
        for hold in range(1, int(self.fields().get(owner, 0)) + 1):
            if self.foreign.get(lease_key(owner, hold), 0) >= self.memory.now:
                self.foreign[lease_key(owner, hold)] = self.memory.now + WATCHDOG
        self.java.renew(owner, WATCHDOG)
        self.shortened = True
        # Our watchdog comes long before that time is over.
        for reader in OURS:
            assert not self.believed(self.reads, reader) or self.renewed(reader, 0)

    def renewed(self, owner: str, lease: int) -> bool:
        return bool(self.call(ours.renew((LOCK, owner, lease))) == [1])

    @rule(owner=JAVAS, lease=LEASE)
    def java_writes(self, owner: str, lease: int) -> None:
        believers = self.believers()
        if self.java.write(owner + ":write", lease):
            assert not believers

    @rule(owner=JAVAS)
    def java_stops(self, owner: str) -> None:
        self.java.stop(owner + ":write", WATCHDOG)
        # Of several holds; to less than what the same owner reads.
        self.shortened = True

    @rule(ms=st.sampled_from([10_000, 30_000, 100_000]))
    def time_passes(self, ms: int) -> None:
        # Leases end at multiples of this: each has clearly ended, or clearly not.
        self.memory.advance_time(ms + 1)
        self.foreign = {key: ends for key, ends in self.foreign.items() if ends >= self.memory.now}
        if self.foreign and not self.fields():
            assert self.shortened
            self.memory.command("DEL", *self.foreign)
            self.foreign = {}

    @precondition(lambda self: self.fields())
    @rule(side=st.sampled_from(["read", "write"]))
    def force(self, side: str) -> None:
        held = self.fields()["mode"] == side
        assert self.call(ours.force(side)) == int(held)
        assert bool(self.fields()) is not held
        if held:
            self.reads, self.writes, self.foreign = {}, {}, {}
            # The keys that it leaves expire by themselves.
            for key in self.times().keys() - {CLAIM, TURN}:
                self.memory.command("DEL", key)

    @invariant()
    def all_is_well(self) -> None:
        fields, times = self.fields(), self.times()
        self.nobody_writes_beside_others(fields)
        self.what_is_believed_is_so(fields, times)
        self.every_lease_has_its_key_and_the_lock_outlives_it(fields, times)
        for key, ends in self.foreign.items():
            assert times[key] == ends - self.memory.now

    def nobody_writes_beside_others(self, fields: dict[str, str]) -> None:
        writers = [field for field in fields if field.endswith(":write")]
        assert len(writers) == (fields.get("mode") == "write")
        for writer in writers:
            assert set(fields) <= {"mode", writer, writer.removesuffix(":write")}

    def what_is_believed_is_so(self, fields: dict[str, str], times: dict[str, int]) -> None:
        for owner in OURS:
            if count := self.believed(self.reads, owner):
                left = self.reads[owner][1] - self.memory.now
                assert fields[owner] == str(count)
                assert times[LOCK] >= left - CLOSE
                assert max(times.get(lease_key(owner, hold), 0) for hold in range(1, count + 1)) >= left
            if count := self.believed(self.writes, owner):
                assert fields[f"{owner}:write"] == str(count)
                assert times[LOCK] >= self.writes[owner][1] - self.memory.now - CLOSE

    def every_lease_has_its_key_and_the_lock_outlives_it(self, fields: dict[str, str], times: dict[str, int]) -> None:
        assert all(left >= 0 for left in times.values())
        for key, left in times.items():
            if key not in (LOCK, CLAIM, TURN, *ours.LISTS):
                reader, _, hold = key.removeprefix("{orders}:").partition(":rwlock_timeout:")
                assert 1 <= int(hold) <= int(fields[reader])
                if fields["mode"] == "read" and (reader in OURS or not self.shortened):
                    assert times[LOCK] >= left - CLOSE
        self.shortened = self.shortened and bool(fields)

    def teardown(self) -> None:
        for owner in OURS:
            self.call(ours.write_release(0, owner + ":write"))
            self.call(ours.read_release(owner, 0))
            self.call(ours.leave(client_of(owner) + ":1"))
        for owner in JAVA:
            while owner + ":write" in self.fields():
                self.java.stop(owner + ":write", WATCHDOG)
            while owner in self.fields():
                self.java.leave(owner)
        fields, times = self.fields(), self.times()
        # Java's release doesn't know the claims' period, which ends by itself.
        assert not fields
        assert set(times) <= {TURN}


def test_whatever_happens() -> None:
    play(ReadWrite, examples=250)


SHORT = 50


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


FAR = 10**12
TAKERS = st.sampled_from(["ours:1", "ours:2", "others:1"])


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
