"""The judge of schedules with locks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyredisson.errors import LockLostError, RedissonError
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.rlock import LockLogic

from .judge import Judge
from .keys import Value
from .network import Network
from .owner import Owner
from .user import User


class LockJudge(Judge):
    """Compares the locks on the server with the holds of the clients, and knows who waits since when."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._forcing: dict[bytes, LockLogic] = {}
        self._tampered: set[tuple[bytes, bytes]] = set()
        self.owners: list[Owner] = []
        networks[0].on_executed = self._executed
        self.keyspace.on_taken = self._neglected

    def add(self, user: User) -> None:
        super().add(user)
        assert isinstance(user, Owner)
        self.owners.append(user)
        for lock in user.locks:
            # The same in EVALSHA and in EVAL: what follows the script.
            self._forcing[lock.commands.force_release().partition(b"\r\n$40\r\n")[2][40:]] = lock

    def answered(self, owner: Owner, lock: LockLogic, deadline: float | None, *, taken: bool) -> None:
        """An acquire came to its end."""
        assert owner.wants is not None
        self.waits += self.simulation.now - owner.wants[1] > 3 * self.fault_plan.slowest
        if taken:
            self.acquired += 1
            return
        self.gave_up(owner.name, deadline)
        if not self.keyspace.hash(lock.key):
            self._neglected(lock.key)

    def taken(self, owner: Owner, lock: LockLogic, *, clean: bool) -> None:
        """An acquire returned True."""
        name, key, hold = owner.name, lock.key, lock.hold_of(owner.holder.id)
        self.has_hold(name, hold)
        assert hold is not None
        depth = owner.depth[lock.identity]
        count = hold.count + (hold.lost_below.count if hold.lost_below is not None else 0)
        if count != depth:
            self.blame(f"{name}: holds it {depth} times and counts {count}")
        if hold.count == 1:
            hold.listen(self._hold_ended)
        if hold.state is HELD and hold.valid_until > self.simulation.now:
            known = self.keyspace.hash(key).get(hold.owner)
            sure = clean and hold.lost_below is None and (key, hold.owner) not in self._tampered
            if sure and known != b"%d" % hold.count:
                self.blame(f"{name}: counts {hold.count}, the server {known!r}")
        elif self.fault_plan.calm and hold.renewed and (key, hold.owner) not in self._tampered:
            self.blame(f"{name}: got True for a hold that has ended")

    def refused(self, owner: Owner, lock: LockLogic, error: RedissonError) -> None:
        """An acquire raised that it would wait for its own owner."""
        if not any(other.hold_of(owner.holder.id) for other in owner.locks if other.key == lock.key):
            self.blame(f"{owner.name}: {error!r}, but it holds nothing")

    def has_hold(self, name: str, hold: Hold | None) -> None:
        """An owner whose acquire returned True and that released nothing has a hold, lost or not."""
        if hold is None:
            self.blame(f"{name}: its hold was forgotten")

    def told_lost(self, name: str, hold: Hold, error: LockLostError) -> None:
        """A release raised that the hold was lost."""
        if hold.state is not LOST:
            self.blame(f"{name}: got {error} for a hold that was {hold.state.value}")

    def released(self, owner: Owner, hold: Hold) -> None:
        """A release returned without an error."""

    def operation_ended(self, owner: Owner, key: bytes) -> None:
        """After any end of an operation: soon the server must have no hold that its client doesn't know."""
        self.simulation.at(self.settles_at(), self._leaked, owner, key, owner.operations)

    def closing(self) -> None:
        """No holds remain except those of dead clients, and of owners that ended without a release."""
        super().closing()
        for key, value in list(self.keyspace.values.items()):
            if self.keyspace.value(key) is None or self.may_stay(key):
                continue
            if key not in self.keyspace.valid_until:
                self.blame(f"{key!r} has no end")
            for owner in self.owners:
                if owner.client.alive and not owner.gone and any(names(owner, name) for name in _words(value)):
                    self.blame(f"{owner.name}: {key!r} is left behind")
            if self.keyspace.valid_until[key] / 1000 > self.simulation.now + 2 * self.lease + self.soon:
                self.blame(f"{key!r} lasts too long")
        for client in self.clients:
            if not client.alive:
                continue
            ids = {owner.holder.id for owner in self.owners if owner.gone}
            left = [hold for hold in client.session.holds.table.values() if hold.key[1] not in ids]
            if left:
                self.blame(f"{client.name}: a hold was not forgotten")
            if not ids and not self.lost and len(client.session.watchdog.wheel):
                self.blame(f"{client.name}: a timer is left behind")

    def may_stay(self, key: bytes) -> bool:
        """Whether the key may outlast its users."""
        return key.startswith(b"redisson_lock_token:")

    def takes_away(self, lock: LockLogic) -> bool:
        """Whether a forced release of that one takes away what is held now."""
        return True

    def blind(self) -> float:
        """Seconds for which a lock may be free while owners wait, although a message was published."""
        return 0.0

    def shares(self, hold: Hold, other: Hold) -> bool:
        """Whether both may hold the same lock at once."""
        return False

    def look(self) -> None:
        """No owner relies on a hold that the server doesn't have, and no two owners rely on the same lock."""
        now = self.simulation.now
        believed: dict[bytes, list[Hold]] = {}
        for client in self.clients:
            if not client.alive:
                continue
            for hold in client.session.holds.table.values():
                key = hold.commands.key
                if hold.state is not HELD or hold.valid_until <= now or (key, hold.owner) in self._tampered:
                    continue
                if key in believed:
                    for other in believed[key]:
                        if not self.shares(hold, other):
                            self.blame(f"{key!r} is held by {other.owner!r} and by {hold.owner!r}")
                    believed[key].append(hold)
                else:
                    believed[key] = [hold]
                if hold.owner not in self.keyspace.hash(key):
                    self.blame(f"{hold.owner!r} believes to hold {key!r}; the server knows nothing of it")

    def _hold_ended(self, hold: Hold) -> None:
        self.lost += hold.state is LOST
        if hold.state is not LOST or (hold.commands.key, hold.owner) in self._tampered:
            return
        if hold.valid_until > self.simulation.now:
            self.blame(f"{hold.owner!r}: lost for no reason: {hold.reason}")
        if self.fault_plan.calm and hold.renewed:
            self.blame(f"{hold.owner!r}: lost although no faults were planned: {hold.reason}")

    def _executed(self, payload: bytes) -> None:
        for ending, lock in self._forcing.items():
            if payload.endswith(ending) and self.takes_away(lock):
                key = lock.key
                for name in self.keyspace.hash(key):
                    self._tampered.add((key, name))
                    for hold in self._believed(key, name):
                        if self.fault_plan.calm and hold.renewed:
                            self.simulation.after(self.lease / 3 * 1.02 + self.soon, self._must_know, hold)

    def _believed(self, key: bytes, name: bytes) -> list[Hold]:
        alive = [client for client in self.clients if client.alive]
        holds = [hold for client in alive for hold in client.session.holds.table.values()]
        return [hold for hold in holds if hold.commands.key == key and hold.owner == name and hold.state is HELD]

    def _must_know(self, hold: Hold) -> None:
        if hold in self._believed(hold.commands.key, hold.owner) and hold.owner not in self.keyspace.hash(
            hold.commands.key
        ):
            self.blame(f"{hold.owner!r} was not notified that {hold.commands.key!r} was taken away")

    def _neglected(self, key: bytes) -> None:
        """No lock is free for long while an owner waits for it."""
        freed = self.keyspace.freed.get(key)
        if freed is None:
            return
        when, expired = freed
        for owner in self.owners:
            if owner.wants is None or owner.wants[0].key != key or not owner.client.alive:
                continue
            # Without a message: the remaining time of the holder, but one lease at most.
            unheard = self.lease if expired or not self.fault_plan.calm else 0.0
            self.check_wait(owner, max(when, owner.wants[1]), self.blind() + unheard)

    def _leaked(self, owner: Owner, key: bytes, operations: int) -> None:
        if owner.operations != operations or not owner.client.alive:
            # A later operation may also have to be undone. It is checked later.
            return
        for name in self.keyspace.hash(key):
            if not names(owner, name):
                continue
            if not any(hold.owner == name for hold in _holds(owner, key)):
                self.blame(f"{owner.name}: {key!r} is held by {name!r}, of which its client knows nothing")


def _holds(owner: Owner, key: bytes) -> Iterator[Hold]:
    """All holds of a lock that the owner's client has in its table for that owner."""
    for lock in owner.locks:
        hold = lock.hold_of(owner.holder.id) if lock.key == key else None
        while hold is not None:
            yield hold
            hold = hold.lost_below


def _words(value: Value) -> Iterable[bytes]:
    """Everything in a value that may be the name of an owner."""
    return (value,) if isinstance(value, bytes) else value


def names(owner: Owner, name: bytes) -> bool:
    """Whether a field of a lock is a name of that owner."""
    first = f"{owner.client.name}:{owner.holder.id}".encode()
    # A colon and a number, for a name after a doubt; a dot and a number, for one call's own; a colon and `write`.
    return name == first or name.startswith((first + b":", first + b"."))
