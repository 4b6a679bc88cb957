"""Releases a hold of any client, or corrects a number of free permits, as a user has been shown it."""

from pyredisson.inspection.model import Owner, State
from pyredisson.logic import retry
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.fair_lock import FairLockCommands
from pyredisson.logic.locks.fenced_lock import FencedLockCommands
from pyredisson.logic.locks.read_write_lock import ReadCommands, WriteCommands
from pyredisson.logic.permits.commands import PermitCommands, SemaphoreCommands
from pyredisson.logic.session import Session

_COMMANDS: dict[tuple[str, str | None], type[LockCommands]] = {
    ("lock", None): LockCommands,
    ("fair", None): FairLockCommands,
    ("fenced", None): FencedLockCommands,
    ("spin", None): LockCommands,
    ("read-write", "read"): ReadCommands,
    ("read-write", "write"): WriteCommands,
}
"""By the kind of the lock, and the side."""


async def release_shown(session: Session, state: State, owner: Owner) -> bool:
    """Releases the hold of that owner, or its permit, as its holder would, with the message for waiters.

    False: it doesn't hold the lock any more. The hold of another owner is never released; a later hold of the same
    owner is, if it has the same name on the server. The holder notices the loss at its next renewal.

    The command is sent once: a repeat after a lost reply could say False for what the first copy has done. So after an
    error of the network the state must be read again. Raises the errors of Redis and of the network, and `ValueError`
    for an object whose holds can't be released one by one.
    """
    session.check_open()
    if state.kind == "permits":
        return not await _send(session, PermitCommands(session, state.key).release([owner.id], all_or_none=True))
    if (state.kind, owner.side) not in _COMMANDS:
        raise ValueError(f"the holds of {state.name!r}, which is {state.kind}, can't be released one by one")
    commands = _COMMANDS[state.kind, owner.side](session, state.key)
    released = await _send(session, commands.release(owner.id, 0, late=True)) is not None
    if released and state.kind == "lock" and not state.certain:
        # It may be a fair lock, whose waiters have channels of their own.
        notice = FairLockCommands(session, state.key).wake_waiters()
        await retry.send(session.runtime, notice, retries=session.retries)
    return released


async def correct_free(session: Session, state: State, free: int) -> bool:
    """Sets how many permits of a semaphore are free. False: another number is free by now than the state says.

    Raises the errors of Redis and of the network. Then it has happened once or not at all.
    """
    session.check_open()
    if state.free is None:
        raise ValueError(f"{state.name!r} is no semaphore that exists")
    slot = session.slots.allocate()
    return bool(await session.slots.send(slot, SemaphoreCommands(session, state.key).correct(slot, state.free, free)))


async def _send(session: Session, payload: bytes) -> object:
    reply, _ = await retry.send(session.runtime, payload, retries=session.retries, idempotent=False)
    return reply
