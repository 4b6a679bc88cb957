"""One acquire of permits with ids, from its first attempt until the permits are acquired or it is given up."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom
from typing import Protocol

from pyredisson._diagnostics import readable
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.replication import NotConfirmed
from pyredisson.logic import retry
from pyredisson.logic.permits import not_set
from pyredisson.logic.permits.claims import Claimant
from pyredisson.logic.permits.permit_channel import PASSED_ON
from pyredisson.logic.permits.permit_commands import ID_BYTES, PermitCommands
from pyredisson.logic.permits.refusal import LONGEST_WAIT
from pyredisson.logic.replicas import not_replicated
from pyredisson.logic.session import Session

SOME_ENDED = -2
"""In the reply of an acquire: an earlier copy has acquired the permits, and some of them have ended since."""
NO_SEMAPHORE = -3
"""In the reply of an acquire: there is no semaphore."""


class ExpirableSemaphore(Protocol):
    """What an acquire needs of its semaphore."""

    session: Session
    key: bytes
    commands: PermitCommands
    must_exist: bool

    def release_in_background(self, ids: Sequence[bytes]) -> None:
        """Releases the permits, as far as they exist, in the background."""


class ExpirableAcquire:
    """One acquire. All its attempts use the same ids, so it acquires its permits once, however often it is sent."""

    __slots__ = (
        "_deadline",
        "_free",
        "_in_doubt",
        "_lease",
        "_may_have_acquired",
        "_semaphore",
        "claimant",
        "ids",
        "sent_at",
    )

    def __init__(self, semaphore: ExpirableSemaphore, permits: int, lease: int, deadline: float | None) -> None:
        self.ids = _new_ids(permits)
        self.sent_at = 0.0
        """When the command was sent that acquired the permits: their leases don't begin before that."""
        self.claimant: Claimant | None = None
        """None until the caller waits."""
        self._semaphore = semaphore
        self._lease = lease
        self._deadline = deadline
        self._free = 0
        """The number of free permits that the latest refusal reported."""
        self._in_doubt = False
        """Whether a copy with the present ids may have run, or may run late."""
        self._may_have_acquired = False
        """Whether permits with the present ids may exist on the server, now or later."""

    async def attempt(self) -> float | None:
        """One attempt. None: acquired; else how many seconds to wait at most."""
        clock = self._semaphore.session.clock
        while True:
            reply, sent_at = await self._send()
            if reply is None:
                if self._lease < 0 or clock() < sent_at + self._lease / 1000:
                    if self._in_doubt:
                        self._note_doubt()
                    self.sent_at = sent_at
                    return None
                # The reply came after the end of the lease, so another caller may have the permits by now.
                self._release_and_renew_ids()
                if self._deadline is not None and clock() >= self._deadline:
                    return 0.0
                continue
            milliseconds, self._free = reply
            self._may_have_acquired = self._in_doubt
            if milliseconds == SOME_ENDED:
                # The reply of the copy that acquired them was lost. The remaining ones are released.
                self._release_and_renew_ids()
                continue
            return self._refused(milliseconds)

    async def attempt_after_wakeup(self) -> float | None:
        """As `attempt`. If the wakeup didn't serve this waiter, others that need fewer permits are woken."""
        wait = await self.attempt()
        if wait is not None and self._free > 0:
            semaphore = self._semaphore
            semaphore.session.channels.deliver(semaphore.commands.channel, PASSED_ON + b"%d" % self._free)
        return wait

    def give_up(self) -> None:
        """Releases in the background what may have been acquired, or may be acquired late; withdraws the claim."""
        if self.claimant is not None:
            self.claimant.withdraw()
        if self._may_have_acquired:
            self._note_doubt()
            self._semaphore.release_in_background(self.ids)

    async def _send(self) -> tuple[Reply, float]:
        """Sends the command. Returns the reply, and when the command was sent."""
        semaphore, claimant = self._semaphore, self.claimant
        session = semaphore.session
        if session.closed:
            session.check_open()
        name = claimant.name_if_claiming() if claimant is not None else b""
        payload = semaphore.commands.acquire(self.ids, self._lease, name)
        # Before the command is sent: after an interrupt `give_up` has to release the permits.
        self._may_have_acquired = True
        try:
            return await retry.send(
                session.expirable_permit_sender,
                payload,
                retries=session.retries,
                deadline=self._deadline,
                on_doubt=self._on_doubt,
            )
        except NotConfirmed as problem:
            raise not_replicated(f"a permit of semaphore {readable(semaphore.key)!r}", problem) from None
        except Exception as error:
            self._may_have_acquired = retry.may_have_run(error, self._in_doubt)
            raise

    def _refused(self, milliseconds: int) -> float:
        """How many seconds to wait at most after a refusal. Raises `NotSetError` if the semaphore must exist."""
        semaphore, claimant = self._semaphore, self.claimant
        if milliseconds == NO_SEMAPHORE:
            not_set.report_semaphore(semaphore.session, semaphore.key, must_exist=semaphore.must_exist)
        wait = LONGEST_WAIT if milliseconds < 0 else min((milliseconds + 1) / 1000, LONGEST_WAIT)
        return wait if claimant is None else claimant.limit(wait)

    def _release_and_renew_ids(self) -> None:
        """Releases the permits with the present ids in the background, and goes on with new ids."""
        self._note_doubt()
        self._semaphore.release_in_background(self.ids)
        self.ids = _new_ids(len(self.ids))
        self._in_doubt = self._may_have_acquired = False

    def _on_doubt(self) -> None:
        self._in_doubt = True

    def _note_doubt(self) -> None:
        """From now on a release of these permits leaves a key on the server, which keeps late copies from running."""
        session = self._semaphore.session
        session.permits.note_doubt(self.ids[0], session.clock())


def _new_ids(permits: int) -> list[bytes]:
    random = urandom(ID_BYTES * permits)
    return [random[i : i + ID_BYTES] for i in range(0, len(random), ID_BYTES)]
