"""Cycles of owners that wait for each other: in any graph, and among locks of any kind, held by anyone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyredisson.holder import Holder
from pyredisson.inspection.deadlocks import Deadlock, Node, find
from pyredisson.inspection.model import AnnouncedWait, Kind, Owner, State
from pyredisson.logic.waits import find_cycles


def has_cycle(graph: Mapping[int, Sequence[int]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


graphs = st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=3), max_size=13)


@given(graphs)
def test_cycles_of_any_graph(graph: dict[int, list[int]]) -> None:
    cycles = find_cycles(graph)
    assert bool(cycles) == has_cycle(graph)
    nodes = [node for cycle in cycles for node in cycle]
    assert len(nodes) == len(set(nodes))
    for cycle in cycles:
        assert all(after in graph[node] for node, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    # What is left has none.
    assert not has_cycle({node: others for node, others in graph.items() if node not in nodes})


@dataclass
class World:
    """Who holds what, and who waits for what. A lock is held by one writer, or by readers."""

    readers: dict[int, set[int]]
    """By the lock."""
    writers: dict[int, int]
    waits: dict[int, tuple[int, str]]
    """By the owner: the lock, and the side."""

    def stuck(self) -> set[int]:
        """The owners that never go on, found by letting all others go on and release what they hold."""
        waiting = dict(self.waits)
        while free := [owner for owner, (lock, side) in waiting.items() if not self._blocking(waiting, lock, side)]:
            for owner in free:
                del waiting[owner]
        return set(waiting)

    def _blocking(self, waiting: Mapping[int, object], lock: int, side: str) -> set[int]:
        """The holders of a lock that wait themselves, and keep a waiter for that side out."""
        holders = {self.writers[lock]} if lock in self.writers else set()
        if side != "read":
            holders |= self.readers.get(lock, set())
        return holders & waiting.keys()

    def announced(self) -> list[AnnouncedWait]:
        return [
            AnnouncedWait(side, b"%d" % lock, Holder(client_id=f"c{owner % 3}", owner_id=owner), True)
            for owner, (lock, side) in self.waits.items()
        ]

    def states(self) -> dict[bytes, State]:
        states = {}
        for lock in self.writers.keys() | self.readers.keys():
            sides = [(self.writers[lock], "write")] if lock in self.writers else []
            sides += [(owner, "read") for owner in self.readers.get(lock, ())]
            owners = [Owner("", Holder(client_id=f"c{each % 3}", owner_id=each), side=side) for each, side in sides]  # type: ignore[arg-type]
            states[b"%d" % lock] = _state(lock, "read-write", owners)
        return states


def _state(lock: int, kind: Kind, owners: Sequence[Owner]) -> State:
    return State(b"%d" % lock, str(lock), kind, True, "", True, tuple(owners), len(owners))


owners = st.integers(0, 9)
locks = st.integers(0, 5)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    writers = draw(st.dictionaries(locks, owners))
    readers = draw(st.dictionaries(locks, st.sets(owners, min_size=1, max_size=3)))
    readers = {lock: found for lock, found in readers.items() if lock not in writers}
    return World(readers, writers, draw(st.dictionaries(owners, st.tuples(locks, st.sampled_from(["read", "write"])))))


@given(worlds())
def test_owners_that_never_go_on_are_found_and_no_others(world: World) -> None:
    stuck: set[int] = world.stuck()
    found = find(world.announced(), world.states())
    nodes: list[Node] = [wait.node for deadlock in found for wait in deadlock.waits]
    assert {node[1] for node in nodes} <= stuck
    assert bool(found) == bool(stuck)


@pytest.mark.parametrize(("later", "goes_on"), [(0.002, True), (-0.002, True), (1.5, False), (None, False)])
def test_the_same_calls_still_wait(later: float | None, goes_on: bool) -> None:
    """A later wait of the same owner for the same lock is another one."""

    def deadlock(*since: float | None) -> Deadlock:
        began = [None if each is None else datetime.fromtimestamp(each, UTC) for each in since]
        holders = [Holder(client_id="c", owner_id=number, since=each) for number, each in enumerate(began)]
        return Deadlock(tuple(AnnouncedWait("lock", b"a", holder, True) for holder in holders))

    before = deadlock(1000.0, 2000.0)
    now = deadlock(1000.0, None if later is None else 2000.0 + later)
    assert now.goes_on(before) == goes_on
    assert now.identity == before.identity


def test_semaphores_and_locks_that_are_only_kept() -> None:
    """Whoever releases any permit helps. A lock that is kept for a while needs nobody's release."""
    one, two = (Holder(client_id="c", owner_id=number) for number in (1, 2))
    waits = [AnnouncedWait("lock", b"1", one, True), AnnouncedWait("lock", b"2", two, True)]
    held = {b"1": _state(1, "lock", [Owner("", two)]), b"2": _state(2, "lock", [Owner("", one)])}
    assert find(waits, held)
    assert not find(waits, held | {b"1": _state(1, "permits", [Owner("", two)])})
    assert not find(waits, held | {b"1": _state(1, "lock", [Owner("", two, kept=True)])})
    assert not find([waits[0], AnnouncedWait("lock", b"2", two, False)], held)
    assert not find(waits, {b"1": held[b"1"]})
