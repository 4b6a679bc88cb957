"""Groups of locks are all or nothing, or a majority or nothing, whatever is lost, interrupted or late."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis.exceptions import RedisError

from pyredisson._backends.threads.operations import run
from pyredisson.logic.groups import red_lock
from pyredisson.logic.groups.group import GroupLogic, GroupOwner
from pyredisson.logic.groups.multi_lock import MultiLockLogic
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.holds import HELD
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.ports import Operation, Wakeup
from pyredisson.testing import Server

from .flaky import CUTS, INTERRUPTS, Fate, Flaky, Interrupted

JAVA = "java:1"
HOUR = 3_600_000
owners = st.integers(0, 1)
leases = st.sampled_from([None, HOUR])


class Slow(Flaky):
    """Also runs operations side by side: at once, or when the test says so."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.slow: list[bool] = []
        self.stragglers: list[Operation] = []
        self.interrupted = False
        self.session.lease_ms = HOUR

    def spawner(self) -> Callable[[Operation], None]:
        return self.spawn

    def spawn(self, operation: Operation) -> None:
        if self.slow and self.slow.pop(0):
            self.stragglers.append(operation)
        else:
            run(operation)

    async def wait(self, signal: Wakeup, seconds: float) -> None:
        if self.interrupted:
            self.interrupted = False
            raise Interrupted


class Machine(RuleBasedStateMachine):
    """Two owners of the same group, and Java, who takes its members one by one."""

    def __init__(self, servers: list[Server], redises: list[Any]) -> None:
        super().__init__()
        self.redises = redises
        for redis in redises:
            redis.flushall()
        self.clients = [Slow(server.url) for server in servers]
        self.places = self.choose()
        self.members = [LockLogic(self.clients[place].session, name) for place, name in self.places]
        self.group = self.make()
        self.parties = []
        for _ in range(2):
            each = [client.session.owners.new() for client in self.clients]
            self.parties.append(GroupOwner([each[place] for place, _ in self.places]))
        self.depth = [0, 0]

    def choose(self) -> list[tuple[int, bytes]]:
        """On which server each member is, and its name."""
        raise NotImplementedError

    def make(self) -> GroupLogic:
        raise NotImplementedError

    def teardown(self) -> None:
        for party, depth in enumerate(self.depth):
            for _ in range(depth):
                self.release(party)
        self.catch_up()
        for (place, name), found in zip(self.places, self.found(), strict=True):
            assert set(found) <= {JAVA}, f"{name!r} on {place}: {found}"
        for client in self.clients:
            assert not client.session.holds.table
            run(client.close)

    def catch_up(self) -> None:
        """All that was late comes, and the background gets everything through."""
        for client in self.clients:
            while client.stragglers:
                run(client.stragglers.pop(0))
        for client in self.clients:
            while client.posted:
                client.run_posted(0)

    def quiet(self) -> bool:
        return not any(client.posted or client.stragglers for client in self.clients)

    def found(self) -> list[dict[str, int]]:
        """Of each member: who holds it on the server, and how often."""
        return [
            {owner.decode(): int(count) for owner, count in self.redises[place].hgetall(name).items()}
            for place, name in self.places
        ]

    def holds(self, party: int) -> list[tuple[str, int] | None]:
        """Of each member: the owner's name and count as this side knows them."""
        known = []
        for member, owner in zip(self.members, self.parties[party].owners, strict=True):
            hold = member.hold_of(owner.id)
            known.append(None if hold is None or hold.state is not HELD else (hold.owner.decode(), hold.count))
        return known

    def counts(self) -> list[int]:
        """Of each member: how often the first owner holds it."""
        return [0 if each is None else each[1] for each in self.holds(0)]

    def acquire(self, party: int, lease: int | None = None) -> bool | None:
        """None: it raised."""
        try:
            had = run(self.group.acquire, self.parties[party], lease, self.clients[0].clock())
        except (Interrupted, RedisError):
            had = None
        self.in_background()
        self.depth[party] += had is True
        return had

    def release(self, party: int) -> None:
        # It is given back all the same.
        with contextlib.suppress(Interrupted, RedisError):
            run(self.group.release, self.parties[party], self.group.hold_of(self.parties[party].id))
        self.in_background()
        self.depth[party] -= 1

    def in_background(self) -> None:
        for client in self.clients:
            client.fates.clear()
            client.slow.clear()
            client.interrupted = False

    @rule(place=st.integers(0, 2))
    def java_takes_one(self, place: int) -> None:
        where, name = self.places[place]
        if not self.redises[where].exists(name):
            self.redises[where].hset(name, JAVA, 1)

    @rule(place=st.integers(0, 2))
    def java_gives_one_back(self, place: int) -> None:
        where, name = self.places[place]
        if self.redises[where].hexists(name, JAVA):
            self.redises[where].delete(name)

    @rule()
    def what_is_late_comes(self) -> None:
        self.catch_up()

    @invariant()
    def at_most_one_believes(self) -> None:
        assert min(self.depth) == 0


class AllOrNothing(Machine):
    group: MultiLockLogic

    def choose(self) -> list[tuple[int, bytes]]:
        return [(0, b"a"), (0, b"b"), (1, b"a")]

    def make(self) -> GroupLogic:
        return MultiLockLogic(self.members)

    @rule(party=owners, lease=leases)
    def takes(self, party: int, lease: int | None) -> None:
        free = all(found.keys() <= {self.name_of(party, i)} for i, found in enumerate(self.found()))
        assert self.acquire(party, lease) is free

    @rule(
        party=owners,
        lease=leases,
        first=st.lists(st.sampled_from([Fate.FINE, *CUTS, *INTERRUPTS]), max_size=6),
        second=st.lists(st.sampled_from([Fate.FINE, *CUTS, *INTERRUPTS]), max_size=4),
        back=st.booleans(),
    )
    def in_bad_weather(self, party: int, lease: int | None, first: list[Fate], second: list[Fate], back: bool) -> None:
        self.clients[0].fates, self.clients[1].fates = first, second
        if back and self.depth[party]:
            self.release(party)
        else:
            self.acquire(party, lease)

    @precondition(lambda self: any(self.depth))
    @rule()
    def gives_back(self) -> None:
        self.release(self.depth.index(max(self.depth)))

    def name_of(self, party: int, i: int) -> str | None:
        """Under which the server knows the hold of that member, if there is one."""
        known = self.holds(party)[i]
        return None if known is None else known[0]

    @invariant()
    def all_or_nothing(self) -> None:
        found = self.found()
        for party, depth in enumerate(self.depth):
            known = self.holds(party)
            assert [0 if each is None else each[1] for each in known] == [depth] * 3
            for i, each in enumerate(known):
                if each is not None:
                    assert each[0] in found[i], "the server knows nothing of it"
        if self.quiet():
            for i, behind in enumerate(found):
                # The number there is a copy of ours, and may be a late one.
                ours = {self.name_of(party, i) for party, depth in enumerate(self.depth) if depth}
                assert behind.keys() == ours or (not ours and behind.keys() == {JAVA}), f"left on a server: {behind}"


class MajorityOrNothing(Machine):
    group: RedLockLogic

    def choose(self) -> list[tuple[int, bytes]]:
        return [(0, b"a"), (1, b"a"), (2, b"a")]

    def make(self) -> GroupLogic:
        return RedLockLogic(self.members)

    @rule(party=owners, lease=leases)
    def takes(self, party: int, lease: int | None) -> None:
        self.catch_up()
        other = self.depth[1 - party]
        free = sum(JAVA not in found for found in self.found())
        assert self.acquire(party, lease) is (not other and (self.depth[party] > 0 or free >= 2))

    @rule(
        party=owners,
        lease=leases,
        fates=st.lists(st.lists(st.sampled_from([Fate.FINE, *CUTS]), max_size=4), min_size=3, max_size=3),
        slow=st.lists(st.booleans(), max_size=6),
        interrupted=st.booleans(),
        back=st.booleans(),
    )
    def in_bad_weather(
        self, party: int, lease: int | None, fates: list[list[Fate]], slow: list[bool], interrupted: bool, back: bool
    ) -> None:
        for client, each in zip(self.clients, fates, strict=True):
            client.fates = each
        # All is begun, and waited for, by the first member's client.
        self.clients[0].slow = slow
        self.clients[0].interrupted = interrupted
        if back and self.depth[party]:
            self.release(party)
        else:
            self.acquire(party, lease)

    @precondition(lambda self: any(client.stragglers for client in self.clients))
    @rule(which=st.integers(0, 9), fate=st.sampled_from([Fate.FINE, *CUTS]))
    def one_that_is_late_comes(self, which: int, fate: Fate) -> None:
        late = self.clients[0].stragglers
        for client in self.clients:
            client.fates = [fate]
        run(late.pop(which % len(late)))
        self.in_background()

    @precondition(lambda self: any(self.depth))
    @rule()
    def gives_back(self) -> None:
        self.release(self.depth.index(max(self.depth)))

    @invariant()
    def majority_or_nothing(self) -> None:
        found = self.found()
        for party, depth in enumerate(self.depth):
            known = self.holds(party)
            counts = [0 if each is None else each[1] for each in known]
            # Each level has a majority, and not always the same one.
            assert max(counts) <= depth
            assert sum(counts) >= 2 * depth
            for i, each in enumerate(known):
                if each is not None:
                    assert each[0] in found[i], "the server knows nothing of it"
        if self.quiet():
            names = [{each[0] for party in range(2) if (each := self.holds(party)[i]) is not None} for i in range(3)]
            for ours, behind in zip(names, found, strict=True):
                assert behind.keys() <= ours | {JAVA}, f"left on a server: {behind}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what the test holds up."""
    monkeypatch.setattr(red_lock, "TIMEOUT_PART", 0.0)
    monkeypatch.setattr(red_lock, "SHORTEST_TIMEOUT", 0.0005)


def test_a_member_that_failed_the_inner_level_stays_with_the_outer(servers: list[Server], redises: list[Any]) -> None:
    machine = MajorityOrNothing(servers, redises)
    assert machine.acquire(0)
    machine.clients[1].fates = [Fate.NOT_SENT]
    assert machine.acquire(0)
    assert machine.counts() == [2, 1, 2]
    machine.release(0)
    assert machine.counts() == [1, 1, 1]
    machine.teardown()


def test_each_level_has_a_majority_of_its_own(servers: list[Server], redises: list[Any]) -> None:
    machine = MajorityOrNothing(servers, redises)
    machine.clients[2].fates = [Fate.NOT_SENT]
    assert machine.acquire(0)
    machine.clients[0].slow = [True]
    assert machine.acquire(0)
    assert machine.counts() == [1, 2, 1]
    machine.majority_or_nothing()
    machine.release(0)
    assert machine.counts() == [1, 1, 0]
    machine.release(0)
    assert machine.counts() == [0, 0, 0]
    machine.teardown()


def twice_taken_once_released(servers: list[Server], redises: list[Any], slow: list[bool]) -> MajorityOrNothing:
    """Where it is `slow`, the release has not begun yet."""
    machine = MajorityOrNothing(servers, redises)
    assert machine.acquire(0)
    assert machine.acquire(0)
    machine.clients[0].slow = slow
    machine.release(0)
    assert machine.counts() == [1, 1, 1]
    return machine


def test_a_release_that_begins_late_is_no_second_one(servers: list[Server], redises: list[Any]) -> None:
    machine = twice_taken_once_released(servers, redises, [False, True, False])
    assert len(machine.clients[0].stragglers) == 1
    machine.catch_up()
    assert machine.counts() == [1, 1, 1]
    assert [list(found.values()) for found in machine.found()] == [[1], [1], [1]]
    machine.teardown()


def test_a_release_that_begins_late_is_not_one_of_a_later_hold(servers: list[Server], redises: list[Any]) -> None:
    machine = twice_taken_once_released(servers, redises, [True, True, True])
    assert machine.acquire(0)
    machine.catch_up()
    assert machine.counts() == [2, 2, 2]
    machine.release(0)
    assert machine.counts() == [1, 1, 1]
    assert all(machine.found())
    machine.teardown()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AllOrNothing, MajorityOrNothing])
def test_groups(servers: list[Server], redises: list[Any], kind: type[Machine]) -> None:
    machine: Any = lambda: kind(servers, redises)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=300, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
