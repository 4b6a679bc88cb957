"""The calls of one client that wait now: what its announcement says of them, and whether they wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote_from_bytes

from pyredisson._diagnostics import logger, readable
from pyredisson.logic.holds import HELD, HoldTable
from pyredisson.logic.owners import Owner
from pyredisson.owners import FIRST_AUTOMATIC_ID

LISTED_AFTER = 1.0
"""Seconds after which others are told of a wait."""
MOST_LISTED = 100
"""Waits of one client that are listed, the oldest ones."""
NO_OWNER = b"-"
_PLAIN = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")
"""The characters that stand for themselves in the name of a key."""
T = TypeVar("T", bound=Hashable)


class Subject(Protocol):
    """What is waited for."""

    commands: Any
    """With the kind and the key."""

    @property
    def blocked_by(self) -> Collection[Hashable]:
        """The locks whose holds keep a waiter out, as the table of holds knows them. Of permits there are none."""


class Wait(Protocol):
    """A call that waits."""

    @property
    def call(self) -> Any:
        """With an `owner`, or without one."""

    @property
    def subject(self) -> Subject:
        """What it waits for."""


class SpinWait(NamedTuple):
    """The wait of a call that isn't woken."""

    call: Any
    subject: Subject


def find_cycles(successors: Mapping[T, Collection[T]]) -> list[list[T]]:
    """Cycles of a graph, without a common node. At least one if there is any."""
    left, cycles = dict(successors), list[list[T]]()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            # Each node that it names is a successor of the next one, and the last node is the first one again.
            cycles.append(error.args[1][:0:-1])
            for node in cycles[-1]:
                del left[node]
        else:
            return cycles


class Waits:
    """The calls of one client that wait now. Any thread adds and removes them: each is one step of a dict."""

    def __init__(self, holds: HoldTable, clock: Callable[[], float]) -> None:
        self.began: dict[Wait, float] = {}
        """When each has begun to wait, in that order."""
        self._holds = holds
        self._clock = clock
        self._reported: list[set[tuple[int, bytes]]] = []
        """The deadlocks of the latest look."""

    def listed(self, began: float) -> bytes:
        """A line for each wait that others are told of: when it began, in ms after `began`; the kind of what is waited
        for; the owner's id; 1 if the call goes on waiting until it gets that; and the key."""
        lines = []
        for wait, since in self._long():
            owner: Owner | None = getattr(wait.call, "owner", None)
            commands = wait.subject.commands
            name = NO_OWNER if owner is None else b"%d" % owner.id
            key = quote_from_bytes(commands.key, _PLAIN).encode()
            words = (round((since - began) * 1000), commands.kind.encode(), name, _is_firm(owner), key)
            lines.append(b"%d %b %b %d %b" % words)
        return b"\n".join(lines)

    def _long(self) -> Iterable[tuple[Wait, float]]:
        latest = self._clock() - LISTED_AFTER
        # The first ones have begun first.
        for wait in list(self.began)[:MOST_LISTED]:
            since = self.began.get(wait)
            if since is not None and since <= latest:
                yield wait, since

    def report_deadlocks(self) -> None:
        """Warns of owners of this client that wait for each other, once for each time."""
        firm = (wait for wait, _ in self._long() if _is_firm(getattr(wait.call, "owner", None)))
        waits = {wait.call.owner.id: wait for wait in firm}
        identities = {identity for wait in waits.values() for identity in wait.subject.blocked_by}
        table = self._holds.table
        holders = {
            identity: [owner for owner in waits if (hold := table.get((identity, owner))) and hold.state is HELD]
            for identity in identities
        }
        successors = {
            # Not itself: it has the lock by now, but its thread or task hasn't gone on yet.
            owner: [holder for identity in wait.subject.blocked_by for holder in holders[identity] if holder != owner]
            for owner, wait in waits.items()
        }
        found: list[set[tuple[int, bytes]]] = []
        for cycle in find_cycles(successors):
            keys = [waits[owner].subject.commands.key for owner in cycle]
            found.append(set(zip(cycle, keys, strict=True)))
            if found[-1] not in self._reported:
                owners = [f"owner {owner} of this client" for owner in cycle]
                logger.warning("deadlock: %s", deadlock_text(owners, keys))
        self._reported = found


def _is_firm(owner: Owner | None) -> bool:
    """Whether the owner does nothing else while it waits."""
    # A group releases its members after a while, and begins again. Of an explicit owner another thread may go on.
    return owner is not None and owner.id >= FIRST_AUTOMATIC_ID and not owner.calls.in_group


def deadlock_text(owners: list[str], keys: list[bytes]) -> str:
    """The words for a cycle of owners. `keys`: what each waits for; the next one holds it."""
    names = [readable(key) for key in keys]
    parts = [
        f"{owner} holds {held} and waits for {wanted}"
        for owner, held, wanted in zip(owners, [names[-1], *names[:-1]], names, strict=True)
    ]
    return "; ".join(parts)
