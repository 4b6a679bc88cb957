"""What a hand-over of permits and a batch of them have in common."""

from __future__ import annotations

from typing import Protocol

from pyredisson._diagnostics import readable
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.errors import NotReplicatedError
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.permits.permit_queue import PermitWaiter
from pyredisson.logic.replicas import not_replicated
from pyredisson.logic.session import Session


class ReleasedSemaphore(Protocol):
    """What a hand-over needs of the semaphore."""

    session: Session
    key: bytes
    commands: SemaphoreCommands

    def release_in_background(self, permits: int) -> None: ...


async def send(
    semaphore: ReleasedSemaphore, slot: SessionSlot, permits: int, wanted: int, *, only_existing: bool = False
) -> int:
    """Sends a hand-over. Returns how many permits were acquired; 0 or less: see `SemaphoreCommands.hand_over`."""
    payload = semaphore.commands.hand_over(slot, permits, wanted, only_existing=only_existing)
    return await semaphore.session.slots.send_hand_over(payload)


def refuse(semaphore: ReleasedSemaphore, waiter: PermitWaiter) -> None:
    """The waiter hasn't got its permits: it makes an attempt."""
    semaphore.session.channels.take_back(semaphore.commands.channel, waiter.wakeup, waiter.permits)
    waiter.refuse()
    waiter.wakeup.set()


def not_confirmed(semaphore: ReleasedSemaphore, problem: NotConfirmed) -> NotReplicatedError:
    """What a waiter raises whose permits too few replicas have confirmed. They are released."""
    return not_replicated(f"a permit of semaphore {readable(semaphore.key)!r}", problem)
