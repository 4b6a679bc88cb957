"""Owners that wait for each other, across processes and kinds of locks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyredisson.holder import who
from pyredisson.inspection.model import LOCKS, AnnouncedWait, State
from pyredisson.inspection.states import Inspector
from pyredisson.logic.waits import deadlock_text, find_cycles

CONFIRMED_AFTER = 2.5
"""Seconds between two looks that both find a deadlock, before it is one. What a client says is up to two seconds old,
so in between all of it was true at the same time."""
MOST_ROUNDS = 100
Node = tuple[str | None, int | None]
"""An owner: its client, and its id there."""
Edge = tuple[str | None, int | None, bytes]
"""A hold or a wait: the client, the id of the owner there, and the key of the lock."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Owners that wait for each other. Each holds what the one before it waits for."""

    waits: tuple[AnnouncedWait, ...]

    @property
    def text(self) -> str:
        owners = [
            f"{who(wait.holder, (wait.holder.client_id or '').encode())}, owner {wait.holder.owner_id},"
            for wait in self.waits
        ]
        return "deadlock: " + deadlock_text(owners, [wait.key for wait in self.waits])

    @property
    def edges(self) -> set[Edge]:
        nodes = [wait.node for wait in self.waits]
        keys = [wait.key for wait in self.waits]
        return {(*node, key) for node, key in zip(nodes + nodes[1:] + nodes[:1], keys * 2, strict=True)}

    @property
    def identity(self) -> frozenset[tuple[Node, bytes]]:
        """The same for the same owners that wait for the same locks."""
        return frozenset((wait.node, wait.key) for wait in self.waits)

    def goes_on(self, before: "Deadlock") -> bool:
        """Whether all calls wait since before. The moments are computed anew by each announcement, to a ms or so."""
        then = {wait.node: wait.holder.since for wait in before.waits}
        moments = [(then.get(wait.node), wait.holder.since) for wait in self.waits]
        # A wait that is listed has lasted for a second: a later one has begun more than a second later.
        return all(first and latest and abs((latest - first).total_seconds()) < 1 for first, latest in moments)


def find(waits: Iterable[AnnouncedWait], states: Mapping[bytes, State]) -> list[Deadlock]:
    """The cycles of these waits, by the holders of these objects."""
    # In a fixed order, so that two looks find the same ones of several cycles.
    waiting = {wait.node: wait for wait in sorted(waits, key=lambda wait: str(wait.node)) if wait.firm}
    successors = {node: _blocking(wait, states.get(wait.key)) for node, wait in waiting.items()}
    return [Deadlock(tuple(waiting[node] for node in cycle)) for cycle in find_cycles(successors)]


def _blocking(wait: AnnouncedWait, state: State | None) -> list[Node]:
    """The owners for whose release a call waits."""
    if state is None or state.kind not in LOCKS:
        return []
    nodes = [
        (owner.holder.client_id, owner.holder.owner_id)
        for owner in state.owners
        if not owner.kept and not (wait.kind == "read" and owner.side == "read")
    ]
    # Not itself: it has the lock by now, but its process, which may be stopped, hasn't announced that yet.
    return [node for node in nodes if node != wait.node]


class DeadlockSearch:
    """Finds deadlocks by two looks at least."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self.suspected: dict[object, tuple[float, Deadlock]] = {}
        """When each was seen first, by the clock of the session. Another look, `CONFIRMED_AFTER` seconds later, may
        confirm it."""

    async def look(self, keys: Iterable[bytes]) -> list[Deadlock]:
        """The deadlocks that are sure by now, of owners that hold these locks, or wait for them or for each other."""
        now = self._inspector.session.clock()
        before, self.suspected = self.suspected, {}
        states: dict[bytes, State] = {}
        waits: dict[Node, AnnouncedWait] = {}
        asked: set[bytes] = set()
        wanted = set(keys)
        for _ in range(MOST_ROUNDS):
            if not wanted:
                break
            asked |= wanted
            (known, _), announced = await self._inspector.read(dict.fromkeys(wanted))
            states.update((state.key, state) for state in known)
            waits.update((wait.node, wait) for wait in announced if wait.firm)
            wanted = {wait.key for wait in waits.values()} - asked
        confirmed = []
        for found in find(waits.values(), states):
            first, seen = before.get(found.identity, (now, found))
            if not found.goes_on(seen):
                first = now
            self.suspected[found.identity] = (first, found)
            if now - first >= CONFIRMED_AFTER:
                confirmed.append(found)
        return confirmed
