"""Owners that hand their holds off, and adopt what others have handed off."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson.errors import LockAlreadyHeldError, LockLostError, LockNotHeldError
from pyredisson.logic.holds import HELD, LOST
from pyredisson.logic.locks.moving import HandedOff
from pyredisson.logic.locks.rlock import LockLogic

from .judge import FAILED
from .locks import LockJudge, Owner, ReadWriteJudge
from .network import Network


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


class HandingReadWriteJudge(HandingJudge, ReadWriteJudge):
    """The same for both sides of a read-write lock."""


class HandingOwner(Owner):
    """Sometimes it hands a lock off in place of a release, and adopts one in place of an acquire."""

    _judge: HandingJudge

    async def _release(self, lock: LockLogic) -> None:
        hold = lock.hold_of(self.holder.id)
        if hold is None or hold.count != 1 or self.depth[lock.identity] != 1 or self.random.random() < 0.5:
            await super()._release(lock)
            return
        self.begin("hand off %r", lock.identity)
        self.depth[lock.identity] -= 1
        self._used = lock
        try:
            token = await self.attempt(lock.hand_off(self.holder, hold, None), "hand_off")
        except LockLostError as error:
            if hold.state is not LOST:
                self._judge.blame(f"{self.name}: got {error} for a hold that was {hold.state.value}")
            token = FAILED
            self.ended(f"hand_off: {error}")
        except LockAlreadyHeldError as error:
            token = FAILED
            self.ended(f"hand_off: {error}")
        else:
            if token is not FAILED:
                self._judge.offers.append(HandedOff.of(token))
                self.ended("handed off")
        if token is FAILED:
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
        self._used = lock
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
