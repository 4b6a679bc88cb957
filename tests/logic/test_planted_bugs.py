"""The simulator finds bugs: each of these bugs is planted, and must be found within some schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from pyredisson._core import AcquireCall, ReleaseCall
from pyredisson._protocol.no_reply import Reply
from pyredisson.logic.channels import Channel, ChannelRegistry
from pyredisson.logic.groups.group import GroupLogic, GroupOwner, MemberRelease
from pyredisson.logic.groups.multi_lock import MultiLockLogic
from pyredisson.logic.groups.red_lock import RedLockLogic
from pyredisson.logic.handed_waiter import LEFT, OFFERED
from pyredisson.logic.holds import HELD, Hold
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.commands import renew_holds
from pyredisson.logic.locks.fair_lock import FairLockLogic
from pyredisson.logic.locks.fair_queue import QueueTicket
from pyredisson.logic.locks.local_queue import LocalQueue, LockWaiter
from pyredisson.logic.locks.read_write_lock import ReadCommands, ReadLogic, WriteLogic
from pyredisson.logic.locks.rlock import LockLogic
from pyredisson.logic.owners import Owner
from pyredisson.logic.permits import permit_hand_over
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.permits.permit_batch import HandOverBatch
from pyredisson.logic.permits.permit_queue import PermitQueue, PermitWaiter
from pyredisson.logic.permits.permit_wait import PermitWait
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.renewal_batch import Batch
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.session import Session

from .simulator import KINDS, Logic, Violation, run
from .simulator.groups import MultiLockUser, RedLockUser
from .simulator.patches import ONCE, changed

ENOUGH = 4000


class NoLookAgain(ChannelRegistry):
    """The waiters aren't woken when messages begin to arrive."""

    def join(
        self,
        name: bytes,
        wakeup: Wakeup,
        channel_class: type[Channel] = Channel,
        need: int = 1,
        events: int | None = None,
    ) -> Channel:
        channel = super().join(name, wakeup, channel_class, need, events)
        wakeup.clear()
        return channel

    def on_subscribed(self, name: bytes) -> None:
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is not None:
                channel.confirmed = True


class NoPassOn(ChannelRegistry):
    """A waiter that leaves doesn't pass on the wakeup that it got."""

    def leave(self, name: bytes, wakeup: Wakeup) -> None:
        wakeup.clear()
        super().leave(name, wakeup)


class NoUndo(LockLogic):
    """An acquire that was interrupted stays as it is."""

    __slots__ = ()

    def __init__(self, shared: Session, key: bytes) -> None:
        super().__init__(shared, key)
        shared.runtime.post = _ignore  # type: ignore[method-assign]


class BeliefFromTheReply(LockLogic):
    """The lease is counted from the reply instead of from the request."""

    __slots__ = ()

    async def _attempt(self, call: AcquireCall) -> float | None:
        busy = await super()._attempt(call)
        hold = self.hold_of(call.owner.id)
        if busy is None and hold is not None and hold.state is HELD:
            hold.valid_until = (
                self.session.clock() + (self.session.lease_ms if call.lease is None else call.lease) / 1000
            )
        return busy


class OneNameForLife(LockLogic):
    """A lock is acquired again under an owner name for which a late release may be in flight."""

    __slots__ = ()

    async def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> bool:
        owner.epoch = 0
        owner.name = owner._prefix.encode()
        return await super().acquire(owner, lease, deadline)


class ErrorsAreSuccess(Renewer):
    """A renewal that failed counts as done."""

    async def _renew_due(self) -> bool:
        due: list[Hold] = list(self.due)
        failed = await super()._renew_due()
        if failed:
            self.due.clear()
            for hold in due:
                hold.valid_until = self._runtime.clock() + self._lease_seconds
        return False


class LossIsSuccess(Renewer):
    """A renewal that the server refused counts as done."""

    def _apply(self, batch: Batch, reply: Sequence[int], sent_at: float) -> None:
        super()._apply(batch, [1] * len(reply), sent_at)


class NoRepair(Renewer):
    """A command that is in doubt is sent only once in the background."""

    async def _renew_once(self) -> float:
        pause = await super()._renew_once()
        self.repairs.clear()
        return pause


class NoUndoOfEntries(LockLogic):
    """What was entered for a waiter that doesn't get it stays as it is."""

    __slots__ = ()

    def undo_grant(self, call: AcquireCall) -> None:
        call.owner.new_epoch()


class NoUndoOfFairEntries(FairLockLogic):
    """What may have been entered for a waiter stays as it is when the waiter leaves."""

    __slots__ = ()

    def undo_entry(self, waiter: LockWaiter[Any]) -> None:
        waiter.call.owner.new_epoch()
        waiter.call.ticket.request_attempt()


class NoAttemptAfterDoubt(FairLockLogic):
    """A waiter that may have been entered goes on waiting for its turn."""

    __slots__ = ()

    def undo_entry(self, waiter: LockWaiter[Any]) -> None:
        waiter.call.owner.new_epoch()
        waiter.call.ticket.entry_in_doubt = True


class NoSemaphoreUndo(SemaphoreLogic):
    """An acquire that was interrupted stays as it is."""

    __slots__ = ()

    def __init__(self, shared: Session, key: bytes) -> None:
        super().__init__(shared, key)
        shared.runtime.post = _ignore  # type: ignore[method-assign]


class NoReadRenewalCommands(ReadCommands):
    __slots__ = ()

    renew = staticmethod(renew_holds)


class NoReadRenewal(ReadLogic):
    """Only the lock is renewed, and not the reader's own lease in it."""

    __slots__ = ()

    commands_type = NoReadRenewalCommands


class NoUndoOfReaders(ReadLogic):
    """What a writer's release has entered for a reader that doesn't get it stays as it is."""

    __slots__ = ()

    def undo_grant(self, call: AcquireCall) -> None:
        call.owner.new_epoch()


class NoGiveUp(FairLockLogic):
    """A waiter that stops waiting stays in the queue."""

    __slots__ = ()

    def _leave_queue(self, ticket: QueueTicket) -> None:
        ticket.owner.new_epoch()


class NothingBack(MultiLockLogic):
    """The members that an attempt has acquired are not released when it doesn't acquire all of them."""

    __slots__ = ()

    def releases_after_attempt(self, owner: GroupOwner, acquired: Sequence[bool]) -> list[MemberRelease]:
        return []


class NothingBackUser(MultiLockUser):
    def group(self, members: Sequence[LockLogic]) -> GroupLogic:
        return NothingBack(members)


class Minority(RedLockLogic):
    """One member is enough."""

    __slots__ = ()

    def __init__(self, members: Sequence[LockLogic]) -> None:
        super().__init__(members)
        self.quorum = 1


class MinorityUser(RedLockUser):
    def group(self, members: Sequence[LockLogic]) -> GroupLogic:
        return Minority(members)


FAIR = "fair_acquire fair_release fair_force_release fair_leave fair_heartbeat"
PUBLISH, SILENCE = b"redis.pcall('PUBLISH'", b"tostring('PUBLISH'"

PLANTED = {
    "waiters do not ask again after subscribing": Logic(channels=NoLookAgain),
    "a wakeup is not passed on": Logic(channels=NoPassOn),
    "no undo": Logic(objects=(NoUndo,)),
    "a lease counts from the reply": Logic(objects=(BeliefFromTheReply,)),
    "an owner keeps its name after a doubt": Logic(objects=(OneNameForLife,)),
    "errors are success": Logic(renewer=ErrorsAreSuccess),
    "loss is success": Logic(renewer=LossIsSuccess),
    "no repair": Logic(renewer=NoRepair),
    "an acquire that adds": Logic(
        patches=changed(
            "lock_acquire",
            b"redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])",
            b"redis.call('HINCRBY', KEYS[1], ARGV[1], '1')",
        )
    ),
    "a release that publishes nothing": Logic(patches=changed("lock_release", PUBLISH, SILENCE)),
    "a lock that is gone is handed on": Logic(patches=changed("lock_hand_over", b"return 0\n", b"remaining = -1\n")),
    "a hand-over in doubt is not undone": Logic(objects=(NoUndoOfEntries,)),
    "dead heads stay": replace(
        KINDS["fair"],
        patches=changed(FAIR, b"if not is_dead(head, score, asked_at, check_offer) then", b"if score then"),
    ),
    "a waiter enters at the head of the queue": replace(
        KINDS["fair"], patches=changed("fair_acquire", b"'RPUSH'", b"'LPUSH'")
    ),
    "a fair lock is handed on to a waiter that is not the head": replace(
        KINDS["fair"], patches=changed("fair_hand_over", b"if head == next_owner then", b"if head then")
    ),
    "a fair lock that is not handed on notifies nobody": replace(
        KINDS["fair"], patches=changed("fair_hand_over", b"notify_head(tonumber(ARGV[3]), true)", b"nil, false")
    ),
    "the next owner of a fair lock stays in the queue": replace(
        KINDS["fair"], patches=changed("fair_hand_over", b"    leave_as_head(next_owner)\n    return", b"    return")
    ),
    "a hand-over of a fair lock in doubt is not undone": replace(KINDS["fair"], objects=(NoUndoOfFairEntries,)),
    "a waiter that may have been entered waits for its turn": replace(KINDS["fair"], objects=(NoAttemptAfterDoubt,)),
    "a waiter that left stays in the queue": replace(KINDS["fair"], objects=(NoGiveUp,)),
    "a reader's own lease is not renewed": replace(KINDS["read_write"], objects=(NoReadRenewal, WriteLogic)),
    "readers aren't notified of a writer's release": replace(
        KINDS["read_write"], patches=changed("write_release", PUBLISH, SILENCE)
    ),
    "writers hold back readers without end": replace(
        KINDS["read_write"], patches=changed("write_acquire", b"IN_A_ROW, TURN = 5000", b"IN_A_ROW, TURN = 500000")
    ),
    "only readers of the same client hear of a writer's release": replace(
        KINDS["read_write"], patches=changed("write_let_readers_in", PUBLISH, SILENCE)
    ),
    "readers who are let in have no lease": replace(
        KINDS["read_write"],
        patches=changed(
            "write_let_readers_in",
            b"redis.call('SET', lease_key(reader, 1), '1', 'PX', lease)\n        fields",
            b"fields",
        ),
    ),
    "a reader that was let in in doubt stays": replace(KINDS["read_write"], objects=(NoUndoOfReaders, WriteLogic)),
    "a release adds twice": replace(KINDS["semaphore"], patches=changed("semaphore_add", ONCE, b"if false then")),
    "interrupted acquires keep their permits": replace(KINDS["semaphore"], objects=(NoSemaphoreUndo,)),
    "permits are claimed without end": replace(
        KINDS["semaphore"], patches=changed("semaphore_claim", b"IN_A_ROW, TURN = 5000", b"IN_A_ROW, TURN = 500000")
    ),
    "permits that ended are lost": replace(
        KINDS["permits"],
        patches=changed("permit_acquire", b"redis.call('INCRBY', KEYS[1], #ended)", b"tonumber(free) + 0"),
    ),
    "a renewal that is reported and not done": replace(
        KINDS["permits"], patches=changed("permit_renew", b"if tonumber(before) < ends then", b"if false then")
    ),
    "a latch counts twice": replace(KINDS["latch"], patches=changed("latch_count_down", ONCE, b"if false then")),
    "a latch that opens publishes nothing": replace(
        KINDS["latch"], patches=changed("latch_count_down", PUBLISH, SILENCE)
    ),
    "a failed group keeps some members": replace(KINDS["multi"], user=NothingBackUser),
    "a minority is enough": replace(KINDS["red"], user=MinorityUser),
}


def _record_late(waiter: LockWaiter[hand_over.AcquiredLock], reply: Reply) -> bool:
    waiter.call.sent_at = waiter.lock.session.clock()
    return _record_entry(waiter, reply)


def _abandon_always(releaser: ReleaseCall) -> None:
    releaser.hands_over = False
    _abandon(releaser)


_record_entry, _abandon = hand_over.record_entry, hand_over.abandon
CHANGED: dict[str, tuple[object, str, object]] = {
    "a waiter that was not entered goes on waiting": (LockWaiter, "refuse", lambda _: False),
    "a waiter that has left gets the lock": (LockWaiter, "give", lambda waiter: waiter.state in (OFFERED, LEFT)),
    "the lease of the next owner counts from the reply": (hand_over, "record_entry", _record_late),
    "a call relies on a holder that is releasing": (
        LocalQueue,
        "is_held",
        property(lambda queue: queue.holder is not None),
    ),
}
"""What runs instead of a function of the hand-over."""
CHANGED_SIDES: dict[str, tuple[object, str, object]] = {
    "a reader that was not entered goes on waiting": (LockWaiter, "refuse", lambda _: False),
    "a reader that has left is let in": (LockWaiter, "give", lambda waiter: waiter.state in (OFFERED, LEFT)),
    "the lease of a reader that is let in counts from the reply": (hand_over, "record_entry", _record_late),
}
"""The same for a read-write lock."""


ONE_PERMIT: dict[str, tuple[object, str, object]] = {
    "a waiter that got no permit goes on waiting": (PermitWaiter, "refuse", lambda _: False),
    "a waiter that has left gets the permits": (PermitWaiter, "give", lambda waiter: waiter.state in (OFFERED, LEFT)),
    "an interrupted hand-over is a release that is sent again": (
        SemaphoreCommands,
        "finish_hand_over",
        SemaphoreCommands.add,
    ),
    "an interrupted hand-over is forgotten": (permit_hand_over, "abandon", lambda *_, **__: True),
    "a cancelled waiter keeps the permits that it was given": (PermitWait, "acquired", False),
}
"""What runs instead of a function of the hand-over of permits."""
IN_BATCHES: dict[str, tuple[object, str, object]] = {
    "a release that leaves its batch is forgotten": (
        HandOverBatch,
        "_take_out",
        lambda batch, part: batch._parts.remove(part),
    ),
    "a batch in doubt is a release that is sent again": (
        SemaphoreCommands,
        "finish_hand_over",
        SemaphoreCommands.add,
    ),
    "a call waits behind others that get other permits": (
        PermitQueue,
        "wants",
        lambda queue, free: free <= len(queue.waiters),
    ),
}
IN_SCRIPTS = {
    "a hand-over runs twice": ("semaphore_hand_over", ONCE, b"if false then"),
    "a hand-over that was undone runs late": ("semaphore_finish", b"record(permits)", b"local _ = permits"),
    "the undo of a hand-over releases what it released": (
        "semaphore_finish",
        b"has_run and math.max(last_result, 0) or tonumber(ARGV[2])",
        b"tonumber(ARGV[2])",
    ),
}


@pytest.mark.parametrize("bug", ONE_PERMIT)
def test_found_in_hand_overs_of_permits(bug: str) -> None:
    where, name, function = ONE_PERMIT[bug]
    with patch.object(where, name, function), pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, KINDS["semaphore"])


@pytest.mark.parametrize("bug", IN_BATCHES)
def test_found_in_batches(bug: str) -> None:
    where, name, function = IN_BATCHES[bug]
    with patch.object(where, name, function), pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, KINDS["crowded_semaphore"])


@pytest.mark.parametrize("bug", IN_SCRIPTS)
def test_found_in_scripts_that_hand_permits_on(bug: str) -> None:
    patches = changed(*IN_SCRIPTS[bug])
    with pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, replace(KINDS["semaphore"], patches=patches))


@pytest.mark.parametrize("bug", PLANTED)
def test_found(bug: str) -> None:
    with pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, PLANTED[bug])


@pytest.mark.parametrize("bug", CHANGED)
def test_found_in_hand_overs(bug: str) -> None:
    where, name, function = CHANGED[bug]
    with patch.object(where, name, function), pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed)


@pytest.mark.parametrize("bug", list(CHANGED)[:3])
def test_found_in_hand_overs_of_fair_locks(bug: str) -> None:
    where, name, function = CHANGED[bug]
    with patch.object(where, name, function), pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, KINDS["fair"])


def test_found_in_hand_overs_of_members() -> None:
    """A hand-over is given up while it goes on: the release of a red lock doesn't wait for all of its members."""
    with patch.object(hand_over, "abandon", _abandon_always), pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, KINDS["red"])


@pytest.mark.parametrize("bug", CHANGED_SIDES)
def test_found_in_read_write_locks(bug: str) -> None:
    where, name, function = CHANGED_SIDES[bug]
    with patch.object(where, name, function), pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, KINDS["read_write"])


def _ignore(payload: bytes) -> None:
    """Nothing is posted."""
