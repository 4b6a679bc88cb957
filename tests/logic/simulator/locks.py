"""Owners of locks in a schedule, and the rules for each kind of lock."""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterator, Sequence
from typing import Any

from redis.exceptions import RedisError

from pyredisson._core import prefixed
from pyredisson._protocol.moving_slots import without_list
from pyredisson.backoff import ExponentialBackoff
from pyredisson.errors import LockAlreadyHeldError, LockLostError, LockNotHeldError, LockUpgradeError, RedissonError
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.locks.moving import HandedOff
from pyredisson.logic.locks.read_write_lock import READ, WRITER_CLAIM, SideLogic
from pyredisson.logic.locks.rlock import LockLogic

from .judge import FAILED, ClaimPeriods, Judge, Neglect, User
from .network import Network
from .server import TEXTS

DEEPEST = 3


class Owner(User):
    _judge: LockJudge

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.holder = self.session.owners.new()
        self.locks: Sequence[LockLogic] = self.objects
        self.depth = {lock.identity: 0 for lock in self.locks}
        """How many acquires have returned True and were not released, for each lock."""
        self._unclean: set[Hashable] = set()
        """The locks for which an undo may be in flight, so that the server's count may differ."""
        self.used = self.locks[0]
        """The lock of the present operation."""
        self.began = 0.0
        """When its latest release began."""
        self.gone = False
        """Whether it ended without a release of a lock with a fixed lease."""

    async def use_one(self) -> None:
        if self.fault_plan.forces and self.random.random() < self.fault_plan.forces:
            await self._force()
        await self._round(self.random.choice(self.locks), patient=True)
        if not self.retired:
            await self.nap()

    async def _round(self, lock: LockLogic, *, patient: bool) -> None:
        if not await self._acquire(lock, patient=patient):
            return
        hold = lock.hold_of(self.holder.id)
        if patient and hold is not None and not hold.renewed and self.random.random() < 0.1:
            self.simulation.log("%s: leaves without giving back %r", self.name, lock.identity)
            self.gone = self.retired = True
            return
        await self.nap()
        while self.random.random() < 0.3:
            inner = self.random.choice(self.locks)
            if self.depth[inner.identity] < DEEPEST:
                # An owner that holds a lock while it waits for another one could wait without end (a deadlock).
                await self._round(inner, patient=False)
        await self._release(lock)

    async def _acquire(self, lock: LockLogic, *, patient: bool) -> bool:
        random, place = self.random, lock.identity
        lease = None if random.random() < 0.7 else random.choice((50, 1000, 2 * self.session.lease_ms))
        self.wants = (lock, self.simulation.now)
        if self.depth[place] == 0:
            self._unclean.discard(place)
        self.used = lock
        try:
            taken = await self.acquire(
                f"acquire {place!r}, lease {lease}",
                lambda deadline: lock.acquire(self.holder, lease, deadline),
                endless=patient or self.depth[place] > 0,
            )
        except (LockAlreadyHeldError, LockUpgradeError) as error:
            self._judge.refused(self, lock, error)
            self.ended(f"acquire: {error!r}")
            return False
        if taken is FAILED:
            self._unclean.add(place)
            return False
        if taken:
            self.depth[place] += 1
        elif not self._judge.keyspace.hash(lock.key):
            self._judge.neglected(lock.key)
        self.ended(f"acquire: {taken}")
        if taken:
            self._judge.taken(self, lock, clean=place not in self._unclean)
        return bool(taken)

    async def _release(self, lock: LockLogic) -> None:
        hold = lock.hold_of(self.holder.id)
        if hold is None:
            self._judge.blame(f"{self.name}: its hold was forgotten")
        if await self._end(lock, hold, "release", lock.release(self.holder, hold)) is None:
            if hold.state is LOST:
                self._judge.blame(f"{self.name} was not notified that its hold was lost")
            self._judge.released(self, hold)
            self.ended("released")

    async def _end(self, lock: LockLogic, hold: Hold, what: str, operation: Coroutine[Any, Any, Any]) -> Any:
        """What an operation returns by which a level ends. `FAILED`: it ended otherwise, as a lost one does."""
        self.begin(f"{what} %r", lock.identity)
        self.began = self.simulation.now
        self.depth[lock.identity] -= 1
        self.used = lock
        try:
            done = await self.attempt(operation, what)
        except LockLostError as error:
            if hold.state is not LOST:
                self._judge.blame(f"{self.name}: got {error} for a hold that was {hold.state.value}")
            self.ended(f"{what}: {error}")
            return FAILED
        if done is FAILED:
            self._unclean.add(lock.identity)
        return done

    async def _force(self) -> None:
        lock = self.random.choice(self.locks)
        try:
            removed = await lock.force_release()
        except RedisError as error:
            self._judge.failed(self.name, error)
        else:
            self.simulation.log("%s: force_release %r: %s", self.name, lock.identity, removed)


class LockJudge(Judge):
    """Compares the locks on the server with the holds of the clients, and knows who waits since when."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._forcing: dict[bytes, tuple[LockLogic, set[bytes]]] = {}
        self._tampered: set[tuple[bytes, bytes]] = set()
        networks[0].on_executed = self._executed
        self.keyspace.on_taken = self.neglected

    def add(self, user: Any) -> None:
        super().add(user)
        for lock in user.locks:
            command = lock.commands.force_release()
            for form in (command, without_list(command) or command):
                # The same in EVALSHA and in EVAL: what follows the script. Another script may have the same arguments.
                sha, _, ending = form.partition(b"\r\n$40\r\n")[2].partition(b"\r\n")
                self._forcing.setdefault(ending, (lock, set()))[1].update((sha, TEXTS[sha]))

    def taken(self, owner: Owner, lock: LockLogic, *, clean: bool) -> None:
        name, key, hold = owner.name, lock.key, lock.hold_of(owner.holder.id)
        if hold is None:
            self.blame(f"{name}: its hold was forgotten")
        depth = owner.depth[lock.identity]
        count = hold.count + (hold.lost_below.count if hold.lost_below is not None else 0)
        if count != depth:
            self.blame(f"{name}: holds it {depth} times and counts {count}")
        if hold.count == 1:
            hold.listen(self._hold_ended)
        if hold.state is HELD and hold.valid_until > self.simulation.now:
            known = self.keyspace.hash(key).get(hold.owner)
            sure = clean and hold.lost_below is None and (key, hold.owner) not in self._tampered
            late = self._moves and not self.fault_plan.calm  # Then an undo may be, which states fewer levels.
            if sure and known != b"%d" % hold.count and not (late and 0 < int(known or 0) < hold.count):
                self.blame(f"{name}: counts {hold.count}, the server {known!r}")
        elif self.fault_plan.calm and hold.renewed and (key, hold.owner) not in self._tampered:
            self.blame(f"{name}: got True for a hold that has ended")

    def refused(self, owner: Owner, lock: LockLogic, error: RedissonError) -> None:
        """An acquire raised that it would wait for its own owner."""
        if not any(other.hold_of(owner.holder.id) for other in owner.locks if other.key == lock.key):
            self.blame(f"{owner.name}: {error!r}, but it holds nothing")

    def released(self, owner: Owner, hold: Hold) -> None:
        """A release returned without an error."""

    def operation_ended(self, owner: Owner) -> None:
        """Soon the server must have no hold that its client doesn't know."""
        self.simulation.at(self.settles_at(), self._leaked, owner, owner.used.key, owner.operations)

    def closing(self) -> None:
        """No holds remain except those of dead clients, and of owners that ended without a release."""
        super().closing()
        for key, value in list(self.keyspace.values.items()):
            if self.keyspace.value(key) is None or self.may_stay(key):
                continue
            if key not in self.keyspace.valid_until:
                self.blame(f"{key!r} has no end")
            # Everything in the value that may be the name of an owner.
            words = (value,) if isinstance(value, bytes) else value
            for owner in self.users:
                if owner.client.alive and not owner.gone and any(names(owner, name) for name in words):
                    self.blame(f"{owner.name}: {key!r} is left behind")
            if self.keyspace.valid_until[key] / 1000 > self.simulation.now + 2 * self.lease + self.soon:
                self.blame(f"{key!r} lasts too long")
        gone = {owner.holder.id for owner in self.users if owner.gone}
        for hold in self.holds():
            if hold.key[1] not in gone:
                self.blame(f"{hold.owner!r}: a hold was not forgotten")
        for client in self.clients:
            if client.alive and not gone and not self.lost and len(client.session.watchdog.wheel):
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
        for hold in self.holds():
            key = hold.commands.key
            if hold.state is not HELD or hold.valid_until <= now or (key, hold.owner) in self._tampered:
                continue
            others = believed.setdefault(key, [])
            for other in others:
                if not self.shares(hold, other):
                    self.blame(f"{key!r} is held by {other.owner!r} and by {hold.owner!r}")
            others.append(hold)
            if hold.owner not in self.keyspace.hash(key):
                self.blame(f"{hold.owner!r} believes to hold {key!r}; the server knows nothing of it")

    def _hold_ended(self, hold: Hold) -> None:
        self.lost += hold.state is LOST
        if hold.state is not LOST or (hold.commands.key, hold.owner) in self._tampered:
            return
        if hold.valid_until > self.simulation.now:
            self.blame(f"{hold.owner!r}: lost for no reason: {hold.reason}")
        if self.fault_plan.calm and hold.renewed and not self._is_released_late(hold):
            self.blame(f"{hold.owner!r}: lost although no faults were planned: {hold.reason}")

    def _is_released_late(self, hold: Hold) -> bool:
        """Whether its lease has ended while its release was sent again and again, as its slot moved."""
        (identity, owner), session = hold.key, hold.commands.session  # type: ignore[attr-defined]
        users = [user for user in self.users if (user.holder.id, user.session) == (owner, session)]
        return self._moves and any(not u.depth[identity] and hold.begun <= u.began < hold.valid_until for u in users)

    def _executed(self, payload: bytes) -> None:
        for ending, (lock, scripts) in self._forcing.items():
            if payload.endswith(ending) and any(each in payload for each in scripts) and self.takes_away(lock):
                names = self.keyspace.hash(lock.key)
                self._tampered.update((lock.key, name) for name in names)
                for hold in self.holds() if self.fault_plan.calm else ():
                    if hold.commands.key == lock.key and hold.owner in names and hold.state is HELD and hold.renewed:
                        self.simulation.after(self.lease / 3 * 1.02 + self.soon, self._must_know, hold)

    def _must_know(self, hold: Hold) -> None:
        key = hold.commands.key
        if hold.state is HELD and hold in self.holds() and hold.owner not in self.keyspace.hash(key):
            self.blame(f"{hold.owner!r} was not notified that {key!r} was taken away")

    def neglected(self, key: bytes) -> None:
        """No lock is free for long while an owner waits for it."""
        if key not in self.keyspace.freed:
            return
        when, expired = self.keyspace.freed[key]
        # Without a message: the remaining time of the holder, but one lease at most.
        unheard = self.lease if expired or not self.fault_plan.calm else 0.0
        for owner in self.users:
            if owner.wants is not None and owner.wants[0].key == key and owner.client.alive:
                self.check_wait(owner, max(when, owner.wants[1]), self.blind() + unheard)

    def _leaked(self, owner: Owner, key: bytes, operations: int) -> None:
        if owner.operations != operations or not owner.client.alive:
            # A later operation may also have to be undone. It is checked later.
            return
        known = {hold.owner for hold in _holds(owner, key)}
        for name in self.keyspace.hash(key):
            if names(owner, name) and name not in known:
                self.blame(f"{owner.name}: {key!r} is held by {name!r}, of which its client knows nothing")


def _holds(owner: Owner, key: bytes) -> Iterator[Hold]:
    """All holds of a lock that the owner's client has in its table for that owner."""
    for lock in owner.locks:
        hold = lock.hold_of(owner.holder.id) if lock.key == key else None
        while hold is not None:
            yield hold
            hold = hold.lost_below


def names(owner: Owner, name: bytes) -> bool:
    """Whether a field of a lock is a name of that owner."""
    first = f"{owner.client.name}:{owner.holder.id}".encode()
    # A colon and a number, for a name after a doubt; a dot and a number, for one call's own; a colon and `write`.
    return name == first or name.startswith((first + b":", first + b"."))


BACKOFF = ExponentialBackoff()
PASSED_OVER = 2.5
"""Seconds within which a dead head of a fair lock's queue is dropped."""
READERS_TURN = 1.0
"""Seconds for which waiting writers don't hold back readers after they did for long."""


class SpinJudge(LockJudge):
    """No messages are published: a waiter notices a release when it asks again."""

    def blind(self) -> float:
        return BACKOFF.max_delay


class FairJudge(LockJudge):
    """A dead client delays the others for about two seconds. The order is checked by `test_fairness`."""

    def begin(self) -> None:
        random = self.simulation.random
        if self.fault_plan.calm and random.random() < 0.3:
            seconds = random.random() * random.choice((0.1, 1, 5))
            self.simulation.after(seconds, lambda: random.choice(self.clients).kill())

    def blind(self) -> float:
        return PASSED_OVER if self._any_dead() else 0.0

    def may_stay(self, key: bytes) -> bool:
        # Values of waiters that left in doubt, which expire; and the places of dead waiters, as no caller drops them. A
        # copy of an acquire may still come late at a node that serves the slot again.
        late = self._moves and not self.fault_plan.calm and key.startswith((b"redisson_lock_", b"pyredisson_fair_"))
        return key.startswith(b"pyredisson_fair_waiters:") or late or self._any_dead()

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
        for key in {lock.key for owner in self.users for lock in owner.locks}:
            if self.keyspace.hash(key).get(b"mode") != READ:
                # The lock is free, or a writer holds it: no claim holds back the readers.
                self._claims.end(key)
            elif self.keyspace.value(prefixed(WRITER_CLAIM, key)) is not None:
                self._claims.claimed(key)
        served: dict[User, bool] = {}
        for owner in self.users:
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


class HandingJudge(LockJudge):
    """Each hold that was handed off is adopted once."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self.offers: list[HandedOff] = []
        self._adopted: set[HandedOff] = set()

    def adopted(self, name: str, handed: HandedOff) -> None:
        """An adoption has returned."""
        if handed in self._adopted:
            self.blame(f"{name}: {handed} was adopted before")
        self._adopted.add(handed)


class HandingReadWriteJudge(HandingJudge, ReadWriteJudge): ...


class HandingOwner(Owner):
    """Sometimes it hands a lock off in place of a release, and adopts one in place of an acquire."""

    _judge: HandingJudge

    async def _release(self, lock: LockLogic) -> None:
        hold = lock.hold_of(self.holder.id)
        if hold is None or hold.count != 1 or self.depth[lock.identity] != 1 or self.random.random() < 0.5:
            await super()._release(lock)
            return
        try:
            token = await self._end(lock, hold, "hand off", lock.hand_off(self.holder, hold, None))
        except LockAlreadyHeldError as error:
            token = FAILED
            self.ended(f"hand off: {error}")
        if token is not FAILED:
            self._judge.offers.append(HandedOff.of(token))
            self.ended("handed off")
        else:
            self._unclean.add(lock.identity)
            if lock.hold_of(self.holder.id) is hold and (hold.state is HELD or hold.state is LOST):
                # It has changed nothing.
                self.depth[lock.identity] += 1
                await super()._release(lock)

    async def _acquire(self, lock: LockLogic, *, patient: bool) -> bool:
        offers = [each for each in self._judge.offers if each.key_bytes == lock.key and each.kind == lock.moved_kind]
        if not offers or self.depth[lock.identity] or self.random.random() < 0.2:
            return await super()._acquire(lock, patient=patient)
        handed = self.random.choice(offers)
        self.begin("adopt %s", handed)
        self.used = lock
        self._unclean.discard(lock.identity)
        try:
            done = await self.attempt(lock.adopt(self.holder, handed), "adopt")
        except LockNotHeldError as error:
            self.ended(f"adopt: {error}")
            return await super()._acquire(lock, patient=patient)
        if done is FAILED:
            self._unclean.add(lock.identity)
            return False
        self._judge.adopted(self.name, handed)
        self._judge.acquired += 1
        self.depth[lock.identity] += 1
        self.ended("adopted")
        self._judge.taken(self, lock, clean=True)
        return True
