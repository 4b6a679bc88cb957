"""Idempotent commands that the watchdog sends in the background until they have run."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from redis.exceptions import NoScriptError, RedisError

from pyredisson._diagnostics import logger
from pyredisson._protocol.error_codes import is_transient_reply
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.scripts import as_eval
from pyredisson.logic.ports import Runtime

REPAIR_FOR = 600.0
"""Seconds for which a repair is repeated; longer, if a lease is longer."""
BATCH = 1000
"""Commands in one write."""


class Repairs:
    """The commands that one client still has to send: repairs and notices.

    A repair undoes what a command in doubt may have done, or releases what an interrupted call has not released.
    A notice wakes the waiters of other clients after a hold was lost.
    """

    def __init__(self, runtime: Runtime, lease_seconds: float, on_added: Callable[[], None]) -> None:
        """`on_added` is called when there is something to send: `send` must follow, on the thread that renews."""
        self._runtime = runtime
        self._on_added = on_added
        self._lease_seconds = lease_seconds
        self._repair_for = max(REPAIR_FOR, lease_seconds)
        self._repairs: deque[tuple[bytes, float]] = deque()
        """Each with the time from which on it is not repeated any more."""
        self._notices: deque[tuple[bytes, float]] = deque()
        self._closed = False

    def repair(self, payload: bytes) -> None:
        """Sends an idempotent command until it has run, for `REPAIR_FOR` seconds at least."""
        self._repairs.append((payload, self._runtime.clock() + self._repair_for))
        self._on_added()

    def notify(self, payload: bytes) -> None:
        """Sends an idempotent command that wakes waiters. It is given up after a lease: then they retry anyway."""
        self._notices.append((payload, self._runtime.clock() + self._lease_seconds))
        self._on_added()

    @property
    def unsent(self) -> bool:
        """Whether there is something to send."""
        return bool(self._repairs or self._notices)

    def pending(self) -> list[bytes]:
        """The repairs that have not run yet."""
        return [payload for payload, _ in list(self._repairs)]

    def clear(self) -> None:
        """The pending repairs were sent by somebody else: by the client, when it was closed."""
        self._repairs.clear()

    def close(self) -> None:
        """The client sends the pending repairs itself."""
        self._closed = True

    async def send(self) -> bool:
        """Sends everything once. Returns whether anything has to be sent again."""
        remaining = await self._send_notices()
        return await self._send_repairs() or remaining

    async def _send_notices(self) -> bool:
        pending = list(itertools.islice(self._notices, BATCH))
        if not pending:
            return False
        again = pending
        try:
            replies = await self._send_scripts([payload for payload, _ in pending])
            # A permanent error (no right to the key) would come each time.
            again = [
                notice
                for notice, reply in zip(pending, replies, strict=True)
                if isinstance(reply, RedisError) and is_transient_reply(reply)
            ]
        except (NoReply, RedisError) as error:
            logger.debug("notices of %d lost locks failed and are sent again: %s", len(pending), error)
        finally:
            now = self._runtime.clock()
            for _ in pending:
                self._notices.popleft()
            self._notices.extend(notice for notice in again if now < notice[1])
        return bool(self._notices)

    async def _send_repairs(self) -> bool:
        # They stay in the queue until they have run: a client that is closed meanwhile sends them itself.
        pending = list(itertools.islice(self._repairs, BATCH))
        if not pending:
            return False
        failed: list[tuple[bytes, float]] = pending
        try:
            # The connection in doubt is closed already. The handshake of the new one has the server drop it, so the
            # command in doubt can't run after its repair.
            replies = await self._send_scripts([payload for payload, _ in pending], new_connection=True)
            failed = [repair for repair, reply in zip(pending, replies, strict=True) if isinstance(reply, RedisError)]
            if failed:
                logger.info("%d releases were refused and are tried again", len(failed))
        except (NoReply, RedisError) as error:
            logger.info("%d releases failed and are tried again: %s", len(pending), error)
        finally:
            if not self._closed:
                now = self._runtime.clock()
                for _ in pending:
                    self._repairs.popleft()
                self._repairs.extend(repair for repair in failed if now < repair[1])
                if given_up := sum(now >= until for _, until in failed):
                    logger.warning("gave up repeating %d releases after %g s", given_up, self._repair_for)
        return bool(self._repairs)

    async def _send_scripts(self, payloads: list[bytes], *, new_connection: bool = False) -> list[Reply]:
        """The replies, with error replies in the list. Unknown scripts are loaded."""
        replies = await self._runtime.send_all(payloads, new_connection=new_connection)
        # All in one write: as many round trips one after the other would delay the next renewal.
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            with_shebang = self._runtime.scripts.with_shebang
            again = await self._runtime.send_all([as_eval(payloads[i], with_shebang=with_shebang) for i in unknown])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        return replies
