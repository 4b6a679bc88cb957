"""The simulator finds bugs: each of these is planted into the logic, and must be found within some schedules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyredisson.logic.holds import HELD, Hold, Owner
from pyredisson.logic.hub import Channel, Hub
from pyredisson.logic.lock import Call, LockLogic
from pyredisson.logic.shared import Shared
from pyredisson.logic.watchdog import Watchdog
from pyredisson.runtime import Reply, Signal
from pyredisson.scripts import script

from .simulator import Logic, Violation, run

ENOUGH = 4000


class NoLookAgain(Hub):
    """Tells nobody that messages arrive from now on."""

    def join(self, name: bytes, signal: Signal, kind: type[Channel] = Channel, need: int = 1) -> Channel:
        channel = super().join(name, signal, kind, need)
        signal.clear()
        return channel

    def subscribed(self, name: bytes) -> None:
        with self.mutex:
            channel = self._channels.get(name)
            if channel is not None:
                channel.confirmed = True


class NoPassOn(Hub):
    """A waiter that leaves takes its wake-up along."""

    def leave(self, name: bytes, signal: Signal) -> None:
        signal.clear()
        super().leave(name, signal)


class NoUndo(LockLogic):
    """An acquire that was interrupted stays as it is."""

    __slots__ = ()

    def __init__(self, shared: Shared, key: bytes) -> None:
        super().__init__(shared, key)
        shared.runtime.post = _ignore  # type: ignore[method-assign]


class BeliefFromTheReply(LockLogic):
    """The lease is taken to begin when the reply comes."""

    __slots__ = ()

    async def _try(self, call: Call) -> float | None:
        busy = await super()._try(call)
        hold = self.hold_of(call.owner.id)
        if busy is None and hold is not None and hold.state is HELD:
            hold.ends = self.shared.clock() + (self.shared.lease if call.lease is None else call.lease) / 1000
        return busy


class OneNameForLife(LockLogic):
    """A lock that is taken again is taken under the name of which a late release may be on its way."""

    __slots__ = ()

    async def acquire(self, owner: Owner, lease: int | None, deadline: float | None) -> bool:
        owner.doubts = 0
        owner.name = owner._prefix.encode()
        return await super().acquire(owner, lease, deadline)


class ErrorsAreSuccess(Watchdog):
    """A renewal that failed counts as one."""

    async def _renew_due(self) -> bool:
        due: list[Hold] = list(self._due)
        failed = await super()._renew_due()
        if failed:
            self._due.clear()
            for hold in due:
                hold.ends = self._runtime.clock() + self._lease
        return False


class LossIsSuccess(Watchdog):
    """A renewal that the server refused counts as one."""

    async def _apply(self, batch: Sequence[Hold], reply: Reply, sent_at: float) -> None:
        await super()._apply(batch, [1] * len(batch) if isinstance(reply, list) else reply, sent_at)


class NoRepair(Watchdog):
    """What is left in doubt stays so after one try."""

    async def _repair_all(self) -> bool:
        await super()._repair_all()
        self._repairs.clear()
        return False


ADDING = script("lock_acquire", flags=False).text.replace(
    b"redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])", b"redis.call('HINCRBY', KEYS[1], ARGV[1], '1')"
)
SILENT = script("lock_release", flags=False).text.replace(b"redis.pcall('PUBLISH'", b"tostring('PUBLISH'")

PLANTED = {
    "no look-again": Logic(hub=NoLookAgain),
    "no pass-on": Logic(hub=NoPassOn),
    "no undo": Logic(objects=(NoUndo,)),
    "belief from the reply": Logic(objects=(BeliefFromTheReply,)),
    "one name for life": Logic(objects=(OneNameForLife,)),
    "errors are success": Logic(watchdog=ErrorsAreSuccess),
    "loss is success": Logic(watchdog=LossIsSuccess),
    "no repair": Logic(watchdog=NoRepair),
    "an acquire that adds": Logic(patches={"lock_acquire": ADDING}),
    "a release that says nothing": Logic(patches={"lock_release": SILENT}),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_found(bug: str) -> None:
    with pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, PLANTED[bug])


@pytest.mark.parametrize("text", [ADDING, SILENT])
def test_patched_scripts_differ(text: bytes) -> None:
    known = {script(name, flags=False).text for name in ("lock_acquire", "lock_release")}
    assert text not in known


def _ignore(payload: bytes) -> None:
    """Nothing is posted."""
