"""Idempotent commands that the watchdog sends in the background until they have run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from redis.exceptions import RedisError

from pyredisson._diagnostics import logger
from pyredisson._protocol.moving_slots import send_other_forms
from pyredisson._protocol.replies import NoReply, Redirected, is_transient
from pyredisson.logic.ports import Runtime

REPAIR_FOR = 600.0
"""Seconds for which a repair is repeated; longer, if a lease is longer."""
BATCH = 1000
"""Commands in one write."""


class Unsent(NamedTuple):
    payload: bytes
    until: float
    """When it is given up."""
    is_repair: bool
    """A repair undoes what a command in doubt may have done, or releases what an interrupted call has not released.
    Otherwise a notice, which wakes the waiters of other clients after a hold was lost."""


class RepairQueue:
    """The repairs and notices that one shard serves, or did when they were added. Its renewer sends them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._repairs: deque[Unsent] = deque()
        self._notices: deque[Unsent] = deque()
        self._closed = False
        self.answered = False
        """Whether the server has replied to what was sent last. It may have refused that."""

    def add(self, unsent: Unsent) -> None:
        """Adds a command. `send` must follow, on the thread of the renewer."""
        (self._repairs if unsent.is_repair else self._notices).append(unsent)

    @property
    def unsent(self) -> bool:
        return bool(self._repairs or self._notices)

    def pending(self) -> list[bytes]:
        """The repairs that have not run yet."""
        # A copy is one step. An iterator fails if another thread adds something meanwhile.
        return [unsent.payload for unsent in self._repairs.copy()]

    def clear(self) -> None:
        """They were sent by somebody else."""
        self._repairs.clear()

    def close(self) -> None:
        """The client sends the pending repairs itself."""
        self._closed = True

    def hand_over(self, is_served_here: Callable[[bytes], bool], add: Callable[[Unsent], None]) -> None:
        """Moves what another shard serves by now to the queue of that shard."""
        if self._closed:
            return
        for queue in (self._repairs, self._notices):
            for _ in range(min(len(queue), BATCH)):
                unsent = queue[0]
                if is_served_here(unsent.payload):
                    queue.rotate(-1)
                else:
                    # In this order: a client that is closed meanwhile sends the pending repairs, and must find each.
                    add(unsent)
                    queue.popleft()

    async def send(self) -> bool:
        """Sends the next ones once. Returns whether any of them has to be sent again."""
        failed = await self._send(self._notices, "notices of lost locks", logging.DEBUG)
        return await self._send(self._repairs, "releases in the background", logging.INFO) or failed

    async def _send(self, queue: deque[Unsent], what: str, level: int) -> bool:
        # They stay in the queue until they have run: a client that is closed meanwhile sends the repairs itself.
        pending = list(queue.copy())[:BATCH]
        if not pending:
            return False
        again, are_repairs = pending, queue is self._repairs
        payloads = [unsent.payload for unsent in pending]
        self.answered = False
        try:
            # The connection in doubt is closed already. The handshake of the new one has the server drop it, so the
            # command in doubt can't run after its repair.
            replies = await self._runtime.send_all(payloads, new_connection=are_repairs)
            await send_other_forms(payloads, replies, self._runtime.scripts, self._runtime.send_all)
            self.answered = True
            failed = [each for each in zip(pending, replies, strict=True) if isinstance(each[1], RedisError)]
            refused = [error for _, error in failed if not isinstance(error, Redirected)]
            if refused and are_repairs:
                logger.log(level, "%d %s were refused and are tried again: %s", len(refused), what, refused[0])
            # A permanent error (no right to the key) would come each time. Only a repair is tried all the same.
            again = [
                each for each, error in failed if are_repairs or isinstance(error, Redirected) or is_transient(error)
            ]
        except (NoReply, RedisError) as error:
            logger.log(level, "%d %s failed and are tried again: %s", len(pending), what, error)
        finally:
            if not (are_repairs and self._closed):
                now = self._runtime.clock()
                queue.extend(unsent for unsent in again if now < unsent.until)
                for _ in pending:
                    queue.popleft()
                if are_repairs and (given_up := sum(now >= repair.until for repair in again)):
                    text = "gave up %d releases that failed for too long: what they release ends with its lease"
                    logger.warning(text, given_up)
        return bool(again)
