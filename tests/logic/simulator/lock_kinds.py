"""Judges for what is true of one kind of lock only."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson._core import prefixed
from pyredisson.backoff import ExponentialBackoff
from pyredisson.logic.holds import Hold
from pyredisson.logic.locks.read_write_lock import READ, WRITER_CLAIM, SideLogic
from pyredisson.logic.locks.rlock import LockLogic

from .judge import ClaimPeriods, Neglect
from .keys import List
from .lock_judge import LockJudge, names
from .network import Network
from .owner import Owner
from .user import User

BACKOFF = ExponentialBackoff()
GONE = b"0"
"""The value of a waiter of a fair lock that has left while its place is still in the queue."""
PASSED_OVER = 2.5
"""Seconds within which a dead head of a fair lock's queue is dropped."""
READERS_TURN = 1.0
"""Seconds for which waiting writers don't hold back readers after they did for long."""


class SpinJudge(LockJudge):
    """No messages are published: a waiter notices a release when it asks again."""

    def blind(self) -> float:
        return BACKOFF.max_delay


class FairJudge(LockJudge):
    """Waiters are served in the order in which they asked; a dead client delays the others for about two seconds."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._queues: dict[bytes, list[bytes]] = {}
        self._holders: dict[bytes, bytes | None] = {}

    def begin(self) -> None:
        random = self.simulation.random
        if self.fault_plan.calm and random.random() < 0.3:
            self.simulation.after(random.random() * random.choice((0.1, 1, 5)), self._strike_down)

    def blind(self) -> float:
        return PASSED_OVER if self._any_dead() else 0.0

    def may_stay(self, key: bytes) -> bool:
        # Values of waiters that left in doubt, which expire; and the places of dead waiters, as no caller drops them.
        return key.startswith(b"pyredisson_fair_waiters:") or self._any_dead()

    def look(self) -> None:
        super().look()
        if not self.fault_plan.calm:
            return
        for key in {lock.key for owner in self.owners for lock in owner.locks}:
            holder = next(iter(self.keyspace.hash(key)), None)
            if holder is not None and holder != self._holders.get(key):
                self._granted(key, holder)
            self._holders[key] = holder
            looked = self.keyspace.hash(prefixed(b"pyredisson_fair_waiters", key))
            queue = self.keyspace.of(List, prefixed(b"redisson_lock_queue", key)) or ()
            line = self._queues.get(key, [])
            there = [name for name in queue if looked.get(name) != GONE]
            # In the order in which they entered, whatever the order on the server is.
            self._queues[key] = [name for name in line if name in there] + [name for name in there if name not in line]

    def _granted(self, key: bytes, holder: bytes) -> None:
        line = self._queues.get(key, [])
        for name in line[: line.index(holder) if holder in line else None]:
            owner = self._waiter(key, name)
            if owner is not None:
                self.blame(f"{owner.name} came before {holder!r}, which has {key!r} now")

    def _waiter(self, key: bytes, name: bytes) -> Owner | None:
        for owner in self.owners:
            if owner.client.alive and owner.wants is not None and owner.wants[0].key == key and names(owner, name):
                return owner
        return None

    def _strike_down(self) -> None:
        self.simulation.random.choice(self.clients).kill()

    def _any_dead(self) -> bool:
        return not all(client.alive for client in self.clients)


class ReadWriteJudge(LockJudge):
    """Readers share; a writer shares with nobody but itself."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._neglect = Neglect(self, lease)
        self._claims = ClaimPeriods(self, READERS_TURN)

    def shares(self, hold: Hold, other: Hold) -> bool:
        readers = {hold.commands.side, other.commands.side} == {READ}  # type: ignore[attr-defined]
        return readers or (hold.key[1] == other.key[1] and hold.commands.session is other.commands.session)  # type: ignore[attr-defined]

    def takes_away(self, lock: LockLogic) -> bool:
        assert isinstance(lock, SideLogic)
        return self.keyspace.hash(lock.key).get(b"mode") == lock.commands.side

    def look(self) -> None:
        super().look()
        for key in {lock.key for owner in self.owners for lock in owner.locks}:
            self._look_at_claims(key)
        served: dict[User, bool] = {}
        for owner in self.owners:
            if owner.wants is None or not owner.client.alive:
                continue
            lock = owner.wants[0]
            assert isinstance(lock, SideLogic)
            claim = prefixed(WRITER_CLAIM, lock.key)
            mode = self.keyspace.hash(lock.key).get(b"mode")
            shared = lock.commands.side == READ and mode == READ and self.keyspace.value(claim) is None
            if mode is None or shared:
                ended = [self.keyspace.freed[key][1] for key in (lock.key, claim) if key in self.keyspace.freed]
                served[owner] = any(ended)
        self._neglect.look(served)

    def _look_at_claims(self, key: bytes) -> None:
        if self.keyspace.hash(key).get(b"mode") != READ:
            # The lock is free, or a writer holds it: no claim holds back the readers.
            self._claims.end(key)
        elif self.keyspace.value(prefixed(WRITER_CLAIM, key)) is not None:
            self._claims.claimed(key)

    def closing(self) -> None:
        super().closing()
        if self._tampered or self.lost:
            # Their leases end by themselves, as those of dead clients.
            return
        for key in list(self.keyspace.values):
            reader, found, _ = key.rpartition(b":rwlock_timeout:")
            for owner in self.owners:
                mine = owner.client.alive and not owner.gone and names(owner, reader.partition(b":")[2])
                if found and mine and self.keyspace.value(key) is not None:
                    self.blame(f"{owner.name}: {key!r} is left behind")
