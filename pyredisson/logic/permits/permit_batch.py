"""Several hand-overs of permits in one command: all that come while another one is on its way, in one event loop.

The command is sent by an operation in the background, so a release that is cancelled changes nothing for the others.
Until that operation has begun, a release that is cancelled takes its part out of the batch.
"""

from __future__ import annotations

import math

from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.owner_calls import TURN_CHECK
from pyredisson.logic.permits.permit_queue import PermitQueue, PermitWaiter
from pyredisson.logic.permits.permit_sending import ReleasedSemaphore, not_confirmed, refuse, send
from pyredisson.logic.ports import Wakeup


class Part:
    """One release, and the waiter to which it hands permits on."""

    __slots__ = ("permits", "waiter", "wakeup")

    def __init__(self, permits: int, waiter: PermitWaiter, wakeup: Wakeup) -> None:
        self.permits = permits
        self.waiter = waiter
        self.wakeup = wakeup
        """Wakes the release."""


class HandOverBatch:
    """Hand-overs that become one command."""

    __slots__ = ("_begun", "_parts", "_queue", "_semaphore", "done", "error")

    def __init__(self, semaphore: ReleasedSemaphore, queue: PermitQueue) -> None:
        self._semaphore = semaphore
        self._queue = queue
        self._parts: list[Part] = []
        self._begun = False
        self.done = False
        self.error: Exception | None = None
        """What the releases have to raise. The permits are released in the background."""

    async def release(self, permits: int, waiter: PermitWaiter) -> None:
        """Adds a release, and waits for its end. The waiter was chosen by that release."""
        semaphore = self._semaphore
        runtime = semaphore.session.runtime
        part = Part(permits, waiter, runtime.wakeup())
        self._parts.append(part)
        try:
            semaphore.session.channels.set_aside(semaphore.commands.channel, waiter.wakeup)
            if len(self._parts) == 1:
                runtime.spawn(self._run_soon)
            while not self.done:
                part.wakeup.clear()
                first = self._parts[0] is part
                await runtime.wait(part.wakeup, TURN_CHECK if first else math.inf)
                if first and not part.wakeup.is_set():
                    # The operation in the background may have been cancelled before it has begun.
                    await self._run()
        except BaseException:
            if not self._begun:
                self._take_out(part)
            raise
        if self.error is not None:
            raise copy_error(self.error)

    def _take_out(self, part: Part) -> None:
        """A release was cancelled before the command was sent: it is done on its own."""
        self._parts.remove(part)
        if self._parts:
            self._parts[0].wakeup.set()
        elif self._queue.batch is self:
            self._queue.batch = None
        self._semaphore.release_in_background(part.permits)
        refuse(self._semaphore, part.waiter)

    async def _run_soon(self) -> None:
        # Other tasks that are about to run may release, too. With an eager task factory this one runs at once.
        await self._semaphore.session.runtime.sleep(0)
        await self._run()

    async def _run(self) -> None:
        """Sends the command, once."""
        if self._begun:
            return
        self._begun = True
        queue, semaphore = self._queue, self._semaphore
        if queue.batch is self:
            queue.batch = None
        queue.in_flight += 1
        try:
            if self._parts:
                await self._send(semaphore.session.slots.allocate())
        finally:
            queue.in_flight -= 1
            self.done = True
            for part in self._parts:
                part.wakeup.set()

    async def _send(self, slot: SessionSlot) -> None:
        semaphore, parts = self._semaphore, self._parts
        permits = sum(part.permits for part in parts)
        wanted = sum(part.waiter.permits for part in parts)
        try:
            reply = await send(semaphore, slot, permits, wanted)
        except BaseException as error:
            # The slot isn't used again: this command must find the number of the hand-over.
            semaphore.session.runtime.post(semaphore.commands.finish_hand_over(slot, permits))
            for part in parts:
                if isinstance(error, NotConfirmed):
                    part.waiter.error = not_confirmed(semaphore, error)
                refuse(semaphore, part.waiter)
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, NotConfirmed):
                self.error = error
            return
        unused = 0
        for part in parts:
            if reply <= 0:
                refuse(semaphore, part.waiter)
            elif part.waiter.give():
                part.waiter.wakeup.set()
            else:
                unused += part.waiter.permits
        semaphore.session.slots.free(slot)
        if unused:
            semaphore.release_in_background(unused)
