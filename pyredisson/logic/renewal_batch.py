"""Holds whose leases one script call extends."""

from __future__ import annotations

from redis.exceptions import NoScriptError, RedisError

from pyredisson._protocol.error_codes import code_of
from pyredisson._protocol.scripts import as_eval
from pyredisson.logic.holds import Hold, Renewal
from pyredisson.logic.ports import Runtime

BATCH = 100
"""Locks in one script call, as Redisson's `lockWatchdogBatchSize`: a longer call would delay other clients."""


class Batch:
    """Holds that one script call renews: of one kind, and in one slot."""

    __slots__ = ("holds", "lease", "reason", "renew", "slot", "with_text")

    def __init__(self, renew: Renewal, slot: int, lease: int, reason: str, holds: list[Hold]) -> None:
        self.renew = renew
        self.slot = slot
        self.lease = lease
        """In ms."""
        self.reason = reason
        """Why a hold is lost that the server doesn't know."""
        self.holds = holds
        self.with_text = False
        """Whether the text of the script is sent."""

    def command(self, runtime: Runtime) -> bytes:
        """The script call."""
        payload = self.renew(runtime.scripts, self.holds, self.lease)
        return as_eval(payload, with_shebang=runtime.scripts.with_shebang) if self.with_text else payload

    def changed_for(self, error: RedisError) -> list[Batch]:
        """What to send at once in its place after that error reply. Empty: it can only be tried again later."""
        if isinstance(error, NoScriptError) and not self.with_text:
            self.with_text = True
            return [self]
        if code_of(error) == "TRYAGAIN" and len(self.holds) > 1:
            # The slot is being moved, and one server has some of the keys and another one the others. Each key alone is
            # served by one of them, and a slot may stay like this for longer than a lease.
            single = [Batch(self.renew, self.slot, self.lease, self.reason, [hold]) for hold in self.holds]
            for batch in single:
                batch.with_text = self.with_text
            return single
        return []
